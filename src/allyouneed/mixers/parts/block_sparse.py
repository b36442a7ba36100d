"""The kernel of sparse attention: a pattern is a set of dense blocks (some queries x some keys).

    out_t = sum_r exp(lse_rt - lse_t) out_rt,     lse_t = log sum_r exp(lse_rt)

No n x n matrix is stored. A *band* is many equal blocks, read in one call: along the diagonal on overlapping views of
keys and values, between positions a stride apart on strided views, or on gathered *runs* of keys. On a CPU a call is
torch's flash kernel, which also returns the log-sum-exp. Its backward pass receives the output and log-sum-exp of *all*
blocks of a query, P = exp(score - lse), so each block's gradient is exact without differentiating the merge.

`attend_unfused` computes the same with ordinary operations: on other devices, when a bias is added to the scores, and
when operations are counted. Cost: O(covered area x K) time, O(T K) memory (unfused: O(covered area)).
The identity of the backward pass is that of Liu et al. 2023, arXiv:2310.01889 (ring attention).
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from allyouneed.mixers.parts.projections import in_float32_on_cpu
from allyouneed.positions import ScorePosition
from allyouneed.torch_private import flash_attention, flash_attention_backward

# The bias of scaled scores, from queries (B, H, T, K), their positions ((T) or (B, T)) and the keys' positions.
Bias = Callable[[Tensor, Tensor, Tensor], Tensor | None]
# Which query sees which key, from positions that broadcast; torch.ge is causal.
Sees = Callable[[Tensor, Tensor], Tensor]

AT_ONCE = 4096  # queries whose gathered keys, or unfolded key gradients, exist at once: cache-sized


@dataclass(frozen=True)
class Band:
    """Blocks i = 0, 1, ..: `size` queries starting at `query` + i hop read `length` keys starting at `key` + i hop.

    Queries and keys of a block are `step` apart. `runs` replaces the keys: for each head (or once for all) and each
    block, the first keys of several runs of `length`.
    """

    query: int
    key: int
    size: int
    length: int
    blocks: int = 1
    again: bool = False  # True if earlier bands contain all of these queries: results are merged
    step: int = 1
    hop: int = 0  # distance between blocks; 0: `size`
    runs_HNR: Tensor | None = None
    sees: Sees | None = None  # the same for all blocks; each query must see some key; None: all see all

    def __post_init__(self) -> None:
        if not self.hop:
            object.__setattr__(self, "hop", self.size)

    @property
    def width(self) -> int:
        """Return the number of keys of each query."""
        return self.length if self.runs_HNR is None else self.length * self.runs_HNR.shape[2]

    def part(self, begin: int, end: int) -> "Band":
        """Return a band of some of its blocks."""
        step = begin * self.hop
        runs = None if self.runs_HNR is None else self.runs_HNR[:, begin:end]
        return replace(self, query=self.query + step, key=self.key + step, blocks=end - begin, runs_HNR=runs)

    def parts(self) -> Iterator["Band"]:
        """Yield its blocks in bands of a few."""
        group = max(1, AT_ONCE // self.size)
        for begin in range(0, self.blocks, group):
            yield self.part(begin, min(begin + group, self.blocks))

    def queries(self, device: torch.device | None = None) -> Tensor:
        """Return the indices of its queries: (blocks, size)."""
        return self._positions(self.query, self.size, device)

    def keys(self, device: torch.device | None = None) -> Tensor:
        """Return the positions of its keys: (H or 1, blocks, width)."""
        if self.runs_HNR is None:
            return self._positions(self.key, self.length, device)[None]
        return (self.runs_HNR.to(device)[..., None] + torch.arange(self.length, device=device)).flatten(2)

    def visible(self, before: int, device: torch.device | None = None) -> Tensor | None:
        """Return the mask (size, width) of every block; None if all see all."""
        if self.sees is None:
            return None
        return self.sees(self.queries(device)[0][:, None] + before, self.keys(device)[0, 0])

    def _positions(self, first: int, count: int, device: torch.device | None) -> Tensor:
        block_N = torch.arange(self.blocks, device=device) * self.hop
        return first + block_N[:, None] + torch.arange(count, device=device) * self.step


@dataclass(frozen=True)
class Pattern:
    """Which position reads which: neighbours from `left` before to `right` after, and the first `everywhere` keys."""

    left: int
    right: int
    everywhere: int = 0

    def sees(self, query: Tensor, key: Tensor) -> Tensor:
        """Return the mask of queries and keys at these positions, which broadcast."""
        distance = key - query
        near = (distance >= -self.left) & (distance <= self.right)
        return near | (key < self.everywhere) if self.everywhere else near


def bands_of(pattern: Pattern, queries: int, keys: int) -> list[Band]:
    """Return the blocks of a pattern for the last `queries` of `keys` positions.

    Inner blocks form one band; at either end, where windows are cut off, each block forms its own band. Blocks are as
    long as the window, up to 192: shorter ones need more calls, longer ones compute masked pairs (256: 5 to 10 %
    slower). Keys that all positions read form one more block for queries whose windows do not touch them; the blocks
    of the other queries start at key 0.
    """
    left, right = pattern.left, pattern.right
    size = max(16, min(192, left + right))
    before = keys - queries
    bands, begin, clear = [], 0, left + pattern.everywhere  # from `clear` on windows touch no start or global key
    while begin < queries:
        here = before + begin  # the key of the first query
        inner = (keys - right - here) // size if here >= clear else 0
        if inner > 0:
            bands.append(Band(begin, here - left, size, size + left + right, inner, sees=pattern.sees))
            begin += inner * size
            continue
        stop = min(begin + size, queries)
        if here < clear:
            stop = min(stop, begin + clear - here)
        first, last = (0 if here < clear else here - left), min(keys, before + stop + right)
        bands.append(Band(begin, first, stop - begin, last - first, sees=pattern.sees))
        begin = stop
    touching = max(0, clear - before)
    if pattern.everywhere and touching < queries:
        bands.append(Band(touching, 0, queries - touching, min(pattern.everywhere, keys), again=True))
    return bands


def dilated(bands: Sequence[Band], pattern: Pattern, queries: range, key: int) -> list[Band]:
    """Spread bands over dilated positions: over these queries, and over keys from `key` on with the same step."""
    step = queries.step
    sees = Pattern(pattern.left * step, pattern.right * step).sees
    return [
        replace(
            band,
            query=queries.start + band.query * step,
            key=key + band.key * step,
            step=step,
            hop=band.hop * step,
            sees=sees,
        )
        for band in bands
    ]


def grouped(blocks: Sequence[tuple[int, int, int, int]], sees: Sees | None = None) -> Iterator[Band]:
    """Group blocks (query, key, size, length): equal ones along a diagonal form one band."""
    band: Band | None = None
    for query, key, size, length in blocks:
        if band is not None and (band.size, band.length) == (size, length):
            done = band.blocks * size
            if (query, key) == (band.query + done, band.key + done):
                band = replace(band, blocks=band.blocks + 1)
                continue
        if band is not None:
            yield band
        band = Band(query, key, size, length, sees=sees)
    if band is not None:
        yield band


def area(bands: Sequence[Band]) -> int:
    """Return the number of pairs that are computed."""
    return sum(band.blocks * band.size * band.width for band in bands)


def count_queries(bands: Sequence[Band]) -> int:
    """Return the number of queries over all bands; a query in several bands counts several times."""
    return sum(band.blocks * band.size for band in bands)


def visible_of(bands: Sequence[Band], T: int, S: int) -> Tensor:
    """Return the dense mask of the bands, (H or 1, T, S); for short sequences."""
    H = max(1 if band.runs_HNR is None else band.runs_HNR.shape[0] for band in bands)
    times_HTS = torch.zeros(H, T, S, dtype=torch.int8)
    head = torch.arange(H).view(-1, 1, 1, 1)
    for band in bands:
        seen = band.visible(S - T)
        seen = torch.ones(1, dtype=torch.int8) if seen is None else seen.to(torch.int8)
        times_HTS.index_put_((head, band.queries()[..., None], band.keys()[:, :, None]), seen, accumulate=True)
    return times_HTS > 0


def bias_of(position: ScorePosition | None) -> Bias | None:
    """Return the function that adds a scheme's bias to scores; None if it only rotates queries and keys."""
    return None if position is None or type(position).bias is ScorePosition.bias else position.bias


