"""Token-budget batches of similar lengths, addressed by (seed, index): any batch, at any time, in any process.

    padded tokens of a batch = rows x longest <= budget, on the source side and on the target side

Examples are sorted by their longer side, rounded up to one of a few bucket sizes, and packed once; as packing
sees only the bucket sizes, every epoch has the same number of batches. An epoch mixes the examples of each
bucket (those with similar shorter sides stay near each other, which saves padding) and the order of the
batches.
"""

from typing import Any

import numpy as np

from allyouneed.errors import DataError

Array = np.ndarray[Any, np.dtype[Any]]
STEPS = 8  # buckets for each doubling of the length: at most an eighth of a row is padding for this reason


def generator(seed: int, *address: int) -> np.random.Generator:
    """A private source of randomness for one address. The numbers depend on nothing else."""
    return np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, *address])))


def shuffled(count: int, random: np.random.Generator) -> Array:
    """A permutation. Only `random()` is used: numpy promises no stability for its own shuffling."""
    return np.argsort(random.random(count), kind="stable")


def bucket_sizes(lengths: Array) -> Array:
    """Each length rounded up to a bucket: exact up to 2 x STEPS, then STEPS sizes for each doubling."""
    doublings = np.maximum(1, np.ceil(np.log2(np.maximum(lengths, 1)))).astype(np.int64)
    step = np.maximum(1, 2 ** (doublings - 1) // STEPS)
    return -(-lengths // step) * step


def pack(sizes: Array, budget: int) -> Array:
    """Where each batch ends in a list of sizes in rising order, so that rows x largest <= budget."""
    ends, start, count = [], 0, len(sizes)
    while start < count:
        # (end - start) * sizes[end - 1] rises with `end`: a binary search finds the last one that fits.
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


class Batches:
    """Which examples form batch number `index`. Lengths count every token, the special ones included."""

    def __init__(self, source: Array, target: Array, budget: int) -> None:
        longer, shorter = np.maximum(source, target), np.minimum(source, target)
        if not len(longer):
            raise DataError("no example is left to make batches of")
        if (longest := int(longer.max())) > budget:
            raise DataError(f"an example has {longest} tokens, but a batch may hold {budget}; raise batch_tokens")
        self._sizes = bucket_sizes(longer)
        # A bucket may be larger than the budget even if no example is.
        self._sizes = np.minimum(self._sizes, budget)
        self._shorter = shorter
        self._ends = pack(np.sort(self._sizes), budget)
        self._cached: tuple[tuple[int, int], Array, Array] | None = None

    def __len__(self) -> int:
        """Batches an epoch."""
        return len(self._ends)

    def members(self, seed: int, index: int) -> Array:
        """The examples of training batch `index`."""
        epoch, number = divmod(index, len(self))
        examples, batches = self._epoch(seed, epoch)
        return self._slice(examples, int(batches[number]))

    def in_order(self) -> list[Array]:
        """Every example once, by length: for held-out data."""
        examples = np.lexsort((self._shorter, self._sizes))
        return [self._slice(examples, number) for number in range(len(self))]

    def _slice(self, examples: Array, number: int) -> Array:
        start = int(self._ends[number - 1]) if number else 0
        return examples[start : int(self._ends[number])]

    def _epoch(self, seed: int, epoch: int) -> tuple[Array, Array]:
        if self._cached is None or self._cached[0] != (seed, epoch):
            random = generator(seed, epoch)
            # Neighbours within an eighth (and two tokens) of the shorter side change places freely.
            blur = self._shorter + random.random(len(self._shorter)) * (2 + self._sizes / STEPS)
            examples = np.lexsort((blur, self._sizes)).astype(np.uint32)
            self._cached = (seed, epoch), examples, shuffled(len(self), random)
        return self._cached[1:]
