"""The kernel of sparse attention: a pattern is a set of rectangles (some queries x some keys), each read densely.

    out_t = sum_r exp(lse_rt - lse_t) out_rt,     lse_t = log sum_r exp(lse_rt)

Nothing of size n x n exists, and nothing is padded. A *band* is many equal rectangles along the diagonal, read in one
call on overlapping views of keys and values. On a CPU a call is torch's flash kernel, which also gives the log-sum-exp;
its backward pass is handed the output and log-sum-exp of *all* rectangles of a query, P = exp(score - lse), so each
rectangle's gradient is exact without differentiating the merge.

`attend_plainly` says the same in ordinary operations: on other devices, wherever something is added to the scores, and
where somebody counts operations. Cost: O(covered area x K) time, O(T K) memory (plainly: O(covered area)).
The identity of the backward pass is that of Liu et al. 2023, arXiv:2310.01889 (ring attention).
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

# What is added to the scaled scores of one block: from queries (B, H, T, K), their positions (T), the keys' (S).
Bias = Callable[[Tensor, Tensor, Tensor], Tensor | None]

_flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_flash_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward

AT_ONCE = 4096  # queries whose unfolded key gradients are held at a time: cache-sized


@dataclass(frozen=True)
class Pattern:
    """Who reads whom: neighbours from `left` before to `right` after, and the first `everywhere` keys."""

    left: int
    right: int
    everywhere: int = 0

    def sees(self, query: Tensor, key: Tensor) -> Tensor:
        """For positions of queries and keys that broadcast."""
        distance = key - query
        near = (distance >= -self.left) & (distance <= self.right)
        return near | (key < self.everywhere) if self.everywhere else near


@dataclass(frozen=True)
class Band:
    """Blocks i = 0, 1, ..: `size` queries from `query` + i size on read `length` keys from `key` + i size on."""

    query: int
    key: int
    size: int
    length: int
    blocks: int = 1
    again: bool = False  # whether these queries also stand in a band before: results are merged

    def part(self, begin: int, end: int) -> "Band":
        """Some of its blocks."""
        step = begin * self.size
        return Band(self.query + step, self.key + step, self.size, self.length, end - begin, self.again)


def bands_of(pattern: Pattern, queries: int, keys: int) -> list[Band]:
    """The rectangles of a pattern for the last `queries` of `keys` positions.

    Inner blocks form one band; at either end, where the window sticks out, blocks stand alone. Blocks are as long
    as the window, up to 256: shorter ones waste calls, longer ones compute what is masked. Keys that everybody reads
    are one more rectangle for the queries whose windows do not touch them; the others' blocks begin at key 0.
    """
    left, right = pattern.left, pattern.right
    size = max(16, min(256, left + right))
    before = keys - queries
    bands, begin, clear = [], 0, left + pattern.everywhere  # from `clear` on, windows touch neither end nor those keys
    while begin < queries:
        here = before + begin  # the key of the first query
        inner = (keys - right - here) // size if here >= clear else 0
        if inner > 0:
            bands.append(Band(begin, here - left, size, size + left + right, inner))
            begin += inner * size
            continue
        stop = min(begin + size, queries)
        if here < clear:
            stop = min(stop, begin + clear - here)
        first, last = (0 if here < clear else here - left), min(keys, before + stop + right)
        bands.append(Band(begin, first, stop - begin, last - first))
        begin = stop
    touching = max(0, clear - before)
    if pattern.everywhere and touching < queries:
        bands.append(Band(touching, 0, queries - touching, min(pattern.everywhere, keys), again=True))
    return bands


def area(bands: Sequence[Band]) -> int:
    """How many pairs are computed."""
    return sum(band.blocks * band.size * band.length for band in bands)


def attend_sparsely(
    q_BHTK: Tensor, k_BHSK: Tensor, v_BHSK: Tensor, pattern: Pattern, bias: Bias | None = None
) -> Tensor:
    """softmax attention over what the pattern lets each query see; the queries are the last T of S positions."""
    bands = bands_of(pattern, q_BHTK.shape[2], k_BHSK.shape[2])
    if bias is None and q_BHTK.device.type == "cpu" and torch.backends.cuda.flash_sdp_enabled():
        out_BHTK: Tensor = _Rectangles.apply(q_BHTK, k_BHSK, v_BHSK, bands, pattern)
        return out_BHTK
    return attend_plainly(q_BHTK, k_BHSK, v_BHSK, bands, pattern, bias)


def attend_plainly(
    q_BHTK: Tensor, k_BHSK: Tensor, v_BHSK: Tensor, bands: Sequence[Band], pattern: Pattern, bias: Bias | None = None
) -> Tensor:
    """The same in ordinary operations."""
    before = k_BHSK.shape[2] - q_BHTK.shape[2]
    found = [(band, *_plain_band(q_BHTK, k_BHSK, v_BHSK, band, pattern, bias, before)) for band in bands]
    y_BHTK = torch.cat([y for band, y, _ in found if not band.again], dim=2)
    total = torch.cat([lse for band, _, lse in found if not band.again], dim=2)
    for band, more, more_total in found:
        if band.again:  # it goes on to the last query
            here = total[:, :, band.query :]
            both = torch.logaddexp(here, more_total)
            merged = y_BHTK[:, :, band.query :] * (here - both).exp() + more * (more_total - both).exp()
            y_BHTK = torch.cat([y_BHTK[:, :, : band.query], merged], dim=2)
    return y_BHTK


def _plain_band(
    q_BHTK: Tensor, k_BHSK: Tensor, v_BHSK: Tensor, band: Band, pattern: Pattern, bias: Bias | None, before: int
) -> tuple[Tensor, Tensor]:
    """Output and log-sum-exp of the queries of one band."""
    B, H, _, K = q_BHTK.shape
    rows = band.blocks * band.size
    reach = rows - band.size + band.length
    q = q_BHTK[:, :, band.query : band.query + rows].unflatten(2, (band.blocks, band.size))
    k, v = (x[:, :, band.key : band.key + reach].unfold(2, band.length, band.size) for x in (k_BHSK, v_BHSK))
    score = q @ k / math.sqrt(K)  # (B, H, blocks, size, length)
    here, there = _positions(band, before, q.device)
    if bias is not None and (added := bias(q.transpose(1, 2).flatten(0, 1), here, there)) is not None:
        added = added.expand(B * band.blocks, H, -1, -1)
        score = score + added.unflatten(0, (B, band.blocks)).transpose(1, 2)
    score = score.masked_fill(~pattern.sees(here[:, None], there), float("-inf"))
    total = score.logsumexp(dim=-1, keepdim=True)
    return ((score - total).exp() @ v.mT).flatten(2, 3), total.flatten(2, 3)


def _positions(band: Band, before: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Of the queries and keys of a band's first block."""
    here = torch.arange(band.query, band.query + band.size, device=device) + before
    return here, torch.arange(band.key, band.key + band.length, device=device)


