"""The sequence length at which self-attention becomes more expensive than recurrence."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from allyouneed.lab.cost.settings import CostSettings
from allyouneed.lab.cost.table1 import Table1Row, rows
from allyouneed.lab.cost.timing import Journal, ReportProgress, TimedLayer, time_all
from allyouneed.mixers import MIXERS

RECURRENCES = tuple(name for name, mixer in MIXERS.items() if mixer.theory.loops)


@dataclass(frozen=True)
class Crossing:
    """The length at which self-attention becomes more expensive than a recurrence."""

    recurrence: str
    width: int
    in_flops: int | None  # the first such length; None if attention always takes more FLOPs
    lengths: Sequence[int]
    attention: Sequence[float]  # seconds
    recurrent: Sequence[float]

    @property
    def in_seconds(self) -> float | None:
        """Return the crossing length, interpolated between measured ones; None if it is not among them."""
        return crossing(self.lengths, self.recurrent, self.attention)


def measure_crossings(settings: CostSettings, journal: Journal, report: ReportProgress) -> list[Crossing]:
    found = []
    chosen = {row.name for row in rows(settings.mixers)}
    if "softmax" not in chosen or not chosen.intersection(RECURRENCES) or not settings.cross_lengths:
        return []
    attention, *recurrent = rows(["softmax", *(name for name in RECURRENCES if name in chosen)])
    for number, width in enumerate(settings.cross_widths):
        seconds: dict[str, list[float]] = {row.name: [] for row in (attention, *recurrent)}
        done: list[int] = []
        for length in settings.cross_lengths:
            report(number / len(settings.cross_widths), f"crossover: n {length}, d {width}")
            places = [TimedLayer(row, length, width) for row in (attention, *recurrent)]
            times = time_all(places, settings.repeats, journal, lambda fraction, words: None)
            done.append(length)
            for place in places:
                seconds[place.row.name].append(median(times[place]))
            if all(seconds["softmax"][-1] > seconds[row.name][-1] for row in recurrent):
                break
        for row in recurrent:
            cheaper = flops_crossing(row, width)
            found.append(Crossing(row.name, width, cheaper, done, seconds["softmax"], seconds[row.name]))
    return found


def flops_crossing(row: Table1Row, width: int, longest: int = 1 << 20) -> int | None:
    """Return the first length at which attention takes at least as many FLOPs; None if it always takes more."""
    (attention,) = rows(["softmax"])

    def dearer(length: int) -> bool:
        flops = [one.config(length, width).cost(length, width).flops for one in (attention, row)]
        return flops[0] >= flops[1]

    if dearer(1):
        return None
    low, high = 1, longest
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if dearer(middle) else (middle, high)
    return high


def crossing(x: Sequence[float], lower: Sequence[float], upper: Sequence[float]) -> float | None:
    """Return where `upper` rises above `lower` for good, on logarithmic axes; None if it never does or always was."""
    gap = [math.log(one / other) for one, other in zip(upper, lower, strict=True)]
    if gap[-1] <= 0:
        return None
    before = max((number for number, value in enumerate(gap) if value <= 0), default=None)
    if before is None:
        return None
    part = -gap[before] / (gap[before + 1] - gap[before])
    return float(math.exp(math.log(x[before]) + part * math.log(x[before + 1] / x[before])))
