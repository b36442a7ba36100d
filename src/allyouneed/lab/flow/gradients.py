"""Gradient norms against distance, for a single mixer or a whole model.

    g(d) = | u^T dy_t / dx_(t-d) |,     u a random direction of unit length, t a position near the end

The logarithm of g is averaged over draws or texts. The gradient is that of a random direction of the output, not of the
loss: the loss of a trained model is small, and so would its gradient be everywhere. For a model, x are the token
embeddings.

    rate       of log g(d) = a + d log(rate), by least squares: the factor per position
    vanishing  the fit falls by more than a factor of 10 over all distances; exploding: it grows by more; else constant
    cut off    beyond some distance the gradient is exactly zero: nothing further is read
    reach      the effective receptive field: the distance that contains 95 % of the sum of g (as Luo et al. 2016
               measure for images)

Papers: Hochreiter 1991; Bengio, Simard, Frasconi 1994; Pascanu, Mikolov, Bengio 2013, arXiv:1211.5063; Luo et al. 2016,
arXiv:1701.04128.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from allyouneed.errors import ConfigError
from allyouneed.inspection.vectors import Vectors
from allyouneed.lab.cost.path_length import default_role
from allyouneed.mixers import MixerConfig, Role
from allyouneed.models import Model
from allyouneed.tasks import Batch
from allyouneed.text.specials import PAD

Kind = Literal["vanishing", "exploding", "constant"]
Points = list[tuple[int, float]]  # (distance, norm), nearest first
FACTOR = 10.0  # change of the fit over all distances that counts as vanishing or exploding
HELD = 0.95  # share of the sum of all norms within the reach


@dataclass(frozen=True)
class Flow:
    """Gradient norms over distance of one layer or model."""

    name: str
    points: Points
    rate: float  # factor of the norm per position; NaN with fewer than two distances
    rate_error: float  # standard error of the fit
    kind: Kind
    cut: int | None  # the largest distance with a gradient; None if all measured distances have one
    reach: int  # the effective receptive field

    @property
    def far(self) -> int:
        """Return the largest measured distance."""
        return self.points[-1][0]

    def description(self) -> str:
        """Describe the flow for a table."""
        text: str = self.kind
        if self.kind != "constant":
            steps = math.log(2) / abs(math.log(self.rate))
            text += f", {'halves' if self.kind == 'vanishing' else 'doubles'} every {steps:.1f} positions"
        return text if self.cut is None else f"{text}; zero beyond {self.cut}"


def flow_of(name: str, points: Points) -> Flow:
    """Fit a rate to the points and classify the curve."""
    distance_N, norm_N = (np.asarray(column, dtype=np.float64) for column in zip(*points, strict=True))
    seen_N = np.nonzero(norm_N)[0]
    last = int(seen_N[-1]) if seen_N.size else 0
    # Distance 0 has extra paths (a residual); isolated zeros between other distances are left out.
    used_N = seen_N[distance_N[seen_N] >= 1]
    rate, error = _exponential(distance_N[used_N], norm_N[used_N])
    change = rate ** float(distance_N[last]) if math.isfinite(rate) else 1.0
    kind: Kind = "vanishing" if change < 1 / FACTOR else "exploding" if change > FACTOR else "constant"
    sum_N = norm_N.cumsum()
    reach = int(distance_N[np.searchsorted(sum_N, HELD * sum_N[-1])]) if sum_N[-1] else 0
    cut = int(distance_N[last]) if last < len(norm_N) - 1 else None
    return Flow(name, points, rate, error, kind, cut, reach)


def _exponential(distance_N: np.ndarray, norm_N: np.ndarray) -> tuple[float, float]:
    if distance_N.size < 2:
        return math.nan, math.nan
    log_N = np.log(norm_N)
    slope, start = np.polyfit(distance_N, log_N, 1)
    rest_N = log_N - (start + slope * distance_N)
    spread = float(((distance_N - distance_N.mean()) ** 2).sum())
    error = math.sqrt(float((rest_N**2).sum()) / max(1, distance_N.size - 2) / spread)
    rate = math.exp(float(slope))
    return rate, rate * error


def gradient_by_distance(
    config: MixerConfig, length: int, width: int, *, role: Role | None = None, draws: int = 8, seed: int = 0
) -> Points:
    """Return the gradient norms of one layer with random weights, from its last position to each of `length`.

    Computed in float64, which still represents gradients of 1e-300.
    """
    gathered = _Means()
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        torch.manual_seed(seed)
        for _ in range(draws):
            mixer = config.build(width, role=role or default_role(config)).double().eval()
            x_BTD = torch.randn(1, length, width, dtype=torch.float64, requires_grad=True)
            y_BTD, _ = mixer(x_BTD)
            (gradient_BTD,) = torch.autograd.grad(_in_some_direction(y_BTD[0, -1]), x_BTD)
            gathered.add(gradient_BTD[0].norm(dim=-1), length - 1)
    return gathered.points()


def model_gradient_by_distance(
    model: Model, batches: Iterable[Batch], *, texts: int = 16, probes: int = 4, seed: int = 0
) -> Points:
    """Return the gradient norms of a model on real texts, from target positions (the last of each of `probes` parts)
    to all tokens before, of the target and of the source. Distances follow the order in which the model reads."""
    if model.kind == "encoder":
        raise ConfigError("flow needs a model that generates tokens; this one is an encoder")
    gathered, left = _Means(), texts
    training = model.training
    model.eval()
    try:
        with torch.random.fork_rng(devices=[]), torch.enable_grad():
            torch.manual_seed(seed)
            for batch in batches:
                rows = min(left, batch.examples)
                for row in range(rows):
                    _follow(model, batch, row, probes, gathered)
                left -= rows
                if left == 0:
                    break
    finally:
        model.train(training)
    return gathered.points()


def _follow(model: Model, batch: Batch, row: int, probes: int, gathered: "_Means") -> None:
    """Add the gradient norms of one text, without padding."""
    if batch.input_BT is None or batch.output_BT is None:
        raise ConfigError("flow needs a task with target tokens, such as translation or language modelling")
    real = int((batch.output_BT[row] != PAD).sum())
    input_BT, state = batch.input_BT[row : row + 1, :real], None
    with Vectors() as vectors:
        if batch.source_BS is not None:
            source_BS = batch.source_BS[row : row + 1]
            if batch.source_mask_BS is not None:
                source_BS = source_BS[:, batch.source_mask_BS[row]]
            state = model.condition(source_BS)
        hidden_BTD, _ = model.hidden(input_BT, model.start() if state is None else state)
    read = [x_BTD for x_BTD in vectors.found if x_BTD.dim() == 3]
    if not read:
        raise ConfigError("flow needs a model with token embeddings, to differentiate with respect to them")
    before = sum(x_BTD.shape[1] for x_BTD in read) - real
    for probe in range(probes):
        t = real - 1 - probe * real // probes
        output = _in_some_direction(hidden_BTD[0, t])
        gradients = torch.autograd.grad(output, read, retain_graph=True, allow_unused=True, materialize_grads=True)
        gathered.add(torch.cat([one[0].norm(dim=-1) for one in gradients]), before + t)


def _in_some_direction(y_D: Tensor) -> Tensor:
    return y_D @ F.normalize(torch.randn_like(y_D), dim=0)


class _Means:
    """Means of logarithms for each distance; zero for a distance without any gradient."""

    def __init__(self) -> None:
        self._logs: dict[int, list[float]] = {}

    def add(self, norm_T: Tensor, at: int) -> None:
        """Add the norms of all positions up to position `at`, by their distance from it."""
        for position, norm in enumerate(norm_T[: at + 1].tolist()):
            self._logs.setdefault(at - position, []).append(math.log(norm) if norm > 0 else -math.inf)

    def points(self) -> Points:
        """Return the means of all distances, nearest first."""
        return [(distance, _mean(self._logs[distance])) for distance in sorted(self._logs)]


def _mean(logs: Sequence[float]) -> float:
    some = [log for log in logs if log > -math.inf]
    return math.exp(sum(some) / len(some)) if some else 0.0
