"""Progress of a long operation, on standard error: a bar on a terminal, otherwise a line every few seconds."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from allyouneed.cli.terminal import note

SECONDS_PER_LINE = 10.0


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
