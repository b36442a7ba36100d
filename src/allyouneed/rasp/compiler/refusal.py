"""Why a program cannot be compiled: every reason at once, before any weight is made."""

from collections.abc import Sequence

from allyouneed.rasp.errors import RaspError
from allyouneed.words import counted


class CannotCompile(RaspError):
    """The program has no such model; `reasons` says why, each with the place in the program and the size."""

    def __init__(self, reasons: Sequence[str]) -> None:
        self.reasons = tuple(dict.fromkeys(reasons))
        count = len(self.reasons)
        listed = "; ".join(f"({number}) {reason}" for number, reason in enumerate(self.reasons, start=1))
        super().__init__(f"cannot be compiled, for {counted(count, 'reason')}: {listed}")


class Obstacle(Exception):
    """One reason, on its way to the list."""
