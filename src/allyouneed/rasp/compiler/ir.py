"""What the passes hand to each other.

A program is a set of **variables** (the token, the index, every aggregate and every width) and functions of them. An
s-op is a table over the values of the variables it depends on:

    values     what it can be: a finite tuple of atoms, told apart as Python's == does
    frontier   the variables it is a function of
    table      for each combination of their values the number of its own value; NEVER where that cannot be

So any elementwise subgraph, however deep, is one function (fusion is how s-ops are made, not a pass), and a function of
one variable alone costs nothing of its own: whoever wants it asks that variable for another table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, Literal

import numpy as np

from allyouneed.rasp.atoms import Atom

Floats = np.ndarray[Any, np.dtype[np.float64]]
Ints = np.ndarray[Any, np.dtype[np.signedinteger[Any]]]
Bools = np.ndarray[Any, np.dtype[np.bool_]]

NEVER: Final = -1
Kind = Literal["token", "index", "constant", "map", "aggregate", "width", "cut"]


@dataclass(eq=False)
class TabulatedSOp:
    """An s-op with all that it can be."""

    kind: Kind
    label: str
    values: tuple[Atom, ...]
    frontier: tuple[TabulatedSOp, ...] = ()
    table: Ints = field(default_factory=lambda: np.zeros((), dtype=np.int32))
    arguments: tuple[TabulatedSOp, ...] = ()  # of a map
    selector: Selection | None = None  # of an aggregate or a width
    value: TabulatedSOp | None = None  # of an aggregate
    default: Atom = 0  # of an aggregate
    single: bool = False  # an aggregate of one value, or of several equal ones: any function of it can be copied
    everywhere: bool = False  # the width that counts all positions
    permutes: bool = False  # every position has another of 0, 1, ... n - 1, as the index has
    group: int = 0  # widths of one group, which is not 0, count disjoint parts
    additive: dict[TabulatedSOp, Floats] | None = None  # a number that is a sum of functions of one variable each
    constant: float = 0.0  # and of this
    layer: int = 0  # after this layer any function of it can be read
    plan: Any = None  # of a map: how a feed-forward layer tells its values apart (elementwise.py)
    call: Any = None  # of a map: its function
    cut: TabulatedSOp | None = None  # of a map: itself as a variable, for whoever needs it computed a layer earlier
    order: float = 0.0  # inputs have lower numbers

    @property
    def owner(self) -> TabulatedSOp | None:
        """The variable that this is a function of; None: a constant; itself, if there are several."""
        if not self.frontier:
            return None
        return self.frontier[0] if len(self.frontier) == 1 else self

    @cached_property
    def numeric(self) -> bool:
        return str not in set(map(type, self.values))

    @cached_property
    def _numbers(self) -> Floats:
        numbers = np.array(list(map(float, self.values)))
        numbers.flags.writeable = False
        return numbers

    def numbers(self) -> Floats:
        """The values as numbers."""
        return self._numbers

    def over_owner(self, of_values: Floats) -> Floats:
        """A function of the values, as one of the values of the owner."""
        if self.owner is None or self.owner is self:
            return of_values
        return np.where(_broadcast(self.table, of_values), of_values[self.table], 0.0)


def _broadcast(table: Ints, like: np.ndarray[Any, Any]) -> Bools:
    reached: Bools = (table != NEVER).reshape(table.shape + (1,) * (like.ndim - 1))
    return reached


def variable(kind: Kind, label: str, values: Sequence[Atom], **fields: Any) -> TabulatedSOp:
    """A variable: a function of itself."""
    made = TabulatedSOp(kind, label, tuple(values), **fields)
    made.frontier, made.table = (made,), np.arange(len(made.values), dtype=np.int32)
    if made.numeric:
        made.additive = {made: made.numbers()}
    return made


@dataclass(frozen=True, eq=False)
class Condition:
    """relation[a, b]: whether a key with value a of its owner is selected by a query with value b of its owner.

    No owner: the side is a constant, and the relation has one row or column.
    """

    keys: TabulatedSOp | None
    queries: TabulatedSOp | None
    relation: Bools

    @property
    def sides(self) -> tuple[int, int]:
        return id(self.keys), id(self.queries)


Term = tuple[Condition, ...]  # all of them must hold; the sides of each are others


@dataclass(frozen=True, eq=False)
class Selection:
    """A selector: one of its terms holds, and never two of them."""

    label: str
    terms: tuple[Term, ...]
    nonempty: bool  # whether something is always selected
    at_most_one: bool
    scores: dict[tuple[int, bool], Any] = field(default_factory=dict)  # of its terms, once made (scores.py)


def term_key(term: Term) -> tuple[Any, ...]:
    """Terms of equal keys select the same."""
    return tuple(
        sorted((*condition.sides, condition.relation.shape, condition.relation.tobytes()) for condition in term)
    )
