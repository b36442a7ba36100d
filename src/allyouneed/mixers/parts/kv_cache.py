"""Caches of keys and values: the states of score-based mixers.

Joined rows have their newest position last, and masked padding before their first.

Beams of one sentence have the same source, so several rows in a row may *share* a memory: it is kept, and read, once
for all of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from allyouneed.mixers.parts.state import Growable, join_padded


@dataclass(frozen=True)
class SoftmaxState:
    """Keys and values so far, and which of them a row sees (None: all)."""

    kv_cache: Growable  # (B, S, N): the keys of all heads, then their values, so that one copy appends or reorders both
    mask_BS: Tensor | None

    @staticmethod
    def join(nodes: "Sequence[SoftmaxState]", count_P: Tensor | None) -> "SoftmaxState":
        """Rows of different lengths side by side."""
        return SoftmaxState(*join_kv_caches([(node.kv_cache, node.mask_BS) for node in nodes]))


@dataclass(frozen=True)
class CrossState:
    """Keys and values of a memory. Several rows in a row may share one memory: the beams of one sentence."""

    k_NHSK: Tensor
    v_NHSR: Tensor
    mask_NS: Tensor | None
    sharing: int = 1  # rows of the batch for each memory

    def by_columns(self) -> "CrossState":
        """The same with keys in the order in which a few queries read them fastest, for many steps to come."""
        if self.k_NHSK.mT.is_contiguous():
            return self
        return replace(self, k_NHSK=self.k_NHSK.mT.contiguous().mT, v_NHSR=self.v_NHSR.contiguous())

    def by_rows(self) -> "CrossState":
        """The same with keys in the order that the fused kernel can read."""
        return self if self.k_NHSK.stride(-1) == 1 else replace(self, k_NHSK=self.k_NHSK.contiguous())

    def select(self, rows_B: Tensor) -> "CrossState":
        """The memories of some rows; rows that keep sharing cost nothing."""
        group, sharing = regroup(rows_B, self.k_NHSK.shape[0], self.sharing)
        if group is None:
            return replace(self, sharing=sharing)
        valid = None if self.mask_NS is None else self.mask_NS.index_select(0, group)
        k_NHSK = self.k_NHSK.mT.index_select(0, group).mT  # keys by columns stay so
        return CrossState(k_NHSK, self.v_NHSR.index_select(0, group), valid, sharing)

    @staticmethod
    def join(nodes: "Sequence[CrossState]", count_P: Tensor | None) -> "CrossState":
        """Memories of different lengths side by side, each row with its own."""
        parts = [((node.k_NHSK, node.v_NHSR), node.mask_NS, node.sharing) for node in nodes]
        (k_NHSK, v_NHSR), mask_NS = join_memories(parts, dim=2)
        return CrossState(k_NHSK, v_NHSR, mask_NS)


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


def first_visible(real_BS: Tensor) -> int:
    """The first slot that any row sees, or behind the last."""
    seen_S = real_BS.any(dim=0)
    return int(seen_S.to(torch.uint8).argmax()) if seen_S.numel() and bool(seen_S.any()) else len(seen_S)


def visible_length(real_BS: Tensor) -> int:
    """How many slots there are up to the last that any row sees; at least one."""
    return max([1, *(real_BS.any(dim=0).nonzero()[-1:, 0] + 1).tolist()])


def join_kv_caches(parts: Sequence[tuple[Growable, Tensor | None]]) -> tuple[Growable, Tensor | None]:
    """Pasts of different lengths as one, and which slots are real (None: all).

    Slots that no row sees any more are forgotten.
    """
    kept, valid = [], []
    for kv_cache, real in parts:
        if real is None:
            real = torch.ones(kv_cache.tensor.shape[:2], dtype=torch.bool, device=kv_cache.tensor.device)
        first = first_visible(real)
        kept.append(kv_cache.keep_last(kv_cache.length - first))
        valid.append(real[:, first:])
    mask_BS = join_padded(valid, 1, left=True)
    return Growable.join(kept), None if bool(mask_BS.all()) else mask_BS


def join_memories(
    parts: Sequence[tuple[Sequence[Tensor], Tensor | None, int]], dim: int
) -> tuple[list[Tensor], Tensor | None]:
    """Memories of different lengths as one, a row for each row of the batch, and which slots are real (None: all).

    A memory is tensors with its positions along `dim`, which of them are real, and how many rows share each.
    """
    kept, valid = [], []
    for tensors, real, sharing in parts:
        if real is None:
            rows, length = tensors[0].shape[0], tensors[0].shape[dim]
            real = torch.ones(rows, length, dtype=torch.bool, device=tensors[0].device)
        else:
            length = visible_length(real)
        cut = [tensor.narrow(dim, 0, length) for tensor in [*tensors]] + [real[:, :length]]
        *tensors, real = [one.repeat_interleave(sharing, dim=0) for one in cut] if sharing > 1 else cut
        kept.append(tensors)
        valid.append(real)
    mask_BS = join_padded(valid, 1)
    joined = [join_padded(tensors, dim) for tensors in zip(*kept, strict=True)]
    return joined, None if bool(mask_BS.all()) else mask_BS


def _repeat(groups: int, times: int, like: Tensor) -> Tensor:
    return torch.arange(groups, device=like.device).repeat_interleave(times)


def extend_mask(old_BS: Tensor | None, new_BT: Tensor | None, B: int, kv_cache: int, T: int) -> Tensor | None:
    """Which slots are real when new positions (None: all real) follow old ones."""
    if old_BS is None and new_BT is None:
        return None
    like = old_BS if old_BS is not None else new_BT
    assert like is not None
    if old_BS is None:
        old_BS = like.new_ones(B, kv_cache)
    if new_BT is None:
        new_BT = like.new_ones(B, T)
    return torch.cat([old_BS, new_BT], dim=1)


def count_positions(mask_BS: Tensor | None, length: int, device: torch.device) -> Tensor:
    """The position of each slot: the number of real ones before it. (S), or (B, S) where rows differ."""
    if mask_BS is None:
        return torch.arange(length, device=device)
    return (mask_BS.cumsum(dim=1) - 1).clamp(min=0)


def next_positions(seen: int | Tensor, new: Tensor, mask_BT: Tensor | None) -> Tensor:
    """The positions of what is new (B, T, ..) after `seen` others: (T), or (B, T) where rows differ."""
    length = new.shape[1]
    if isinstance(seen, Tensor):
        seen = seen.unsqueeze(1)
    elif mask_BT is None:
        return torch.arange(seen, seen + length, device=new.device)
    return count_positions(mask_BT, length, new.device) + seen


def pack(k_BHTK: Tensor, v_BHTK: Tensor) -> Tensor:
    """Pack keys of all heads, then values, as a cache keeps them: (B, T, N). `Projections.split` unpacks them."""
    return torch.cat([k_BHTK, v_BHTK], dim=1).transpose(1, 2).flatten(2)


SHORT = 512  # positions up to which padded rows are read together, all pairs of them with a mask


def real_first(mask_BS: Tensor) -> Tensor:
    """The places (B, S) of the real positions of each row, in order, then those of the others."""
    return (~mask_BS).to(torch.uint8).argsort(dim=1, stable=True)


def compact(x_BSN: Tensor, mask_BS: Tensor) -> Tensor:
    """The real slots of each row, in order, from the left; zeros behind the last of a shorter row: (B, L, N)."""
    longest = int(mask_BS.sum(dim=1).max())
    order_BL = real_first(mask_BS)[:, :longest]
    return _arranged(x_BSN, mask_BS, order_BL)


def compact_right(x_BSN: Tensor, mask_BS: Tensor) -> Tensor:
    """The same from the right: zeros are before the first of a shorter row."""
    longest = int(mask_BS.sum(dim=1).max())
    order_BL = mask_BS.to(torch.uint8).argsort(dim=1, stable=True)[:, mask_BS.shape[1] - longest :]
    return _arranged(x_BSN, mask_BS, order_BL)


def _arranged(x_BSN: Tensor, mask_BS: Tensor, order_BL: Tensor) -> Tensor:
    x_BLN = x_BSN.gather(1, order_BL.unsqueeze(-1).expand(-1, -1, x_BSN.shape[2]))
    return x_BLN.masked_fill(~mask_BS.gather(1, order_BL).unsqueeze(-1), 0.0)
