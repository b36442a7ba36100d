"""The values of the language: atoms, named s-ops and selectors, lists, dicts, functions; and the environments of names.

Values are immutable; assignment only binds names. A `NamedNode` pairs an s-op or selector with the name that messages
use: nodes of the graph have no names.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from allyouneed.rasp import limits
from allyouneed.rasp.atoms import Atom, is_atom
from allyouneed.rasp.errors import RaspError, RaspLimitError
from allyouneed.rasp.graph import Input, Select, Selector, SOp
from allyouneed.rasp.tree import Exprs, Statement

NAME_LENGTH: Final = 100


@dataclass(slots=True, eq=False)
class NamedNode:
    """An s-op or selector, and its name."""

    node: SOp | Selector
    name: str = ""

    def __post_init__(self) -> None:
        # The name of f(x , x) nested in itself would double each time.
        if len(self.name) > NAME_LENGTH:
            self.name = f"{self.name[:NAME_LENGTH]}..."

    @property
    def title(self) -> str:
        if self.name:
            return self.name
        if isinstance(self.node, SOp):
            return "s-op"
        return "plain select" if isinstance(self.node, Select) else "selector"


class List:
    """A list of values. Stores its total size: nested lists are shared, so [a, a] is cheap to build."""

    __slots__ = ("items", "levels", "size")

    def __init__(self, items: Iterable[Value]) -> None:
        self.items = tuple(items)
        self.size, self.levels = _measure(self.items)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, List) and self.items == other.items

    __hash__ = None  # type: ignore[assignment]

    def __len__(self) -> int:
        return len(self.items)

    def __iter__(self) -> Iterator[Value]:
        return iter(self.items)


class Dict:
    """A dict from atoms to values. As in Python, 1, 1.0 and True are the same key."""

    __slots__ = ("items", "levels", "size")

    def __init__(self, items: Mapping[Atom, Value]) -> None:
        self.items = dict(items)
        self.size, self.levels = _measure(self.items.values())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Dict) and self.items == other.items

    __hash__ = None  # type: ignore[assignment]

    def __len__(self) -> int:
        return len(self.items)

    def __iter__(self) -> Iterator[Atom]:
        return iter(self.items)


def _measure(items: Iterable[Value]) -> tuple[int, int]:
    size, levels = 1, 1
    for item in items:
        if isinstance(item, List | Dict):
            size += item.size
            levels = max(levels, item.levels + 1)
        else:
            size += 1
    if size > limits.SIZE:
        raise RaspLimitError(f"list or dict of more than {limits.SIZE} values")
    if levels > limits.LEVELS:
        raise RaspLimitError(f"more than {limits.LEVELS} lists inside each other")
    return size, levels


@dataclass(frozen=True, slots=True, eq=False)
class Procedure:
    """A function of the language."""

    name: str
    parameters: tuple[str, ...]
    body: tuple[Statement, ...]
    results: Exprs
    home: Environment


Value: TypeAlias = Atom | NamedNode | List | Dict | Procedure

WORDS: Final = frozenset(
    {"if", "else", "not", "and", "or", "out", "def", "return", "range", "for", "in", "zip", "len", "get"}
)
CONSTANTS: Final = frozenset(
    {"tokens_asis", "tokens_str", "tokens_int", "tokens_float", "tokens_bool", "indices", "True", "False"}
)


@dataclass(slots=True, eq=False)
class Environment:
    """Names and their values. Missing names are looked up in the parent at the time of access."""

    title: str  # "console" or the file name, shown as the origin of its functions
    parent: Environment | None = None
    names: dict[str, Value] = field(default_factory=dict)
    reserved: frozenset[str] = CONSTANTS | WORDS
    out: Value | None = None  # the last value computed here

    def __getitem__(self, name: str) -> Value:
        here: Environment | None = self
        while here is not None:
            if name == "out" and here.out is not None:
                return here.out
            if name in here.names:
                return here.names[name]
            here = here.parent
        raise RaspError(f"Error: Undefined variable: {name}")

    def check(self, names: Iterable[str]) -> None:
        for name in names:
            if name in self.reserved:
                raise RaspError(f"Error: Cannot set reserved name: {name}")

    def public(self) -> dict[str, Value]:
        """Return the names without a leading _."""
        return {name: value for name, value in self.names.items() if not name.startswith("_")}

    def __setitem__(self, name: str, value: Value) -> None:
        self.names.pop(name, None)  # keeps names in the order of assignment
        self.names[name] = value


def describe(value: Value) -> str:
    """Return a short text for a value, for messages."""
    if isinstance(value, NamedNode):
        return value.title
    if isinstance(value, List):
        return "(list)"
    if isinstance(value, Dict):
        return "(dict)"
    if isinstance(value, Procedure):
        return value.name
    if isinstance(value, str):
        return f'"{value}"' if len(value) <= NAME_LENGTH else f'"{value[:NAME_LENGTH]}..."'
    return str(value)


def atoms_of(value: List | Dict | str) -> list[Any]:
    """Return the atoms of a list, the keys of a dict or the characters of a string."""
    items = list(value)
    for item in items:
        if not is_atom(item):
            raise RaspError(f"Expected atom, got: {describe(item)}")
    return items


def elements(value: Value) -> Iterable[Value]:
    if not isinstance(value, List | Dict):
        raise RaspError(f"for loop needs to iterate over a list or dict, but got: {describe(value)}")
    return value


def unpacked(names: tuple[str, ...], element: Value) -> Iterable[Value]:
    return element if len(names) > 1 and isinstance(element, List) else (element,)


def as_input(value: Value) -> Input:
    """Return a value as the input of an s-op: a string, the atoms of a list or the keys of a dict."""
    if isinstance(value, str) and value:
        return value
    if isinstance(value, List | Dict) and len(value):
        # Nested lists are refused when a sequence is built from them, with the published message.
        return [_plain(item) for item in value]
    raise RaspError(f"RASP sequences/selectors expect non-empty iterables, got: {_shown(value)}")


def _plain(value: Value) -> Any:
    return [_plain(item) for item in value] if isinstance(value, List) else value


def _shown(value: Value) -> str:
    if isinstance(value, List | Dict):
        return "[]" if isinstance(value, List) else "{}"
    return describe(value) if not isinstance(value, str) else value


def as_list(values: list[Any]) -> List:
    return List(as_list(value) if isinstance(value, list) else value for value in values)