def fused() -> bool:
    """Return True if fused kernels may be used; they are switched off while operations are counted."""
    return torch.backends.cuda.flash_sdp_enabled()


@in_float32_on_cpu
def attend_sparsely(
    q_BHTK: Tensor, k_BHSK: Tensor, v_BHSK: Tensor, bands: Sequence[Band], bias: Bias | None = None
) -> Tensor:
    """Return softmax attention over the pairs of the bands; the queries are the last T of S positions."""
    if not q_BHTK.numel():  # the kernel divides by sizes
        return torch.zeros_like(q_BHTK)
    if bias is None and has_kernel(q_BHTK.device):
        out_BHTK: Tensor = _BlockSparse.apply(q_BHTK, k_BHSK, v_BHSK, bands)
        return out_BHTK
    return attend_unfused(q_BHTK, k_BHSK, v_BHSK, bands, bias)


def has_kernel(device: torch.device) -> bool:
    """Return True if the fused kernel runs there and is not switched off."""
    return device.type == "cpu" and fused()


@in_float32_on_cpu
def attend_unfused(
    q_BHTK: Tensor, k_BHSK: Tensor, v_BHSK: Tensor, bands: Sequence[Band], bias: Bias | None = None
) -> Tensor:
    """Compute the same with ordinary operations. Keys outside the bands are not touched."""
    outputs, totals, places = zip(*(_plain_band(q_BHTK, k_BHSK, v_BHSK, band, bias) for band in bands), strict=True)
    y_BHNK, total_BHN, where_N = torch.cat(outputs, dim=2), torch.cat(totals, dim=2), torch.cat(places)
    if len(where_N) == q_BHTK.shape[2]:  # nothing to merge
        return y_BHNK.index_select(2, where_N.argsort())
    # The subtracted value cancels; it only has to be near the largest.
    most_BHT = total_BHN.new_full(q_BHTK.shape[:3], float("-inf"))
    most_BHT = most_BHT.scatter_reduce(2, where_N.expand_as(total_BHN), total_BHN.detach(), "amax")
    weight_BHN = (total_BHN - most_BHT.index_select(2, where_N)).exp()
    sum_BHT = torch.zeros_like(most_BHT).index_add(2, where_N, weight_BHN)
    y_BHTK = torch.zeros_like(q_BHTK).index_add(2, where_N, y_BHNK * weight_BHN[..., None])
    return y_BHTK / sum_BHT[..., None]


