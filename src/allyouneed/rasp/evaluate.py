"""The value of an s-op or selector on an input: what the compiled weights are compared with.

    kinds     a sequence holds bools, ints, floats (ints may stand among them) or strings; anything else is refused
    mean      exactly one value selected: that value, of any type; several: their mean, a float, of numbers only
    default   nothing selected

Nothing recurses, so a program may be as deep as it likes. Every node is computed once. Within, a row of a selector is
an integer whose bit j says whether position j is selected, and rows of equal queries are computed once.
"""

from collections.abc import Sequence
from typing import Any, overload

from allyouneed.rasp import limits
from allyouneed.rasp.atoms import COMPARISONS, CONVERSIONS, PYTHON_ERRORS, Atom, kind, mean
from allyouneed.rasp.errors import RaspError, RaspFailure, RaspLimitError
from allyouneed.rasp.graph import (
    Aggregate,
    Combined,
    Constant,
    Indices,
    Input,
    Map,
    Node,
    Select,
    Selector,
    SOp,
    Tokens,
)


@overload
def evaluate(node: SOp, given: Input) -> list[Atom]: ...
@overload
def evaluate(node: Selector, given: Input) -> list[list[bool]]: ...
def evaluate(node: SOp | Selector, given: Input) -> Any:
    """The sequence that an s-op makes of an input, or the rows of a selector."""
    return Run(given).value(node)


def evaluate_all(sops: Sequence[SOp], given: Input) -> list[list[Atom]]:
    """Several s-ops on one input; what they share is computed once."""
    run = Run(given)
    return [run.value(sop) for sop in sops]


class Run:
    """One input, and the values of all nodes that were asked for."""

    def __init__(self, given: Input) -> None:
        try:
            self.given: list[Any] = list(given)
        except TypeError:
            self.given = []
        if not self.given:
            raise RaspError(f"RASP sequences/selectors expect non-empty iterables, got: {given}")
        if len(self.given) > limits.INPUT:
            raise RaspLimitError(f"input of {len(self.given)} elements; at most {limits.INPUT} are computed")
        self.everywhere = (1 << len(self.given)) - 1
        self.left = limits.WORK
        self._kept = 0
        # The node is kept beside its value, since an id may be used again when its node is gone.
        self.values: dict[int, tuple[Node, list[Any]]] = {}

    @overload
    def value(self, node: SOp) -> list[Atom]: ...
    @overload
    def value(self, node: Selector) -> list[list[bool]]: ...
    def value(self, node: SOp | Selector) -> Any:
        """The value of a node; sequences are copied, so that nobody changes what is kept."""
        self.compute(node)
        value = self.values[id(node)][1]
        if isinstance(node, SOp):
            return list(value)
        self._pay(len(self.given) ** 2)
        return [self._bits(row) for row in value]

    def renew(self) -> None:
        """For the next sentence of a program that is tried on the same input. Work is room: much of it is forgotten."""
        self._kept += limits.WORK - self.left
        self.left = limits.WORK
        if self._kept > limits.WORK:
            self.values.clear()
            self._kept = 0

    def compute(self, root: Node) -> None:
        """Finds out whether a node has a value, and remembers it."""
        waiting: list[tuple[Node, bool]] = [(root, False)]
        while waiting:
            node, ready = waiting.pop()
            if id(node) in self.values:
                continue
            if not ready:
                waiting.append((node, True))
                waiting.extend((part, False) for part in reversed(node.parts))
                continue
            self._pay(self._cost(node))
            try:
                value = self._value(node)
            except PYTHON_ERRORS as error:
                raise RaspFailure(str(error)) from error
            if isinstance(node, SOp):
                what = kind(value)
                if what == "strings":
                    self._pay(sum(map(len, value)))
                elif what == "ints":
                    self._pay(sum([atom.bit_length() >> 6 for atom in value]))
            self.values[id(node)] = (node, value)

    def _pay(self, work: int) -> None:
        self.left -= work
        if self.left < 0:
            raise RaspLimitError(f"this takes more than {limits.WORK} steps on an input of {len(self.given)} elements")

    def _cost(self, node: Node) -> int:
        """Pairs compared for a selector, words of memory for one that is combined, some bytes for each atom."""
        length = len(self.given)
        if isinstance(node, Select):
            return length * len(set(self._of(node.queries)))
        if isinstance(node, Combined):
            return length * (1 + length // 64)
        if isinstance(node, Aggregate):
            return length * len(set(self._of(node.selector)))
        return 4 * length

    def _of(self, node: Node) -> list[Any]:
        return self.values[id(node)][1]

    def _value(self, node: Node) -> list[Any]:
        match node:
            case Tokens(convert):
                call = CONVERSIONS[convert]
                return [call(atom) for atom in self.given]
            case Indices():
                return list(range(len(self.given)))
            case Constant(value):
                return [value] * len(self.given)
            case Map(function, arguments):
                call = function.call
                return [call(*atoms) for atoms in zip(*map(self._of, arguments), strict=True)]
            case Select(keys, queries, comparison):
                return self._select(self._of(keys), self._of(queries), comparison)
            case Combined(how, operands):
                return self._combine(how, [self._of(operand) for operand in operands])
            case Aggregate(selector, value, default):
                return self._aggregate(self._of(selector), self._of(value), default)
        raise AssertionError(f"no such node: {node!r}")

    def _select(self, keys: list[Atom], queries: list[Atom], comparison: str) -> list[int]:
        compare = COMPARISONS[comparison]
        rows: dict[Atom, int] = {}
        for query in queries:
            if query not in rows:
                rows[query] = int("".join(["1" if compare(key, query) else "0" for key in reversed(keys)]), 2)
        return [rows[query] for query in queries]

    def _combine(self, how: str, operands: list[list[int]]) -> list[int]:
        if how == "not":
            return [self.everywhere & ~row for row in operands[0]]
        if how == "and":
            return [a & b for a, b in zip(*operands, strict=True)]
        return [a | b for a, b in zip(*operands, strict=True)]

    def _aggregate(self, rows: list[int], values: list[Atom], default: Atom) -> list[Atom]:
        results: dict[int, Atom] = {}
        for row in rows:
            if row not in results:
                chosen = [value for value, bit in zip(values, self._bits(row), strict=True) if bit]
                results[row] = mean(chosen) if chosen else default
        return [results[row] for row in rows]

    def _bits(self, row: int) -> list[bool]:
        return [bit == "1" for bit in reversed(f"{row:0{len(self.given)}b}")]
