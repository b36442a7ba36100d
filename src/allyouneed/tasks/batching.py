"""Token-budget batches of similar lengths, addressed by (seed, index): any batch, at any time, in any process.

    padded tokens of a batch = rows x longest <= budget, on the source side and on the target side

Examples are sorted by their longer side, rounded up to one of a few bucket sizes, and packed once. Packing depends only
on the bucket sizes, so every epoch has the same number of batches. An epoch shuffles the examples of each bucket (those
with similar shorter sides stay close, which saves padding) and the order of the batches.
"""

from collections.abc import Callable

import numpy as np

from allyouneed.errors import DataError
from allyouneed.randomness import generator
from allyouneed.text.ragged import Array

Pair = tuple[Array, Array]  # source, target
STEPS = 8  # buckets for each doubling of the length: rounding up pads a row by at most an eighth


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


def _sorted_sides(lengths: Pair) -> Pair:
    """Return the longer and the shorter side of each example."""
    return np.maximum(*lengths), np.minimum(*lengths)


class Batches:
    """The examples of each batch, by its index. Lengths count every token, special ones included.

    If lengths differ from epoch to epoch (`resample`), each batch keeps its number of rows and the examples are sorted
    again. Sorted lengths hardly change, so a batch rarely exceeds its budget, and by little (an eighth on Multi30k).
    """

    def __init__(self, lengths: Pair, budget: int, resample: Callable[[int, int], Pair] | None = None) -> None:
        longer, _ = _sorted_sides(lengths)
        if not len(longer):
            raise DataError("no examples are left")
        if (longest := int(longer.max())) > budget:
            raise DataError(f"an example has {longest} tokens, but a batch may hold {budget}; raise batch_tokens")
        self._lengths, self._resample = lengths, resample
        # A bucket size can exceed the budget even if no example does.
        self._ends = pack(np.sort(np.minimum(bucket_sizes(longer), budget)), budget)
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
        longer, shorter = _sorted_sides(self._lengths)
        examples = np.lexsort((shorter, bucket_sizes(longer)))
        return [self._slice(examples, number) for number in range(len(self))]

    def _slice(self, examples: Array, number: int) -> Array:
        start = int(self._ends[number - 1]) if number else 0
        return examples[start : int(self._ends[number])]

    def _epoch(self, seed: int, epoch: int) -> tuple[Array, Array]:
        if self._cached is None or self._cached[0] != (seed, epoch):
            random = generator(seed, epoch)
            longer, shorter = _sorted_sides(self._resample(seed, epoch) if self._resample else self._lengths)
            sizes = bucket_sizes(longer)
            # Noise of up to an eighth of the size (and two tokens) shuffles examples with similar shorter sides.
            blur = shorter + random.random(len(shorter)) * (2 + sizes / STEPS)
            examples = np.lexsort((blur, sizes)).astype(np.uint32)
            self._cached = (seed, epoch), examples, shuffled(len(self), random)
        return self._cached[1:]
