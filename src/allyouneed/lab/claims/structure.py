"""Claims of table 1 of the 2017 paper: path lengths between positions, and the cost of a layer."""

import math
import time
from collections.abc import Callable, Sequence
from typing import ClassVar, final

import torch
from torch import Tensor

from allyouneed.lab.charts import AnyChart, Chart, Curve
from allyouneed.lab.claims.base import Claim, ClaimPart, Effort, Measurements, Numbers, band, by_definition, greater
from allyouneed.lab.cost.path_length import CHANGED, Layers, path_length
from allyouneed.mixers.convolution import ConvolutionConfig
from allyouneed.mixers.recurrent import LstmConfig, Recurrent, RecurrentState, RnnConfig
from allyouneed.mixers.softmax import SoftmaxConfig
from allyouneed.mixers.window import WindowConfig

LayerFunction = Callable[[Tensor], Tensor]
KERNEL, WINDOW = 3, 8
NEVER = -1.0  # steps if the change never arrives; JSON has no infinity


@final
class Paths(Claim):
    """Influence is measured, not derived: the first vector is changed, and steps are counted until the last one
    differs. A step is a layer; in a recurrence it is one application of the cell to all positions at once, each with
    the previous state of its neighbour. Counts are exact and not averaged: a single deviation from the formula, at one
    length and in one seed, refutes the claim."""

    name = "paths"
    statement = (
        "the longest path is 1 for attention, n for recurrence, n/k for convolution (log_k n dilated), n/w for a window"
    )
    source = "Vaswani et al. 2017, table 1"
    protocol = (
        "Random layers (width 16) over 9, 33, 65 and 129 positions: change the first vector, count steps until the "
        "last differs. Kernels of 3, dilated by 1, 3, 9, ..; a window of 8."
    )
    rule = (
        "confirmed: at every length the count equals the formula: 1; n - 1; (n - 1) / (k - 1), rounded up; log_k of n; "
        "(n - 1) / w, rounded up; refuted: a single count differs"
    )
    changed = (
        "At first counts were averaged over lengths and seeds and compared by a t-test, as if they were noisy, and the "
        "path of the recurrence was the number of positions by definition."
    )
    arms = ("attention", "recurrence", "convolution", "dilated convolution", "window")
    LENGTHS: ClassVar[Sequence[int]] = (9, 33, 65, 129)

    def measure(self, arm: str, seed: int, effort: Effort) -> Numbers:
        steps = {length: _steps(arm, length, seed) for length in self.LENGTHS}
        return {f"steps {length}": NEVER if count is None else float(count) for length, count in steps.items()}

    def judge(self, found: Measurements) -> list[ClaimPart]:
        parts = []
        for arm in self.arms:
            counted = {length: sorted(set(found.values(arm, f"steps {length}"))) for length in self.LENGTHS}
            steps = ", ".join(" or ".join(f"{count:g}" for count in counts) for counts in counted.values())
            evidence = f"{steps} steps over {', '.join(map(str, self.LENGTHS))} positions"
            is_right = all(counts == [formula(arm, length)] for length, counts in counted.items())
            parts.append(ClaimPart(arm, "confirmed" if is_right else "refuted", evidence))
        return parts

    def chart(self, found: Measurements) -> AnyChart:
        curves = [
            Curve(arm, self.LENGTHS, *band(found, [(arm, f"steps {length}") for length in self.LENGTHS]))
            for arm in self.arms
        ]
        return Chart("From the first position to the last", "positions", "steps", curves, log_x=True, log_y=True)


