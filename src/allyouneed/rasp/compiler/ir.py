"""The intermediate representation that the passes exchange.

A program is a set of **variables** (the token, the index, every aggregate and every width) and functions of them. An
s-op is a table over the values of the variables it depends on:

    values     its domain: a finite tuple of atoms, distinct under Python's ==
    frontier   the variables it is a function of
    table      the index of its value for each combination of their values; NEVER for impossible combinations

Any elementwise subgraph, however deep, is therefore one function: fusion happens during construction, not in a pass. A
function of a single variable costs nothing extra: its readers request another table of that variable.
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
    """An s-op with its domain and its table."""

    kind: Kind
    label: str
    values: tuple[Atom, ...]
    frontier: tuple[TabulatedSOp, ...] = ()
    table: Ints = field(default_factory=lambda: np.zeros((), dtype=np.int32))
    arguments: tuple[TabulatedSOp, ...] = ()  # of a map
    selector: Selection | None = None  # of an aggregate or a width
    value: TabulatedSOp | None = None  # of an aggregate
    default: Atom = 0  # of an aggregate
    single: bool = False  # an aggregate of one value, or of equal ones: attention can copy any function of it
    everywhere: bool = False  # a width that counts all positions
    permutes: bool = False  # its values are a permutation of 0, 1, ... n - 1, like the index
    group: int = 0  # widths of one nonzero group count disjoint sets
    additive: dict[TabulatedSOp, Floats] | None = None  # its number as a sum of functions of one variable each
    constant: float = 0.0  # plus this constant
    layer: int = 0  # the layer after which any function of it can be read
    plan: Any = None  # of a map: the line on which a feed-forward layer separates its values (elementwise.py)
    call: Any = None  # of a map: its function
    cut: TabulatedSOp | None = None  # of a map: itself as a variable, for readers that need it computed a layer earlier
    order: float = 0.0  # topological: inputs have lower numbers

    @property
    def owner(self) -> TabulatedSOp | None:
        """The variable that this is a function of; None for a constant; itself if there are several."""
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
        """Return the values as numbers."""
        return self._numbers

    def over_owner(self, of_values: Floats) -> Floats:
        """Convert a function of the values to a function of the owner's values."""
        if self.owner is None or self.owner is self:
            return of_values
        return np.where(_broadcast(self.table, of_values), of_values[self.table], 0.0)


def _broadcast(table: Ints, like: np.ndarray[Any, Any]) -> Bools:
    reached: Bools = (table != NEVER).reshape(table.shape + (1,) * (like.ndim - 1))
    return reached


def variable(kind: Kind, label: str, values: Sequence[Atom], **fields: Any) -> TabulatedSOp:
    """Return a variable: a function of itself."""
    made = TabulatedSOp(kind, label, tuple(values), **fields)
    made.frontier, made.table = (made,), np.arange(len(made.values), dtype=np.int32)
    if made.numeric:
        made.additive = {made: made.numbers()}
    return made


@dataclass(frozen=True, eq=False)
class Condition:
    """relation[a, b]: a key whose owner has value a is selected by a query whose owner has value b.

    A side without an owner is constant; the relation then has one row or column.
    """

    keys: TabulatedSOp | None
    queries: TabulatedSOp | None
    relation: Bools

    @property
    def sides(self) -> tuple[int, int]:
        return id(self.keys), id(self.queries)


Term = tuple[Condition, ...]  # a conjunction; no two conditions share both sides


@dataclass(frozen=True, eq=False)
class Selection:
    """A selector as a disjoint union of conjunctions."""

    label: str
    terms: tuple[Term, ...]
    nonempty: bool  # every query selects at least one key
    at_most_one: bool
    scores: dict[tuple[int, bool], Any] = field(default_factory=dict)  # cached scores of its terms (scores.py)


def term_key(term: Term) -> tuple[Any, ...]:
    """Return a key that is equal for terms that select the same positions."""
    return tuple(
        sorted((*condition.sides, condition.relation.shape, condition.relation.tobytes()) for condition in term)
    )
