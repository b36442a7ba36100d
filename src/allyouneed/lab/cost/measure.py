"""Table 1 of Vaswani et al. 2017, measured: the declared, counted and measured cost of every mixer.

Each layer (one sequence, forward and backward, float32, one core) is run over lengths at one width and over widths at
one length. Repetitions are interleaved: all layers once, then all again, so that a busy minute affects all of them
alike; times are medians. Measurements are appended to `measured.jsonl`, so that a killed study resumes.

The crossover of table 1 (self-attention is cheaper than recurrence while n < d) is determined twice: in declared FLOPs,
and in seconds, interpolated between the two lengths where the curves cross.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median

from allyouneed.lab.cost.crossover import Crossing, measure_crossings
from allyouneed.lab.cost.meter import Exponent, count_flops, exponent, one_thread
from allyouneed.lab.cost.path_length import path_length
from allyouneed.lab.cost.settings import CostSettings
from allyouneed.lab.cost.table1 import Table1Row, rows
from allyouneed.lab.cost.timing import Journal, ReportProgress, TimedLayer, time_all
from allyouneed.mixers import MIXERS, MixerConfig
from allyouneed.mixers.convolution import ConvolutionConfig

COUNTED_WIDTH = 4
COUNTED_HEAD = 4
PATH_WIDTH = 16
FITTED = 3  # number of sizes in a fit, the largest ones


@dataclass(frozen=True)
class Count:
    """FLOPs at one size, declared and counted."""

    length: int
    width: int
    stated: int
    counted: int


@dataclass(frozen=True)
class Sweep:
    """Measurements of one layer over sizes, all else equal."""

    sizes: Sequence[int]
    flops: Sequence[int]  # declared
    seconds: Sequence[Sequence[float]]  # by repetition
    memory_sizes: Sequence[int]
    memory: Sequence[int]  # peak bytes

    @property
    def medians(self) -> list[float]:
        """Return the median seconds at each size."""
        return [median(values) for values in zip(*self.seconds, strict=True)]

    def exponents(self) -> tuple[Exponent, Exponent, Exponent]:
        """Return the exponents of FLOPs, seconds and bytes at the largest sizes, where constants matter least."""
        sizes = self.sizes[-FITTED:]
        return (
            exponent(sizes, [self.flops[-FITTED:]]),
            exponent(sizes, [values[-FITTED:] for values in self.seconds]),
            exponent(self.memory_sizes[-FITTED:], [self.memory[-FITTED:]]),
        )


@dataclass(frozen=True)
class MixerCost:
    """All measurements of one mixer."""

    row: Table1Row
    counts: Sequence[Count]
    in_length: Exponent  # of counted FLOPs at sizes where the leading term dominates
    in_width: Exponent
    over_length: Sweep
    over_width: Sweep
    paths: Sequence[tuple[int, int | None]]  # length, layers
    sequential: int  # declared steps at the longest length

    @property
    def equal(self) -> bool:
        """True if declared and counted FLOPs are equal at all sizes."""
        return all(count.stated == count.counted for count in self.counts)

    @property
    def as_theory(self) -> bool:
        """True if both exponents are within 0.15 of theory."""
        theory = self.row.theory
        return all(
            abs(found.value - wanted) <= 0.15
            for found, wanted in ((self.in_length, theory.in_length), (self.in_width, theory.in_width))
        )


@dataclass(frozen=True)
class CostStudy:
    """The measurements of all mixers."""

    settings: CostSettings
    lines: Sequence[MixerCost]
    dilated: Sequence[tuple[int, int | None]]  # path length of convolutions with dilations 1, k, k^2, ..
    crossings: Sequence[Crossing] = field(default=())


def study_cost(
    settings: CostSettings, out: Path | None = None, report: ReportProgress = lambda fraction, words: None
) -> CostStudy:
    """Count FLOPs, measure time and memory, and find path lengths; measurements stored in `out` are reused."""
    chosen = rows(settings.mixers)
    journal = Journal(None if out is None else out / "measured.jsonl")
    with one_thread():
        counts = {}
        for number, row in enumerate(chosen):
            report(0.25 * number / len(chosen), f"counting FLOPs, measuring paths: {row.name}")
            counts[row.name] = _count(row, journal), _paths(row, settings, journal)
        sweeps = _sweep_all(chosen, settings, journal, lambda part, words: report(0.25 + 0.6 * part, words))
        crossings = measure_crossings(settings, journal, lambda part, words: report(0.85 + 0.15 * part, words))
        dilated = [(length, _dilated(length, journal)) for length in settings.paths]
    lines = [_line(row, *counts[row.name], sweeps[row.name], settings) for row in chosen]
    return CostStudy(settings, lines, dilated, crossings)


def _count(row: Table1Row, journal: Journal) -> list[Count]:
    sizes = [(length, COUNTED_WIDTH) for length in row.counted_lengths]
    sizes += [(row.counted_width_length, width) for width in row.counted_widths]
    return [_count_one(row, length, width, journal) for length, width in sizes]


def _count_one(row: Table1Row, length: int, width: int, journal: Journal) -> Count:
    head = COUNTED_HEAD if row.theory.in_width == 1 else 32
    config = row.config(length, width, head)
    counted = journal.get(
        ["flops", row.name, head, length, width], lambda: count_flops(config, row.role, length, width)
    )
    return Count(length, width, config.cost(length, width, role=row.role).flops, counted)


def _paths(row: Table1Row, settings: CostSettings, journal: Journal) -> list[tuple[int, int | None]]:
    # If attention depends on content, a path exists if any of many draws finds it.
    draws = 200 if MIXERS[row.name].reads_by_content else 1
    return [
        (length, journal.get(["path", row.name, length], partial(_path, row, length, draws)))
        for length in settings.paths
    ]


def _path(row: Table1Row, length: int, draws: int) -> int | None:
    return path_length(row.config(length, PATH_WIDTH), length, PATH_WIDTH, draws=draws)


def _dilated(length: int, journal: Journal) -> int | None:
    def layer(number: int) -> MixerConfig:
        return ConvolutionConfig(dilation=ConvolutionConfig().kernel ** number)

    found: int | None = journal.get(["path", "dilated", length], lambda: path_length(layer, length, PATH_WIDTH))
    return found


def _sweep_all(
    chosen: Sequence[Table1Row], settings: CostSettings, journal: Journal, report: ReportProgress
) -> dict[str, tuple[Sweep, Sweep]]:
    places = [TimedLayer(row, length, settings.width) for row in chosen for length in settings.lengths]
    places += [TimedLayer(row, settings.length, width) for row in chosen for width in settings.widths]
    places = list(dict.fromkeys(places))  # a size may occur among the lengths and the widths
    times = time_all(places, settings.repeats, journal, lambda part, words: report(0.7 * part, words))
    sweeps = {}
    for number, row in enumerate(chosen):
        report(0.7 + 0.3 * number / len(chosen), f"memory: {row.name}")
        # The profiler records every operation: measure recurrences, with thousands of steps, at shorter lengths.
        shorter = 4 if row.theory.loops else 1
        over_length = [TimedLayer(row, length, settings.width) for length in settings.lengths]
        over_width = [TimedLayer(row, settings.length, width) for width in settings.widths]
        remembered = [TimedLayer(row, length // shorter, settings.width) for length in settings.lengths]
        sweeps[row.name] = (
            _sweep(settings.lengths, over_length, remembered, times, journal),
            _sweep(settings.widths, over_width, over_width, times, journal),
        )
    return sweeps


def _sweep(
    sizes: Sequence[int],
    places: Sequence[TimedLayer],
    remembered: Sequence[TimedLayer],
    times: dict[TimedLayer, list[float]],
    journal: Journal,
) -> Sweep:
    flops = [p.row.config(p.length, p.width).cost(p.length, p.width, role=p.row.role).flops for p in places]
    seconds = list(zip(*(times[place] for place in places), strict=True))
    memory = [journal.get(place.what("bytes"), partial(_peak, place)) for place in remembered]
    along = [place.length for place in remembered] if len({p.length for p in places}) > 1 else sizes
    return Sweep(sizes, flops, seconds, along, memory)


def _peak(place: TimedLayer) -> int:
    once = place.new_pass()
    once.run()  # exclude what is created only once (tables, plans)
    return once.peak_bytes()


def _line(
    row: Table1Row,
    counts: Sequence[Count],
    paths: Sequence[tuple[int, int | None]],
    sweeps: tuple[Sweep, Sweep],
    settings: CostSettings,
) -> MixerCost:
    lengths, widths = counts[: len(row.counted_lengths)], counts[len(row.counted_lengths) :]
    longest = max(settings.lengths)
    stated = row.config(longest, settings.width).cost(longest, settings.width, role=row.role)
    return MixerCost(
        row,
        counts,
        exponent([count.length for count in lengths], [[count.counted for count in lengths]]),
        exponent([count.width for count in widths], [[count.counted for count in widths]]),
        *sweeps,
        paths,
        stated.sequential,
    )
