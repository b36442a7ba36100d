"""Errors of the compiler. All reasons are collected before any weight is computed."""

from collections.abc import Sequence

from allyouneed.rasp.errors import RaspError
from allyouneed.words import counted


class CannotCompile(RaspError):
    """The program cannot be compiled. Each of the `reasons` names the place in the program, and the size."""

    def __init__(self, reasons: Sequence[str]) -> None:
        self.reasons = tuple(dict.fromkeys(reasons))
        count = len(self.reasons)
        listed = "; ".join(f"({number}) {reason}" for number, reason in enumerate(self.reasons, start=1))
        super().__init__(f"cannot be compiled, for {counted(count, 'reason')}: {listed}")


class Obstacle(Exception):
    """One reason why a program cannot be compiled; `build` collects them."""
