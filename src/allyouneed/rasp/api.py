"""RASP in Python: the s-ops and functions of the language, with Python's operators on them.

    same = select(tokens, tokens, "==")
    histogram = selector_width(same)
    histogram("hello")                        # [1, 1, 2, 2, 1]

The operators are those of RASP, with these exceptions:

    Python                        RASP
    **                            ^
    & | ~                         and or not, on s-ops and selectors
    where(condition, yes, no)     yes if condition else no
    lookup(table, s-op)           table[s-op]
    contains, is_in               the two meanings of `in`

A program in Python builds the same graph as in a `.rasp` file; tests check that.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, overload

from allyouneed.rasp.atoms import COMPARISONS, Atom, is_atom, shortened
from allyouneed.rasp.errors import RaspError
from allyouneed.rasp.evaluate import Evaluation
from allyouneed.rasp.graph import (
    FULL_SELECTOR,
    INDICES,
    LENGTH,
    Aggregate,
    Function,
    Input,
    Map,
    Select,
    Selector,
    SOp,
    Tokens,
    as_selector,
    as_sop,
    element,
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
indices: Final = INDICES
full_s: Final = FULL_SELECTOR
length: Final = LENGTH


@overload
def evaluate(node: SOp, given: Input) -> list[Atom]: ...
@overload
def evaluate(node: Selector, given: Input) -> list[list[bool]]: ...
def evaluate(node: SOp | Selector, given: Input) -> list[Atom] | list[list[bool]]:
    """Return the sequence that an s-op computes on an input, or the rows of a selector."""
    return node(given)


def evaluate_all(sops: Sequence[SOp], given: Input) -> list[list[Atom]]:
    """Evaluate several s-ops on one input, computing shared nodes once."""
    run = Evaluation(given)
    return [run.sequence(sop) for sop in sops]


def select(keys: SOp | Atom, queries: SOp | Atom, comparison: str) -> Selector:
    """Return the selector whose row i, column j is `keys_j comparison queries_i`."""
    if comparison not in COMPARISONS:
        raise RaspError(f"a selector compares by one of {' '.join(COMPARISONS)}, got: {comparison}")
    return Select(as_sop(keys), as_sop(queries), comparison)


def aggregate(selector: Selector, value: SOp | Atom, default: Atom = 0) -> SOp:
    """Return the mean of the selected values; a single value unchanged; the default if nothing is selected."""
    if not is_atom(default):
        raise RaspError(f"Expected atom, got: {default!r}")
    return Aggregate(as_selector(selector), as_sop(value), default)


def indicator(condition: SOp) -> SOp:
    """Return 1 where the condition holds, 0 elsewhere."""
    return elementwise("indicator", condition)


def where(condition: SOp, yes: SOp | Atom, no: SOp | Atom) -> SOp:
    """Return `yes` where the condition holds, `no` elsewhere."""
    return elementwise("if", condition, yes, no)


def selector_width(selector: Selector) -> SOp:
    """Return the number of selected positions.

    Position 0 is always added to the selection and holds 1, where all others hold 0. So the mean over n selected
    positions is 1/n. A second head determines whether position 0 was selected before.
    """
    first = select(indices, 0, "==")
    witness = indicator(indices == 0)
    together = 1 / aggregate(as_selector(selector) | first, witness)
    return round(together - 1 + aggregate(selector & first, witness))


def contains(sop: SOp, atom: Atom) -> SOp:
    """Return True at every position if the atom occurs anywhere in the sequence, else False."""
    return aggregate(full_s, indicator(sop == atom)) > 0


def _typed(atoms: Iterable[Atom]) -> tuple[tuple[str, Atom], ...]:
    """Pair atoms with their types: 1, 1.0 and True are equal in Python."""
    return tuple((type(atom).__name__, atom) for atom in atoms)


def is_in(sop: SOp, atoms: Sequence[Atom]) -> SOp:
    """Return True where the value at a position is one of the atoms."""
    known = tuple(atoms)
    if not all(map(is_atom, known)):
        raise RaspError(f"Expected atoms, got: {shortened(known)}")
    one_of = frozenset(known)
    return Map(Function("in", lambda atom: atom in one_of, _typed(known)), (as_sop(sop),))


def lookup(table: str | Sequence[Atom] | Mapping[Atom, Atom], sop: SOp) -> SOp:
    """Return the table's entry for the index or key at each position."""
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
