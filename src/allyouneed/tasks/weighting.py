"""Weights of corpora: how often an example of each corpus is read in an epoch.

    weight 2       each example twice in every epoch
    weight 0.25    a quarter of the examples in every epoch, and each example once in four epochs

The examples of an epoch depend only on (seed, epoch), so a resumed run reads the same ones. A fraction is a systematic
sample: examples are sorted by size (and at random within a size), and one is taken from each run of 1/weight
neighbours. So every epoch has nearly the same lengths, and their upper bounds, which decide the batches, never change.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from allyouneed.randomness import generator
from allyouneed.text.lines import Pair
from allyouneed.text.ragged import Array

WEIGHTS = 13  # the last number of an address, used nowhere else
CORPORA = "corpora.json"  # the number of examples of each training corpus, if they have weights or tags

Share = tuple[int, float]  # the number of examples of a corpus, and its weight
Numbered = tuple[int, Pair]  # an example with the number of its corpus


def key_of(weights: Sequence[float]) -> dict[str, Any]:
    """Return what the key of prepared data has for weights: their values do not change it."""
    return {"weighted": True} if weighted(weights) else {}


def weighted(weights: Sequence[float]) -> bool:
    """Return whether corpora are not read equally often."""
    return any(weight != 1 for weight in weights)


def save_counts(
    folder: Path, parts: Sequence[dict[str, Any]], weights: Sequence[float], tagged: bool = False
) -> list[int]:
    """Return the number of examples of each corpus, of which each part has some.

    It is written if corpora have weights or are `tagged`.
    """
    counts = [sum(dict(part["corpora"]).get(number, 0) for part in parts) for number in range(len(weights))]
    if weighted(weights) or tagged:
        (folder / CORPORA).write_text(json.dumps(counts), encoding="utf-8")
    return counts


def read_shares(folder: Path, weights: Sequence[float]) -> list[Share]:
    """Return the number of examples of each corpus with its weight; none if all are read equally often."""
    if not weighted(weights):
        return []
    return list(zip(read_counts(folder), weights, strict=True))


def read_counts(folder: Path) -> list[int]:
    """Return the number of examples of each corpus that has a weight or a tag, and of the others beside it."""
    counts: list[int] = json.loads((folder / CORPORA).read_text(encoding="utf-8"))
    return counts


class WeightedRows:
    """The examples of each epoch, of corpora that follow each other in the data."""

    def __init__(self, sizes: Array, shares: Sequence[Share]) -> None:
        self._sizes, self._shares = sizes, [(count, weight) for count, weight in shares]
        self._cached: tuple[int, list[Array]] | None = None

    def largest_sizes(self) -> Array:
        """Return an upper bound of the size of each example of any epoch."""
        found, start = [], 0
        for count, weight in self._shares:
            sizes = np.sort(self._sizes[start : start + count])
            whole, part = _parts(count, weight)
            found += [sizes] * whole
            if part:
                found.append(sizes[(np.arange(part) * count + count - 1) // part])
            start += count
        return np.concatenate(found)

    def rows(self, seed: int, epoch: int) -> Array:
        """Return the examples of an epoch."""
        found, start = [], 0
        for (count, weight), order in zip(self._shares, self._orders(seed), strict=True):
            whole, part = _parts(count, weight)
            found += [np.arange(start, start + count, dtype=np.uint32)] * whole
            if part:
                found.append(order[(np.arange(part) * count + epoch * part % count) // part])
            start += count
        return np.concatenate(found)

    def _orders(self, seed: int) -> list[Array]:
        """Return the examples of each corpus, sorted by size; empty if its weight is a whole number."""
        if self._cached is None or self._cached[0] != seed:
            orders, start = [], 0
            for number, (count, weight) in enumerate(self._shares):
                order = np.zeros(0, dtype=np.uint32)
                if _parts(count, weight)[1]:
                    noise = generator(seed, number, WEIGHTS).random(count)
                    order = (np.lexsort((noise, self._sizes[start : start + count])) + start).astype(np.uint32)
                orders.append(order)
                start += count
            self._cached = seed, orders
        return self._cached[1]


def _parts(count: int, weight: float) -> tuple[int, int]:
    """Return how often all examples are read in an epoch, and how many are read once more."""
    whole = int(weight)
    part = round(count * (weight - whole))
    if count and not whole and not part:
        part = 1  # of a small corpus with a small weight
    return whole, part
