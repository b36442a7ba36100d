"""BigBird: blocks that read their neighbours, a few global blocks, and a few blocks drawn at random.

    block i global:  out_t = softmax over all s
    else:            out_t = softmax over s in blocks i - 1, i, i + 1, the global ones, and R_h(i)

The first blocks and the last one are global: they read all and all read them. R_h(i) is drawn once for head h and block
i from the seed, and is the same in training, evaluation and every layer. A causal BigBird reads and draws earlier
blocks only, so a longer text does not change what its start reads.

Cost: O(n b (4 + g + r) D) time for blocks of b, g first and r random ones, O(n D) state, 1 sequential step, path 2 (1
from a global block).
Paper: Zaheer et al. 2020, arXiv:2007.14062, section 2 and appendix D (ITC).
Differs: any length (the last block may be shorter). The causal form is ours: the paper's is not causal. Padding is
not a position: blocks count real tokens only.
"""

from collections.abc import Iterator
from functools import lru_cache
from itertools import groupby
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import NonNegativeInt, PositiveInt
from torch import Tensor

from allyouneed.mixers.base import Cost, Role, Theory
from allyouneed.mixers.parts.block_sparse import Band, grouped
from allyouneed.mixers.parts.patterned import PatternedConfig


class BigBirdConfig(PatternedConfig):
    summary = "blocks read their neighbours, global blocks and a few blocks drawn at random"
    paper = "Zaheer et al. 2020, arXiv:2007.14062"
    theory = Theory("n b (4 + g + r) d + n d²", 1, 1, "1", "1")
    family = "local attention"

    type: Literal["bigbird"] = "bigbird"
    block: PositiveInt = 64  # positions in a block
    globals: PositiveInt = 1  # number of first blocks that are global; if not causal, the last one is global too
    random: NonNegativeInt = 3  # number of random blocks that a block reads
    seed: NonNegativeInt = 0  # of the random blocks

    def ineffective_setting(self) -> str | None:
        if self.seed and not self.random:
            return f"seed={self.seed}: has no effect with random=0; remove it"
        return None

    def bands(self, role: Role, queries: int, keys: int) -> tuple[Band, ...]:
        return _causal_bands(self, queries, keys) if role == "causal" else _bands(self, keys)

    def cost(self, length: int, width: int, *, role: Role = "causal", memory: int | None = None) -> Cost:
        state = 8 * length * width if role == "causal" else 0
        # The first position is global, so it reaches the last in one layer; two others far apart need two.
        return Cost(self.attention_flops(role, length, width), state, sequential=1, path=1)


def draw(config: BigBirdConfig, block: int, choices: int) -> Tensor:
    """Draw distinct numbers below `choices`: (H, R), R = `random`, or `choices` if that is smaller.

    They depend only on the seed, the head, the block and the number of choices, so any block can be drawn at any time:
    while decoding, or in a longer text.
    """
    drawn = np.empty((config.heads, 0), dtype=np.int64)
    head_H = np.arange(config.heads, dtype=np.uint64)
    for index in range(min(config.random, choices)):
        bits_H = _scrambled(config.seed, block, index, head_H)
        number_H = (bits_H % np.uint64(choices - index)).astype(np.int64)  # among those not drawn yet
        for taken_H in np.sort(drawn, axis=1).T:
            number_H += number_H >= taken_H
        drawn = np.concatenate([drawn, number_H[:, None]], axis=1)
    return torch.from_numpy(drawn)


def _scrambled(seed: int, block: int, index: int, head_H: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return 64 hash bits per head: the finaliser of SplitMix64 applied after each of seed, block and index."""
    bits_H = head_H
    for number in (seed, block, index):
        bits_H = bits_H + np.uint64((number + 1) * 0x9E3779B97F4A7C15 % 2**64)
        bits_H = (bits_H ^ (bits_H >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        bits_H = (bits_H ^ (bits_H >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        bits_H = bits_H ^ (bits_H >> np.uint64(31))
    return bits_H


@lru_cache(maxsize=256)
def _causal_bands(config: BigBirdConfig, queries: int, keys: int) -> tuple[Band, ...]:
    """Return the causal bands.

    Each block reads itself up to each query, the block before it, the global blocks and random ones between.
    """
    size, first, before = config.block, config.globals, keys - queries
    near, drawn = [], {}
    for i in range(before // size, -(-keys // size)):
        begin, end = max(before, i * size), min(keys, (i + 1) * size)
        start = 0 if i < first else max(first, i - 1) * size
        near.append((begin - before, start, end - begin, end - start))
        drawn[i] = draw(config, i, max(0, i - 1 - first)) + first
    bands = [*grouped(near, torch.ge)]
    begin = max(before, first * size)
    if begin < keys:
        bands.append(Band(begin - before, 0, keys - begin, first * size, again=True))
    return *bands, *_random_bands(drawn, size, before, keys)


@lru_cache(maxsize=256)
def _bands(config: BigBirdConfig, keys: int) -> tuple[Band, ...]:
    """Return the bidirectional bands.

    Global blocks read everything; each other block reads its neighbours, the global blocks and random ones.
    """
    size, first, last = config.block, config.globals, -(-keys // config.block) - 1
    if last <= first:  # every block is global
        return (Band(0, 0, keys, keys),)
    near, drawn = [(0, 0, first * size, keys)], {}
    for i in range(first, last):
        start, end = max(first, i - 1) * size, min(last, i + 2) * size
        near.append((i * size, start, size, end - start))
        left, right = range(first, i - 1), range(i + 2, last)
        number = draw(config, i, len(left) + len(right))
        drawn[i] = torch.where(number < len(left), number + first, number - len(left) + i + 2)
    bands = [*grouped(near), Band(last * size, 0, keys - last * size, keys)]
    begin, rows = first * size, (last - first) * size
    if keys % size:
        bands.append(Band(begin, 0, rows, first * size, again=True))
        bands.append(Band(begin, last * size, rows, keys - last * size, again=True))
    else:
        ends = torch.tensor([*range(first), last]).view(1, 1, -1) * size
        bands.append(Band(begin, 0, rows, size, again=True, runs_HNR=ends))
    return *bands, *_random_bands(drawn, size, 0, keys)


def _random_bands(drawn: dict[int, Tensor], size: int, before: int, keys: int) -> Iterator[Band]:
    """Group consecutive whole blocks with equally many random blocks into bands; a cut block forms its own."""

    def kind(i: int) -> tuple[int, int]:
        return drawn[i].shape[1], -1 if before <= i * size and (i + 1) * size <= keys else i

    for (count, _), group in groupby(drawn, kind):
        if count:
            blocks = list(group)
            begin, end = max(before, blocks[0] * size), min(keys, (blocks[0] + 1) * size)
            runs_HNR = torch.stack([drawn[i] for i in blocks], dim=1) * size
            yield Band(begin - before, 0, end - begin, size, len(blocks), again=True, runs_HNR=runs_HNR)
