"""The kernel of attention within buckets: positions of one bucket read their neighbours there, in several rounds.

    read_t = union over rounds r of { s : bucket_r(s) = bucket_r(t),  rank_r(t) - rank_r(s) in [-right, left],  s != t }
    out_t = softmax over read_t of (q_t . k_s / sqrt(K)) V,          and out_t = v_t if read_t is empty

rank_r numbers the members of a bucket in order of time. After sorting by bucket and time, a position reads only its
neighbours. All rows and heads form one long list, in which each block of queries reads a span of keys, on overlapping
views, and a mask removes the rest. No n x n matrix is stored. A pair that shares a bucket in several rounds belongs to
the first of them, so it counts once; rounds are merged by log-sum-exp.

On a CPU a block is a call of torch's flash kernel, whose backward pass receives the output and log-sum-exp of *all*
rounds, as in `block_sparse.py`. `attend_unfused` computes the same with ordinary operations: on other devices, when a
bias is added to the scores, and when operations are counted.

Cost: O(n R (left + right) K) time and a sort; O(n (K + R (left + right) / 4)) memory, one byte per covered pair.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from allyouneed.mixers.parts.projections import in_float32_on_cpu
from allyouneed.torch_private import flash_attention, flash_attention_backward

# The bias of scaled scores, from queries (N, H, T, K), their slots (N, H, T), the keys' (N, H, S) and the row (N).
SlotBias = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor | None]

PADDING = -1  # the bucket of padding
HIDDEN = -1e30  # not infinity: if a query reads nothing in a round, its log-sum-exp stays finite, with weight zero
NOWHERE = -(2**28)  # far from all places
AT_ONCE = 2**21  # pairs per call: a few megabytes of masks


@dataclass(frozen=True)
class Reach:
    """The number of bucket members that a position reads before and after it."""

    left: int
    right: int

    @property
    def size(self) -> int:
        """Return the number of queries of a block: smaller blocks need more calls, larger ones compute masked pairs."""
        return max(16, min(64, self.left))

    @property
    def length(self) -> int:
        """Return the number of keys of a block."""
        return self.left + self.size + self.right

    def rows(self, positions: int) -> int:
        """Return the number of positions rounded up to whole blocks."""
        return -(-positions // self.size) * self.size

    def area(self, positions: int) -> int:
        """Return the number of pairs computed for this many positions in one round."""
        return self.rows(positions) * self.length

    def near(self, here: Tensor, there: Tensor) -> Tensor:
        """Return True where a key is within reach of a query, from their places; a position is within its own reach."""
        # left >= here - there >= -right, by one comparison.
        return (2 * here - (self.left - self.right) - 2 * there).abs_() <= self.left + self.right


@dataclass(frozen=True)
class Sorting:
    """Positions in the order of their buckets, in each of R rounds."""

    order_BHRT: Tensor  # the slots in order
    rank_BHRT: Tensor  # the rank of each slot in that order
    place_BHRT: Tensor  # the rank with gaps between buckets, wider than any reach
    alone_BHT: Tensor  # True where no round has anything to read

    @staticmethod
    def of(bucket_BHRT: Tensor, reach: Reach) -> "Sorting":
        sorted_BHRT, order_BHRT = bucket_BHRT.contiguous().sort(dim=-1, stable=True)
        slot_T = torch.arange(bucket_BHRT.shape[-1], device=bucket_BHRT.device)
        rank_BHRT = torch.empty_like(order_BHRT).scatter_(-1, order_BHRT, slot_T.expand_as(order_BHRT))
        first_BHRT = F.pad(sorted_BHRT[..., 1:] != sorted_BHRT[..., :-1], (1, 0), value=True)  # of its bucket
        empty_BHRT = first_BHRT
        if reach.right:
            empty_BHRT = first_BHRT & F.pad(first_BHRT[..., 1:], (0, 1), value=True)
        gaps = first_BHRT.view(-1).cumsum(dim=0) * max(reach.left, reach.right)
        place_BHRT = (gaps + torch.arange(len(gaps), device=gaps.device)).int().view_as(rank_BHRT)
        return Sorting(
            order_BHRT,
            rank_BHRT,
            place_BHRT.gather(-1, rank_BHRT),
            empty_BHRT.gather(-1, rank_BHRT).all(dim=2),
        )

    def list_index(self, r: int, reach: Reach) -> Tensor:
        """Return, for each entry of the list of one round, the index of its vector among all rows and heads."""
        return _block_list(self.order_BHRT[:, :, r] + self._first(self.order_BHRT.shape[-1]), reach, 0)

    def inverse_index(self, r: int, rows: int) -> Tensor:
        """Return the index in that list of each position, with `rows` entries per row and head, margins excluded."""
        return (self.rank_BHRT[:, :, r] + self._first(rows)).view(-1)

    def _first(self, rows: int) -> Tensor:
        B, H, _, _ = self.order_BHRT.shape
        return torch.arange(B * H, device=self.order_BHRT.device).view(B, H, 1) * rows


def sees(bucket_BHRT: Tensor, reach: Reach) -> Tensor:
    """Return which position reads which as a dense mask (B, H, T, T), for inspection only."""
    sorting = Sorting.of(bucket_BHRT, reach)
    place_BHRT = sorting.place_BHRT
    visible_BHTS = reach.near(place_BHRT.unsqueeze(-1), place_BHRT.unsqueeze(-2)).any(dim=2)
    visible_BHTS.diagonal(dim1=-2, dim2=-1).copy_(sorting.alone_BHT)
    return visible_BHTS


@in_float32_on_cpu
def attend_in_buckets(
    q_BHTK: Tensor, k_BHTK: Tensor, v_BHTK: Tensor, bucket_BHRT: Tensor, reach: Reach, bias: SlotBias | None = None
) -> Tensor:
    """Return softmax attention over the visible members of each query's buckets, in all rounds."""
    sorting = Sorting.of(bucket_BHRT, reach)
    packed_BHTN = torch.cat([q_BHTK, k_BHTK, v_BHTK], dim=-1)  # one copy sorts all three
    if bias is None and q_BHTK.device.type == "cpu" and torch.backends.cuda.flash_sdp_enabled():
        out_BHTK: Tensor = _Blocks.apply(packed_BHTN, sorting, reach)
        return out_BHTK
    return attend_unfused(packed_BHTN, sorting, reach, bias)


