"""The progress of preparation: what is being done, at which speed, and the time that is left.

with reporting_to(report):
    data = config.prepare(folder, seed)     # meters inside call report(text, fraction)
"""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

from allyouneed.words import minutes_and_seconds

SECONDS_BETWEEN = 0.2  # reports
Report = Callable[[str, float | None], None]  # a text, and the fraction of the current stage that is done
T = TypeVar("T")

_report: ContextVar[Report | None] = ContextVar("preparation report", default=None)


@contextmanager
def reporting_to(report: Report) -> Iterator[None]:
    """Report the progress of all preparation in this block."""
    token = _report.set(report)
    try:
        yield
    finally:
        _report.reset(token)


def report(text: str) -> None:
    """Report what is being done, if its progress is not known."""
    if (to := _report.get()) is not None:
        to(text, None)


class Meter:
    """A count of work done, reported a few times per second with its speed and the time left."""

    def __init__(self, what: str, unit: str, total: int | None = None) -> None:
        self._what, self._unit, self._total = what, unit, total
        self._report, self._began, self._shown = _report.get(), time.monotonic(), 0.0
        self.done, self._skipped = 0, 0

    def skip(self, count: int) -> None:
        """Count work that an earlier attempt did: it does not count for the speed."""
        self._skipped += count
        self.add(count)

    def add(self, count: int = 1) -> None:
        """Count work."""
        self.set(self.done + count)

    def set(self, done: int, total: int | None = None) -> None:
        """Set the work done so far, and the total if it is known only now."""
        self.done, self._total = done, total or self._total
        now = time.monotonic()
        if self._report is not None and now - self._shown >= SECONDS_BETWEEN:
            self._shown = now
            self._report(*self._state(now - self._began))

    def over(self, items: Iterable[T]) -> Iterator[T]:
        """Yield the items, and count each."""
        for item in items:
            self.add()
            yield item

    def _state(self, seconds: float) -> tuple[str, float | None]:
        speed = (self.done - self._skipped) / max(seconds, 1e-9)
        text = f"{self._what}: {self.done:,} {self._unit}  {speed:,.0f}/s"
        if not self._total:
            return text, None
        if speed > 0:
            text += f"  left {minutes_and_seconds(max(0, self._total - self.done) / speed)}"
        return text, min(1.0, self.done / self._total)
