"""RASP in Python: the s-ops and functions of the language, with Python's operators on them.

    same = select(tokens, tokens, "==")
    histogram = selector_width(same)
    histogram("hello")                        # [1, 1, 2, 2, 1]

Operators are those of the language, but `**` is its `^`, and `& | ~` are its `and or not`, on s-ops as on selectors.
`where` is its `yes if condition else no`, `lookup` its `table[s-op]`, `contains` and `is_in` its two meanings of `in`.
The result is the graph that the same program in a `.rasp` file gives; tests hold both to that.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from allyouneed.rasp.atoms import COMPARISONS, Atom, is_atom, shortened
from allyouneed.rasp.errors import RaspError
from allyouneed.rasp.evaluate import evaluate, evaluate_all
from allyouneed.rasp.graph import (
    Aggregate,
    Function,
    Indices,
    Map,
    Select,
    Selector,
    SOp,
    Tokens,
    as_selector,
    as_sop,
    elementwise,
)

__all__ = [
    "aggregate",
    "contains",
    "element",
    "evaluate",
    "evaluate_all",
    "full_s",
    "indicator",
    "indices",
    "is_in",
    "length",
    "lookup",
    "select",
    "selector_width",
    "tokens",
    "tokens_asis",
    "tokens_bool",
    "tokens_float",
    "tokens_int",
    "tokens_str",
    "where",
]

tokens_asis: Final = Tokens("asis")
tokens_str: Final = Tokens("str")
tokens_int: Final = Tokens("int")
tokens_float: Final = Tokens("float")
tokens_bool: Final = Tokens("bool")
tokens: Final = tokens_str
indices: Final = Indices()


def select(keys: SOp | Atom, queries: SOp | Atom, comparison: str) -> Selector:
    """Row i, column j: keys_j comparison queries_i."""
    if comparison not in COMPARISONS:
        raise RaspError(f"a selector compares by one of {' '.join(COMPARISONS)}, got: {comparison}")
    return Select(as_sop(keys), as_sop(queries), comparison)


def aggregate(selector: Selector, value: SOp | Atom, default: Atom = 0) -> SOp:
    """The mean of the selected values; the only one itself; the default where none is selected."""
    if not is_atom(default):
        raise RaspError(f"Expected atom, got: {default!r}")
    return Aggregate(as_selector(selector), as_sop(value), default)


def indicator(condition: SOp) -> SOp:
    """1 where the condition holds, 0 elsewhere."""
    return elementwise("indicator", condition)


def where(condition: SOp, yes: SOp | Atom, no: SOp | Atom) -> SOp:
    return elementwise("if", condition, yes, no)


full_s: Final = select(1, 1, "==")
length: Final = round(1 / aggregate(full_s, indicator(indices == 0)))


def selector_width(selector: Selector) -> SOp:
    """How many positions are selected.

    Position 0 is made a witness. Together with it, n are selected: it gets the mean 1/n. Whether it had been among them
    is what a second head sees.
    """
    first = select(indices, 0, "==")
    witness = indicator(indices == 0)
    together = 1 / aggregate(as_selector(selector) | first, witness)
    return round(together - 1 + aggregate(selector & first, witness))


def element(sop: SOp, index: int) -> SOp:
    """The value at one place, everywhere; places below zero count from the end; 0 where the input is too short."""
    if not isinstance(index, int):
        raise RaspError(f"index into sequence has to be integer, got: {index!r}")
    place = as_sop(index) if index >= 0 else length + index
    return aggregate(select(indices, place, "=="), sop)


def contains(sop: SOp, atom: Atom) -> SOp:
    """Whether the atom stands anywhere: True everywhere, or False everywhere."""
    return aggregate(full_s, indicator(sop == atom)) > 0


def _typed(atoms: Iterable[Atom]) -> tuple[tuple[str, Atom], ...]:
    """What tells 1, 1.0 and True apart, which are equal in Python."""
    return tuple((type(atom).__name__, atom) for atom in atoms)


def is_in(sop: SOp, atoms: Sequence[Atom]) -> SOp:
    """Whether what stands at a position is one of the atoms."""
    known = tuple(atoms)
    if not all(map(is_atom, known)):
        raise RaspError(f"Expected atoms, got: {shortened(known)}")
    one_of = frozenset(known)
    return Map(Function("in", lambda atom: atom in one_of, _typed(known)), (as_sop(sop),))


def lookup(table: str | Sequence[Atom] | Mapping[Atom, Atom], sop: SOp) -> SOp:
    """What the table has at the index, or under the key, that stands at a position."""
    if isinstance(table, Mapping):
        entries = dict(table)
        settings: Any = ("dict", _typed(entries), _typed(entries.values()))

        def call(key: Atom) -> Atom:
            return from_dict(entries, key)
    else:
        values = table if isinstance(table, str) else tuple(table)
        settings = ("list", _typed(values))

        def call(key: Atom) -> Atom:
            return from_list(values, key)

    return Map(Function("index", call, settings), (as_sop(sop),))


def from_dict(table: Mapping[Any, Any], key: Any) -> Any:
    if key not in table:
        raise RaspError(f"index [ {key} ] not in dict.")
    return table[key]


def from_list(values: Sequence[Any], index: Any) -> Any:
    if not isinstance(index, int):
        raise RaspError(f"index into list or string has to be integer, got: {index!r}")
    if not -len(values) <= index < len(values):
        kind = "string" if isinstance(values, str) else "list"
        raise RaspError(f"index {index} out of range for {kind} of length {len(values)}")
    return values[index]
