"""Convolution: each position reads its nearest neighbours, each distance through its own matrix.

    y_t = b + sum_j W_j x_(t - (k - 1 - j) d),   j = 0 .. k - 1     (bidirectional: centred on t)

The positions that are read do not depend on content. A stack of L layers sees L (k - 1) d positions; with
dilations 1, k, k^2, .. it sees k^L of them: use a list of such mixers.

Cost: O(k T D^2) time, O(k d D) state, 1 sequential step, path n / (k d), or log_k n with growing dilations; with one
dilation, positions whose distance it does not divide never interact.
Papers: Waibel et al. 1989 (over time); Kalchbrenner et al. 2016, arXiv:1610.10099 (dilated); table 1 of Vaswani et al.
2017, arXiv:1706.03762 (its cost).
Differs: a convolution alone. The gates, norms and attention of its models are in models/bytenet.py and convs2s.py.
"""

import math
from dataclasses import dataclass
from typing import Annotated, Literal, final

from pydantic import Field, PositiveInt
from torch import Tensor, nn

from allyouneed.mixers.base import Cost, Memory, Mixer, MixerConfig, Role, Theory, zero_padding
from allyouneed.mixers.parts.conv_window import ConvWindow
from allyouneed.mixers.parts.kv_cache import real_first
from allyouneed.mixers.parts.projections import initialise, refuse_state
from allyouneed.mixers.parts.state import Growable
from allyouneed.positions import ScorePosition


class ConvolutionConfig(MixerConfig):
    summary = "each position reads its nearest neighbours, each distance through its own matrix"
    paper = "Waibel et al. 1989; Kalchbrenner et al. 2016, arXiv:1610.10099"
    roles = frozenset({"causal", "bidirectional"})
    theory = Theory("k n d²", 1, 2, "1", "n / k")
    family = "recurrence and convolution"

    type: Literal["convolution"] = "convolution"
    kernel: Annotated[int, Field(ge=2)] = 3  # number of positions read, including itself
    dilation: PositiveInt = 1  # the distance between them

    @property
    def conv_window(self) -> ConvWindow:
        """Return the offsets that are read."""
        return ConvWindow(self.kernel, self.dilation)

    def build(self, width: int, *, role: Role = "causal", position: ScorePosition | None = None) -> "Convolution":
        self.require(role, position)
        return Convolution(self, width, role)

    def cost(self, length: int, width: int, *, role: Role = "causal", memory: int | None = None) -> Cost:
        flops = 2 * length * self.kernel * width * width
        before = self.kernel - 1 if role == "causal" else self.kernel // 2  # an even kernel reads one more on the left
        distance = length - 1
        path = math.ceil(distance / (before * self.dilation)) if distance % self.dilation == 0 else None
        state = 4 * self.conv_window.reach * width if role == "causal" else 0
        return Cost(flops, state, sequential=1, path=path)


@dataclass(frozen=True)
class ConvolutionState:
    """The last inputs, as far back as the kernel reads; zeros before the first."""

    recent: Growable  # (B, S, D)


@final
class Convolution(Mixer):
    def __init__(self, config: ConvolutionConfig, width: int, role: Role) -> None:
        super().__init__()
        self.conv_window, self.role, self.width = config.conv_window, role, width
        self.linear = nn.Linear(config.kernel * width, width)
        initialise(self.linear, width)

    def forward(
        self,
        x_BTD: Tensor,
        *,
        mask_BT: Tensor | None = None,
        state: ConvolutionState | None = None,
        memory: Memory | None = None,
    ) -> tuple[Tensor, ConvolutionState | None]:
        order_BT, real_B = None, None
        if mask_BT is not None:  # neighbours matter, so padding between tokens is moved to the end
            order_BT, real_B = real_first(mask_BT), mask_BT.sum(dim=1)
            x_BTD = zero_padding(x_BTD, mask_BT).gather(1, _expand_index(order_BT, x_BTD))
        if self.role == "causal":
            recent = self.conv_window.start(x_BTD, self.width) if state is None else state.recent
            windows_BTN, recent = self.conv_window.causal(x_BTD, recent, real_B)
            state = ConvolutionState(recent)
        else:
            refuse_state(state)
            windows_BTN = self.conv_window.centred(x_BTD)
        y_BTD: Tensor = self.linear(windows_BTN)
        if order_BT is not None:
            y_BTD = y_BTD.gather(1, _expand_index(order_BT.argsort(dim=1), y_BTD))
        return y_BTD, state

    def advance(
        self, x_BD: Tensor, *, state: ConvolutionState | None = None, memory: Memory | None = None
    ) -> tuple[Tensor, ConvolutionState]:
        recent = self.conv_window.start(x_BD.unsqueeze(1), self.width) if state is None else state.recent
        windows_BN, recent = self.conv_window.advance(x_BD, recent)
        return self.linear(windows_BN), ConvolutionState(recent)


def _expand_index(order_BT: Tensor, like_BTD: Tensor) -> Tensor:
    """Expand an order of positions to an index of whole vectors."""
    return order_BT.unsqueeze(-1).expand_as(like_BTD)