@in_float32_on_cpu
def attend_unfused(packed_BHTN: Tensor, sorting: Sorting, reach: Reach, bias: SlotBias | None = None) -> Tensor:
    """Compute the same with ordinary operations; N is 3 K: queries, keys and values concatenated."""
    B, H, T, N = packed_BHTN.shape
    outputs, totals = [], []
    for r in range(sorting.order_BHRT.shape[2]):
        queries, keys, values = packed_BHTN.flatten(0, 2)[sorting.list_index(r, reach)].split(N // 3, dim=-1)
        q, k, v = _queries(queries, reach), _windows(keys, reach), _windows(values, reach)
        score = q @ k.mT / math.sqrt(N // 3)  # (blocks, size, length), the blocks of all rows and heads
        if bias is not None:
            slots = _block_list(sorting.order_BHRT[:, :, r], reach, 0)
            # A position scheme expects a head dimension: the blocks of a row become rows.
            q, here, there = (
                x.unflatten(0, (B, H, -1)).transpose(1, 2).flatten(0, 1)
                for x in (q, _queries(slots, reach), _windows(slots, reach))
            )
            row = torch.arange(B, device=q.device).repeat_interleave(len(q) // B)
            if (added := bias(q, here, there, row)) is not None:
                added = added.expand(len(row), H, -1, -1)
                score = score + added.unflatten(0, (B, -1)).transpose(1, 2).flatten(0, 2)
        visible = _Visibility.of(sorting, reach, r).mask(slice(0, len(score)))
        score = score.masked_fill(~visible, HIDDEN)
        total = score.logsumexp(dim=-1, keepdim=True)
        y = (score - total).exp() @ v
        back = sorting.inverse_index(r, reach.rows(T))
        outputs.append(y.flatten(0, 1)[back].view(B, H, T, -1))
        totals.append(total.flatten(0, 1)[back].view(B, H, T, 1))
    weights = torch.stack(totals).softmax(dim=0)
    return (torch.stack(outputs) * weights).sum(dim=0)


def _block_list(x_BHT: Tensor, reach: Reach, value: int) -> Tensor:
    """Flatten sorted numbers to one list: each row and head in whole blocks, with margins of the reach at both ends."""
    T = x_BHT.shape[-1]
    blocks = F.pad(x_BHT, (0, reach.rows(T) - T), value=value)
    return F.pad(blocks.view(-1), (reach.left, reach.right), value=value)


def _queries(listed: Tensor, reach: Reach) -> Tensor:
    """Return the queries of each block: (blocks, size, ..)."""
    return listed[reach.left : listed.shape[0] - reach.right].unflatten(0, (-1, reach.size))


def _windows(listed: Tensor, reach: Reach) -> Tensor:
    """Return the keys of each block: (blocks, length, ..), a view whose blocks overlap."""
    return listed.unfold(0, reach.length, reach.size).movedim(-1, 1)


@dataclass(frozen=True)
class _Visibility:
    """Which position reads which in the blocks of one round."""

    reach: Reach
    places: list[Tensor]  # block lists: of this round, then of each earlier one
    alone: Tensor  # whether a query reads itself: in the first round, if no round has another member

    @staticmethod
    def of(sorting: Sorting, reach: Reach, r: int) -> "_Visibility":
        order_BHT = sorting.order_BHRT[:, :, r]
        places = [sorting.place_BHRT[:, :, other].gather(-1, order_BHT) for other in (r, *range(r))]
        alone_BHT = sorting.alone_BHT.gather(-1, order_BHT) & (r == 0)
        alone = _queries(_block_list(alone_BHT, reach, False), reach)
        return _Visibility(reach, [_block_list(place_BHT, reach, NOWHERE) for place_BHT in places], alone)

    def mask(self, blocks: slice) -> Tensor:
        """Return the mask (blocks, size, length) of some blocks; a pair belongs to its first common round."""
        visible, *earlier = (self._near(listed, blocks) for listed in self.places)
        for shared in earlier:
            visible.logical_and_(shared.logical_not_())
        visible.diagonal(self.reach.left, dim1=-2, dim2=-1).copy_(self.alone[blocks])
        return visible

    def _near(self, listed: Tensor, blocks: slice) -> Tensor:
        part = listed[_stretch(blocks, self.reach)]
        return self.reach.near(_queries(part, self.reach).unsqueeze(-1), _windows(part, self.reach).unsqueeze(-2))


def _stretch(blocks: slice, reach: Reach) -> slice:
    """Return the part of the list that some blocks read."""
    return slice(blocks.start * reach.size, blocks.stop * reach.size + reach.left + reach.right)


def _slabs(blocks: int, reach: Reach) -> list[slice]:
    step = max(1, AT_ONCE // (reach.size * reach.length))
    return [slice(begin, min(begin + step, blocks)) for begin in range(0, blocks, step)]


class _Blocks(torch.autograd.Function):
    """Attention round by round, many blocks per flash call; the backward pass gathers the sorted vectors again."""

    @staticmethod
    def forward(ctx: Any, packed_BHTN: Tensor, sorting: Sorting, reach: Reach) -> Tensor:
        B, H, T, N = packed_BHTN.shape
        K, R = N // 3, sorting.order_BHRT.shape[2]
        vectors, masks = packed_BHTN.view(-1, N), []
        wide = torch.float64 if packed_BHTN.dtype == torch.float64 else torch.float32  # the kernel's accumulator
        out = total = packed_BHTN.new_empty(0)
        for r in range(R):
            visibility, source = _Visibility.of(sorting, reach, r), sorting.list_index(r, reach)
            blocks = len(visibility.alone)
            y, lse = vectors.new_empty(blocks, reach.size, K), vectors.new_empty(blocks, reach.size, dtype=wide)
            visible = torch.empty(blocks, reach.size, reach.length, dtype=torch.bool, device=vectors.device)
            for slab in _slabs(blocks, reach):
                visible[slab] = visibility.mask(slab)
                q, k, v = vectors.index_select(0, source[_stretch(slab, reach)]).split(K, dim=-1)
                y[slab, None], lse[slab, None] = flash_attention(
                    _queries(q, reach)[:, None],
                    _windows(k, reach)[:, None],
                    _windows(v, reach)[:, None],
                    0.0,
                    False,
                    attn_mask=_hide(visible[slab], q),
                )
            masks.append(visible)
            back = sorting.inverse_index(r, reach.rows(T))
            y, lse = y.view(-1, K).index_select(0, back), lse.view(-1, 1).index_select(0, back)
            if r == 0:
                out, total = y, lse
                continue
            both = torch.logaddexp(total, lse)
            out.mul_((total - both).exp_().to(y.dtype)).addcmul_(y, (lse - both).exp_().to(y.dtype))
            total = both
        ctx.save_for_backward(packed_BHTN, out, total, *masks)
        ctx.sorting, ctx.reach = sorting, reach
        return out.view(B, H, T, K)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        packed, out, total, *masks = ctx.saved_tensors
        sorting, reach = ctx.sorting, ctx.reach
        N, T = packed.shape[-1], packed.shape[2]
        K, size = N // 3, reach.size
        vectors = torch.cat([packed.view(-1, N), out, grads[0].reshape(-1, K)], dim=-1)
        result, pieces = torch.zeros_like(packed).view(-1, N), -(-reach.length // size)
        for r, visible in enumerate(masks):
            source, sums = sorting.list_index(r, reach), packed.new_zeros(len(visible) + pieces, size, N)
            for slab in _slabs(len(visible), reach):
                here = source[_stretch(slab, reach)]
                q, k, v, y, grad = vectors.index_select(0, here).split(K, dim=-1)
                of_q, of_k, of_v = flash_attention_backward(
                    _queries(grad, reach)[:, None],
                    _queries(q, reach)[:, None],
                    _windows(k, reach)[:, None],
                    _windows(v, reach)[:, None],
                    _queries(y, reach)[:, None],
                    _queries(total.view(-1)[here], reach)[:, None],
                    0.0,
                    False,
                    attn_mask=_hide(visible[slab], q),
                )
                first = slab.start * size + reach.left
                sums.view(-1, N)[first : first + len(of_q) * size, :K] = of_q.reshape(-1, K)
                # Adjacent blocks read the same keys: overlapping parts are added piece by piece.
                for piece in range(pieces):
                    part = slice(piece * size, min((piece + 1) * size, reach.length))
                    read = sums[slab.start + piece : slab.stop + piece, : part.stop - part.start]
                    read[..., K : 2 * K].add_(of_k[:, 0, part])
                    read[..., 2 * K :].add_(of_v[:, 0, part])
            result += sums.view(-1, N).index_select(0, sorting.inverse_index(r, reach.rows(T)) + reach.left)
        return result.view_as(packed), None, None


def _hide(visible: Tensor, like: Tensor) -> Tensor:
    """Return the additive mask: (blocks, 1, size, length)."""
    return visible.to(like.dtype).sub_(1.0).mul_(-HIDDEN)[:, None]
