"""A lexicon of word translations, learnt from pairs of texts alone: IBM Model 1, by expectation maximisation.

    P(y_1 .. y_T | x_1 .. x_S)  ~  prod_t sum_s t(y_t | x_s),    s = 0 .. S, and x_0 is NULL, a word of every source
    E:  c(y, x) = sum over pairs, t and s  of  t(y_t | x_s) / sum_r t(y_t | x_r)
    M:  t(y | x) = c(y, x) / sum_y c(y, x)

All t are equal at first, so the first E step only counts which words occur together in a pair.

Cost: time grows with the sum of S T over all pairs. Memory grows with the number of different (x, y) that occur
together, up to MOST of them: less than 160 bytes each (tests/shortlist/test_lexicon.py measures it), so less than
2.5 GiB.
Paper: Brown et al. 1993, "The Mathematics of Statistical Machine Translation", Computational Linguistics 19(2), section
4.1.
Differs: if there are more than MOST different (x, y), the least frequent ones of each x are dropped while counting; if
there are more than SENTENCES pairs, every n-th is read.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from allyouneed.text.ragged import Array, Ragged
from allyouneed.text.specials import PAD

NULL = PAD  # an id that does not occur in texts
CELLS = 1 << 21  # of a chunk: (target position, source position) of one pair each
MOST = 1 << 24  # different (x, y) that are kept
SENTENCES = 500_000


@dataclass(frozen=True)
class Lexicon:
    """t(y | x) of all (x, y) that occur together, sorted by x, then y."""

    source: Array
    target: Array
    probability: Array

    def best(self, count: int) -> "Lexicon":
        """Return the `count` most probable targets of each source word; smaller ids win ties."""
        kept = _largest(self.probability, self.source, count)
        return Lexicon(self.source[kept], self.target[kept], self.probability[kept])


def learn_lexicon(
    sources: Ragged,
    targets: Ragged,
    iterations: int = 5,
    progress: Callable[[float], None] | None = None,
) -> Lexicon:
    """Learn t(y | x) from the ids of pairs, without special ids. `progress` receives the fraction done."""
    width = 1 + int(targets.values.max(initial=0))
    step = max(1, -(-len(sources) // SENTENCES))
    spans = _spans(sources.lengths()[::step], targets.lengths()[::step])
    done = 0

    def cells() -> Iterator[_Cells]:
        nonlocal done
        for begin, end in spans:
            members = np.arange(begin, end) * step
            yield _Cells(sources, targets, members, width)
            done += 1
            if progress is not None:
                progress(done / (len(spans) * iterations))

    keys, counts = _first_counts(cells(), width)
    source = keys // width
    probability = _normalised(counts, source)
    for _ in range(iterations - 1):
        counts = np.zeros(len(keys))
        for chunk in cells():
            place = np.minimum(np.searchsorted(keys, chunk.keys), len(keys) - 1)
            value = np.where(keys[place] == chunk.keys, probability[place], 0.0)  # 0: dropped
            np.add.at(counts, place, chunk.shares(value))
        probability = _normalised(counts, source)
    known = source != NULL
    return Lexicon(source[known], (keys % width)[known], probability[known])


class _Cells:
    """All (target position, source position) of some pairs: the ids of both as one number."""

    def __init__(self, sources: Ragged, targets: Ragged, members: Array, width: int) -> None:
        lengths = sources.lengths_of(members) + 1
        begins = np.cumsum(lengths) - lengths
        given = np.full(int(lengths.sum()), NULL, dtype=np.int64)
        real = np.ones(len(given), dtype=bool)
        real[begins] = False
        given[real] = sources.joined(members)
        target_ids = targets.joined(members).astype(np.int64)
        pair = np.repeat(np.arange(len(members)), targets.lengths_of(members))
        self._lengths = lengths[pair]  # number of cells of each target position; they are adjacent
        self._begins = np.cumsum(self._lengths) - self._lengths
        place = np.arange(int(self._lengths.sum())) + np.repeat(begins[pair] - self._begins, self._lengths)
        self.keys = given[place] * width + np.repeat(target_ids, self._lengths)

    def shares(self, value: Array) -> Array:
        """Return the fraction of each cell in the sum over its target position."""
        if not len(value):
            return value
        total = np.add.reduceat(value, self._begins)
        return value / np.repeat(np.where(total > 0, total, 1.0), self._lengths)


def _spans(source_lengths: Array, target_lengths: Array) -> list[tuple[int, int]]:
    """Split the pairs into chunks of about CELLS cells."""
    ends = np.cumsum((source_lengths + 1) * target_lengths)
    chunk = ends // CELLS
    cuts = [0, *(np.flatnonzero(np.diff(chunk)) + 1).tolist(), len(ends)]
    return list(pairwise(cuts))


def _first_counts(chunks: Iterator[_Cells], width: int) -> tuple[Array, Array]:
    """Return all different cells, sorted, and c(y, x) for equal t."""
    kept, waiting, size = (np.zeros(0, dtype=np.int64), np.zeros(0)), [], 0
    for chunk in chunks:
        waiting.append(_summed(chunk.keys, chunk.shares(np.ones(len(chunk.keys)))))
        size += len(waiting[-1][0])
        if size > max(len(kept[0]), 4 * CELLS):  # rarely, because all kept cells are sorted again
            kept, waiting, size = _fewer(*_joined([kept, *waiting]), width), [], 0
    return _fewer(*_joined([kept, *waiting]), width)


def _joined(parts: list[tuple[Array, Array]]) -> tuple[Array, Array]:
    return _summed(np.concatenate([keys for keys, _ in parts]), np.concatenate([counts for _, counts in parts]))


def _summed(keys: Array, counts: Array) -> tuple[Array, Array]:
    """Merge equal keys and sum their counts."""
    order = np.argsort(keys, kind="stable")
    keys = keys[order]
    first = np.flatnonzero(np.diff(keys, prepend=-1))
    return keys[first], np.add.reduceat(counts[order], first) if len(first) else counts


def _fewer(keys: Array, counts: Array, width: int) -> tuple[Array, Array]:
    """Keep at most MOST cells, equally many of each source word, so that rare words keep theirs."""
    if len(keys) <= MOST:
        return keys, counts
    source = keys // width
    kept = _largest(counts, source, max(1, MOST // len(np.unique(source))))
    return keys[kept], counts[kept]


def _largest(value: Array, source: Array, count: int) -> Array:
    """Return the indices of the `count` largest values of each source word; the first ones win ties."""
    order = np.lexsort((-value, source))
    sorted_source = source[order]
    rank = np.arange(len(order)) - np.searchsorted(sorted_source, sorted_source)
    return np.sort(order[rank < count])


def _normalised(counts: Array, source: Array) -> Array:
    total = np.bincount(source, weights=counts)
    return counts / np.where(total > 0, total, 1.0)[source]