class _Rectangles(torch.autograd.Function):
    """All bands by flash calls on strided views."""

    @staticmethod
    def forward(
        ctx: Any, q_BHTK: Tensor, k_BHSK: Tensor, v_BHSK: Tensor, bands: list[Band], pattern: Pattern
    ) -> Tensor:
        B, H, T, K = q_BHTK.shape
        q, k, v = (x.reshape(B * H, -1, K).contiguous() for x in (q_BHTK, k_BHSK, v_BHSK))
        # The kernel keeps sums in float32 at least.
        wide = torch.float64 if q.dtype == torch.float64 else torch.float32
        out, lse = torch.empty_like(q), q.new_empty(B * H, T, 1, dtype=wide)
        masks = []
        for band in bands:
            mask = _mask(band, k.shape[1] - T, pattern, q)
            y, total = _flash(_blocks(q, band), _keys(k, band), _keys(v, band), 0.0, False, attn_mask=mask)
            total = total.unsqueeze(-1)
            here, sofar = _blocks(out, band), _blocks(lse, band)
            if band.again:
                both = torch.logaddexp(sofar, total)
                here.copy_(here * (sofar - both).exp_() + y * (total - both).exp_())
                sofar.copy_(both)
            else:
                here.copy_(y)
                sofar.copy_(total)
            masks.append(mask)
        ctx.save_for_backward(q, k, v, out, lse, *(mask for mask in masks if mask is not None))
        ctx.bands, ctx.masked, ctx.shape = bands, [mask is not None for mask in masks], (B, H)
        return out.view(B, H, T, K)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, out, lse, *masks = ctx.saved_tensors
        grad = grads[0].reshape(q.shape).contiguous()
        grad_q, grad_k, grad_v = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
        remaining = iter(masks)
        for whole, masked in zip(ctx.bands, ctx.masked, strict=True):
            mask = next(remaining) if masked else None
            group = max(1, AT_ONCE // whole.size)
            for begin in range(0, whole.blocks, group):
                band = whole.part(begin, min(begin + group, whole.blocks))
                read = _keys(k, band), _keys(v, band)
                done = _blocks(out, band), _blocks(lse, band).squeeze(-1).contiguous()
                a, b, c = _flash_backward(
                    _blocks(grad, band), _blocks(q, band), *read, *done, 0.0, False, attn_mask=mask
                )
                _blocks(grad_q, band).add_(a)
                # Neighbouring blocks read the same keys: what overlaps is added piece by piece.
                step = band.size if band.blocks > 1 else band.length
                for start in range(0, band.length, step):
                    end = min(start + step, band.length)
                    piece = Band(band.query, band.key + start, band.size, end - start, band.blocks)
                    _keys(grad_k, piece).add_(b[:, :, start:end])
                    _keys(grad_v, piece).add_(c[:, :, start:end])
        shape = *ctx.shape, -1, q.shape[-1]
        return grad_q.view(shape), grad_k.view(shape), grad_v.view(shape), None, None


def _blocks(x_NTK: Tensor, band: Band) -> Tensor:
    """The queries of each block: (N, blocks, size, K), a view."""
    return x_NTK[:, band.query : band.query + band.blocks * band.size].unflatten(1, (band.blocks, band.size))


def _keys(x_NSK: Tensor, band: Band) -> Tensor:
    """The keys of each block: (N, blocks, length, K), a view in which blocks may overlap."""
    N, S, K = x_NSK.shape
    return x_NSK.as_strided(
        (N, band.blocks, band.length, K), (S * K, band.size * K, K, 1), x_NSK.storage_offset() + band.key * K
    )


def _mask(band: Band, before: int, pattern: Pattern, like: Tensor) -> Tensor | None:
    """What is added to the scores of a block, the same for all blocks of a band; None where everybody sees all."""
    if band.again:
        return None
    here, there = _positions(band, before, like.device)
    visible = pattern.sees(here[:, None], there)
    hidden = torch.zeros(visible.shape, dtype=like.dtype, device=like.device).masked_fill_(~visible, float("-inf"))
    return hidden[None, None]
