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

# What is added to the scaled scores of one block: from queries (B, H, T, K), their positions (T), the keys' (S).
Bias = Callable[[Tensor, Tensor, Tensor], Tensor | None]

_flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_flash_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward

AT_ONCE = 4096  # queries whose unfolded key gradients are held at a time: cache-sized


@dataclass(frozen=True)
class Band:
    """Blocks i = 0, 1, ..: `size` queries from `query` + i size on read `length` keys from `key` + i size on."""

    query: int
    key: int
    size: int
    length: int
    blocks: int = 1

    def part(self, begin: int, end: int) -> "Band":
        """Some of its blocks."""
        step = begin * self.size
        return Band(self.query + step, self.key + step, self.size, self.length, end - begin)


def window_bands(queries: int, keys: int, left: int, right: int) -> list[Band]:
    """Every query reads from `left` keys before its own to `right` after; the last query's own key is the last.

    Inner blocks form one band; at either end, where the window sticks out, blocks stand alone. Blocks are a half to
    once as long as the window: shorter ones waste calls, longer ones compute what is masked.
    """
    size = max(16, min(256, left + right))
    before, end = keys - queries, queries
    bands, begin = [], 0
    while begin < end:
        here = before + begin  # the key of the first query
        inner = (min(keys - right, keys) - here) // size if here >= left else 0
        if inner > 0:
            bands.append(Band(begin, here - left, size, size + left + right, inner))
            begin += inner * size
            continue
        stop = min(begin + size, end)
        if here < left:  # up to where the window no longer sticks out
            stop = min(stop, begin + left - here)
        first, last = max(0, here - left), min(keys, before + stop + right)
        bands.append(Band(begin, first, stop - begin, last - first))
        begin = stop
    return bands


def area(bands: Sequence[Band]) -> int:
    """How many pairs are computed."""
    return sum(band.blocks * band.size * band.length for band in bands)


def _visible(band: Band, before: int, left: int, right: int, device: torch.device) -> Tensor:
    """Which pairs of a block are inside the window: the same for all blocks of a band. (size, length)"""
    query = torch.arange(band.query, band.query + band.size, device=device)[:, None] + before
    distance = torch.arange(band.key, band.key + band.length, device=device) - query
    return (distance >= -left) & (distance <= right)


def attend_window(
    q_BHTK: Tensor, k_BHSK: Tensor, v_BHSK: Tensor, left: int, right: int, bias: Bias | None = None
) -> Tensor:
    """softmax over the keys from `left` before to `right` after each query; the queries are the last T of S."""
    bands = window_bands(q_BHTK.shape[2], k_BHSK.shape[2], left, right)
    if bias is None and q_BHTK.device.type == "cpu" and torch.backends.cuda.flash_sdp_enabled():
        out_BHTK: Tensor = _Window.apply(q_BHTK, k_BHSK, v_BHSK, bands, left, right)
        return out_BHTK
    return attend_plainly(q_BHTK, k_BHSK, v_BHSK, bands, left, right, bias)


def attend_plainly(
    q_BHTK: Tensor,
    k_BHSK: Tensor,
    v_BHSK: Tensor,
    bands: Sequence[Band],
    left: int,
    right: int,
    bias: Bias | None = None,
) -> Tensor:
    """The same in ordinary operations."""
    B, H, T, K = q_BHTK.shape
    before, outputs = k_BHSK.shape[2] - T, []
    for band in bands:
        rows = band.blocks * band.size
        reach = rows - band.size + band.length
        q = q_BHTK[:, :, band.query : band.query + rows].unflatten(2, (band.blocks, band.size))
        k, v = (x[:, :, band.key : band.key + reach].unfold(2, band.length, band.size) for x in (k_BHSK, v_BHSK))
        score = q @ k / math.sqrt(K)  # (B, H, blocks, size, length)
        if bias is not None:
            here = torch.arange(band.query, band.query + band.size, device=q.device) + before
            there = torch.arange(band.key, band.key + band.length, device=q.device)
            added = bias(q.transpose(1, 2).flatten(0, 1), here, there)
            if added is not None:
                added = added.expand(B * band.blocks, H, -1, -1)
                score = score + added.unflatten(0, (B, band.blocks)).transpose(1, 2)
        score = score.masked_fill(~_visible(band, before, left, right, q.device), float("-inf"))
        outputs.append((score.softmax(dim=-1) @ v.mT).flatten(2, 3))
    return torch.cat(outputs, dim=2)


