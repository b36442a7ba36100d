"""Progress of a long operation, on standard error: a bar on a terminal, otherwise a line every few seconds."""

import os
import stat
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from allyouneed.cli.terminal import note

SECONDS_PER_LINE = 10.0
Result = TypeVar("Result")


@contextmanager
def progress() -> Iterator[Callable[[float, str], None]]:
    """Return a function that shows the fraction done and a description."""
    if not sys.stderr.isatty():
        yield _lines()
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

    columns = [BarColumn(bar_width=24), TaskProgressColumn(), TimeElapsedColumn(), TextColumn("{task.description}")]
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=1.0)
        yield lambda fraction, description: bar.update(task, completed=fraction, description=description)


def _lines() -> Callable[[float, str], None]:
    last = 0.0

    def show(fraction: float, description: str) -> None:
        nonlocal last
        if time.monotonic() - last > SECONDS_PER_LINE:
            last = time.monotonic()
            note(f"{fraction:4.0%}  {description}")

    return show


@contextmanager
def line_meter() -> "Iterator[LineMeter]":
    """Return a meter for the lines of standard input: a bar, if standard error is a terminal and the output is not.

    Outputs on the same terminal show the progress themselves, and a bar would be drawn into them.
    """
    if not sys.stderr.isatty() or sys.stdout.isatty():
        yield LineMeter(None)
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    file = sys.stdin.fileno()
    status = os.fstat(file)
    size = status.st_size - os.lseek(file, 0, os.SEEK_CUR) if stat.S_ISREG(status.st_mode) else None
    columns = [BarColumn(bar_width=24), TaskProgressColumn(), TextColumn("{task.description}")]
    left = [TextColumn("left"), TimeRemainingColumn()] if size else []
    console = Console(stderr=True)
    with Progress(*columns, *left, console=console, speed_estimate_period=60, redirect_stdout=False) as bar:
        task = bar.add_task("", total=size)
        yield LineMeter(lambda done, text: bar.update(task, completed=done if size else None, description=text))


class LineMeter:
    """The lines and bytes done so far, shown by `show(bytes, description)`."""

    def __init__(self, show: Callable[[float, str], None] | None) -> None:
        self._show, self._began = show, time.monotonic()
        self._lines, self._bytes = 0, 0  # of finished batches
        self._batch_lines, self._batch_bytes = 0, 0
        self._pieces, self._done = 1, 0  # of the current batch

    def begin(self, lines: Sequence[str]) -> None:
        """Begin a batch of lines."""
        if self._show is not None:
            self._batch_lines, self._batch_bytes = len(lines), sum(len(line.encode()) + 1 for line in lines)
            self._pieces, self._done = 1, 0

    def expect(self, pieces: int) -> None:
        """State how many calls of `advance(1)` finish the batch."""
        self._pieces = max(1, pieces)

    def advance(self, pieces: int) -> None:
        """Show that a part of the batch is done."""
        if self._show is not None:
            self._done = min(self._done + pieces, self._pieces)
            share = self._done / self._pieces
            lines = self._lines + int(share * self._batch_lines)
            speed = lines / max(1e-9, time.monotonic() - self._began)
            self._show(self._bytes + share * self._batch_bytes, f"{lines:,} lines  {speed:,.1f} lines/s")

    def measured(self, work: Callable[[list[str]], Result]) -> Callable[[list[str]], Result]:
        """Return a function of texts that shows its progress as a batch of lines."""

        def run(texts: list[str]) -> Result:
            self.begin(texts)
            result = work(texts)
            self.end()
            return result

        return run

    def end(self) -> None:
        """Finish a batch."""
        self.advance(self._pieces)
        self._lines, self._bytes = self._lines + self._batch_lines, self._bytes + self._batch_bytes
