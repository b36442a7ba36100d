"""Lengths of the two sides of a pair."""

import math
from collections.abc import Sequence
from statistics import median

SMALLEST_DIFFERENCE = 20  # characters: ratios of short texts vary widely


def usual_ratio(pairs: Sequence[Sequence[str]]) -> float:
    """Return the median of target characters per source character."""
    return median([len(target) / len(source) for source, target in pairs if source and target] or [1.0])


def is_unequal(source: str, target: str, usual: float, limit: float) -> bool:
    """Return whether the ratio of lengths differs from the usual one by more than a factor of `limit`."""
    expected, found = len(source) * usual, len(target)
    if abs(found - expected) < SMALLEST_DIFFERENCE or not expected or not found:
        return False
    return abs(math.log(found / expected)) > math.log(limit)
