"""Token-budget batches of similar lengths, addressed by (seed, index): any batch, at any time, in any process.

    padded tokens of a batch = rows x longest <= budget, on the source side and on the target side

Examples are sorted by their longer side, rounded up to one of a few bucket sizes, and packed once. Packing depends only
on the bucket sizes, so every epoch has the same number of batches. An epoch shuffles the examples of each bucket (those
with similar shorter sides stay close, which saves padding) and the order of the batches.

Memory for each example: 8 bytes, and 26 while an epoch is sorted (`docs/data.md`).
"""

from collections.abc import Callable, Sequence

import numpy as np

from allyouneed.errors import DataError
from allyouneed.randomness import generator
from allyouneed.tasks.weighting import Share, WeightedRows
from allyouneed.text.ragged import Array

Pair = tuple[Array, Array]  # source, target
STEPS = 8  # buckets for each doubling of the length: rounding up pads a row by at most an eighth
NO_LIMIT = 1 << 62
_SHORT = 1 << 15  # a bucket size of such a length fits 16 bits
_CHUNK = 1 << 20  # examples whose sizes are computed together


def shuffled(count: int, random: np.random.Generator) -> Array:
    """Return a random permutation. Only `random()` is used: numpy does not guarantee a stable `shuffle`."""
    return np.argsort(random.random(count), kind="stable")


def bucket_sizes(lengths: Array) -> Array:
    """Round each length up to a bucket size: exact up to 2 x STEPS, then STEPS sizes for each doubling."""
    doublings = np.maximum(1, np.ceil(np.log2(np.maximum(lengths, 1)))).astype(np.int64)
    step = np.maximum(1, 2 ** (doublings - 1) // STEPS)
    return -(-lengths // step) * step


def pack(sizes: Array, budget: int) -> Array:
    """Return where each batch ends in an ascending list of sizes, so that rows x largest <= budget."""
    ends, start, count = [], 0, len(sizes)
    while start < count:
        # (end - start) * sizes[end - 1] grows with `end`, so a binary search finds the last end that fits.
        low, high = start + 1, min(count, start + max(1, budget // int(sizes[start])))
        while low < high:
            middle = (low + high + 1) // 2
            if (middle - start) * int(sizes[middle - 1]) <= budget:
                low = middle
            else:
                high = middle - 1
        ends.append(low)
        start = low
    return np.array(ends, dtype=np.int64)


def _sizes(lengths: Pair, most: int | None = None) -> Array:
    """Return the bucket size of each example's longer side, at most `most`; in chunks, to save memory."""
    sizes = np.empty_like(lengths[0])
    for begin in range(0, len(sizes), _CHUNK):
        longer = np.maximum(*(side[begin : begin + _CHUNK] for side in lengths)).astype(np.int64)
        sizes[begin : begin + _CHUNK] = np.minimum(bucket_sizes(longer), most or NO_LIMIT)
    return sizes


def _sorted_examples(sizes: Array, second: Array) -> Array:
    """Return the examples sorted by size, then by a second number, then by index: as `np.lexsort`, in less memory."""
    found, done = np.empty(len(sizes), dtype=np.uint32), 0
    for size in np.unique(sizes):
        members = np.flatnonzero(sizes == size)
        found[done : done + len(members)] = members[np.argsort(second[members], kind="stable")]
        done += len(members)
    return found


class Batches:
    """The examples of each batch, by its index. Lengths count every token, special ones included.

    If lengths differ from epoch to epoch (`resample`), each batch keeps its number of rows and the examples are sorted
    again. Sorted lengths hardly change, so a batch rarely exceeds its budget, and by little (an eighth on Multi30k).
    """

    def __init__(
        self,
        lengths: Pair,
        budget: int,
        resample: Callable[[int, int], Pair] | None = None,
        shares: Sequence[Share] = (),
    ) -> None:
        if not len(lengths[0]):
            raise DataError("no examples are left")
        if (longest := max(int(side.max()) for side in lengths)) > budget:
            raise DataError(f"an example has {longest} tokens, but a batch may hold {budget}; raise batch_tokens")
        dtype = np.uint16 if longest <= _SHORT else np.uint32
        source, target = (side.astype(dtype, copy=False) for side in lengths)
        self._lengths, self._resample, self._budget = (source, target), resample, budget
        # A bucket size can exceed the budget even if no example does.
        sizes = _sizes(self._lengths, budget)
        self._weighted = WeightedRows(sizes, shares) if shares else None
        self._ends = pack(np.sort(self._weighted.largest_sizes() if self._weighted else sizes), budget)
        self._cached: tuple[tuple[int, int], Array, Array] | None = None

    def __len__(self) -> int:
        """Return the number of batches in an epoch."""
        return len(self._ends)

    def epoch(self, index: int) -> int:
        """Return the epoch of batch `index`."""
        return index // len(self)

    def members(self, seed: int, index: int) -> Array:
        """Return the examples of training batch `index`."""
        examples, batches = self._epoch(seed, self.epoch(index))
        return self._slice(examples, int(batches[index % len(self)]))

    def in_order(self) -> list[Array]:
        """Return batches with every example once, by length: for held-out data."""
        examples = _sorted_examples(_sizes(self._lengths), np.minimum(*self._lengths))
        return [self._slice(examples, number) for number in range(len(self))]

    def _slice(self, examples: Array, number: int) -> Array:
        start = int(self._ends[number - 1]) if number else 0
        return examples[start : int(self._ends[number])]

    def _epoch(self, seed: int, epoch: int) -> tuple[Array, Array]:
        if self._cached is None or self._cached[0] != (seed, epoch):
            self._cached = None
            random = generator(seed, epoch)
            lengths = self._resample(seed, epoch) if self._resample else self._lengths
            rows = self._weighted.rows(seed, epoch) if self._weighted else None
            if rows is not None:
                lengths = lengths[0][rows], lengths[1][rows]
            sizes = _sizes(lengths)
            examples = _sorted_examples(sizes, _blurred(np.minimum(*lengths), sizes, random))
            self._cached = (seed, epoch), examples if rows is None else rows[examples], shuffled(len(self), random)
        return self._cached[1:]


def _blurred(shorter: Array, sizes: Array, random: np.random.Generator) -> Array:
    """Return lengths with noise of up to an eighth of the size (and two tokens), to shuffle similar examples."""
    noise = random.random(len(shorter))
    for begin in range(0, len(noise), _CHUNK):
        part = slice(begin, begin + _CHUNK)
        noise[part] = shorter[part] + noise[part] * (2 + sizes[part] / STEPS)
    return noise
