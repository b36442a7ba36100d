"""What a RASP program is: a graph of s-ops (sequence to equally long sequence) and selectors (sequence to n x n bools).

    map        y_i = f(x_i, ..., z_i)
    select     S_ij = k_j op q_i                     row i asks, column j is asked: the first argument is the key
    aggregate  y_i = mean of v_j over S_ij; the one v_j itself, of any type, if it is alone; the default if none is

The same values come from the language (`interpreter.py`), from Python operators (`api.py`), and go into the compiler.
They know nothing of text, names of variables or weights. Nodes are immutable and compared by identity; `key` says when
two of them compute the same, so that a compiler can share them.

Paper: Weiss, Goldberg and Yahav 2021, arXiv:2106.06981.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

Atom = bool | int | float | str

COMPARISONS: Final[Mapping[str, Callable[[Atom, Atom], bool]]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    ">": operator.gt,
    "<=": operator.le,
    ">=": operator.ge,
}


@dataclass(frozen=True, eq=False)
class Node:
    """An s-op or a selector."""

    @property
    def parts(self) -> tuple[Node, ...]:
        """The nodes that this one is computed from."""
        return ()

    @property
    def key(self) -> Hashable:
        """Nodes of equal keys, whose parts are the same too, compute the same."""
        raise NotImplementedError


@dataclass(frozen=True, eq=False)
class SOp(Node):
    """A function from a sequence to one of equal length."""


@dataclass(frozen=True, eq=False)
class Tokens(SOp):
    """The input, converted: "asis", "str", "int", "float" or "bool" (Python's conversions)."""

    convert: str = "str"

    @property
    def key(self) -> Hashable:
        return ("tokens", self.convert)


@dataclass(frozen=True, eq=False)
class Indices(SOp):
    """0, 1, 2, ..."""

    @property
    def key(self) -> Hashable:
        return ("indices",)


@dataclass(frozen=True, eq=False)
class Constant(SOp):
    """The same atom everywhere."""

    value: Atom

    @property
    def key(self) -> Hashable:
        return ("constant", type(self.value), self.value)


@dataclass(frozen=True)
class Function:
    """A pure function of atoms. Two of the same name and settings are the same function."""

    name: str  # as written: "+", "round", "if", "index"
    call: Callable[..., Atom] = field(compare=False, repr=False)
    settings: Hashable = ()  # what else it depends on: the dict or list that it looks into


@dataclass(frozen=True, eq=False)
class Map(SOp):
    """f of what stands at the same place in each of its arguments."""

    function: Function
    arguments: tuple[SOp, ...]

    @property
    def parts(self) -> tuple[Node, ...]:
        return self.arguments

    @property
    def key(self) -> Hashable:
        return ("map", self.function)


@dataclass(frozen=True, eq=False)
class Aggregate(SOp):
    selector: Selector
    value: SOp
    default: Atom = 0

    @property
    def parts(self) -> tuple[Node, ...]:
        return (self.selector, self.value)

    @property
    def key(self) -> Hashable:
        return ("aggregate", type(self.default), self.default)


@dataclass(frozen=True, eq=False)
class Selector(Node):
    """A function from a sequence of length n to n x n bools."""


@dataclass(frozen=True, eq=False)
class Select(Selector):
    """Row i, column j: keys_j op queries_i."""

    keys: SOp
    queries: SOp
    comparison: str

    @property
    def parts(self) -> tuple[Node, ...]:
        return (self.keys, self.queries)

    @property
    def key(self) -> Hashable:
        return ("select", self.comparison)


@dataclass(frozen=True, eq=False)
class Combined(Selector):
    """ "and", "or" of two selectors, "not" of one."""

    how: str
    operands: tuple[Selector, ...]

    @property
    def parts(self) -> tuple[Node, ...]:
        return self.operands

    @property
    def key(self) -> Hashable:
        return ("combined", self.how)


def in_order(roots: Iterable[Node]) -> list[Node]:
    """Every node that the roots need, each once, parts before wholes. No recursion: programs may be deep."""
    done: dict[int, Node] = {}
    waiting: list[tuple[Node, bool]] = [(root, False) for root in roots][::-1]
    while waiting:
        node, ready = waiting.pop()
        if id(node) in done:
            continue
        if ready:
            done[id(node)] = node
        else:
            waiting.append((node, True))
            waiting.extend((part, False) for part in reversed(node.parts))
    return list(done.values())


Values = Sequence[Atom]
Grid = Sequence[Sequence[bool]]
