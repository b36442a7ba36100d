"""Notes on held-out rows that are in the training data, as a stage of the preparation."""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeVar

from allyouneed.tasks.meter import Meter
from allyouneed.tasks.prepared import Preparation
from allyouneed.text.lines import Pair, Skips, filled
from allyouneed.text.overlap import overlap_notes

S = TypeVar("S", bound=str)


def note_overlap(
    preparation: Preparation, rows: Callable[[S], Iterator[Pair] | None], splits: Iterable[S], noun: str, total: int
) -> list[str]:
    """Return how many held-out rows are in the training data, a line for each split that has some.

    `rows` reads a split; `total`: the number of training rows, or 0.
    """

    def compare(_: Path) -> list[str]:
        read: dict[str, Iterator[Pair]] = {split: filled(rows(split) or iter(()), Skips(split)) for split in splits}
        meter = Meter(f"comparing train with held-out {noun}s", f"{noun}s", total or None)
        return overlap_notes(meter.over(read.pop("train")), read, noun)

    return preparation.stage("overlap", compare)
