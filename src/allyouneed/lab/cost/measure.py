"""Table 1 of Vaswani et al. 2017, measured here: what every mixer costs, as stated, as counted and as measured.

Each layer (one sequence, forward and backward, float32, one core) is run over lengths at one width and over widths at
one length. Repetitions go round: every layer once, then all again, so that a busy minute falls on all of them; a time
is the median. What was measured is kept in `measured.jsonl` line by line: the same study goes on where it was killed.

The crossover of table 1 (self-attention is cheaper than recurrence while n < d) is found twice: in FLOPs as stated,
and in seconds, between the two lengths where the curves cross.
"""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch

from allyouneed.errors import ConfigError
from allyouneed.lab.cost.meter import Exponent, Pass, count_flops, exponent, one_thread
from allyouneed.lab.cost.path_length import path_length
from allyouneed.lab.cost.table1 import Row, rows
from allyouneed.mixers import MIXERS, MixerConfig
from allyouneed.mixers.convolution import ConvolutionConfig
from allyouneed.storage import writing
from allyouneed.version import __version__

COUNTED_WIDTH = 4
COUNTED_HEAD = 4
PATH_WIDTH = 16
FITTED = 3  # sizes, the largest ones
RECURRENCES = tuple(name for name, mixer in MIXERS.items() if mixer.theory.sequential == "n")
Report = Callable[[float, str], None]


@dataclass(frozen=True)
class CostSettings:
    """What is run."""

    mixers: tuple[str, ...] = ()  # none: all
    lengths: tuple[int, ...] = (1024, 2048, 4096, 8192)
    widths: tuple[int, ...] = (128, 256, 512)
    width: int = 64  # at which lengths are tried
    length: int = 256  # at which widths are tried
    repeats: int = 3
    paths: tuple[int, ...] = (64, 512)  # lengths at which influence is followed
    cross_widths: tuple[int, ...] = (32, 64)

    @property
    def cross_lengths(self) -> list[int]:
        """Lengths at which attention and recurrence are compared: 64, 128, .. up to the longest."""
        return [64 << turn for turn in range(12) if 64 << turn <= max(self.lengths)]

    def __post_init__(self) -> None:
        for name in ("lengths", "widths"):
            sizes = getattr(self, name)
            if len(set(sizes)) < 2 or min(sizes) < 8:
                raise ConfigError(
                    f"--{name.removesuffix('s')}: {' '.join(map(str, sizes))}: an exponent needs two sizes, from 8 on"
                )
        for size in (self.width, *self.widths, *self.cross_widths):
            if size % 32:
                raise ConfigError(f"--width: {size}: heads are 32 wide, so a width has to be a multiple of 32")


FULL = CostSettings(
    lengths=(1024, 2048, 4096, 8192, 16384),
    widths=(128, 256, 512, 1024),
    repeats=5,
    paths=(64, 512, 1024),
    cross_widths=(32, 64, 128),
)


@dataclass(frozen=True)
class Count:
    """FLOPs at one size, stated and counted."""

    length: int
    width: int
    stated: int
    counted: int


@dataclass(frozen=True)
class Sweep:
    """One layer over sizes, all else equal."""

    sizes: Sequence[int]
    flops: Sequence[int]  # as stated
    seconds: Sequence[Sequence[float]]  # of each repetition
    memory_sizes: Sequence[int]
    memory: Sequence[int]  # bytes at the most

    @property
    def medians(self) -> list[float]:
        """Seconds at each size."""
        return [median(values) for values in zip(*self.seconds, strict=True)]

    def exponents(self) -> tuple[Exponent, Exponent, Exponent]:
        """Of FLOPs, seconds and bytes, over the largest sizes: what costs the same at any size weighs least there."""
        sizes = self.sizes[-FITTED:]
        return (
            exponent(sizes, [self.flops[-FITTED:]]),
            exponent(sizes, [values[-FITTED:] for values in self.seconds]),
            exponent(self.memory_sizes[-FITTED:], [self.memory[-FITTED:]]),
        )


@dataclass(frozen=True)
class Line:
    """All that was found of one mixer."""

    row: Row
    counts: Sequence[Count]
    in_length: Exponent  # of FLOPs counted where the leading term leads
    in_width: Exponent
    over_length: Sweep
    over_width: Sweep
    paths: Sequence[tuple[int, int | None]]  # length, layers
    sequential: int  # at the longest length, as stated

    @property
    def equal(self) -> bool:
        """Whether FLOPs stated and counted are the same, everywhere."""
        return all(count.stated == count.counted for count in self.counts)

    @property
    def as_theory(self) -> bool:
        """Whether both exponents are those of theory, within 0.15."""
        theory = self.row.theory
        return all(
            abs(found.value - wanted) <= 0.15
            for found, wanted in ((self.in_length, theory.in_length), (self.in_width, theory.in_width))
        )


