"""Sparse attention in two factors: a near one, and a far one from which the near one reaches every position.

    strided:  A(t) = {s : t - s < l}              with {s : t - s a multiple of l}
    fixed:    A(t) = {s in the same block of l}   with {s among the last c of any block of l}

A causal mixer reads s <= t only. The strided pattern suits periodic data (images, music). The fixed one suits text:
the last c positions of a block summarise it for all later positions.

Cost: O(n (l + n / l) D) time, strided, O(n (l + c n / l) D), fixed: O(n sqrt(n) D) for l near sqrt(n); O(n D) state, 1
sequential step, path 2 (1 within a factor).
Paper: Child et al. 2019, arXiv:1904.10509, section 4.
Differs: of the paper's three ways to combine the factors this is the merged head, equation 7: every head reads the
union. A bidirectional role, with distances to either side, is added (the paper is causal only).
"""

import math
from collections.abc import Iterator
from functools import lru_cache
from itertools import pairwise
from typing import Annotated, Literal

import torch
from pydantic import Field, PositiveInt, ValidationInfo, field_validator

from allyouneed.mixers.base import Cost, Role, Theory
from allyouneed.mixers.parts.block_sparse import Band, Pattern, bands_of, grouped
from allyouneed.mixers.parts.patterned import PatternedConfig

ROWS = 128  # queries of a column per call: fewer need more calls, more compute masked pairs


class SparseConfig(PatternedConfig):
    summary = "near positions, and every l-th (strided) or the last of every block (fixed): two layers connect all"
    paper = "Child et al. 2019, arXiv:1904.10509"
    theory = Theory("n √n d + n d²", 1.5, 1, "1", "2", leads_at=(1024, 4096, 16384))
    family = "global attention"

    type: Literal["sparse"] = "sparse"
    pattern: Literal["strided", "fixed"] = "fixed"
    stride: PositiveInt = 128  # the paper's l, near the square root of the length
    summaries: Annotated[PositiveInt | None, Field(validate_default=True)] = None  # the paper's c; stride / 16 if fixed

    @field_validator("summaries", mode="after")
    @classmethod
    def _check_summaries(cls, value: int | None, info: ValidationInfo) -> int | None:
        pattern, stride = info.data.get("pattern"), info.data.get("stride")
        if pattern is None or stride is None:  # already invalid
            return value
        if pattern == "strided" and value is not None:
            raise ValueError("only the fixed pattern has summaries; leave it out")
        if value is not None and value > stride:
            raise ValueError(f"{value}, but a block has only {stride} positions")
        return value

    @classmethod
    def settings_for(cls, length: int) -> dict[str, object]:
        """Return a stride near the square root of the length (section 4.2), and a few summaries per block."""
        return {"stride": max(8, round(math.sqrt(length))), "summaries": 8}

    @property
    def kept(self) -> int:
        """Return how many last positions of a block all later positions read."""
        return self.summaries or max(1, self.stride // 16)

    def bands(self, role: Role, queries: int, keys: int) -> tuple[Band, ...]:
        causal = role == "causal"
        if self.pattern == "strided":
            return tuple(_strided(self.stride, queries, keys, causal))
        if causal:
            return _fixed(self.stride, self.kept, queries, keys)
        return tuple(_fixed_both_ways(self.stride, self.kept, keys))

    def cost(self, length: int, width: int, *, role: Role = "causal", memory: int | None = None) -> Cost:
        state = 8 * length * width if role == "causal" else 0
        distance = length - 1
        direct = distance < self.stride
        if self.pattern == "strided":
            direct = direct or distance % self.stride == 0
        else:
            direct = direct or self.kept == self.stride
        return Cost(self.attention_flops(role, length, width), state, sequential=1, path=1 if direct else 2)


def _strided(stride: int, queries: int, keys: int, causal: bool) -> Iterator[Band]:
    """Yield a window, then columns of positions with the same remainder. Adjacent columns are the blocks of a band."""
    yield from bands_of(Pattern(stride - 1, 0 if causal else stride - 1), queries, keys)
    before = keys - queries
    begin = max(before, stride) if causal else 0
    # From `begin` on, each position starts a column. Columns change where the remainder wraps or the last row ends.
    for first, end in pairwise(sorted({0, -begin % stride, (keys - begin) % stride, stride})):
        column, rows = (begin + first) % stride, len(range(begin + first, keys, stride))
        above = (begin + first) // stride  # positions of the column before its first query
        if above + rows < 2:  # no other position to read
            continue
        for top in range(0, rows, ROWS):
            size = min(ROWS, rows - top)
            length = above + top + size - 1 if causal else rows
            yield Band(
                begin + first + top * stride - before,
                column,
                size,
                length,
                blocks=end - first,
                again=True,
                step=stride,
                hop=1,
                sees=torch.gt if causal else torch.ne,
            )


@lru_cache(maxsize=256)
def _fixed(stride: int, kept: int, queries: int, keys: int) -> tuple[Band, ...]:
    """Return the bands: each block reads itself up to each query, and the summaries of earlier blocks."""
    before = keys - queries
    near, far = [], []
    summary = torch.arange(stride - kept, keys + stride, stride)[None, None]
    for start in range(before - before % stride, keys, stride):
        begin, end = max(before, start), min(keys, start + stride)
        near.append((begin - before, start, end - begin, end - start))
        if start:
            runs_HNR = summary[..., : start // stride]
            far.append(Band(begin - before, 0, end - begin, kept, again=True, runs_HNR=runs_HNR))
    return *grouped(near, torch.ge), *far


def _fixed_both_ways(stride: int, kept: int, keys: int) -> Iterator[Band]:
    """Yield the bands: each position reads its block and the summaries of all blocks; the last may have fewer."""
    whole, rest = divmod(keys, stride)
    if whole:
        yield Band(0, 0, keys, kept, runs_HNR=torch.arange(stride - kept, whole * stride, stride)[None, None])
        if kept < stride:
            yield Band(0, 0, stride, stride - kept, whole, again=True)
    if rest:
        start, own = whole * stride, min(rest, stride - kept)
        if own:
            yield Band(start, start, rest, own, again=whole > 0)
        if own < rest:  # the first band if there is no whole block and every position is a summary
            yield Band(0, start + own, keys, rest - own, again=whole > 0 or own > 0)
