"""How sure a mean, and a difference of means, is when there are only a few seeds.

    interval      the percentile bootstrap of a mean: values drawn with replacement, `DRAWS` times
    difference    the same for a difference of means; where the same seeds were run (the same data, the same split)
                  their differences are drawn, since they share what a seed decides
    p             Welch's t-test, or the paired one; Holm's correction where several are made at once
    effect        the difference in units of the usual spread of seeds, corrected for few values (Hedges' g)

A bootstrap of three values cannot be wider than those values, so it claims too much. A difference therefore counts as
shown only if its interval leaves out zero *and* the t-test, which knows how little three values say, agrees.

Papers: Efron 1979; Hedges 1981; Holm 1979.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

DRAWS = 10_000
LEVEL = 0.95
ROUNDING = 1e-12  # differences of equal values may differ by so much


@dataclass(frozen=True)
class Interval:
    """A mean and where it may be."""

    mean: float
    low: float
    high: float
    count: int

    def text(self, digits: int = 3) -> str:
        """For tables: 0.912 (0.880 to 0.931)."""
        if self.count == 1:
            return f"{self.mean:.{digits}f} (one seed)"
        return f"{self.mean:.{digits}f} ({self.low:.{digits}f} to {self.high:.{digits}f})"


@dataclass(frozen=True)
class Difference:
    """One system's mean minus another's."""

    interval: Interval
    p: float  # of a difference at least as large if there were none; nan with fewer than two values a side
    effect: float  # in standard deviations; nan where there is no spread

    def is_shown(self, level: float = LEVEL, tests: int = 1) -> bool:
        """Whether both ways of looking agree that it is not zero."""
        inside = self.interval.low <= 0 <= self.interval.high
        return not inside and self.p * tests < 1 - level


def interval(values: Sequence[float], level: float = LEVEL) -> Interval:
    """The mean of a few values with its bootstrap interval. The draws are the same every time."""
    value_N = np.asarray(values, dtype=np.float64)
    if value_N.size == 0:
        raise ValueError("an interval needs at least one value")
    mean_R = _draw(value_N).mean(axis=1)
    low, high = np.quantile(mean_R, [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(value_N.mean()), float(low), float(high), int(value_N.size))


def difference(ours: Sequence[float], theirs: Sequence[float], *, paired: bool, level: float = LEVEL) -> Difference:
    """Ours minus theirs. `paired`: the values at one place are of the same seed."""
    our_N, their_N = np.asarray(ours, dtype=np.float64), np.asarray(theirs, dtype=np.float64)
    if paired:
        if our_N.size != their_N.size:
            raise ValueError(f"paired values come in pairs; found {our_N.size} and {their_N.size}")
        between = interval((our_N - their_N).tolist(), level)
    else:
        drawn_R = _draw(our_N).mean(axis=1) - _draw(their_N, seed=1).mean(axis=1)
        low, high = np.quantile(drawn_R, [(1 - level) / 2, (1 + level) / 2])
        mean = float(our_N.mean() - their_N.mean())
        between = Interval(mean, float(low), float(high), min(our_N.size, their_N.size))
    return Difference(between, _p_value(our_N, their_N, paired), _effect(our_N, their_N))


def holm(p_values: Mapping[str, float], level: float = LEVEL) -> dict[str, bool]:
    """Which of several tests hold when all are made at once; what is no number does not."""
    order = sorted(p_values, key=lambda name: (math.isnan(p_values[name]), p_values[name]))
    holds, going = {}, True
    for rank, name in enumerate(order):
        going = going and p_values[name] * (len(order) - rank) < 1 - level
        holds[name] = going
    return holds


def verdict(found: Difference, higher_is_better: bool, ours: str, theirs: str, *, is_shown: bool | None = None) -> str:
    """The difference in words, never more than the numbers say. `is_shown`: where several tests were made at once."""
    count = found.interval.count
    if not (found.is_shown() if is_shown is None else is_shown):
        return f"no difference between {ours} and {theirs} could be shown with {count} seed{'s' * (count > 1)}"
    better = (found.interval.mean > 0) == higher_is_better
    return (
        f"{ours} is {'better' if better else 'worse'} than {theirs} by {abs(found.interval.mean):.3g} ({count} seeds)"
    )


def _draw(value_N: np.ndarray, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).choice(value_N, size=(DRAWS, value_N.size), replace=True)


def _p_value(our_N: np.ndarray, their_N: np.ndarray, paired: bool) -> float:
    if min(our_N.size, their_N.size) < 2:
        return math.nan
    apart = our_N - their_N if paired else np.concatenate([our_N - our_N.mean(), their_N - their_N.mean()])
    rounding = ROUNDING * max(np.abs(our_N).max(), np.abs(their_N).max())
    if np.ptp(apart) <= rounding:  # no spread at all: the same every time, or apart by the same every time
        return 1.0 if abs(our_N.mean() - their_N.mean()) <= rounding else 0.0
    test = stats.ttest_rel(our_N, their_N) if paired else stats.ttest_ind(our_N, their_N, equal_var=False)
    return float(test.pvalue)


def _effect(our_N: np.ndarray, their_N: np.ndarray) -> float:
    degrees = our_N.size + their_N.size - 2
    if degrees < 1:
        return math.nan
    spread = math.sqrt((our_N.var() * our_N.size + their_N.var() * their_N.size) / degrees)
    if spread == 0:
        return math.nan
    return float((our_N.mean() - their_N.mean()) / spread * (1 - 3 / (4 * degrees - 1)))
