"""Watching a run: a progress bar on a terminal, plain lines everywhere else. Both on standard error."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from allyouneed.cli.terminal import printable

if TYPE_CHECKING:
    from rich.progress import Progress

SECONDS_A_LINE = 10.0


@contextmanager
def watching(metric: str) -> "Iterator[Lines | Bar]":
    """A watcher for `train`."""
    if not sys.stderr.isatty():
        yield Lines(metric)
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        TaskProgressColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = [
        BarColumn(bar_width=24),
        TaskProgressColumn(),
        TextColumn("{task.description}"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    ]
    with Progress(*columns, console=Console(stderr=True), speed_estimate_period=60) as progress:
        yield Bar(progress, metric)


class Watcher:
    """What the bar and the lines show: the last loss, the last value of the metric, the speed."""

    def __init__(self, metric: str) -> None:
        self.metric = metric
        self.last: dict[str, float] = {}

    def note(self, line: str) -> None:
        """Something worth a line."""
        self.say(printable(line))

    def say(self, line: str) -> None:
        with suppress(OSError):  # nobody reads any more; the run goes on
            print(line, file=sys.stderr, flush=True)

    def summary(self, record: dict[str, Any]) -> str:
        """The state of the run in a few words."""
        evaluated = record["kind"] == "evaluation"
        if not evaluated:
            self.last |= {"loss": record["loss"], "tokens/s": record["tokens_per_second"]}
        elif self.metric in record:
            self.last[f"held-out {self.metric}"] = record[self.metric]
        return f"step {record['step']:,}" + "".join(f"  {name} {_short(value)}" for name, value in self.last.items())


class Lines(Watcher):
    """A line now and then."""

    def __init__(self, metric: str) -> None:
        super().__init__(metric)
        self._first: tuple[float, float] | None = None  # when, and how much was spent: preparing says nothing of speed
        self._said = 0.0

    def progress(self, fraction: float, record: dict[str, Any]) -> None:
        """A step was logged, or an evaluation made."""
        now, summary = time.monotonic(), self.summary(record)
        self._first = self._first or (now, fraction)
        if record["kind"] == "evaluation" or now - self._said > SECONDS_A_LINE:
            self._said = now
            self.say(f"{min(fraction, 1):4.0%}  {summary}{_left(*self._first, now, fraction)}")


class Bar(Watcher):
    """A bar that moves."""

    def __init__(self, progress: "Progress", metric: str) -> None:
        super().__init__(metric)
        self._progress = progress
        self._task = progress.add_task("preparing", total=1.0)

    def say(self, line: str) -> None:
        self._progress.console.print(line, markup=False, highlight=False, soft_wrap=True)

    def progress(self, fraction: float, record: dict[str, Any]) -> None:
        """A step was logged, or an evaluation made."""
        self._progress.update(self._task, completed=min(fraction, 1.0), description=self.summary(record))


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def _left(then: float, spent: float, now: float, fraction: float) -> str:
    """The time left, if the rest of the budget goes as fast as what was spent since then."""
    if fraction <= spent:
        return ""
    seconds = int((now - then) * max(0.0, 1 - fraction) / (fraction - spent))
    return f"  left {seconds // 60}:{seconds % 60:02d}"
