"""How far an export is: writing takes a moment, comparing both engines may take half a minute."""

from collections.abc import Callable

ReportProgress = Callable[[float, str], None]  # hears the fraction that is done, and what is being done


def no_progress(fraction: float, words: str) -> None:
    """Nobody listens."""


class ProgressStages:
    """So many things to do, one after the other; each is told when it begins."""

    def __init__(self, report: ReportProgress, count: int) -> None:
        self._tell, self._count, self._done = report, count, 0

    def __call__(self, words: str) -> None:
        """The next begins."""
        self._tell(self._done / self._count, words)
        self._done += 1
