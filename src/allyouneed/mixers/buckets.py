"""The kernel of attention within buckets: who shares a bucket reads its neighbours there, in any of several rounds.

    read_t = union over rounds r of { s : bucket_r(s) = bucket_r(t),  rank_r(t) - rank_r(s) in [-right, left],  s != t }
    out_t = softmax over read_t of (q_t . k_s / sqrt(K)) V,          and out_t = v_t where nothing is to be read

rank_r counts the members of a bucket in time. Sorted by bucket and time, all that a position reads stands next to it:
all rows, heads and rounds form one long list, in which blocks of queries read a stretch of keys each, on overlapping
views, and a mask leaves what is meant.
Nothing of size n x n exists. A pair that meets in several rounds belongs to the first of them, so that it counts once;
rounds are merged by log-sum-exp.

On a CPU a block is a call of torch's flash kernel, whose backward pass is handed the output and log-sum-exp of *all*
rounds, as in `rectangles.py`. `attend_plainly` says the same in ordinary operations: on other devices, wherever
something is added to the scores, and where somebody counts operations.

Cost: O(n R (left + right) K) time and a sort; O(n (K + R (left + right) / 4)) memory, a byte for each pair covered.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

# What is added to scaled scores: from queries (N, H, T, K), their slots (N, H, T), the keys' (N, H, S), the row (N).
SlotBias = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor | None]

_flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_flash_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward

PADDING = -1  # the bucket of what is no position
HIDDEN = -1e30  # not infinity: a round in which somebody reads nothing has a finite, weightless log-sum-exp
NOWHERE = -(2**30)  # a place far from all others
AT_ONCE = 2**16  # vectors that are sorted at a time


@dataclass(frozen=True)
class Reach:
    """How many members of its bucket a position reads before it and after it."""

    left: int
    right: int

    @property
    def size(self) -> int:
        """Queries of a block: shorter ones waste calls, longer ones compute what is masked."""
        return max(16, min(64, self.left))

    @property
    def length(self) -> int:
        """Keys of a block."""
        return self.left + self.size + self.right

    def rows(self, positions: int) -> int:
        """Positions in whole blocks."""
        return -(-positions // self.size) * self.size

    def area(self, positions: int) -> int:
        """How many pairs are computed for so many positions in one round."""
        return self.rows(positions) * self.length

    def near(self, here: Tensor, there: Tensor) -> Tensor:
        """Whether a query at one place reads a key at another, in one round."""
        back = here - there
        if self.right == 0:
            return (back > 0) & (back <= self.left)
        return (back >= -self.right) & (back <= self.left) & (back != 0)


@dataclass(frozen=True)
class Sorting:
    """Positions in the order of their buckets, in each of R rounds."""

    order_BHRT: Tensor  # the slots in order
    rank_BHRT: Tensor  # where each slot stands in that order
    place_BHRT: Tensor  # where it stands among all, with gaps between buckets that no reach can bridge
    alone_BHT: Tensor  # who has nobody to read in any round

    @staticmethod
    def of(bucket_BHRT: Tensor, reach: Reach) -> "Sorting":
        sorted_BHRT, order_BHRT = bucket_BHRT.contiguous().sort(dim=-1, stable=True)
        slot_T = torch.arange(bucket_BHRT.shape[-1], device=bucket_BHRT.device)
        rank_BHRT = torch.empty_like(order_BHRT).scatter_(-1, order_BHRT, slot_T.expand_as(order_BHRT))
        first_BHRT = F.pad(sorted_BHRT[..., 1:] != sorted_BHRT[..., :-1], (1, 0), value=True)  # of its bucket
        nobody_BHRT = first_BHRT
        if reach.right:
            nobody_BHRT = first_BHRT & F.pad(first_BHRT[..., 1:], (0, 1), value=True)
        gaps = first_BHRT.view(-1).cumsum(dim=0) * max(reach.left, reach.right)
        place_BHRT = (gaps + torch.arange(len(gaps), device=gaps.device)).int().view_as(rank_BHRT)
        return Sorting(
            order_BHRT,
            rank_BHRT,
            place_BHRT.gather(-1, rank_BHRT),
            nobody_BHRT.gather(-1, rank_BHRT).all(dim=2),
        )


def sees(bucket_BHRT: Tensor, reach: Reach) -> Tensor:
    """Who reads whom as one dense mask (B, H, T, T): to look at, not to compute with."""
    sorting = Sorting.of(bucket_BHRT, reach)
    place_BHRT = sorting.place_BHRT
    visible_BHTS = reach.near(place_BHRT.unsqueeze(-1), place_BHRT.unsqueeze(-2)).any(dim=2)
    return visible_BHTS | torch.diag_embed(sorting.alone_BHT)


def attend_in_buckets(
    q_BHTK: Tensor, k_BHTK: Tensor, v_BHTK: Tensor, bucket_BHRT: Tensor, reach: Reach, bias: SlotBias | None = None
) -> Tensor:
    """softmax attention over what the buckets of some rounds let each query see."""
    sorting = Sorting.of(bucket_BHRT, reach)
    packed_BHTN = torch.cat([q_BHTK, k_BHTK, v_BHTK], dim=-1)  # one copy sorts all three
    if bias is None and q_BHTK.device.type == "cpu" and torch.backends.cuda.flash_sdp_enabled():
        out_BHTK: Tensor = _Blocks.apply(packed_BHTN, sorting, reach)
        return out_BHTK
    return attend_plainly(packed_BHTN, sorting, reach, bias)


def attend_plainly(packed_BHTN: Tensor, sorting: Sorting, reach: Reach, bias: SlotBias | None = None) -> Tensor:
    """The same in ordinary operations; N is 3 K: queries, keys and values side by side."""
    B, H, T, N = packed_BHTN.shape
    R = sorting.order_BHRT.shape[2]
    rounds = slice(0, R)
    listed = packed_BHTN.flatten(0, 2)[_source(sorting, reach, rounds)]
    queries, keys, values = listed.split(N // 3, dim=-1)
    q, k, v = _queries(queries, reach), _windows(keys, reach), _windows(values, reach)
    score = q @ k.mT / math.sqrt(N // 3)  # (blocks, size, length), the blocks of all rows, heads and rounds
    if bias is not None:
        slots = _listed(sorting.order_BHRT, reach, 0)
        # For a position scheme, which knows heads, the blocks of all rounds of a row are rows.
        q, here, there = (
            x.unflatten(0, (B, H, -1)).transpose(1, 2).flatten(0, 1)
            for x in (q, _queries(slots, reach), _windows(slots, reach))
        )
        row = torch.arange(B, device=q.device).repeat_interleave(len(q) // B)
        if (added := bias(q, here, there, row)) is not None:
            added = added.expand(len(row), H, -1, -1)
            score = score + added.unflatten(0, (B, -1)).transpose(1, 2).flatten(0, 2)
    score = score.masked_fill(~_visible(sorting, reach, rounds), HIDDEN)
    total = score.logsumexp(dim=-1, keepdim=True)
    y = (score - total).exp() @ v
    back = _back(sorting.rank_BHRT, reach.rows(T))
    y, total = (x.flatten(0, 1)[back].view(B, H, R, T, -1) for x in (y, total))
    return (y * total.softmax(dim=2)).sum(dim=2)


def _listed(x_BHRT: Tensor, reach: Reach, value: int) -> Tensor:
    """Numbers in order as one list: each row, head and round in whole blocks, and room at either end for the reach."""
    T = x_BHRT.shape[-1]
    blocks = F.pad(x_BHRT, (0, reach.rows(T) - T), value=value)
    return F.pad(blocks.reshape(-1), (reach.left, reach.right), value=value)


def _source(sorting: Sorting, reach: Reach, rounds: slice) -> Tensor:
    """Which vector, of those of all rows and heads, stands where in the list of some rounds."""
    B, H, _, T = sorting.order_BHRT.shape
    row_BH11 = torch.arange(B * H, device=sorting.order_BHRT.device).view(B, H, 1, 1) * T
    return _listed(sorting.order_BHRT[:, :, rounds] + row_BH11, reach, 0)


def _back(rank_BHRT: Tensor, rows: int) -> Tensor:
    """From time to the list, without its room: where each position stands, with so many rows for each round."""
    B, H, R, _ = rank_BHRT.shape
    first_BHR1 = torch.arange(B * H * R, device=rank_BHRT.device).view(B, H, R, 1) * rows
    return (rank_BHRT + first_BHR1).view(-1)


def _queries(listed: Tensor, reach: Reach) -> Tensor:
    """The queries of each block: (blocks, size, ..)."""
    return listed[reach.left : listed.shape[0] - reach.right].unflatten(0, (-1, reach.size))


def _windows(listed: Tensor, reach: Reach) -> Tensor:
    """The keys of each block: (blocks, length, ..), a view in which blocks overlap."""
    return listed.unfold(0, reach.length, reach.size).movedim(-1, 1)


def _visible(sorting: Sorting, reach: Reach, rounds: slice) -> Tensor:
    """Who reads whom in each block of some rounds: (blocks, size, length)."""
    B, H, _, T = sorting.order_BHRT.shape
    order = sorting.order_BHRT[:, :, rounds]
    visible = _near(sorting.place_BHRT[:, :, rounds].gather(-1, order), reach)
    by_round = visible.view(B, H, order.shape[2], -1, reach.size, reach.length)
    for earlier in range(rounds.stop - 1):  # a pair belongs to the first round in which it meets
        later = max(0, earlier + 1 - rounds.start)
        rest = order[:, :, later:]
        met = _near(sorting.place_BHRT[:, :, earlier, None].expand_as(rest).gather(-1, rest), reach)
        by_round[:, :, later:].logical_and_(met.logical_not_().view_as(by_round[:, :, later:]))
    if rounds.start == 0:
        alone = F.pad(sorting.alone_BHT.gather(-1, order[:, :, 0]), (0, reach.rows(T) - T))
        itself = by_round[:, :, 0].diagonal(reach.left, dim1=-2, dim2=-1)
        itself.logical_or_(alone.unflatten(-1, (-1, reach.size)))
    return visible


def _near(place: Tensor, reach: Reach) -> Tensor:
    """Of places in order: which pairs of each block are near. Nobody is near to what fills the blocks."""
    listed = _listed(place, reach, NOWHERE)
    return reach.near(_queries(listed, reach).unsqueeze(-1), _windows(listed, reach).unsqueeze(-2))


class _Blocks(torch.autograd.Function):
    """All blocks of a few rounds in one flash call; what was sorted for it is sorted again for the backward pass."""

    @staticmethod
    def forward(ctx: Any, packed_BHTN: Tensor, sorting: Sorting, reach: Reach) -> Tensor:
        B, H, T, N = packed_BHTN.shape
        R, K = sorting.order_BHRT.shape[2], N // 3
        vectors, masks = packed_BHTN.view(-1, N), []
        group = max(1, AT_ONCE // (B * H * T))
        out = total = packed_BHTN.new_empty(0)
        for begin in range(0, R, group):
            rounds = slice(begin, min(begin + group, R))
            masks.append(_visible(sorting, reach, rounds))
            q, k, v = vectors.index_select(0, _source(sorting, reach, rounds)).split(K, dim=-1)
            y, lse = _flash(
                _queries(q, reach)[:, None],
                _windows(k, reach)[:, None],
                _windows(v, reach)[:, None],
                0.0,
                False,
                attn_mask=_hide(masks[-1], q),
            )
            back = _back(sorting.rank_BHRT[:, :, rounds], reach.rows(T))
            y = y.reshape(-1, K).index_select(0, back).view(B, H, -1, T, K)
            lse = lse.reshape(-1).index_select(0, back).view(B, H, -1, T)
            both = lse.logsumexp(dim=2)
            if begin:
                both = torch.logaddexp(total, both)
            y = torch.einsum("bhrtk,bhrt->bhtk", y, (lse - both.unsqueeze(2)).exp().to(y.dtype))
            out = y.addcmul_(out, (total - both).exp().unsqueeze(-1).to(y.dtype)) if begin else y
            total = both
        ctx.save_for_backward(packed_BHTN, out, total, *masks)
        ctx.sorting, ctx.reach, ctx.group = sorting, reach, group
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        packed, out, total, *masks = ctx.saved_tensors
        sorting, reach = ctx.sorting, ctx.reach
        B, H, T, N = packed.shape
        R, K, size = sorting.order_BHRT.shape[2], N // 3, reach.size
        vectors = torch.cat([packed, out, grads[0]], dim=-1).view(B * H * T, -1)
        result = torch.zeros_like(packed)
        for begin, visible in zip(range(0, R, ctx.group), masks, strict=True):
            rounds = slice(begin, min(begin + ctx.group, R))
            source = _source(sorting, reach, rounds)
            q, k, v, y, grad = vectors.index_select(0, source).split(K, dim=-1)
            of_q, of_k, of_v = _flash_backward(
                _queries(grad, reach)[:, None],
                _queries(q, reach)[:, None],
                _windows(k, reach)[:, None],
                _windows(v, reach)[:, None],
                _queries(y, reach)[:, None],
                _queries(total.view(-1)[source], reach)[:, None],
                0.0,
                False,
                attn_mask=_hide(visible, q),
            )
            blocks = len(visible)
            pieces = -(-reach.length // size)
            sums = q.new_zeros(blocks + pieces, size, N)
            sums.view(-1, N)[reach.left :][: blocks * size, :K] = of_q.reshape(-1, K)
            # Neighbouring blocks read the same keys: what overlaps is added piece by piece.
            for piece in range(pieces):
                part = slice(piece * size, min((piece + 1) * size, reach.length))
                here = sums[piece : piece + blocks, : part.stop - part.start]
                here[..., K : 2 * K].add_(of_k[:, 0, part])
                here[..., 2 * K :].add_(of_v[:, 0, part])
            back = _back(sorting.rank_BHRT[:, :, rounds], reach.rows(T)) + reach.left
            result += sums.view(-1, N).index_select(0, back).view(B, H, -1, T, N).sum(dim=2)
        return result, None, None


def _hide(visible: Tensor, like: Tensor) -> Tensor:
    """What is added to the scores: (blocks, 1, size, length)."""
    return torch.zeros(visible.shape, dtype=like.dtype, device=like.device).masked_fill_(~visible, HIDDEN)[:, None]
