"""BPE dropout: training text is segmented differently in each epoch, so that a model learns what words consist of.

    repeat: of all merges that are possible now, skip each with probability p; apply the earliest learnt of the rest
    until none is left

The tokenisers library cannot seed its dropout, and a run must be repeatable from (seed, index). So each different word
gets VARIANTS segmentations when the data is prepared, and each occurrence takes a random one of them in each epoch.

Paper: Provilkov et al. 2020, arXiv:1910.13267, algorithm 1.
Differs: VARIANTS samples for each word instead of a new one for each occurrence.
"""

import json
from collections.abc import Callable, Iterable
from itertools import pairwise
from pathlib import Path

import numpy as np

from allyouneed.randomness import generator
from allyouneed.text.ragged import Array, Ragged, RaggedWriter
from allyouneed.text.tokenizer import Tokenizer

VARIANTS = 16  # divides 256
# Last numbers of an address, used nowhere else: an address with zeros at its end is the same without them.
SEGMENTATIONS, CHOICES = 11, 12
LONGEST_WORD = 64  # bytes; longer words are segmented without dropout, because sampling takes quadratic time
_CHUNK = 1 << 18  # examples whose lengths are computed together

Ranks = dict[tuple[str, str], int]


def merge_ranks(tokenizer: Tokenizer) -> Ranks:
    """Return the rank of each merge of a BPE tokeniser, in the order in which they were learnt."""
    merges = json.loads(tokenizer.to_json())["model"]["merges"]
    return {(left, right): rank for rank, (left, right) in enumerate(merges)}


def segment(word: str, ranks: Ranks, dropout: float, random: Callable[[], float]) -> list[str]:
    """Return a random segmentation of a word; with dropout 0, the default one."""
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
    """A writer of training text as word numbers, and then of the variants of each word."""

    def __init__(self, folder: Path, name: str, tokenizer: Tokenizer) -> None:
        self._folder, self._name, self._tokenizer = folder, name, tokenizer
        self._numbers: dict[str, int] = {}
        self._words = RaggedWriter(folder, f"{name}.words", "<u4")

    def extend(self, texts: Iterable[str]) -> None:
        """Write texts."""
        numbers = self._numbers
        self._words.extend(
            [numbers.setdefault(word, len(numbers)) for word in self._tokenizer.words(text)] for text in texts
        )

    def finish(self, dropout: float, random: Callable[[], float], dtype: str) -> None:
        """Write the variants of all words."""
        vocabulary, ranks = self._tokenizer.vocabulary, merge_ranks(self._tokenizer)
        with RaggedWriter(self._folder, f"{self._name}.variants", dtype) as variants:
            for word in self._numbers:
                if len(word) > LONGEST_WORD:
                    default = [vocabulary[piece] for piece in self._tokenizer.pieces(word)]
                    variants.extend([default] * VARIANTS)
                    continue
                samples = (segment(word, ranks, dropout, random) for _ in range(VARIANTS))
                variants.extend([vocabulary[piece] for piece in sample] for sample in samples)

    def close(self) -> None:
        """Close the files."""
        self._words.close()


class SampledIds:
    """What a WordWriter wrote: ids of the same text that differ from epoch to epoch."""

    def __init__(self, folder: Path, name: str, dtype: str, longest: int) -> None:
        self._words = Ragged(folder, f"{name}.words", "<u4")
        self._variants = Ragged(folder, f"{name}.variants", dtype)
        self._default = Ragged(folder, name, dtype)
        self._longest = longest
        self._cached: tuple[tuple[int, ...], Array] | None = None

    def __len__(self) -> int:
        return len(self._default)

    def lengths(self, *address: int, more: int = 0) -> Array:
        """Return the length of each example in the epoch with this address, plus `more`."""
        choices, sizes, parts = self._choices(address), self._variants.lengths(), []
        for first in range(0, len(self._words), _CHUNK):
            ends = self._words.ends[first : first + _CHUNK]
            start = int(self._words.ends[first - 1]) if first else 0
            words = slice(start, int(ends[-1]))
            each = sizes[self._words.values[words].astype(np.int64) * VARIANTS + choices[words]]
            parts.append(np.add.reduceat(each, np.concatenate([[0], ends[:-1] - start])))
        lengths: Array = np.concatenate(parts)
        return np.where(lengths <= self._longest, lengths, self._default.lengths()) + more

    def rows(self, members: Array, *address: int) -> list[Array]:
        """Return the ids of some examples. One that becomes too long is segmented without dropout."""
        choices, rows = self._choices(address), []
        for member in members.tolist():
            words = slice(int(self._words.ends[member - 1]) if member else 0, int(self._words.ends[member]))
            row = self._variants.joined(self._words.values[words].astype(np.int64) * VARIANTS + choices[words])
            rows.append(row if len(row) <= self._longest else self._default[member])
        return rows

    def _choices(self, address: tuple[int, ...]) -> Array:
        """Return the variant of each word of the whole text, one byte each."""
        if self._cached is None or self._cached[0] != address:
            raw = np.frombuffer(generator(*address, CHOICES).bytes(len(self._words.values)), dtype=np.uint8)
            self._cached = address, raw % VARIANTS
        return self._cached[1]