def formula(arm: str, length: int) -> int:
    """Return the path length of table 1, rounded up to whole steps."""
    far = length - 1
    return {
        "attention": 1,
        "recurrence": far,
        "convolution": -(-far // (KERNEL - 1)),
        "dilated convolution": next(layers for layers in range(length) if KERNEL**layers >= length),
        "window": -(-far // WINDOW),
    }[arm]


def _steps(arm: str, length: int, seed: int) -> int | None:
    if arm == "recurrence":
        return recurrent_steps(RnnConfig().build(16), length, seed)
    layers: dict[str, Layers] = {
        "attention": SoftmaxConfig(heads=2),
        "convolution": ConvolutionConfig(kernel=KERNEL),
        "dilated convolution": lambda layer: ConvolutionConfig(kernel=KERNEL, dilation=KERNEL**layer),
        "window": WindowConfig(heads=2, window=WINDOW),
    }
    return path_length(layers[arm], length, 16, seed=seed)


@torch.no_grad()
def recurrent_steps(mixer: Recurrent, length: int, seed: int) -> int | None:
    """Count the steps from the first position to the last, without the step that reads the first vector.

    The rows of a batch are the positions. In each step all of them apply the cell at once to their vector and to the
    state of their left neighbour after the previous step, twice: with the original first vector, and with another one.
    If the two states differ, the difference is rescaled, since a recurrence forgets exponentially.
    """
    generator = torch.Generator().manual_seed(seed)
    mixer = mixer.double()
    x_TD, first_1D = (torch.randn(rows, 16, generator=generator, dtype=torch.float64) for rows in (length, 1))
    other_TD = torch.cat([first_1D, x_TD[1:]])
    state_TK, changed_TK = torch.zeros(2, length, 16, dtype=torch.float64)
    for step in range(2 * length):
        state_TK, changed_TK = (
            mixer.advance(vector_TD, state=RecurrentState(_passed_on(before_TK)))[0]
            for vector_TD, before_TK in ((x_TD, state_TK), (other_TD, changed_TK))
        )
        apart_TK = changed_TK - state_TK
        largest_T1 = apart_TK.abs().amax(dim=1, keepdim=True)
        if largest_T1[-1] > CHANGED:
            return step
        changed_TK = state_TK + torch.where(largest_T1 > CHANGED, apart_TK / largest_T1, 0.0)
    return None


def _passed_on(state_TK: Tensor) -> Tensor:
    """Shift the states by one position; the first position receives zeros."""
    return torch.cat([torch.zeros_like(state_TK[:1]), state_TK[:-1]])


@final
class Crossover(Claim):
    """The table counts n^2 d for attention and n d^2 for recurrence, without the projections of attention (8 n d^2
    FLOPs here). With them it is 8 n d^2 + 4 n^2 d against 4 n d^2 (RNN) or 16 n d^2 (LSTM). This is arithmetic, so it
    is reported but not judged. Only the measured time is judged."""

    name = "crossover"
    statement = (
        "a self-attention layer is faster than a recurrent one if n < d and, because it is parallel, far beyond that"
    )
    source = "Vaswani et al. 2017, section 4 and table 1"
    protocol = (
        "One layer, width 64, over 16 to 512 positions: softmax attention (4 heads), RNN, LSTM. CPU time of a forward "
        "and backward pass over 8 sequences on one core, best of 5; also FLOPs by formula."
    )
    rule = (
        "confirmed: at n = d/2 and at n = 4 d attention takes less time than an RNN and than an LSTM; refuted: one of "
        "these is shown to be wrong. What follows from the formulas is reported, not judged"
    )
    changed = (
        "At first FLOPs were judged although they follow from formulas: the claim was refuted whatever the "
        "measurement, since an RNN never has more FLOPs than attention with its projections."
    )
    arms = ("attention", "rnn", "lstm")
    LENGTHS: ClassVar[Sequence[int]] = (16, 32, 64, 128, 256, 512)

    def measure(self, arm: str, seed: int, effort: Effort) -> Numbers:
        config = {"attention": SoftmaxConfig(heads=4), "rnn": RnnConfig(), "lstm": LstmConfig()}[arm]
        mixer, numbers = config.build(64), {}
        for length in self.LENGTHS:
            numbers[f"flops {length}"] = float(config.cost(length, 64).flops)
            numbers[f"seconds {length}"] = fastest(lambda x_BTD: mixer(x_BTD)[0], torch.randn(8, length, 64))
        return numbers

    def judge(self, found: Measurements) -> list[ClaimPart]:
        def values(arm: str, what: str, length: int) -> list[float]:
            return [value * (1e-6 if what == "flops" else 1e3) for value in found.values(arm, f"{what} {length}")]

        near, far = ({arm: values(arm, "flops", length) for arm in self.arms} for length in (32, 256))
        parts = [
            greater(
                f"at n = {place} an {arm.upper()} takes longer than attention (milliseconds)",
                values(arm, "seconds", length),
                values("attention", "seconds", length),
            )
            for place, length in (("d/2", 32), ("4 d", 256))
            for arm in ("rnn", "lstm")
        ]
        formulas = [
            greater("at n = d/2 an RNN has more FLOPs than attention (millions)", near["rnn"], near["attention"]),
            greater("at n = d/2 an LSTM has more FLOPs than attention", near["lstm"], near["attention"]),
            greater("at n = 4 d attention has more FLOPs than an LSTM", far["attention"], far["lstm"]),
        ]
        return [*parts, *map(by_definition, formulas)]

    def chart(self, found: Measurements) -> AnyChart:
        curves = [
            Curve(arm, self.LENGTHS, *band(found, [(arm, f"seconds {length}") for length in self.LENGTHS]))
            for arm in self.arms
        ]
        return Chart("One layer of width 64", "positions", "CPU seconds", curves, log_x=True, log_y=True)


def fastest(layer: LayerFunction, x_BTD: Tensor, rounds: int = 5) -> float:
    """Return the CPU time of a forward and backward pass, best of `rounds`."""
    x_BTD = x_BTD.requires_grad_()
    best = math.inf
    for _ in range(rounds):
        started = time.process_time()
        layer(x_BTD).sum().backward()
        best = min(best, time.process_time() - started)
    return best