def _plain_band(
    q_BHTK: Tensor, k_BHSK: Tensor, v_BHSK: Tensor, band: Band, bias: Bias | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return output and log-sum-exp of the queries of one band, and their indices."""
    before, device = k_BHSK.shape[2] - q_BHTK.shape[2], q_BHTK.device
    here, there = band.queries(device), band.keys(device)
    q = q_BHTK.index_select(2, here.flatten()).unflatten(2, here.shape)  # (B, H, blocks, size, K)
    k, v = _gather(k_BHSK, there), _gather(v_BHSK, there)
    score = q @ k.mT / math.sqrt(q.shape[-1])
    if bias is not None and (added := _band_bias(bias, q, here + before, there, band)) is not None:
        score = score + added
    if (visible := band.visible(before, device)) is not None:
        score = score.masked_fill(~visible, float("-inf"))
    total = score.logsumexp(dim=-1, keepdim=True)
    return ((score - total).exp() @ v).flatten(2, 3), total.flatten(2), here.flatten()


def _gather(x_BHSK: Tensor, index: Tensor) -> Tensor:
    """Return the vectors (B, H, blocks, width, K) at positions (H or 1, blocks, width)."""
    if index.shape[0] == 1:
        return x_BHSK.index_select(2, index.flatten()).unflatten(2, index.shape[1:])
    return x_BHSK[:, torch.arange(index.shape[0], device=index.device)[:, None, None], index]


def _band_bias(bias: Bias, q: Tensor, here: Tensor, there: Tensor, band: Band) -> Tensor | None:
    """Return the bias of the scores of a band, broadcastable to (B, H, blocks, size, width)."""
    B, H, blocks = q.shape[:3]
    if band.runs_HNR is None:  # distances are the same in all blocks
        added = bias(q.transpose(1, 2).flatten(0, 1), here[0], there[0, 0])
        return None if added is None else added.expand(B * blocks, H, -1, -1).unflatten(0, (B, -1)).transpose(1, 2)
    parts = []
    for head, keys in enumerate(there):
        heads = slice(None) if len(there) == 1 else slice(head, head + 1)
        queries = q[:, heads].transpose(1, 2).flatten(0, 1)
        added = bias(queries, here.repeat(B, 1), keys.repeat(B, 1))
        if added is None:
            return None
        parts.append(added.expand(-1, H, -1, -1)[:, heads])
    return torch.cat(parts, dim=1).unflatten(0, (B, -1)).transpose(1, 2)


class _BlockSparse(torch.autograd.Function):
    """Attention over all bands by calls of the flash kernel."""

    @staticmethod
    def forward(ctx: Any, q_BHTK: Tensor, k_BHSK: Tensor, v_BHSK: Tensor, bands: Sequence[Band]) -> Tensor:
        B, H, T, K = q_BHTK.shape
        before = k_BHSK.shape[2] - T
        q, k, v = (x.reshape(B * H, -1, K).contiguous() for x in (q_BHTK, k_BHSK, v_BHSK))
        # The kernel accumulates in float32 at least.
        wide = torch.float64 if q.dtype == torch.float64 else torch.float32
        out, lse = torch.empty_like(q), q.new_empty(B * H, T, 1, dtype=wide)
        masks = [_mask(band, before, q) for band in bands]
        for whole, mask in zip(bands, masks, strict=True):
            for band in [whole] if whole.runs_HNR is None else whole.parts():
                where = _rows(band, k, H)
                y, total = flash_attention(
                    _queries(q, band), _keys(k, band, where), _keys(v, band, where), 0.0, False, attn_mask=mask
                )
                total = total.unsqueeze(-1)
                here, lse_so_far = _queries(out, band), _queries(lse, band)
                if band.again:
                    both = torch.logaddexp(lse_so_far, total)
                    here.mul_((lse_so_far - both).exp_()).addcmul_(y, total.sub_(both).exp_())
                    lse_so_far.copy_(both)
                else:
                    here.copy_(y)
                    lse_so_far.copy_(total)
        ctx.save_for_backward(q, k, v, out, lse)
        ctx.bands, ctx.masks, ctx.shape = bands, masks, (B, H)
        return out.view(B, H, T, K)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, out, lse = ctx.saved_tensors
        B, H = ctx.shape
        grad = grads[0].reshape(q.shape).contiguous()
        # In float32 at least: bands are summed, and `index_add_` on overlapping rows is wrong in half precision.
        grad_q = torch.empty_like(q, dtype=lse.dtype)
        grad_k, grad_v = (torch.zeros_like(x, dtype=lse.dtype) for x in (k, v))
        for whole, mask in zip(ctx.bands, ctx.masks, strict=True):
            for band in whole.parts():
                where = _rows(band, k, H)
                read = _keys(k, band, where), _keys(v, band, where)
                done = _queries(out, band), _queries(lse, band).squeeze(-1).contiguous()
                a, b, c = flash_attention_backward(
                    _queries(grad, band), _queries(q, band), *read, *done, 0.0, False, attn_mask=mask
                )
                if band.again:
                    _queries(grad_q, band).add_(a)
                else:
                    _queries(grad_q, band).copy_(a)
                _add_to_keys(grad_k, b, band, where)
                _add_to_keys(grad_v, c, band, where)
        return *(x.to(q.dtype).view(B, H, *x.shape[1:]) for x in (grad_q, grad_k, grad_v)), None


def _queries(x_NTK: Tensor, band: Band) -> Tensor:
    """Return the queries of each block: (N, blocks, size, K), a view."""
    return _strided(x_NTK, band, band.query, band.size)


def _keys(x_NSK: Tensor, band: Band, rows: Tensor | None) -> Tensor:
    """Return the keys of each block: (N, blocks, width, K), a view whose blocks may overlap, or a copy of runs."""
    if rows is None:
        return _strided(x_NSK, band, band.key, band.length)
    N, _, K = x_NSK.shape
    return _every_run(x_NSK, band).index_select(0, rows).view(N, band.blocks, band.width, K)


def _add_to_keys(sum_NSK: Tensor, grad: Tensor, band: Band, rows: Tensor | None) -> None:
    """Add gradients (N, blocks, width, K) to the keys they belong to."""
    if rows is not None:
        _every_run(sum_NSK, band).index_add_(0, rows, grad.reshape(len(rows), -1).to(sum_NSK.dtype))
        return
    # Adjacent blocks may read the same keys: overlapping parts are added piece by piece.
    overlap = band.blocks > 1 and band.hop % band.step == 0
    piece = band.hop // band.step if overlap else band.length
    for start in range(0, band.length, piece):
        end = min(start + piece, band.length)
        _strided(sum_NSK, band, band.key + start * band.step, end - start).add_(grad[:, :, start:end])


def _strided(x_NSK: Tensor, band: Band, first: int, count: int) -> Tensor:
    N, S, K = x_NSK.shape
    return x_NSK.as_strided(
        (N, band.blocks, count, K), (S * K, band.hop * K, band.step * K, 1), x_NSK.storage_offset() + first * K
    )


def _every_run(x_NSK: Tensor, band: Band) -> Tensor:
    """Return a view (rows, length K) whose row i is the run that starts at the i-th vector; rows overlap."""
    N, S, K = x_NSK.shape
    return x_NSK.as_strided((N * S - band.length + 1, band.length * K), (K, 1))


def _rows(band: Band, k_NSK: Tensor, heads: int) -> Tensor | None:
    """Return the rows of `_every_run` that a band reads."""
    if band.runs_HNR is None:
        return None
    N, S, _ = k_NSK.shape
    first = (torch.arange(N) * S).view(-1, heads, 1, 1)
    return (first + band.runs_HNR).flatten()


def _mask(band: Band, before: int, like: Tensor) -> Tensor | None:
    """Return the additive mask of a block, the same for all blocks of a band; None if every query sees all."""
    visible = band.visible(before)
    if visible is None:
        return None
    hidden = torch.zeros(visible.shape, dtype=like.dtype).masked_fill_(~visible, float("-inf"))
    return hidden[None, None]
