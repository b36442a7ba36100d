"""Isoflop curves: runs of several sizes with one compute budget, and the size with the lowest loss.

    L(log N) = a (log N)^2 + b log N + c for each budget;   N*(C) ~ C^p through the minima      (approach 2)

A parabola whose vertex is outside its sizes has not found the minimum; such a budget is drawn but not used for the
exponents.

Paper: Hoffmann et al. 2022, arXiv:2203.15556, section 3.2.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from allyouneed.lab.scaling.laws import Array, Estimate, estimate

FEWEST_SIZES = 3
SURE = 0.9  # share of bootstrap draws that must have all minima before an exponent is reported


@dataclass(frozen=True)
class Valley:
    """The runs of one budget, and the parabola through them."""

    flops: float
    sizes: Sequence[float]
    losses: Sequence[float]
    coefficients: tuple[float, float, float]  # over log N
    best: Estimate  # N*
    least: float  # the loss at N*
    inside: bool  # True if the minimum is within the range of sizes

    def loss(self, size: Any) -> Any:
        """Evaluate the parabola."""
        return np.polyval(self.coefficients, np.log(size))


@dataclass(frozen=True)
class Isoflops:
    """The isoflop curves of all budgets, and the exponents of their minima."""

    valleys: Sequence[Valley]
    size_exponent: Estimate | None  # of N*(C); None with fewer than two minima, or if they are too uncertain
    data_exponent: Estimate | None  # of D*(C)

    @property
    def minima(self) -> list[Valley]:
        """Return the budgets whose minimum was found."""
        return [valley for valley in self.valleys if valley.inside]


def isoflops(
    runs: Mapping[float, Sequence[tuple[float, float]]],
    flops_per_token: Callable[[Any], Any],
    noise_R: Array,
    seed: int = 0,
) -> Isoflops:
    """Fit parabolas to runs (N, loss) by budget. `noise_R`: the noise of log L for each bootstrap draw."""
    generator = np.random.default_rng([seed, 2])
    valleys, drawn = [], {}
    for flops, pairs in sorted(runs.items()):
        if len({size for size, _ in pairs}) < FEWEST_SIZES:
            continue
        valley, best_R = _valley(flops, sorted(pairs), noise_R, generator)
        valleys.append(valley)
        drawn[flops] = best_R
    found = [valley for valley in valleys if valley.inside]
    if len(found) < 2:
        return Isoflops(valleys, None, None)
    log_c = np.log([valley.flops for valley in found])
    best = np.array([valley.best.value for valley in found])
    best_VR = np.array([drawn[valley.flops] for valley in found])
    whole_VR = best_VR[:, np.isfinite(best_VR).all(axis=0)]
    lost = best_VR.shape[1] - whole_VR.shape[1]
    if lost > (1 - SURE) * best_VR.shape[1]:
        return Isoflops(valleys, None, None)
    data, data_VR = np.exp(log_c) / flops_per_token(best), np.exp(log_c)[:, None] / flops_per_token(whole_VR)
    # A draw in which a budget has no minimum leaves the exponent unbounded: count such draws evenly on both sides.
    anything = [math.inf if number % 2 else -math.inf for number in range(lost)]
    return Isoflops(
        valleys,
        estimate(slope(log_c, np.log(best)), [*(slope(log_c, column) for column in np.log(whole_VR).T), *anything]),
        estimate(slope(log_c, np.log(data)), [*(slope(log_c, column) for column in np.log(data_VR).T), *anything]),
    )


def _valley(
    flops: float, pairs: Sequence[tuple[float, float]], noise_R: Array, generator: np.random.Generator
) -> tuple[Valley, Array]:
    sizes, losses = [size for size, _ in pairs], [loss for _, loss in pairs]
    coefficients = np.polyfit(np.log(sizes), losses, 2)
    fitted_P = np.polyval(coefficients, np.log(sizes))
    drawn_PR = fitted_P[:, None] * np.exp(noise_R * generator.standard_normal((len(sizes), len(noise_R))))
    best_R = _vertex(np.polyfit(np.log(sizes), drawn_PR, 2))
    best = float(_vertex(coefficients))
    inside = math.isfinite(best) and min(sizes) <= best <= max(sizes)
    # If the parabola of a draw opens downwards, the minimum is unbounded.
    around = estimate(best, np.where(np.isfinite(best_R), best_R, np.inf)) if inside else Estimate(best, best, best)
    least = float(np.polyval(coefficients, math.log(best))) if inside else min(losses)
    a, b, c = coefficients.tolist()
    return Valley(flops, sizes, losses, (a, b, c), around, least, inside), best_R


def _vertex(coefficients: Array) -> Any:
    """Return N at the minimum; NaN if there is none."""
    a, b = coefficients[0], coefficients[1]
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        return np.where(a > 0, np.exp(np.clip(-b / (2 * a), -700, 700)), np.nan)


def slope(x: Array, y: Array) -> float:
    """Return the slope of the least-squares line through these points."""
    return float(np.polyfit(x, y, 1)[0])