class _Window(torch.autograd.Function):
    """All bands by flash calls on strided views."""

    @staticmethod
    def forward(
        ctx: Any, q_BHTK: Tensor, k_BHSK: Tensor, v_BHSK: Tensor, bands: list[Band], left: int, right: int
    ) -> Tensor:
        B, H, T, K = q_BHTK.shape
        q, k, v = (x.reshape(B * H, -1, K).contiguous() for x in (q_BHTK, k_BHSK, v_BHSK))
        out, lse = torch.empty_like(q), q.new_empty(B * H, T)
        masks = []
        for band in bands:
            mask = _mask(band, k.shape[1] - T, left, right, q)
            y, total = _flash(_blocks(q, band), _keys(k, band), _keys(v, band), 0.0, False, attn_mask=mask)
            _blocks(out, band).copy_(y)
            _blocks(lse.unsqueeze(-1), band).copy_(total.unsqueeze(-1))
            masks.append(mask)
        ctx.save_for_backward(q, k, v, out, lse, *masks)
        ctx.bands, ctx.shape = bands, (B, H)
        return out.view(B, H, T, K)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, out, lse, *masks = ctx.saved_tensors
        grad = grads[0].reshape(q.shape).contiguous()
        grad_q, grad_k, grad_v = torch.empty_like(q), torch.zeros_like(k), torch.zeros_like(v)
        for whole, mask in zip(ctx.bands, masks, strict=True):
            group = max(1, AT_ONCE // whole.size)
            for begin in range(0, whole.blocks, group):
                band = whole.part(begin, min(begin + group, whole.blocks))
                total = _blocks(lse.unsqueeze(-1), band).squeeze(-1).contiguous()
                a, b, c = _flash_backward(
                    *(_blocks(x, band) for x in (grad, q)),
                    _keys(k, band),
                    _keys(v, band),
                    _blocks(out, band),
                    total,
                    0.0,
                    False,
                    attn_mask=mask,
                )
                _blocks(grad_q, band).copy_(a)
                # Neighbouring blocks read the same keys: what overlaps is added piece by piece.
                for start in range(0, band.length, band.size):
                    end = min(start + band.size, band.length)
                    piece = Band(band.query, band.key + start, band.size, end - start, band.blocks)
                    _keys(grad_k, piece).add_(b[:, :, start:end])
                    _keys(grad_v, piece).add_(c[:, :, start:end])
        shape = *ctx.shape, -1, q.shape[-1]
        return grad_q.view(shape), grad_k.view(shape), grad_v.view(shape), None, None, None


def _blocks(x_NTK: Tensor, band: Band) -> Tensor:
    """The queries of each block: (N, blocks, size, K), a view."""
    return x_NTK[:, band.query : band.query + band.blocks * band.size].unflatten(1, (band.blocks, band.size))


def _keys(x_NSK: Tensor, band: Band) -> Tensor:
    """The keys of each block: (N, blocks, length, K), a view in which blocks may overlap."""
    N, S, K = x_NSK.shape
    return x_NSK.as_strided(
        (N, band.blocks, band.length, K), (S * K, band.size * K, K, 1), x_NSK.storage_offset() + band.key * K
    )


def _mask(band: Band, before: int, left: int, right: int, like: Tensor) -> Tensor:
    visible = _visible(band, before, left, right, like.device)
    hidden = torch.zeros(visible.shape, dtype=like.dtype, device=like.device).masked_fill_(~visible, float("-inf"))
    return hidden[None, None]
