"""The first pass over a corpus: how many rows there are, which are the same, and what is usual."""

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from allyouneed.corpus.languages import SideLanguages
from allyouneed.corpus.lengths import usual_ratio
from allyouneed.corpus.records import chunks_of, shards_of
from allyouneed.corpus.scripts import usual_scripts
from allyouneed.errors import DataError
from allyouneed.text.corpora import Corpus
from allyouneed.text.corpus_settings import described
from allyouneed.text.fingerprints import Hashes, fingerprints
from allyouneed.text.records import Row

SAMPLE = 20_000  # rows from which the usual is learned, at equal distances; up to twice as many
Progress = Callable[[float, str], None]


class Sample:
    """Every n-th row, with n doubled whenever too many are held."""

    def __init__(self, most: int = SAMPLE) -> None:
        self._most, self._every, self._read = most, 1, 0
        self.rows: list[Row] = []

    def add(self, rows: Sequence[Row]) -> None:
        """Read rows."""
        skip = -self._read % self._every
        self.rows.extend(rows[skip :: self._every])
        self._read += len(rows)
        while len(self.rows) >= 2 * self._most:
            self.rows, self._every = self.rows[::2], 2 * self._every


class Repeats:
    """The hashes that several rows have, and which of them was seen."""

    def __init__(self, hashes: Hashes) -> None:
        hashes.sort()
        self._hashes = np.unique(hashes[1:][hashes[1:] == hashes[:-1]])
        self._seen = np.zeros(len(self._hashes), np.bool_)

    def is_repeat(self, rows: Sequence[Row]) -> list[bool]:
        """Return for each row, in the order of the corpus, whether an earlier one is the same."""
        if not len(self._hashes):
            return [False] * len(rows)
        hashes = fingerprints(rows)
        places = np.minimum(np.searchsorted(self._hashes, hashes), len(self._hashes) - 1)
        repeat = [False] * len(rows)
        for number in np.flatnonzero(self._hashes[places] == hashes).tolist():
            repeat[number] = bool(self._seen[places[number]])
            self._seen[places[number]] = True
        return repeat


@dataclass(frozen=True)
class Survey:
    """What the first pass found."""

    rows: int
    sample: list[Row]
    repeats: Repeats
    ratio: float  # the usual one, of pairs
    scripts: tuple[frozenset[str], ...]  # usual on each side
    languages: SideLanguages


def survey(corpora: Sequence[Corpus], progress: Progress) -> Survey:
    """Read corpora once. A label is no text: nothing is usual about it."""
    sample, hashes, read = Sample(), array("Q"), 0
    shards = list(shards_of(corpora))
    for number, (corpus, shard) in enumerate(shards):
        for chunk in chunks_of(corpus, shard):
            sample.add(chunk.rows)
            hashes.frombytes(fingerprints(chunk.rows).tobytes())
            read += len(chunk.rows)
            progress(number / len(shards), f"reading: {read:,} rows")
    if not read:
        raise DataError(f"{described(corpora)}: has no rows")
    sides = text_sides(corpora[0])
    texts = [[row[side] for row in sample.rows if row[side].strip()] for side in range(sides)]
    if not all(texts):
        raise DataError(f"{described(corpora)}: a side is empty in all rows; choose other columns or files")
    return Survey(
        rows=read,
        sample=sample.rows,
        repeats=Repeats(np.frombuffer(hashes, np.uint64)),
        ratio=usual_ratio(sample.rows) if sides == 2 else 1.0,
        scripts=tuple(usual_scripts(side) for side in texts),
        languages=SideLanguages.learn(texts),
    )


def text_sides(corpus: Corpus) -> int:
    """Return how many sides of a row are texts: a label is none."""
    return 2 if corpus.sides[-1] == "target" else 1
