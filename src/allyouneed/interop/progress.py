"""Progress of an export: writing is quick, comparing both engines may take half a minute."""

from collections.abc import Callable

ReportProgress = Callable[[float, str], None]  # receives the finished fraction and the current stage


def no_progress(fraction: float, words: str) -> None:
    """Ignore progress."""


class ProgressStages:
    """A fixed number of stages, each reported when it starts."""

    def __init__(self, report: ReportProgress, count: int) -> None:
        self._tell, self._count, self._done = report, count, 0

    def __call__(self, words: str) -> None:
        """Start the next stage."""
        self._tell(self._done / self._count, words)
        self._done += 1
