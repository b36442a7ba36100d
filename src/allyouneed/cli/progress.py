"""How far some work is: a bar on a terminal, a line now and then everywhere else. Both on standard error."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from allyouneed.cli.terminal import note

SECONDS_A_LINE = 10.0


@contextmanager
def progress() -> Iterator[Callable[[float, str], None]]:
    """A function that is told the fraction done and what is being done."""
    if not sys.stderr.isatty():
        yield _lines()
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

    columns = [BarColumn(bar_width=24), TaskProgressColumn(), TimeElapsedColumn(), TextColumn("{task.description}")]
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=1.0)
        yield lambda fraction, words: bar.update(task, completed=fraction, description=words)


def _lines() -> Callable[[float, str], None]:
    said = [0.0]

    def tell(fraction: float, words: str) -> None:
        if time.monotonic() - said[0] > SECONDS_A_LINE:
            said[0] = time.monotonic()
            note(f"{fraction:4.0%}  {words}")

    return tell
