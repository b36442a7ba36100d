"""BPE dropout: training text is segmented anew each time it is seen, so that the model learns what words are made of.

    repeat: of all merges that are possible now, leave out each with probability p; do the earliest learnt of the rest
    until none is left

The library's own dropout cannot be seeded, and a run must be repeatable from (seed, index). So each different word gets
VARIANTS segmentations when the data is prepared, and each occurrence in each batch takes one of them at random.

Paper: Provilkov et al. 2020, arXiv:1910.13267, algorithm 1.
Differs: VARIANTS samples for each word instead of a new one for each occurrence.
"""

import json
from collections.abc import Callable, Iterable
from itertools import pairwise
from pathlib import Path

import numpy as np

from allyouneed.tasks.batching import Array
from allyouneed.tasks.ids import Ragged, RaggedWriter
from allyouneed.tasks.tokenizer import Tokenizer

VARIANTS = 16
LONGEST_WORD = 64  # bytes; longer ones are segmented as usual, because sampling takes quadratic time
_AT_ONCE = 1 << 18  # examples measured at a time

Ranks = dict[tuple[str, str], int]


def merge_ranks(tokenizer: Tokenizer) -> Ranks:
    """The merges of a BPE tokeniser, numbered in the order in which they were learnt."""
    merges = json.loads(tokenizer.to_json())["model"]["merges"]
    return {(left, right): rank for rank, (left, right) in enumerate(merges)}


def segment(word: str, ranks: Ranks, dropout: float, random: Callable[[], float]) -> list[str]:
    """A random segmentation of a word; with dropout 0 the usual one."""
    pieces = list(word)
    while True:
        possible = ((ranks.get(pair), place) for place, pair in enumerate(pairwise(pieces)))
        best = min(
            ((rank, place) for rank, place in possible if rank is not None and random() >= dropout), default=None
        )
        if best is None:
            return pieces
        place = best[1]
        pieces[place : place + 2] = [pieces[place] + pieces[place + 1]]


class WordWriter:
    """Writes training text as numbers of words, and afterwards the variants of each word."""

    def __init__(self, folder: Path, name: str, tokenizer: Tokenizer) -> None:
        self._folder, self._name, self._tokenizer = folder, name, tokenizer
        self._numbers: dict[str, int] = {}
        self._words = RaggedWriter(folder, f"{name}.words", "<u4")

    def extend(self, texts: Iterable[str]) -> None:
        """Writes some texts."""
        numbers = self._numbers
        self._words.extend(
            [numbers.setdefault(word, len(numbers)) for word in self._tokenizer.words(text)] for text in texts
        )

    def finish(self, dropout: float, random: Callable[[], float], dtype: str) -> None:
        """Writes the variants of all words."""
        vocabulary, ranks = self._tokenizer.vocabulary, merge_ranks(self._tokenizer)
        with RaggedWriter(self._folder, f"{self._name}.variants", dtype) as variants:
            for word in self._numbers:
                if len(word) > LONGEST_WORD:
                    usual = [vocabulary[piece] for piece in self._tokenizer.pieces(word)]
                    variants.extend([usual] * VARIANTS)
                    continue
                samples = (segment(word, ranks, dropout, random) for _ in range(VARIANTS))
                variants.extend([vocabulary[piece] for piece in sample] for sample in samples)

    def close(self) -> None:
        """Everything is on disk."""
        self._words.close()


class SampledIds:
    """Reads what a WordWriter wrote: other ids for the same text each time."""

    def __init__(self, folder: Path, name: str, dtype: str, longest: int) -> None:
        self._words = Ragged(folder, f"{name}.words", "<u4")
        self._variants = Ragged(folder, f"{name}.variants", dtype)
        self._usual = Ragged(folder, name, dtype)
        self._longest = longest

    def lengths(self) -> Array:
        """How long each example is on average. A batch may so be a little larger or smaller than its budget."""
        means = self._variants.lengths().reshape(-1, VARIANTS).mean(axis=1)
        parts = []
        for first in range(0, len(self._words), _AT_ONCE):
            ends = self._words.ends[first : first + _AT_ONCE]
            start = int(self._words.ends[first - 1]) if first else 0
            starts = np.concatenate([[0], ends[:-1] - start])
            parts.append(np.add.reduceat(means[self._words.values[start : int(ends[-1])]], starts))
        lengths: Array = np.ceil(np.concatenate(parts)).astype(np.int64)
        return np.minimum(lengths, self._longest)

    def rows(self, members: Array, random: np.random.Generator) -> list[Array]:
        """The ids of some examples. One that came out too long is segmented as usual."""
        rows = []
        for member in members.tolist():
            words = self._words[member].astype(np.int64)
            row = self._variants.joined(
                words * VARIANTS + np.floor(random.random(len(words)) * VARIANTS).astype(np.int64)
            )
            rows.append(row if len(row) <= self._longest else self._usual[member])
        return rows
