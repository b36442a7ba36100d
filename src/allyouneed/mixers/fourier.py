"""Fourier transform: every output is a sum over all positions and features, with fixed weights.

    Y = Re(F_n X F_D),      (F_N)_ts = exp(-2 pi i t s / N)

Nothing is trained: the feed-forward layers around it learn to use what it mixes. The transform of the features is a
product with a fixed matrix, that of the positions a fast Fourier transform, which has no matrix product.

Cost: O(n D^2 + n log n D) time, 1 sequential step, path 1.
Paper: Lee-Thorp et al. 2022, arXiv:2105.03824, section 3.2.
Differs: padding is left out, so n is the number of real positions of a row; the paper transforms padding, too. Every
output contains every position, so the mixer cannot be causal.
"""

from typing import Literal, final

import torch
from torch import Tensor

from allyouneed.mixers.base import Cost, Memory, Mixer, MixerConfig, Role, State, Theory, zero_padding
from allyouneed.mixers.parts.lengths import read_by_length
from allyouneed.mixers.parts.projections import at_least_float32, full_precision, refuse_state
from allyouneed.positions import ScorePosition


class FourierConfig(MixerConfig):
    summary = "a Fourier transform over positions and features; nothing is trained; not causal"
    paper = "Lee-Thorp et al. 2022, arXiv:2105.03824"
    roles = frozenset({"bidirectional"})
    theory = Theory("n d² + n log n d", 1, 2, "1", "1")
    family = "global attention"

    type: Literal["fourier"] = "fourier"

    def build(self, width: int, *, role: Role = "bidirectional", position: ScorePosition | None = None) -> "Fourier":
        self.require(role, position)
        return Fourier(width)

    def cost(self, length: int, width: int, *, role: Role = "bidirectional", memory: int | None = None) -> Cost:
        return Cost(4 * length * width * width, 0, sequential=1, path=1)


@final
class Fourier(Mixer):
    waves_DM: Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        # The real and the imaginary parts of F_D, side by side. The product of two indices is reduced first: sines of
        # large angles are inexact.
        turn_DD = torch.outer(torch.arange(width), torch.arange(width)) % width
        angle_DD = turn_DD.double() * (2 * torch.pi / width)
        self.register_buffer("waves_DM", torch.cat([angle_DD.cos(), -angle_DD.sin()], dim=1), persistent=False)

    def forward(
        self,
        x_BTD: Tensor,
        *,
        mask_BT: Tensor | None = None,
        state: State | None = None,
        memory: Memory | None = None,
    ) -> tuple[Tensor, None]:
        refuse_state(state)
        return read_by_length(zero_padding(x_BTD, mask_BT), mask_BT, self._transform), None

    def _transform(self, x_NSD: Tensor) -> Tensor:
        with full_precision(x_NSD):
            wide_NSD = at_least_float32(x_NSD)
            real, imaginary = (wide_NSD @ self.waves_DM.to(wide_NSD.dtype)).chunk(2, dim=-1)
            y_NSD = torch.fft.fft(torch.complex(real.contiguous(), imaginary.contiguous()), dim=1).real
        return y_NSD.to(x_NSD.dtype)
