"""Caches of keys and values: the states of score-based mixers.

Joined rows are aligned at their newest position, which is last; masked padding precedes the first.

Beams of one sentence have the same source, so consecutive rows may *share* a memory. It is stored and read once for
all of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from allyouneed.mixers.parts.state import Growable, join_padded


@dataclass(frozen=True)
class SoftmaxState:
    """Keys and values so far, and the mask of those that a row sees (None: all)."""

    kv_cache: Growable  # (B, S, N): keys of all heads, then values: one copy appends or reorders both
    mask_BS: Tensor | None

    @staticmethod
    def join(nodes: "Sequence[SoftmaxState]", count_P: Tensor | None) -> "SoftmaxState":
        """Return one batch of rows of different lengths."""
        return SoftmaxState(*join_kv_caches([(node.kv_cache, node.mask_BS) for node in nodes]))


@dataclass(frozen=True)
class CrossState:
    """Keys and values of a memory. Consecutive rows may share one memory: the beams of a sentence."""

    k_NHSK: Tensor
    v_NHSR: Tensor
    mask_NS: Tensor | None
    sharing: int = 1  # rows of the batch per memory

    def by_columns(self) -> "CrossState":
        """Return the state with keys stored by columns, the fastest layout for many steps of a few queries."""
        if self.k_NHSK.mT.is_contiguous():
            return self
        return replace(self, k_NHSK=self.k_NHSK.mT.contiguous().mT, v_NHSR=self.v_NHSR.contiguous())

    def by_rows(self) -> "CrossState":
        """Return the state with keys stored by rows, as the fused kernel needs them."""
        return self if self.k_NHSK.stride(-1) == 1 else replace(self, k_NHSK=self.k_NHSK.contiguous())

    def select(self, rows_B: Tensor) -> "CrossState":
        """Return the memories of some rows. Nothing is copied while whole groups keep sharing."""
        group, sharing = regroup(rows_B, self.k_NHSK.shape[0], self.sharing)
        if group is None:
            return replace(self, sharing=sharing)
        mask_NS = None if self.mask_NS is None else self.mask_NS.index_select(0, group)
        k_NHSK = self.k_NHSK.mT.index_select(0, group).mT  # keeps keys stored by columns
        return CrossState(k_NHSK, self.v_NHSR.index_select(0, group), mask_NS, sharing)

    @staticmethod
    def join(nodes: "Sequence[CrossState]", count_P: Tensor | None) -> "CrossState":
        """Return one batch of memories of different lengths; each row has its own."""
        parts = [((node.k_NHSK, node.v_NHSR), node.mask_NS, node.sharing) for node in nodes]
        (k_NHSK, v_NHSR), mask_NS = join_memories(parts, dim=2)
        return CrossState(k_NHSK, v_NHSR, mask_NS)


def regroup(rows_B: Tensor, groups: int, sharing: int) -> tuple[Tensor | None, int]:
    """Return the groups that some rows need (None: all groups, in order), and the number of rows that share each."""
    rows = len(rows_B)
    if groups == 1:
        return None, rows
    group_B = rows_B // sharing if sharing > 1 else rows_B
    if rows % groups == 0 and torch.equal(group_B, _repeat(groups, rows // groups, rows_B)):
        return None, rows // groups
    if sharing > 1 and rows % sharing == 0:
        family = group_B.view(-1, sharing)
        if bool((family == family[:, :1]).all()):  # only whole groups were kept or dropped
            return family[:, 0], sharing
    return group_B, 1


def first_visible(real_BS: Tensor) -> int:
    """Return the first slot that any row sees; the number of slots if no row sees any."""
    seen_S = real_BS.any(dim=0)
    return int(seen_S.to(torch.uint8).argmax()) if seen_S.numel() and bool(seen_S.any()) else len(seen_S)


def visible_length(real_BS: Tensor) -> int:
    """Return the number of slots up to the last one that any row sees; at least one."""
    return max([1, *(real_BS.any(dim=0).nonzero()[-1:, 0] + 1).tolist()])


def join_kv_caches(parts: Sequence[tuple[Growable, Tensor | None]]) -> tuple[Growable, Tensor | None]:
    """Return one cache for caches of different lengths, and its mask (None: all slots are real).

    Slots that no row sees any more are dropped.
    """
    kept, masks = [], []
    for kv_cache, real in parts:
        if real is None:
            real = torch.ones(kv_cache.tensor.shape[:2], dtype=torch.bool, device=kv_cache.tensor.device)
        first = first_visible(real)
        kept.append(kv_cache.keep_last(kv_cache.length - first))
        masks.append(real[:, first:])
    mask_BS = join_padded(masks, 1, left=True)
    return Growable.join(kept), None if bool(mask_BS.all()) else mask_BS


def join_memories(
    parts: Sequence[tuple[Sequence[Tensor], Tensor | None, int]], dim: int
) -> tuple[list[Tensor], Tensor | None]:
    """Return one memory for memories of different lengths, with a row per row of the batch, and its mask (None: all).

    Each part is a memory's tensors with positions along `dim`, its mask, and the number of rows that share it.
    """
    kept, masks = [], []
    for tensors, real, sharing in parts:
        if real is None:
            rows, length = tensors[0].shape[0], tensors[0].shape[dim]
            real = torch.ones(rows, length, dtype=torch.bool, device=tensors[0].device)
        else:
            length = visible_length(real)
        cut = [tensor.narrow(dim, 0, length) for tensor in [*tensors]] + [real[:, :length]]
        *tensors, real = [one.repeat_interleave(sharing, dim=0) for one in cut] if sharing > 1 else cut
        kept.append(tensors)
        masks.append(real)
    mask_BS = join_padded(masks, 1)
    joined = [join_padded(tensors, dim) for tensors in zip(*kept, strict=True)]
    return joined, None if bool(mask_BS.all()) else mask_BS


def _repeat(groups: int, times: int, like: Tensor) -> Tensor:
    return torch.arange(groups, device=like.device).repeat_interleave(times)


def extend_mask(old_BS: Tensor | None, new_BT: Tensor | None, B: int, length: int, T: int) -> Tensor | None:
    """Return the mask of old slots followed by new positions (None: all are real)."""
    if old_BS is None and new_BT is None:
        return None
    like = old_BS if old_BS is not None else new_BT
    assert like is not None
    if old_BS is None:
        old_BS = like.new_ones(B, length)
    if new_BT is None:
        new_BT = like.new_ones(B, T)
    return torch.cat([old_BS, new_BT], dim=1)


def count_positions(mask_BS: Tensor | None, length: int, device: torch.device) -> Tensor:
    """Return the position of each slot, the number of real slots before it: (S), or (B, S) if rows differ."""
    if mask_BS is None:
        return torch.arange(length, device=device)
    return (mask_BS.cumsum(dim=1) - 1).clamp(min=0)


def next_positions(seen: int | Tensor, new: Tensor, mask_BT: Tensor | None) -> Tensor:
    """Return the positions of new entries (B, T, ..) after `seen` earlier ones: (T), or (B, T) if rows differ."""
    length = new.shape[1]
    if isinstance(seen, Tensor):
        seen = seen.unsqueeze(1)
    elif mask_BT is None:
        return torch.arange(seen, seen + length, device=new.device)
    return count_positions(mask_BT, length, new.device) + seen


def pack(k_BHTK: Tensor, v_BHTK: Tensor) -> Tensor:
    """Pack keys of all heads, then values, for the cache: (B, T, N). `Projections.split` unpacks them."""
    return torch.cat([k_BHTK, v_BHTK], dim=1).transpose(1, 2).flatten(2)


SHORT = 512  # longest padded rows that are read together: all pairs, with a mask


def real_first(mask_BS: Tensor) -> Tensor:
    """Return indices (B, S) that move the real positions of each row to the front, in order."""
    return (~mask_BS).to(torch.uint8).argsort(dim=1, stable=True)


def compact(x_BSN: Tensor, mask_BS: Tensor) -> Tensor:
    """Move the real slots of each row to the left, in order; zeros follow in shorter rows: (B, L, N)."""
    longest = int(mask_BS.sum(dim=1).max())
    order_BL = real_first(mask_BS)[:, :longest]
    return _arranged(x_BSN, mask_BS, order_BL)


def compact_right(x_BSN: Tensor, mask_BS: Tensor) -> Tensor:
    """Move the real slots of each row to the right, in order; zeros precede in shorter rows: (B, L, N)."""
    longest = int(mask_BS.sum(dim=1).max())
    order_BL = mask_BS.to(torch.uint8).argsort(dim=1, stable=True)[:, mask_BS.shape[1] - longest :]
    return _arranged(x_BSN, mask_BS, order_BL)


def _arranged(x_BSN: Tensor, mask_BS: Tensor, order_BL: Tensor) -> Tensor:
    x_BLN = x_BSN.gather(1, order_BL.unsqueeze(-1).expand(-1, -1, x_BSN.shape[2]))
    return x_BLN.masked_fill(~mask_BS.gather(1, order_BL).unsqueeze(-1), 0.0)
