"""Show the progress of many runs on standard error: bars on a terminal, a line for each finished run elsewhere."""

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from allyouneed.words import counted, printable

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from allyouneed.lab.jobs import Outcome

# The options of every command that makes many runs.
On = Annotated[
    Literal["local", "ray"], typer.Option(help="Where to run: local processes, or a Ray cluster (RAY_ADDRESS).")
]
Workers = Annotated[int, typer.Option(min=0, help="Concurrent runs; 0: as many as the cores allow.")]
Cores = Annotated[int, typer.Option(min=1, help="Cores per run; results depend on it.")]
SECONDS_PER_LINE = 30.0


@contextmanager
def show_jobs(total: int) -> "Iterator[JobLines | JobBars]":
    """Yield a listener for `run_all`."""
    if not sys.stderr.isatty():
        yield JobLines(total)
        return
    from allyouneed.training.progress_display import rich_progress

    with rich_progress() as progress:
        yield JobBars(progress, total)


class JobLines:
    """A line for each finished run, and one for the running ones every half minute."""

    def __init__(self, total: int) -> None:
        self.total, self.ended = total, 0
        self._running: dict[str, float] = {}
        self._printed_at = time.monotonic()

    def kept(self, outcomes: "Sequence[Outcome]") -> None:
        """Count runs that were finished earlier."""
        self.ended += len(outcomes)
        if outcomes:
            self.print_line(kept(outcomes, self.total))

    def progress(self, job: str, fraction: float, record: Mapping[str, Any]) -> None:
        """Show the progress of a run."""
        self._running[job] = fraction
        if time.monotonic() - self._printed_at > SECONDS_PER_LINE:
            running = ", ".join(f"{name} {min(part, 1):.0%}" for name, part in sorted(self._running.items()))
            self.print_line(f"running: {running}")

    def done(self, outcome: "Outcome") -> None:
        """Show a finished run."""
        self.ended += 1
        self._running.pop(outcome.name, None)
        self.print_line(f"{self.ended}/{self.total}  {describe(outcome)}")

    def print_line(self, line: str) -> None:
        """Print a line. A closed pipe does not end the runs."""
        self._printed_at = time.monotonic()
        with suppress(OSError):
            print(printable(line), file=sys.stderr, flush=True)


class JobBars:
    """A bar for all runs, and one for each running one."""

    def __init__(self, progress: "Progress", total: int) -> None:
        self._progress, self._total = progress, total
        self._all = progress.add_task("all runs", total=total)
        self._bars: dict[str, TaskID] = {}

    def kept(self, outcomes: "Sequence[Outcome]") -> None:
        """Count runs that were finished earlier."""
        self._progress.advance(self._all, len(outcomes))
        if outcomes:
            self._progress.console.print(kept(outcomes, self._total), markup=False, highlight=False)

    def progress(self, job: str, fraction: float, record: Mapping[str, Any]) -> None:
        """Show the progress of a run."""
        if job not in self._bars:
            self._bars[job] = self._progress.add_task(printable(job), total=1.0)
        self._progress.update(self._bars[job], completed=min(fraction, 1.0))

    def done(self, outcome: "Outcome") -> None:
        """Show a finished run."""
        if outcome.name in self._bars:
            self._progress.remove_task(self._bars.pop(outcome.name))
        self._progress.advance(self._all)
        self._progress.console.print(printable(describe(outcome)), markup=False, highlight=False, soft_wrap=True)


def kept(outcomes: "Sequence[Outcome]", total: int) -> str:
    """Return a line about the runs that are reused."""
    return f"{len(outcomes)} of {counted(total, 'run')} kept from before"


def describe(outcome: "Outcome") -> str:
    """Return a line about the result of a run."""
    if outcome.failed:
        return f"{outcome.name}: failed: {outcome.error}"
    scores = "  ".join(f"{name} {value:.4g}" for name, value in list(outcome.scores.items())[:3])
    return f"{outcome.name}: {scores}  ({outcome.seconds:.0f} s)"
