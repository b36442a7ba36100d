"""Keys and values of the past: the states of score-based mixers.

A row reads the keys and values that stand before it. Beams of one sentence have the same source and, mostly, the same
past, so several rows in a row may *share*: a memory is kept once for all of them, and the tokens they have said form
a tree in which every token is kept once and seen by the rows it is an ancestor of. A step of beam search then
reorders a few bits, not all keys and values.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from allyouneed.mixers.state import Growable

# Rows that share a past look at the tokens of all of them, so a family must be small; and rows that are not selected
# after each step (samples of one prompt) part for good.
LARGEST_FAMILY = 8


@dataclass(frozen=True)
class SoftmaxState:
    """Keys and values of the past, and which of them a row sees (None: all).

    Several rows in a row may share one past: the beams of one sentence are a tree, whose every token is kept once and
    seen by the rows it is an ancestor of. So a step of beam search reorders a few bits, not all keys and values.
    """

    k: Growable
    v: Growable
    valid_BS: Tensor | None
    sharing: int = 1  # rows of the batch for each past
    selected: bool = False  # whether the last thing that happened was a selection of rows

    def select(self, rows_B: Tensor) -> "SoftmaxState":
        """The pasts of some rows; rows that keep sharing cost next to nothing."""
        group, sharing = regroup(rows_B, self.k.rows, self.sharing)
        if sharing > LARGEST_FAMILY or (self.sharing > 1 and sharing == 1):
            state = self.apart()
            valid_BS = None if state.valid_BS is None else state.valid_BS.index_select(0, rows_B)
            return SoftmaxState(state.k.select(rows_B), state.v.select(rows_B), valid_BS)
        valid_BS = self.valid_BS
        if valid_BS is not None:
            valid_BS = valid_BS.index_select(0, rows_B)
        elif sharing > 1:
            valid_BS = torch.ones(len(rows_B), self.k.length, dtype=torch.bool, device=rows_B.device)
        if group is None:
            return SoftmaxState(self.k, self.v, valid_BS, sharing, True)
        return SoftmaxState(self.k.select(group), self.v.select(group), valid_BS, sharing, True)

    def apart(self) -> "SoftmaxState":
        """The same with a past of its own for each row, which holds only what the row sees."""
        if self.sharing == 1:
            return self
        assert self.valid_BS is not None
        seen_B = self.valid_BS.sum(dim=1)
        longest = int(seen_B.max())
        slot_BS = self.valid_BS.to(torch.uint8).argsort(dim=1, descending=True, stable=True)[:, :longest]
        group_B = torch.arange(len(seen_B), device=seen_B.device) // self.sharing
        k, v = (Growable(_gather(part.tensor, group_B, slot_BS)) for part in (self.k, self.v))
        valid_BS = torch.arange(longest, device=seen_B.device) < seen_B[:, None]
        return SoftmaxState(k, v, None if bool(valid_BS.all()) else valid_BS)


def _gather(x_NHSK: Tensor, group_B: Tensor, slot_BT: Tensor) -> Tensor:
    return x_NHSK[group_B[:, None], :, slot_BT].transpose(1, 2)


@dataclass(frozen=True)
class CrossState:
    """Keys and values of a memory. Several rows in a row may share one memory: the beams of one sentence."""

    k_NHSK: Tensor
    v_NHSR: Tensor
    valid_NS: Tensor | None
    sharing: int = 1  # rows of the batch for each memory

    def select(self, rows_B: Tensor) -> "CrossState":
        """The memories of some rows; rows that keep sharing cost nothing."""
        group, sharing = regroup(rows_B, self.k_NHSK.shape[0], self.sharing)
        if group is None:
            return CrossState(self.k_NHSK, self.v_NHSR, self.valid_NS, sharing)
        valid = None if self.valid_NS is None else self.valid_NS.index_select(0, group)
        return CrossState(self.k_NHSK.index_select(0, group), self.v_NHSR.index_select(0, group), valid, sharing)


def regroup(rows_B: Tensor, groups: int, sharing: int) -> tuple[Tensor | None, int]:
    """Which groups some rows need (None: all there are, in order), and how many rows share each of them then."""
    rows = len(rows_B)
    if groups == 1:
        return None, rows
    group_B = rows_B // sharing if sharing > 1 else rows_B
    if rows % groups == 0 and torch.equal(group_B, _repeat(groups, rows // groups, rows_B)):
        return None, rows // groups
    if sharing > 1 and rows % sharing == 0:
        family = group_B.view(-1, sharing)
        if bool((family == family[:, :1]).all()):  # whole groups stay or leave
            return family[:, 0], sharing
    return group_B, 1


def _repeat(groups: int, times: int, like: Tensor) -> Tensor:
    return torch.arange(groups, device=like.device).repeat_interleave(times)


def extend_valid(old_BS: Tensor | None, new_BT: Tensor | None, B: int, past: int, T: int) -> Tensor | None:
    """Which slots are real when new positions (None: all real) follow old ones."""
    if old_BS is None and new_BT is None:
        return None
    like = old_BS if old_BS is not None else new_BT
    assert like is not None
    if old_BS is None:
        old_BS = like.new_ones(B, past)
    if new_BT is None:
        new_BT = like.new_ones(B, T)
    return torch.cat([old_BS, new_BT], dim=1)


def count_positions(valid_BS: Tensor | None, length: int, device: torch.device) -> Tensor:
    """The position of each slot: how many real ones stand before it. (S), or (B, S) where rows differ."""
    if valid_BS is None:
        return torch.arange(length, device=device)
    return (valid_BS.cumsum(dim=1) - 1).clamp(min=0)