@dataclass(frozen=True)
class Crossing:
    """Where self-attention begins to cost more than a recurrence."""

    recurrence: str
    width: int
    in_flops: int | None  # the first length; None: from the first on
    lengths: Sequence[int]
    attention: Sequence[float]  # seconds
    recurrent: Sequence[float]

    @property
    def in_seconds(self) -> float | None:
        """The length, between two that were measured; None: not among them."""
        return crossing(self.lengths, self.recurrent, self.attention)


@dataclass(frozen=True)
class Study:
    """Everything that was found."""

    settings: CostSettings
    lines: Sequence[Line]
    dilated: Sequence[tuple[int, int | None]]  # path of convolutions with dilations 1, k, k^2, ..
    crossings: Sequence[Crossing] = field(default=())


def study_cost(settings: CostSettings, out: Path | None = None, report: Report = lambda fraction, words: None) -> Study:
    """Counts, measures and follows; what is in `out` already is not measured again."""
    chosen = rows(settings.mixers)
    journal = Journal(None if out is None else out / "measured.jsonl")
    with one_thread():
        counts = {}
        for number, row in enumerate(chosen):
            report(0.25 * number / len(chosen), f"counting FLOPs, following influence: {row.name}")
            counts[row.name] = _count(row, journal), _paths(row, settings, journal)
        sweeps = _sweep_all(chosen, settings, journal, lambda part, words: report(0.25 + 0.6 * part, words))
        crossings = _crossings(settings, journal, lambda part, words: report(0.85 + 0.15 * part, words))
        dilated = [(length, _dilated(length, journal)) for length in settings.paths]
    lines = [_line(row, *counts[row.name], sweeps[row.name], settings) for row in chosen]
    return Study(settings, lines, dilated, crossings)


class Journal:
    """What was measured, by name, in memory and as lines of a file."""

    def __init__(self, path: Path | None) -> None:
        self._path, self._begin = path, ""
        self._known: dict[str, Any] = {}
        if path is not None and path.exists():
            text = path.read_text(encoding="utf-8")
            for line in text.splitlines():
                try:
                    record = json.loads(line)
                except ValueError:  # the last line of one that was killed
                    continue
                self._known[record["what"]] = record["value"]
            self._begin = "" if text.endswith("\n") or not text else "\n"  # half a line stays alone

    def get(self, what: Sequence[object], measure: Callable[[], Any]) -> Any:
        """The value of this name, measured if it is not known."""
        name = " ".join(map(str, [*what, f"allyouneed-{__version__}", f"torch-{torch.__version__}"]))
        if name not in self._known:
            self._known[name] = measure()
            if self._path is not None:
                with writing(self._path):
                    self._path.parent.mkdir(parents=True, exist_ok=True)
                    with self._path.open("a", encoding="utf-8") as file:
                        file.write(self._begin + json.dumps({"what": name, "value": self._known[name]}) + "\n")
                self._begin = ""
        return self._known[name]


def _count(row: Row, journal: Journal) -> list[Count]:
    sizes = [(length, COUNTED_WIDTH) for length in row.counted_lengths]
    sizes += [(row.counted_width_length, width) for width in row.counted_widths]
    return [_count_one(row, length, width, journal) for length, width in sizes]


def _count_one(row: Row, length: int, width: int, journal: Journal) -> Count:
    head = COUNTED_HEAD if row.theory.in_width == 1 else 32
    config = row.config(length, width, head)
    counted = journal.get(
        ["flops", row.name, head, length, width], lambda: count_flops(config, row.role, length, width)
    )
    return Count(length, width, config.cost(length, width, role=row.role).flops, counted)


def _paths(row: Row, settings: CostSettings, journal: Journal) -> list[tuple[int, int | None]]:
    # If attention depends on content, a path exists if some of many draws find it.
    draws = 200 if MIXERS[row.name].reads_by_content else 1
    return [
        (length, journal.get(["path", row.name, length], partial(_path, row, length, draws)))
        for length in settings.paths
    ]


def _path(row: Row, length: int, draws: int) -> int | None:
    return path_length(row.config(length, PATH_WIDTH), length, PATH_WIDTH, draws=draws)


def _dilated(length: int, journal: Journal) -> int | None:
    def layer(number: int) -> MixerConfig:
        return ConvolutionConfig(dilation=ConvolutionConfig().kernel ** number)

    found: int | None = journal.get(["path", "dilated", length], lambda: path_length(layer, length, PATH_WIDTH))
    return found


@dataclass(frozen=True)
class _Place:
    """One thing to be timed."""

    row: Row
    length: int
    width: int

    def new_pass(self) -> Pass:
        config = self.row.config(self.length, self.width)
        return Pass(config, self.row.role, self.length, self.width)

    def what(self, kind: str, *more: object) -> list[object]:
        return [kind, self.row.name, self.length, self.width, *more]


