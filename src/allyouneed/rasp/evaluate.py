"""The value of an s-op or selector on an input: the reference for the compiled weights.

    kinds     a sequence holds bools, ints, floats (ints may be among them) or strings; anything else is refused
    mean      exactly one value selected: that value, of any type; several: their mean, a float, of numbers only
    default   nothing selected

`Evaluation` orders the work and stores each node's value; the nodes compute it (`graph.py`). Evaluation is iterative,
so a program may be arbitrarily deep, and computes every node once. Internally, a row of a selector is an integer whose
bit j is set if position j is selected.
"""

from __future__ import annotations

from typing import Any, Protocol

from allyouneed.rasp import limits
from allyouneed.rasp.atoms import PYTHON_ERRORS, Atom
from allyouneed.rasp.errors import RaspError, RaspFailure, RaspLimitError


class Computable(Protocol):
    """A node of the graph, as an evaluation sees it."""

    @property
    def parts(self) -> tuple[Computable, ...]: ...

    def compute(self, run: Evaluation) -> list[Any]: ...

    def work(self, run: Evaluation) -> int: ...

    def checked_size(self, value: list[Any]) -> int: ...


class Evaluation:
    """One input, and the values of all nodes computed on it so far."""

    def __init__(self, given: Any) -> None:
        try:
            self.given: list[Any] = list(given)
        except TypeError:
            self.given = []
        if not self.given:
            raise RaspError(f"RASP sequences/selectors expect non-empty iterables, got: {given}")
        self.length = len(self.given)
        if self.length > limits.INPUT:
            raise RaspLimitError(f"input of {self.length} elements; at most {limits.INPUT} are computed")
        self.left = limits.WORK
        self._stored = 0
        # Keeps the node alive beside its value: the id of a deleted node could be reused.
        self.values: dict[int, tuple[Computable, list[Any]]] = {}

    def sequence(self, sop: Computable) -> list[Atom]:
        """Return the value of an s-op, as a copy."""
        self.compute(sop)
        return list(self.of(sop))

    def rows(self, selector: Computable) -> list[list[bool]]:
        """Return the rows of a selector."""
        self.compute(selector)
        self._pay(self.length**2)
        return [bits_of(row, self.length) for row in self.of(selector)]

    def renew(self) -> None:
        """Reset the work limit for the next sentence of a program; drop stored values once they are large."""
        self._stored += limits.WORK - self.left
        self.left = limits.WORK
        if self._stored > limits.WORK:
            self.values.clear()
            self._stored = 0

    def compute(self, root: Computable) -> None:
        """Compute a node and everything it depends on, and store the values."""
        waiting: list[tuple[Computable, bool]] = [(root, False)]
        while waiting:
            node, ready = waiting.pop()
            if id(node) in self.values:
                continue
            if not ready:
                waiting.append((node, True))
                waiting.extend((part, False) for part in reversed(node.parts))
                continue
            self._pay(node.work(self))
            try:
                value = node.compute(self)
            except PYTHON_ERRORS as error:
                raise RaspFailure(str(error)) from error
            self._pay(node.checked_size(value))
            self.values[id(node)] = (node, value)

    def of(self, node: Computable) -> list[Any]:
        """Return the stored value of a node."""
        return self.values[id(node)][1]

    def _pay(self, work: int) -> None:
        self.left -= work
        if self.left < 0:
            raise RaspLimitError(f"this takes more than {limits.WORK} steps on an input of {self.length} elements")


def bits_of(row: int, length: int) -> list[bool]:
    """Return the bits of a selector's row as bools."""
    return [bit == "1" for bit in reversed(f"{row:0{length}b}")]
