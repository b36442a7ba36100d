"""How gradients travel: the norm of the gradient against the distance it came, of a mixer alone or of a whole model.

    g(d) = | u^T dy_t / dx_(t-d) |,     u a random direction of unit length, t a position near the end

averaged (its logarithm, over draws or texts). A random direction of the output, not the loss: a model that has learnt
has little loss left, and its gradient would be small everywhere. Of a model, x are the vectors of its tokens.

    rate       of log g(d) = a + d log(rate), by least squares: what a step of distance costs
    vanishing  the fit falls by more than 10 over all distances; exploding: grows by more; else constant
    cut off    from some distance on it is zero, exactly: nothing farther is ever read
    reach      the effective receptive field: the distance within which 95 % of the sum of g lie (Luo et al. 2016 ask
               the same of images)

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
Points = list[tuple[int, float]]  # distance and norm, nearest first
FACTOR = 10.0  # by which the fit has to fall or grow, over all distances, to be called so
HELD = 0.95  # of the sum of all norms


@dataclass(frozen=True)
class Flow:
    """How gradients travel in one thing."""

    name: str
    points: Points
    rate: float  # by which the norm changes with each step of distance; nan: there are not two distances
    rate_error: float  # the standard error of the fit
    kind: Kind
    cut: int | None  # the largest distance that is read at all; None: all of those tried
    reach: int  # the effective receptive field

    @property
    def far(self) -> int:
        """The largest distance that was tried."""
        return self.points[-1][0]

    def words(self) -> str:
        """For a table."""
        told: str = self.kind
        if self.kind != "constant":
            steps = math.log(2) / abs(math.log(self.rate))
            told += f", {'halves' if self.kind == 'vanishing' else 'doubles'} every {steps:.1f} positions"
        return told if self.cut is None else f"{told}; nothing beyond {self.cut}"


def flow_of(name: str, points: Points) -> Flow:
    """What a curve says."""
    distance_N, norm_N = (np.asarray(column, dtype=np.float64) for column in zip(*points, strict=True))
    seen_N = np.nonzero(norm_N)[0]
    last = int(seen_N[-1]) if seen_N.size else 0
    # The position itself has ways of its own (a residual); what is zero by chance between others is left out.
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
    """Of one layer of a mixer with random weights: from its last position back to each of `length`.

    In float64, which still holds what is 10^-300 of a gradient.
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
    """Of a model, on real texts: from positions of its target (the last ones of `probes` parts) back to every token
    before, first of the target, then of the source. Distances are in the order in which the model reads."""
    if model.kind == "encoder":
        raise ConfigError("flow follows the gradient back from what is written last; an encoder writes nothing")
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
    """One text without its padding."""
    if batch.input_BT is None or batch.output_BT is None:
        raise ConfigError("flow needs a task whose model writes: a translation, a text")
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
        raise ConfigError("this model reads no tokens as vectors, so there is nothing to differentiate by")
    before = sum(x_BTD.shape[1] for x_BTD in read) - real
    for probe in range(probes):
        t = real - 1 - probe * real // probes
        output = _in_some_direction(hidden_BTD[0, t])
        gradients = torch.autograd.grad(output, read, retain_graph=True, allow_unused=True, materialize_grads=True)
        gathered.add(torch.cat([one[0].norm(dim=-1) for one in gradients]), before + t)


def _in_some_direction(y_D: Tensor) -> Tensor:
    return y_D @ F.normalize(torch.randn_like(y_D), dim=0)


class _Means:
    """Means of logarithms for each distance; a distance at which nothing ever came through is zero."""

    def __init__(self) -> None:
        self._logs: dict[int, list[float]] = {}

    def add(self, norm_T: Tensor, at: int) -> None:
        """Norms at all positions, seen from position `at`; what comes later does not count."""
        for position, norm in enumerate(norm_T[: at + 1].tolist()):
            self._logs.setdefault(at - position, []).append(math.log(norm) if norm > 0 else -math.inf)

    def points(self) -> Points:
        """All distances, nearest first."""
        return [(distance, _mean(self._logs[distance])) for distance in sorted(self._logs)]


def _mean(logs: Sequence[float]) -> float:
    some = [log for log in logs if log > -math.inf]
    return math.exp(sum(some) / len(some)) if some else 0.0