def _sweep_all(
    chosen: Sequence[Row], settings: CostSettings, journal: Journal, report: Report
) -> dict[str, tuple[Sweep, Sweep]]:
    places = [_Place(row, length, settings.width) for row in chosen for length in settings.lengths]
    places += [_Place(row, settings.length, width) for row in chosen for width in settings.widths]
    places = list(dict.fromkeys(places))  # a size may be among the lengths and among the widths
    times = _time_all(places, settings.repeats, journal, lambda part, words: report(0.7 * part, words))
    sweeps = {}
    for number, row in enumerate(chosen):
        report(0.7 + 0.3 * number / len(chosen), f"memory: {row.name}")
        # The profiler keeps a record of every operation: of a recurrence's thousands of steps, a few are enough.
        shorter = 4 if row.by_steps else 1
        over_length = [_Place(row, length, settings.width) for length in settings.lengths]
        over_width = [_Place(row, settings.length, width) for width in settings.widths]
        remembered = [_Place(row, length // shorter, settings.width) for length in settings.lengths]
        sweeps[row.name] = (
            _sweep(settings.lengths, over_length, remembered, times, journal),
            _sweep(settings.widths, over_width, over_width, times, journal),
        )
    return sweeps


def _sweep(
    sizes: Sequence[int],
    places: Sequence[_Place],
    remembered: Sequence[_Place],
    times: dict[_Place, list[float]],
    journal: Journal,
) -> Sweep:
    flops = [p.row.config(p.length, p.width).cost(p.length, p.width, role=p.row.role).flops for p in places]
    seconds = list(zip(*(times[place] for place in places), strict=True))
    memory = [journal.get(place.what("bytes"), partial(_peak, place)) for place in remembered]
    along = [place.length for place in remembered] if len({p.length for p in places}) > 1 else sizes
    return Sweep(sizes, flops, seconds, along, memory)


def _peak(place: _Place) -> int:
    once = place.new_pass()
    once.run()  # what is made once (tables, plans) is not the pass's
    return once.peak_bytes()


def _time_all(places: Sequence[_Place], repeats: int, journal: Journal, report: Report) -> dict[_Place, list[float]]:
    times: dict[_Place, list[float]] = {place: [] for place in places}
    for turn in range(repeats):
        for number, place in enumerate(places):
            words = f"timing {place.row.name}: n {place.length}, d {place.width}, {turn + 1} of {repeats}"
            report((turn * len(places) + number) / (repeats * len(places)), words)
            measure = partial(_seconds, place, turn == 0)
            times[place].append(journal.get(place.what("seconds", turn), measure))
    return times


def _seconds(place: _Place, new: bool) -> float:
    once = place.new_pass()
    if new:
        once.run()  # the first pass pays for what all others find ready
    return once.seconds()


def _line(
    row: Row,
    counts: Sequence[Count],
    paths: Sequence[tuple[int, int | None]],
    sweeps: tuple[Sweep, Sweep],
    settings: CostSettings,
) -> Line:
    lengths, widths = counts[: len(row.counted_lengths)], counts[len(row.counted_lengths) :]
    longest = max(settings.lengths)
    stated = row.config(longest, settings.width).cost(longest, settings.width, role=row.role)
    return Line(
        row,
        counts,
        exponent([count.length for count in lengths], [[count.counted for count in lengths]]),
        exponent([count.width for count in widths], [[count.counted for count in widths]]),
        *sweeps,
        paths,
        stated.sequential,
    )


# --- the crossover ---------------------------------------------------------------------------------------------------


def _crossings(settings: CostSettings, journal: Journal, report: Report) -> list[Crossing]:
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
            places = [_Place(row, length, width) for row in (attention, *recurrent)]
            times = _time_all(places, settings.repeats, journal, lambda fraction, words: None)
            done.append(length)
            for place in places:
                seconds[place.row.name].append(median(times[place]))
            if all(seconds["softmax"][-1] > seconds[row.name][-1] for row in recurrent):
                break
        for row in recurrent:
            cheaper = flops_crossing(row, width)
            found.append(Crossing(row.name, width, cheaper, done, seconds["softmax"], seconds[row.name]))
    return found


def flops_crossing(row: Row, width: int, longest: int = 1 << 20) -> int | None:
    """The first length at which self-attention takes as many FLOPs as this recurrence; None: it always takes more."""
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
    """Where `upper` begins to be above `lower` for good, on logarithmic axes; None: it does not, or always was."""
    gap = [math.log(one / other) for one, other in zip(upper, lower, strict=True)]
    if gap[-1] <= 0:
        return None
    before = max((number for number, value in enumerate(gap) if value <= 0), default=None)
    if before is None:
        return None
    part = -gap[before] / (gap[before + 1] - gap[before])
    return float(math.exp(math.log(x[before]) + part * math.log(x[before + 1] / x[before])))
