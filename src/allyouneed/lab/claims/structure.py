"""Claims of table 1 of the 2017 paper: how far apart positions are, and what a layer costs."""

import math
import time
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, final

import torch
from torch import Tensor

from allyouneed.lab.charts import AnyChart, Chart, Curve
from allyouneed.lab.claims.base import Claim, Effort, Found, Numbers, Part, at_most, band, more
from allyouneed.lab.path import Layers, enlarged, path_length
from allyouneed.mixers.convolution import ConvolutionConfig
from allyouneed.mixers.recurrent import LstmConfig, RnnConfig
from allyouneed.mixers.softmax import SoftmaxConfig
from allyouneed.mixers.window import WindowConfig

Layer = Callable[[Tensor], Tensor]
KERNEL, WINDOW = 3, 8


@final
class Paths(Claim):
    """Influence is followed, not computed: the first vector is changed, and steps are counted until the last one
    differs. A step is a layer; in a recurrence it is a position, since each has to wait for the one before."""

    name = "paths"
    says = (
        "the longest path is 1 for attention, n for recurrence, n/k for convolution (log_k n dilated), n/w for a window"
    )
    source = "Vaswani et al. 2017, table 1"
    protocol = (
        "Random layers (width 16) over 9, 33, 65 and 129 positions: change the first vector, count steps until the "
        "last differs. Kernels of 3, dilated by 1, 3, 9, ..; a window of 8."
    )
    rule = (
        "confirmed: at every length the count is the formula: 1; n - 1; (n - 1) / (k - 1), rounded up; log_k of n; "
        "(n - 1) / w, rounded up; refuted: a count is shown to be another one"
    )
    arms = ("attention", "recurrence", "convolution", "dilated convolution", "window")
    LENGTHS: ClassVar[Sequence[int]] = (9, 33, 65, 129)

    def measure(self, arm: str, seed: int, effort: Effort) -> Numbers:
        steps = {length: _steps(arm, length, seed) for length in self.LENGTHS}
        return {f"steps {length}": math.inf if count is None else float(count) for length, count in steps.items()}

    def judge(self, found: Found) -> list[Part]:
        parts = []
        for arm in self.arms:
            pairs = [
                (found.values(arm, f"steps {length}")[seed], formula(arm, length))
                for length in self.LENGTHS
                for seed in range(len(found.numbers[arm]))
            ]
            said = ", ".join(f"{found.values(arm, f'steps {length}')[0]:.0f}" for length in self.LENGTHS)
            off = at_most(arm, [abs(counted - formula) for counted, formula in pairs], 0.5)
            words = f"{said} steps over {', '.join(map(str, self.LENGTHS))} positions"
            parts.append(Part(arm, off.result, words))
        return parts

    def chart(self, found: Found) -> AnyChart:
        curves = [
            Curve(arm, self.LENGTHS, *band(found, arm, [f"steps {length}" for length in self.LENGTHS]))
            for arm in self.arms
        ]
        return Chart("From the first position to the last", "positions", "steps", curves, log_x=True, log_y=True)


def formula(arm: str, length: int) -> int:
    """What table 1 says, rounded up to whole steps."""
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
        return _recurrent_steps(length)
    layers: dict[str, Layers] = {
        "attention": SoftmaxConfig(heads=2),
        "convolution": ConvolutionConfig(kernel=KERNEL),
        "dilated convolution": lambda layer: ConvolutionConfig(kernel=KERNEL, dilation=KERNEL**layer),
        "window": WindowConfig(heads=2, window=WINDOW),
    }
    return path_length(layers[arm], length, 16, seed=seed)


@torch.no_grad()
def _recurrent_steps(length: int) -> int | None:
    """The first vector is read, then one after the other: a step each, as long as what is carried on differs."""
    mixer = RnnConfig().build(16).double()
    states: list[Any] = [None, None]
    x_BTD = torch.randn(1, length, 16, dtype=torch.float64)
    for step, x_BD in enumerate(x_BTD.unbind(1)):
        first_BD = x_BD + 1 if step == 0 else x_BD
        (one_BD, state), (other_BD, changed) = (
            mixer.advance(vector_BD, state=before) for vector_BD, before in zip((x_BD, first_BD), states, strict=True)
        )
        if torch.equal(one_BD, other_BD):
            return None
        states = [state, enlarged(state, changed)]
    return length - 1


@final
class Crossover(Claim):
    """The table counts n^2 d for attention and n d^2 for recurrence, and leaves the projections of attention (8 n d^2
    FLOPs here) out. With them it is 8 n d^2 + 4 n^2 d against 4 n d^2 (RNN) or 16 n d^2 (LSTM). The FLOPs are those
    that the mixers state, which tests hold to be those counted."""

    name = "crossover"
    says = "a self-attention layer costs less than a recurrent one when n < d, more when n > d; yet it trains faster"
    source = "Vaswani et al. 2017, section 4 and table 1"
    protocol = (
        "FLOPs of one layer, width 64, over 16 to 512 positions: softmax attention (4 heads), RNN, LSTM. Processor "
        "seconds of a forward and backward pass over 8 sequences, the best of 5."
    )
    rule = (
        "confirmed: at n = d/2 attention has fewer FLOPs than an RNN and than an LSTM, at n = 4 d more than an "
        "LSTM, and at n = 4 d it still takes fewer seconds than an LSTM; refuted: one of these is shown to be wrong"
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

    def judge(self, found: Found) -> list[Part]:
        def values(arm: str, what: str, length: int) -> list[float]:
            return [value * (1e-6 if what == "flops" else 1e3) for value in found.values(arm, f"{what} {length}")]

        near, far = ({arm: values(arm, "flops", length) for arm in self.arms} for length in (32, 256))
        seconds = {arm: values(arm, "seconds", 256) for arm in self.arms}
        return [
            more("at n = d/2 an RNN costs more FLOPs than attention (millions)", near["rnn"], near["attention"]),
            more("at n = d/2 an LSTM does", near["lstm"], near["attention"]),
            more("at n = 4 d attention costs more FLOPs than an LSTM", far["attention"], far["lstm"]),
            more("but an LSTM takes longer (milliseconds)", seconds["lstm"], seconds["attention"]),
        ]

    def chart(self, found: Found) -> AnyChart:
        curves = [
            Curve(f"{arm}, {what}", self.LENGTHS, *_scaled(found, arm, what, self.LENGTHS))
            for what in ("flops", "seconds")
            for arm in self.arms
        ]
        note = "Lines of FLOPs are in units of 10 billion, so that both fit one picture."
        return Chart(
            "One layer of width 64", "positions", "seconds; 10 GFLOP", curves, log_x=True, log_y=True, note=note
        )


def _scaled(found: Found, arm: str, what: str, lengths: Sequence[int]) -> tuple[list[float], list[float], list[float]]:
    unit = 1e10 if what == "flops" else 1.0
    mean, low, high = band(found, arm, [f"{what} {length}" for length in lengths])
    return [value / unit for value in mean], [value / unit for value in low], [value / unit for value in high]


def fastest(layer: Layer, x_BTD: Tensor, rounds: int = 5) -> float:
    """Processor seconds of a forward and backward pass, the best of a few."""
    x_BTD = x_BTD.requires_grad_()
    best = math.inf
    for _ in range(rounds):
        begun = time.process_time()
        layer(x_BTD).sum().backward()
        best = min(best, time.process_time() - begun)
    return best
