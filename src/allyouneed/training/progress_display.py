"""Show the progress of a run on standard error: a progress bar on a terminal, plain lines everywhere else."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from allyouneed.words import minutes_and_seconds, printable

if TYPE_CHECKING:
    from rich.progress import Progress as RichProgress

SECONDS_PER_LINE = 10.0


@contextmanager
def show_progress(metric: str) -> "Iterator[ProgressLines | ProgressBar]":
    """Yield a listener for `train` that shows the loss, the speed and the held-out `metric`."""
    if not sys.stderr.isatty():
        yield ProgressLines(metric)
        return
    with rich_progress(time_left=True) as progress:
        yield ProgressBar(progress, metric)


def rich_progress(time_left: bool = False) -> "RichProgress":
    """Return progress bars on standard error."""
    from rich import progress
    from rich.console import Console

    columns: list[progress.ProgressColumn] = [progress.BarColumn(bar_width=24), progress.TaskProgressColumn()]
    columns += [progress.TextColumn("{task.description}"), progress.TimeElapsedColumn()]
    if time_left:
        columns += [progress.TextColumn("left"), progress.TimeRemainingColumn()]
    return progress.Progress(*columns, console=Console(stderr=True), speed_estimate_period=60)


class _Display:
    """What both displays show: the last loss, the last value of the metric, the speed."""

    def __init__(self, metric: str) -> None:
        self.metric = metric
        self.last: dict[str, float] = {}

    def note(self, line: str) -> None:
        """Print a message."""
        self.print_line(printable(line))

    def print_line(self, line: str) -> None:
        with suppress(OSError):  # a closed pipe must not end the run
            print(line, file=sys.stderr, flush=True)

    def summary(self, record: dict[str, Any]) -> str:
        """Return the state of the run in a few words."""
        evaluated = record["kind"] == "evaluation"
        if not evaluated:
            self.last |= {"loss": record["loss"], "tokens/s": record["tokens_per_second"]}
        elif self.metric in record:
            self.last[f"held-out {self.metric}"] = record[self.metric]
        return f"step {record['step']:,}" + "".join(f"  {name} {_short(value)}" for name, value in self.last.items())


class ProgressLines(_Display):
    """One line per evaluation, and one every few seconds."""

    def __init__(self, metric: str) -> None:
        super().__init__(metric)
        # Time and fraction at the first record. Earlier time, spent on preparing data, would distort the estimate.
        self._first: tuple[float, float] | None = None
        self._printed_at = 0.0

    def preparing(self, text: str, fraction: float | None) -> None:
        """Show the state of a stage of preparation; nothing if preparation ends within the first seconds."""
        now = time.monotonic()
        self._printed_at = self._printed_at or now
        if now - self._printed_at > SECONDS_PER_LINE:
            self._printed_at = now
            self.print_line(f"{'    ' if fraction is None else f'{fraction:4.0%}'}  {text}")

    def progress(self, fraction: float, record: dict[str, Any]) -> None:
        """Show a logged step or an evaluation."""
        now, summary = time.monotonic(), self.summary(record)
        self._first = self._first or (now, fraction)
        if record["kind"] == "evaluation" or now - self._printed_at > SECONDS_PER_LINE:
            self._printed_at = now
            self.print_line(f"{min(fraction, 1):4.0%}  {summary}{_time_left(*self._first, now, fraction)}")


class ProgressBar(_Display):
    """A progress bar on a terminal."""

    def __init__(self, progress: "RichProgress", metric: str) -> None:
        super().__init__(metric)
        self._progress = progress
        self._task = progress.add_task("preparing", total=1.0)

    def print_line(self, line: str) -> None:
        self._progress.console.print(line, markup=False, highlight=False, soft_wrap=True)

    def preparing(self, text: str, fraction: float | None) -> None:
        """Show the state of a stage of preparation."""
        # The text holds the time left: the estimate of the bar would run across stages.
        shown = text if fraction is None else f"{fraction:.0%}  {text}"
        self._progress.update(self._task, completed=0.0, description=shown)

    def progress(self, fraction: float, record: dict[str, Any]) -> None:
        """Show a logged step or an evaluation."""
        self._progress.update(self._task, completed=min(fraction, 1.0), description=self.summary(record))


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"


def _time_left(then: float, spent: float, now: float, fraction: float) -> str:
    """Return the time left, extrapolated from the speed since `then`."""
    if fraction <= spent:
        return ""
    return f"  left {minutes_and_seconds((now - then) * max(0.0, 1 - fraction) / (fraction - spent))}"
