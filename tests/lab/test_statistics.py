"""Intervals and tests against scipy, and their coverage."""

import math

import numpy as np
import pytest
from scipy import stats

from allyouneed.lab.statistics import difference, holm, interval, verdict

pytestmark = pytest.mark.no_shapes


def test_few_values_have_students_interval() -> None:
    values = [0.077, 0.184, 0.128]
    low, high = stats.t.interval(0.95, 2, loc=np.mean(values), scale=stats.sem(values))
    assert (interval(values).low, interval(values).high) == pytest.approx((low, high))


def test_an_interval_of_three_seeds_has_its_nominal_coverage() -> None:
    drawn = [interval(values) for values in np.random.default_rng(1).normal(0, 1, (2000, 3)).tolist()]
    assert np.mean([found.low <= 0 <= found.high for found in drawn]) == pytest.approx(0.95, abs=0.02)


def test_interval_of_many_is_the_percentile_bootstrap_of_scipy() -> None:
    values = np.random.default_rng(3).normal(5, 2, 12)
    ours = interval(values.tolist())
    theirs = stats.bootstrap((values,), np.mean, method="percentile", n_resamples=50_000, rng=1).confidence_interval
    assert ours.mean == pytest.approx(values.mean())
    assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high), abs=0.05)


def test_one_value_has_no_width() -> None:
    found = interval([2.0])
    assert (found.low, found.mean, found.high) == (2, 2, 2)
    assert found.text() == "2.000 (one seed)"


def test_p_values_are_those_of_scipy() -> None:
    ours, theirs = [1.0, 1.2, 1.1, 1.5], [0.7, 1.1, 0.8, 1.0]
    assert difference(ours, theirs, paired=True).p == pytest.approx(stats.ttest_rel(ours, theirs).pvalue)


def test_noise_is_rarely_called_a_difference() -> None:
    generator = np.random.default_rng(0)
    shown = [difference(*generator.normal(0, 1, (2, 3)), paired=True).is_shown() for _ in range(400)]
    assert np.mean(shown) < 0.08  # the level is 5 %


def test_a_large_difference_is_shown_and_described() -> None:
    found = difference([0.9, 0.91, 0.92], [0.5, 0.52, 0.53], paired=True)
    assert found.is_shown()
    assert verdict(found, True, "new", "old").startswith("new is better than old by 0.39")
    assert verdict(found, False, "new", "old").startswith("new is worse")


def test_too_few_seeds_show_nothing() -> None:
    one = difference([1.0], [2.0], paired=True)
    assert math.isnan(one.p)
    assert not one.is_shown()
    assert verdict(one, True, "a", "b") == "no difference between a and b could be shown with 1 seed"


def test_equal_values_are_not_a_difference() -> None:
    assert not difference([1.0, 1.0], [1.0, 1.0], paired=True).is_shown()


def test_equal_differences_are_exact_only_for_continuous_values() -> None:
    ours, theirs = [0.31, 0.42, 0.53], [0.30, 0.41, 0.52]
    exact, coarse = difference(ours, theirs), difference(ours, theirs, grain=0.01)
    assert exact.p == 0
    assert exact.is_shown()
    assert exact.interval.text(2, "+") == "+0.01 (all 3 seeds)"
    assert coarse.p == pytest.approx(2 * stats.t.sf(3**0.5, 2))  # a step apart, with a spread of one step
    assert not coarse.is_shown()
    assert coarse.interval.low < 0 < coarse.interval.high
    assert difference([1.0] * 3, [0.0] * 3, grain=0.01).is_shown()  # all right against all wrong
    many = difference([0.5] * 10, [0.49] * 10, grain=0.01).interval
    assert many.low < 0.01 < many.high


def test_coarse_noise_is_rarely_called_a_difference() -> None:
    right_KRN = np.random.default_rng(5).binomial(20, 0.97, (2, 2000, 3)) / 20
    shown = [difference(*pair, grain=1 / 20).is_shown() for pair in zip(*right_KRN.tolist(), strict=True)]
    assert np.mean(shown) < 0.05


def test_holm_by_hand() -> None:
    assert holm({"a": 0.01, "b": 0.04, "c": 0.03}) == {"a": True, "b": False, "c": False}
    assert holm({"a": 0.01, "b": math.nan}) == {"a": True, "b": False}
