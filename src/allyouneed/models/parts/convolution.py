"""Parts of convolutional models, in addition to `mixers/parts/conv_window.py`: columns, and padding."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from torch import Tensor
from torch.nn import functional as F

from allyouneed.mixers.parts.kv_cache import real_first, regroup
from allyouneed.mixers.parts.state import join_padded

After = TypeVar("After")


@dataclass(frozen=True)
class Columns:
    """A vector from the source for each decoding step, zeros after a row's last. Beams of one source share them."""

    x_NLD: Tensor
    sharing: int = 1  # rows of the batch for each source

    def at(self, seen: int | Tensor, length: int) -> Tensor:
        """Return the columns (B, T, D) of the next `length` steps after `seen` others."""
        L = self.x_NLD.shape[1]
        if isinstance(seen, int):
            there = self.x_NLD[:, seen : seen + length]
            x_NTD = F.pad(there, (0, 0, 0, length - there.shape[1]))
            return x_NTD.repeat_interleave(self.sharing, dim=0) if self.sharing > 1 else x_NTD
        step_BT = seen[:, None] + torch.arange(length, device=seen.device)
        row_B1 = (torch.arange(len(seen), device=seen.device) // self.sharing)[:, None]
        padded = F.pad(self.x_NLD, (0, 0, 0, 1))  # one column of zeros, for all later steps
        return padded[row_B1, step_BT.clamp(max=L)]

    def select(self, rows_B: Tensor) -> "Columns":
        """Return the columns of some rows; rows that still share a source are not copied."""
        group, sharing = regroup(rows_B, self.x_NLD.shape[0], self.sharing)
        return replace(self, sharing=sharing) if group is None else Columns(self.x_NLD.index_select(0, group), sharing)

    @staticmethod
    def join(nodes: "Sequence[Columns]", count_P: Tensor | None) -> "Columns":
        """Return the columns of several states, one source for each row, without columns that are zero in all rows."""
        kept = []
        for node in nodes:
            length = max([1, *((node.x_NLD != 0).flatten(2).any(dim=2).any(dim=0).nonzero()[-1:, 0] + 1).tolist()])
            kept.append(node.x_NLD[:, :length].repeat_interleave(node.sharing, dim=0))
        return Columns(join_padded(kept, 1))


def over_real(
    read: Callable[[Tensor, Tensor], tuple[Tensor, After]], tokens_BT: Tensor, mask_BT: Tensor
) -> tuple[Tensor, After]:
    """Call `read(tokens, number of real tokens)` with the real tokens moved left; move its output back to their places.

    A convolution depends on which tokens are neighbours, so padding between tokens must be removed before it.
    """
    order_BT = real_first(mask_BT)
    x_BTD, after = read(tokens_BT.gather(1, order_BT), mask_BT.sum(dim=1))
    return x_BTD.gather(1, order_BT.argsort(dim=1).unsqueeze(-1).expand_as(x_BTD)), after


def silence(x_BSD: Tensor, mask_BS: Tensor | None) -> Tensor:
    """Set padding to zero, as beyond both ends of a sequence."""
    return x_BSD if mask_BS is None else x_BSD.masked_fill(~mask_BS.unsqueeze(-1), 0.0)
