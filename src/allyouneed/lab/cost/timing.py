"""Timing of layers, with a journal that makes a study resumable."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from allyouneed.lab.cost.meter import Pass
from allyouneed.lab.cost.table1 import Table1Row
from allyouneed.storage import writing
from allyouneed.version import __version__

ReportProgress = Callable[[float, str], None]


class Journal:
    """Measurements by name, in memory and as lines of a file."""

    def __init__(self, path: Path | None) -> None:
        self._path, self._separator = path, ""
        self._known: dict[str, Any] = {}
        if path is not None and path.exists():
            text = path.read_text(encoding="utf-8")
            for line in text.splitlines():
                try:
                    record = json.loads(line)
                except ValueError:  # incomplete last line of a killed process
                    continue
                self._known[record["what"]] = record["value"]
            self._separator = "" if text.endswith("\n") or not text else "\n"  # do not append to an incomplete line

    def get(self, what: Sequence[object], measure: Callable[[], Any]) -> Any:
        """Return the value of this name; measure it if it is not known."""
        name = " ".join(map(str, [*what, f"allyouneed-{__version__}", f"torch-{torch.__version__}"]))
        if name not in self._known:
            self._known[name] = measure()
            if self._path is not None:
                with writing(self._path):
                    self._path.parent.mkdir(parents=True, exist_ok=True)
                    with self._path.open("a", encoding="utf-8") as file:
                        file.write(self._separator + json.dumps({"what": name, "value": self._known[name]}) + "\n")
                self._separator = ""
        return self._known[name]


@dataclass(frozen=True)
class TimedLayer:
    """A mixer at one length and width."""

    row: Table1Row
    length: int
    width: int

    def new_pass(self) -> Pass:
        config = self.row.config(self.length, self.width)
        return Pass(config, self.row.role, self.length, self.width)

    def what(self, kind: str, *more: object) -> list[object]:
        return [kind, self.row.name, self.length, self.width, *more]


def time_all(
    places: Sequence[TimedLayer], repeats: int, journal: Journal, report: ReportProgress
) -> dict[TimedLayer, list[float]]:
    times: dict[TimedLayer, list[float]] = {place: [] for place in places}
    for turn in range(repeats):
        for number, place in enumerate(places):
            words = f"timing {place.row.name}: n {place.length}, d {place.width}, {turn + 1} of {repeats}"
            report((turn * len(places) + number) / (repeats * len(places)), words)
            measure = partial(_seconds, place, turn == 0)
            times[place].append(journal.get(place.what("seconds", turn), measure))
    return times


def _seconds(place: TimedLayer, new: bool) -> float:
    once = place.new_pass()
    if new:
        once.run()  # the first pass pays for what all others find ready
    return once.seconds()
