"""Confidence in means, and in differences of means, over a few seeds.

    interval      95 % interval of a mean: Student's t below `FEW` values, the percentile bootstrap from there on
    difference    interval of the paired differences of runs with the same seeds, which share data and split
    p             the paired t-test; with Holm's correction if several tests are made at once
    effect        the difference in units of the pooled standard deviation of seeds, corrected for small samples
                  (Hedges' g)

A bootstrap interval of three values is never wider than those values; it covers the mean in 75 % of cases, not 95 %.

Scores are discrete: a share of 100 answers has steps of 0.01. Three equal differences are then not exact; `grain` is
the step, and the standard deviation assumed for equal values.

Papers: Student 1908; Efron 1979; Hedges 1981; Holm 1979.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.special import stdtr, stdtrit  # scipy.stats has the same, but takes a second to import

from allyouneed.words import counted

DRAWS = 10_000
LEVEL = 0.95
FEW = 8  # values; below, bootstrap intervals are too narrow
ROUNDING = 1e-12  # relative tolerance within which differences count as equal


# A diverged run may leave inf or NaN, which should yield NaN intervals without warnings.
_quiet = np.errstate(invalid="ignore")


@dataclass(frozen=True)
class Interval:
    """A mean with its confidence interval."""

    mean: float
    low: float
    high: float
    count: int

    def text(self, digits: int = 3, sign: str = "") -> str:
        """Format for tables: 0.912 (0.880 to 0.931). `sign`: "+" for differences."""
        mean, low, high = (f"{value:{sign}.{digits}f}" for value in (self.mean, self.low, self.high))
        if self.count == 1:
            return f"{mean} (one seed)"
        if self.low == self.high:  # without a spread there is no interval
            return f"{mean} (all {self.count} seeds)"
        return f"{mean} ({low} to {high})"


@dataclass(frozen=True)
class Difference:
    """One system's mean minus another's."""

    interval: Interval
    p: float  # two-sided paired t-test; NaN with fewer than two pairs
    effect: float  # in standard deviations; NaN without a spread

    def is_shown(self) -> bool:
        """True if both the interval and the t-test exclude zero."""
        inside = self.interval.low <= 0 <= self.interval.high
        return not inside and self.p < 1 - LEVEL


@_quiet
def interval(values: Sequence[float], grain: float = 0.0) -> Interval:
    """Return the mean of a few values with its interval. `grain`: their step size; 0 if equal values are exact."""
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


def interval_label(count: int) -> str:
    """Name the kind of interval used for `count` values, for the notes under charts."""
    return f"{LEVEL:.0%} interval".replace("%", " %") + (" (Student's t)" if count < FEW else " (bootstrap)")


@_quiet
def difference(
    ours: Sequence[float], theirs: Sequence[float], *, paired: Literal[True] = True, grain: float = 0.0
) -> Difference:
    """Return ours minus theirs, paired: values at the same index have the same seed."""
    our_N, their_N = np.asarray(ours, dtype=np.float64), np.asarray(theirs, dtype=np.float64)
    if our_N.size != their_N.size:
        raise ValueError(f"paired values need equal counts; found {our_N.size} and {their_N.size}")
    rounding = _rounding(our_N, their_N)
    apart_N = our_N - their_N
    if np.ptp(apart_N) <= rounding:  # equal up to rounding
        apart_N = np.full_like(apart_N, 0.0 if abs(apart_N.mean()) <= rounding else apart_N.mean())
    return Difference(interval(apart_N.tolist(), grain), _p_value(apart_N, grain), _effect(our_N, their_N))


def holm(p_values: Mapping[str, float]) -> dict[str, bool]:
    """Return which of several simultaneous tests are significant after Holm's correction; NaN is not."""
    order = sorted(p_values, key=lambda name: (math.isnan(p_values[name]), p_values[name]))
    significant, rejecting = {}, True
    for rank, name in enumerate(order):
        rejecting = rejecting and p_values[name] * (len(order) - rank) < 1 - LEVEL
        significant[name] = rejecting
    return significant


def verdict(found: Difference, higher_is_better: bool, ours: str, theirs: str, *, is_shown: bool | None = None) -> str:
    """Describe the difference, without claiming more than was shown. `is_shown`: the result after a correction."""
    count = found.interval.count
    if not (found.is_shown() if is_shown is None else is_shown):
        return f"no difference between {ours} and {theirs} could be shown with {counted(count, 'seed')}"
    better = (found.interval.mean > 0) == higher_is_better
    return (
        f"{ours} is {'better' if better else 'worse'} than {theirs} by {abs(found.interval.mean):.3g} ({count} seeds)"
    )


def _draw(value_N: np.ndarray) -> np.ndarray:
    """Resample with a fixed seed."""
    return np.random.default_rng(0).choice(value_N, size=(DRAWS, value_N.size), replace=True)


def _rounding(our_N: np.ndarray, their_N: np.ndarray) -> float:
    return ROUNDING * float(max(np.abs(our_N).max(initial=0), np.abs(their_N).max(initial=0)))


def _is_flat(value_N: np.ndarray) -> bool:
    return bool(np.ptp(value_N) == 0)


def _error(value_N: np.ndarray, grain: float) -> float:
    """Return the standard error of the mean; equal values are assumed to have a spread of `grain`."""
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
