"""What the convolutional models share: windows of a sequence, their past, columns to stand on, and padding.

    y_t = b + sum_j W_j x_(t - (k - 1 - j) d),   j = 0 .. k - 1        a masked convolution of width k, dilation d
        = b + [W_0 .. W_(k-1)] [x_(t - (k-1) d); ..; x_(t - d); x_t]   one matrix over the window of t

A convolution is a matrix product over windows, so a layer is `linear(taps.causal(x))`: on a CPU, at the sizes of a
laptop's model, that is about as fast as `conv1d`, and one step of decoding is the same product over one window. The
masked form reads a past of the last (k - 1) d inputs, zeros at first; the centred form, for encoders, reads zeros on
both sides.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from torch import Tensor
from torch.nn import functional as F

from allyouneed.mixers.past import pushed_left, regroup
from allyouneed.mixers.state import Growable

After = TypeVar("After")


@dataclass(frozen=True)
class Taps:
    """Which inputs a convolution reads for one output: `kernel` of them, `dilation` apart."""

    kernel: int
    dilation: int = 1

    @property
    def reach(self) -> int:
        """How far back the masked form looks: what its past must hold."""
        return (self.kernel - 1) * self.dilation

    def centred(self, x_BSD: Tensor) -> Tensor:
        """The windows (B, S, kernel D) around every position; an even kernel reads one more on the left."""
        right = (self.kernel - 1) // 2 * self.dilation
        return self._windows(F.pad(x_BSD, (0, 0, self.reach - right, right)), x_BSD.shape[1])

    def start(self, like_BSD: Tensor, width: int) -> Growable:
        """The past before the first position of as many rows: nothing."""
        return Growable(like_BSD.new_zeros(like_BSD.shape[0], self.reach, width))

    def causal(self, x_BTD: Tensor, past: Growable, real_B: Tensor | None = None) -> tuple[Tensor, Growable]:
        """The windows that end in every new position, and the past after them.

        `real_B`: how many new positions of each row, from the left, are real; what follows them leaves no trace.
        """
        T = x_BTD.shape[1]
        joined = past.append(x_BTD)
        windows_BTN = self._windows(joined.tensor, T)
        if real_B is None:
            return windows_BTN, joined.keep_last(self.reach)
        place_BR = real_B[:, None] + torch.arange(self.reach, device=real_B.device)
        kept_BRD = joined.tensor.gather(1, place_BR.unsqueeze(-1).expand(-1, -1, x_BTD.shape[2]))
        return windows_BTN, Growable(kept_BRD)

    def advance(self, x_BD: Tensor, past: Growable) -> tuple[Tensor, Growable]:
        """`causal` for one new position of each row: windows (B, kernel D)."""
        joined = past.append(x_BD.unsqueeze(1))
        return joined.tensor[:, :: self.dilation].flatten(1), joined.keep_last(self.reach)

    def _windows(self, x_BSD: Tensor, length: int) -> Tensor:
        starts = range(0, self.reach + 1, self.dilation)
        return torch.cat([x_BSD[:, start : start + length] for start in starts], dim=-1)


@dataclass(frozen=True)
class Columns:
    """What the decoder stands on: a vector for each step, zeros behind a row's last. Beams of one source share it."""

    x_NLD: Tensor
    sharing: int = 1  # rows of the batch for each source

    def at(self, seen: int | Tensor, length: int) -> Tensor:
        """The columns (B, T, D) of the next `length` steps after `seen` others."""
        L = self.x_NLD.shape[1]
        if isinstance(seen, int):
            there = self.x_NLD[:, seen : seen + length]
            x_NTD = F.pad(there, (0, 0, 0, length - there.shape[1]))
            return x_NTD.repeat_interleave(self.sharing, dim=0) if self.sharing > 1 else x_NTD
        step_BT = seen[:, None] + torch.arange(length, device=seen.device)
        row_B1 = (torch.arange(len(seen), device=seen.device) // self.sharing)[:, None]
        padded = F.pad(self.x_NLD, (0, 0, 0, 1))  # one column of nothing, for all steps beyond
        return padded[row_B1, step_BT.clamp(max=L)]

    def select(self, rows_B: Tensor) -> "Columns":
        """The columns of some rows; rows that keep sharing cost nothing."""
        group, sharing = regroup(rows_B, self.x_NLD.shape[0], self.sharing)
        return replace(self, sharing=sharing) if group is None else Columns(self.x_NLD.index_select(0, group), sharing)


def over_real(
    read: Callable[[Tensor, Tensor], tuple[Tensor, After]], tokens_BT: Tensor, valid_BT: Tensor
) -> tuple[Tensor, After]:
    """`read(tokens, how many are real)` with the real tokens pushed left; what it says goes back to their places.

    A convolution sees who stands beside whom, so padding between tokens has to go before it.
    """
    order_BT = pushed_left(valid_BT)
    x_BTD, after = read(tokens_BT.gather(1, order_BT), valid_BT.sum(dim=1))
    return x_BTD.gather(1, order_BT.argsort(dim=1).unsqueeze(-1).expand_as(x_BTD)), after


def silence(x_BSD: Tensor, valid_BS: Tensor | None) -> Tensor:
    """Zeros where nothing real stands, as beyond both ends of a sequence."""
    return x_BSD if valid_BS is None else x_BSD.masked_fill(~valid_BS.unsqueeze(-1), 0.0)
