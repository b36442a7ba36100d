"""How far an export is: writing takes a moment, comparing both engines may take half a minute."""

from collections.abc import Callable

Tell = Callable[[float, str], None]  # hears the fraction that is done, and what is being done


def silent(fraction: float, words: str) -> None:
    """Nobody listens."""


class Stages:
    """So many things to do, one after the other; each is told when it begins."""

    def __init__(self, tell: Tell, count: int) -> None:
        self._tell, self._count, self._done = tell, count, 0

    def __call__(self, words: str) -> None:
        """The next begins."""
        self._tell(self._done / self._count, words)
        self._done += 1
