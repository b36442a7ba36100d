"""How sure a mean, and a difference of means, is when there are only a few seeds.

    interval      of a mean, 95 %: Student's t for fewer than `FEW` values; from there on the percentile bootstrap
    difference    of runs of the same seeds (the same data, the same split): the interval of their differences, since
                  they share what a seed decides
    p             the paired t-test; Holm's correction where several are made at once
    effect        the difference in units of the usual spread of seeds, corrected for few values (Hedges' g)

A bootstrap of three values cannot be wider than those values, and holds the mean in 75 of 100 cases, not in 95.

Scores have steps: of 100 answers one more or less is right. Three differences that are the same need not be exact
then; `grain` is the step, and the spread that they are given.

Papers: Student 1908; Efron 1979; Hedges 1981; Holm 1979.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.special import stdtr, stdtrit  # scipy.stats says the same, and takes a second to be imported

from allyouneed.words import counted

DRAWS = 10_000
LEVEL = 0.95
FEW = 8  # values: below, a bootstrap claims too much
ROUNDING = 1e-12  # differences of equal values may differ by so much


# A run that diverged may leave inf or nan: they make an interval that is no number, and nothing else.
_quiet = np.errstate(invalid="ignore")


@dataclass(frozen=True)
class Interval:
    """A mean and where it may be."""

    mean: float
    low: float
    high: float
    count: int

    def text(self, digits: int = 3, sign: str = "") -> str:
        """For tables: 0.912 (0.880 to 0.931). `sign`: "+" for differences."""
        mean, low, high = (f"{value:{sign}.{digits}f}" for value in (self.mean, self.low, self.high))
        if self.count == 1:
            return f"{mean} (one seed)"
        if self.low == self.high:  # no spread says nothing of where the next one would be
            return f"{mean} (all {self.count} seeds)"
        return f"{mean} ({low} to {high})"


@dataclass(frozen=True)
class Difference:
    """One system's mean minus another's."""

    interval: Interval
    p: float  # of a difference at least as large if there were none; nan with fewer than two pairs
    effect: float  # in standard deviations; nan where there is no spread

    def is_shown(self) -> bool:
        """Whether both ways of looking agree that it is not zero."""
        inside = self.interval.low <= 0 <= self.interval.high
        return not inside and self.p < 1 - LEVEL


@_quiet
def interval(values: Sequence[float], grain: float = 0.0) -> Interval:
    """The mean of a few values, and where it may be. `grain`: their step; 0: where all are the same they are exact."""
    value_N = np.asarray(values, dtype=np.float64)
    if value_N.size == 0:
        raise ValueError("an interval needs at least one value")
    mean = float(value_N.mean())
    if value_N.size == 1:
        return Interval(mean, mean, mean, 1)
    if value_N.size >= FEW and not _is_flat(value_N):
        ends = np.quantile(_draw(value_N).mean(axis=1), [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
        return Interval(mean, float(ends[0]), float(ends[1]), int(value_N.size))
    reach = float(stdtrit(value_N.size - 1, (1 + LEVEL) / 2)) * _error(value_N, grain)
    return Interval(mean, mean - reach, mean + reach, int(value_N.size))


def how_sure(count: int) -> str:
    """What an interval of so many values is, for the notes under charts."""
    return f"{LEVEL:.0%} interval".replace("%", " %") + (" (Student's t)" if count < FEW else " (bootstrap)")


@_quiet
def difference(
    ours: Sequence[float], theirs: Sequence[float], *, paired: Literal[True] = True, grain: float = 0.0
) -> Difference:
    """Ours minus theirs; the values at one place are of the same seed, so they are always paired."""
    our_N, their_N = np.asarray(ours, dtype=np.float64), np.asarray(theirs, dtype=np.float64)
    if our_N.size != their_N.size:
        raise ValueError(f"paired values come in pairs; found {our_N.size} and {their_N.size}")
    rounding = _rounding(our_N, their_N)
    apart_N = our_N - their_N
    if np.ptp(apart_N) <= rounding:  # what is the same but for rounding is the same
        apart_N = np.full_like(apart_N, 0.0 if abs(apart_N.mean()) <= rounding else apart_N.mean())
    return Difference(interval(apart_N.tolist(), grain), _p_value(apart_N, grain), _effect(our_N, their_N))


def holm(p_values: Mapping[str, float]) -> dict[str, bool]:
    """Which of several tests hold when all are made at once; what is no number does not."""
    order = sorted(p_values, key=lambda name: (math.isnan(p_values[name]), p_values[name]))
    holds, going = {}, True
    for rank, name in enumerate(order):
        going = going and p_values[name] * (len(order) - rank) < 1 - LEVEL
        holds[name] = going
    return holds


def verdict(found: Difference, higher_is_better: bool, ours: str, theirs: str, *, is_shown: bool | None = None) -> str:
    """The difference in words, never more than the numbers say. `is_shown`: where several tests were made at once."""
    count = found.interval.count
    if not (found.is_shown() if is_shown is None else is_shown):
        return f"no difference between {ours} and {theirs} could be shown with {counted(count, 'seed')}"
    better = (found.interval.mean > 0) == higher_is_better
    return (
        f"{ours} is {'better' if better else 'worse'} than {theirs} by {abs(found.interval.mean):.3g} ({count} seeds)"
    )


def _draw(value_N: np.ndarray) -> np.ndarray:
    """Always the same draws."""
    return np.random.default_rng(0).choice(value_N, size=(DRAWS, value_N.size), replace=True)


def _rounding(our_N: np.ndarray, their_N: np.ndarray) -> float:
    return ROUNDING * float(max(np.abs(our_N).max(initial=0), np.abs(their_N).max(initial=0)))


def _is_flat(value_N: np.ndarray) -> bool:
    return bool(np.ptp(value_N) == 0)


def _error(value_N: np.ndarray, grain: float) -> float:
    """The standard error of the mean; of values that are all the same, as if they were a step apart."""
    spread = grain if _is_flat(value_N) else float(value_N.std(ddof=1))
    return spread / math.sqrt(value_N.size)


def _p_value(apart_N: np.ndarray, grain: float) -> float:
    if apart_N.size < 2:
        return math.nan
    mean, error = abs(float(apart_N.mean())), _error(apart_N, grain)
    if mean == 0:
        return 1.0
    return float(2 * stdtr(apart_N.size - 1, -mean / error)) if error > 0 else 0.0


def _effect(our_N: np.ndarray, their_N: np.ndarray) -> float:
    degrees = our_N.size + their_N.size - 2
    if degrees < 1:
        return math.nan
    spread = math.sqrt((our_N.var() * our_N.size + their_N.var() * their_N.size) / degrees)
    if spread <= _rounding(our_N, their_N):
        return math.nan
    return float((our_N.mean() - their_N.mean()) / spread * (1 - 3 / (4 * degrees - 1)))
