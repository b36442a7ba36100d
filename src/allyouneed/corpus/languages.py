"""Languages of the two sides of a pair, by the n-grams of the corpus itself.

Each side has a table of hashed n-grams, counted in a sample. Swapped rows in the sample do little harm as long as they
are few: a gram is then only less certain. Nothing depends on names of languages, so any two can be told apart.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from allyouneed.text.fingerprints import Grams

BITS = 17  # of the tables
SMOOTHING = 0.5  # added to every count
FEWEST = 8  # n-grams of a text that is judged
MARGIN = 0.25  # nats per n-gram for the wrong language
EVIDENCE = 10.0  # nats of a whole text
SEPARATE = 0.9  # of the sample must be on its own side; else both sides are one language
FAR = 6.0  # standard deviations (by the median) of a text that is unlike all others
Floats = NDArray[np.float64]


def _places(grams: Grams) -> NDArray[np.uint32]:
    return grams.hashes >> np.uint32(32 - BITS)


def _logarithms(grams: Grams) -> Floats:
    """Return the logarithm of the probability of each entry of a table."""
    counts = np.bincount(_places(grams)[grams.real], minlength=1 << BITS) + SMOOTHING
    return np.log(counts / counts.sum())


def _means(grams: Grams, table: Floats) -> Floats:
    """Return the mean of a table over the n-grams of each text."""
    return np.add.reduceat(np.where(grams.real, table[_places(grams)], 0.0), grams.starts) / grams.counts()


@dataclass(frozen=True)
class _Side:
    """What is usual on one side."""

    own: Floats  # logarithms of probabilities
    middle: float  # of the means of texts
    spread: float

    @staticmethod
    def learn(grams: Grams) -> "_Side":
        own = _logarithms(grams)
        means = _means(grams, own)[grams.counts() >= FEWEST]
        middle = float(np.median(means)) if len(means) else 0.0
        return _Side(own, middle, 1.4826 * float(np.median(np.abs(means - middle))) if len(means) else 1.0)

    def is_unlike(self, grams: Grams) -> NDArray[np.bool_]:
        """Return for each text whether it is unlike all others."""
        return (_means(grams, self.own) < self.middle - FAR * self.spread) & (grams.counts() >= FEWEST)


@dataclass(frozen=True)
class SideLanguages:
    """The languages of the sides of a corpus."""

    sides: tuple[_Side, ...]
    separate: bool  # whether the sides of pairs can be told apart

    @staticmethod
    def learn(sides: Sequence[Sequence[str]]) -> "SideLanguages":
        """Learn from a sample of texts of each side."""
        grams = [Grams.of(texts) for texts in sides]
        known = SideLanguages(tuple(_Side.learn(one) for one in grams), False)
        if len(sides) != 2:
            return known
        ours, theirs = known.preferences(grams)
        right = [float(np.mean(score > 0)) for score in (ours, theirs)]
        return SideLanguages(known.sides, min(right) >= SEPARATE)

    def preferences(self, grams: Sequence[Grams]) -> tuple[Floats, Floats]:
        """Return how much more each source, and each target, is like its own side than like the other."""
        ratio = self.sides[0].own - self.sides[1].own
        return _means(grams[0], ratio), _means(grams[1], -ratio)

    def defects(self, grams: Sequence[Grams]) -> list[str | None]:
        """Return the defect of each row, given the n-grams of each side."""
        unlike = np.any([side.is_unlike(one) for side, one in zip(self.sides, grams, strict=True)], axis=0)
        found = np.where(unlike, "unlike", "").astype(object)
        if self.separate:
            ours, theirs = self.preferences(grams)
            counts = [one.counts() for one in grams]
            for score, count in zip((ours, theirs), counts, strict=True):
                found[(score < -MARGIN) & (score * count < -EVIDENCE)] = "language"
            enough = np.minimum(*counts) >= FEWEST
            found[enough & (np.maximum(ours, theirs) < 0) & (ours + theirs < -2 * MARGIN)] = "swapped"
        return [kind or None for kind in found.tolist()]
