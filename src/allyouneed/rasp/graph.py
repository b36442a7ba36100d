"""The graph of a RASP program: s-ops (sequence to sequence of equal length) and selectors (sequence to n x n bools).

    map        y_i = f(x_i, ..., z_i)
    select     S_ij = k_j op q_i                     row i is the query, column j the key; the key comes first
    aggregate  y_i = mean of v_j over S_ij; a single v_j unchanged, of any type; the default if nothing is selected

The language (`interpreter.py`) and Python operators (`api.py`) both build this graph, and the compiler reads it. Nodes
hold no text, variable names or weights. They are immutable. Nodes with equal `key` and equal parts compute the same
value, so a compiler can share them (`same` compares whole graphs). `compute` evaluates one node from its parts.

Operators build nodes: `tokens == "a"` is an s-op, not a bool. Nodes therefore have no truth value, compare by `is` and
hash by identity. They can be dict keys and set members, but `node in [...]` raises.

Paper: Weiss, Goldberg and Yahav 2021, arXiv:2106.06981.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn, TypeAlias

from allyouneed.rasp.atoms import COMPARISONS as COMPARISONS
from allyouneed.rasp.atoms import CONVERSIONS, FUNCTIONS, Atom, is_atom, kind, mean
from allyouneed.rasp.errors import RaspError
from allyouneed.rasp.evaluate import Evaluation, bits_of

Input: TypeAlias = str | Sequence[Atom]


@dataclass(frozen=True, eq=False, repr=False)
class Node:
    """An s-op or a selector."""

    @property
    def parts(self) -> tuple[Node, ...]:
        """The nodes that this one is computed from."""
        return ()

    @property
    def key(self) -> Hashable:
        """Nodes with equal keys and equal parts compute the same value."""
        raise NotImplementedError

    def compute(self, run: Evaluation) -> list[Any]:
        """Return the value on one input: for each position an atom or, for a selector, a row of bits as an integer."""
        raise NotImplementedError

    def work(self, run: Evaluation) -> int:
        """Return the cost of `compute`, in units of `limits.WORK`."""
        return 4 * run.length

    def checked_size(self, value: list[Any]) -> int:
        """Return the extra cost of a large value (units of `limits.WORK`). Raise RaspError if it is not a sequence."""
        return 0

    def __repr__(self) -> str:
        """Return the node without its parts: an unrolled program may have very many."""
        return f"<{type(self).__name__} {' '.join(map(str, self.key[1:]))}>"  # type: ignore[index]

    def __bool__(self) -> NoReturn:
        raise RaspError("an s-op or selector has no truth value: use & | ~ for and, or, not, and where() for if")


@dataclass(frozen=True, eq=False, repr=False)
class SOp(Node):
    """A function from a sequence to a sequence of equal length. Call it on an input to compute that sequence."""

    def __call__(self, given: Input) -> list[Atom]:
        return Evaluation(given).sequence(self)

    def checked_size(self, value: list[Any]) -> int:
        what = kind(value)
        if what == "strings":
            return sum(map(len, value))
        return sum([atom.bit_length() >> 6 for atom in value]) if what == "ints" else 0

    def __getitem__(self, index: int) -> SOp:
        return element(self, index)

    def __iter__(self) -> NoReturn:
        raise RaspError("an s-op has no elements until it is called on an input: use contains() and is_in() for in")

    def __contains__(self, atom: object) -> NoReturn:
        self.__iter__()

    def __add__(self, other: SOp | Atom) -> SOp:
        return elementwise("+", self, other)

    def __radd__(self, other: Atom) -> SOp:
        return elementwise("+", other, self)

    def __sub__(self, other: SOp | Atom) -> SOp:
        return elementwise("-", self, other)

    def __rsub__(self, other: Atom) -> SOp:
        return elementwise("-", other, self)

    def __mul__(self, other: SOp | Atom) -> SOp:
        return elementwise("*", self, other)

    def __rmul__(self, other: Atom) -> SOp:
        return elementwise("*", other, self)

    def __truediv__(self, other: SOp | Atom) -> SOp:
        return elementwise("/", self, other)

    def __rtruediv__(self, other: Atom) -> SOp:
        return elementwise("/", other, self)

    def __mod__(self, other: SOp | Atom) -> SOp:
        return elementwise("%", self, other)

    def __rmod__(self, other: Atom) -> SOp:
        return elementwise("%", other, self)

    def __pow__(self, other: SOp | Atom) -> SOp:
        return elementwise("^", self, other)

    def __rpow__(self, other: Atom) -> SOp:
        return elementwise("^", other, self)

    def __eq__(self, other: object) -> SOp:  # type: ignore[override]
        return elementwise("==", self, other)

    def __ne__(self, other: object) -> SOp:  # type: ignore[override]
        return elementwise("!=", self, other)

    def __lt__(self, other: SOp | Atom) -> SOp:
        return elementwise("<", self, other)

    def __gt__(self, other: SOp | Atom) -> SOp:
        return elementwise(">", self, other)

    def __le__(self, other: SOp | Atom) -> SOp:
        return elementwise("<=", self, other)

    def __ge__(self, other: SOp | Atom) -> SOp:
        return elementwise(">=", self, other)

    def __and__(self, other: SOp | Atom) -> SOp:
        return elementwise("and", self, other)

    def __rand__(self, other: Atom) -> SOp:
        return elementwise("and", other, self)

    def __or__(self, other: SOp | Atom) -> SOp:
        return elementwise("or", self, other)

    def __ror__(self, other: Atom) -> SOp:
        return elementwise("or", other, self)

    def __invert__(self) -> SOp:
        return elementwise("not", self)

    def __neg__(self) -> SOp:
        return elementwise("neg", self)

    def __pos__(self) -> SOp:
        return elementwise("pos", self)

    def __round__(self) -> SOp:
        return elementwise("round", self)

    __hash__ = object.__hash__


@dataclass(frozen=True, eq=False, repr=False)
class Tokens(SOp):
    """The input, converted: "asis", "str", "int", "float" or "bool" (Python's conversions)."""

    convert: str = "str"

    @property
    def key(self) -> Hashable:
        return ("tokens", self.convert)

    def compute(self, run: Evaluation) -> list[Any]:
        return [CONVERSIONS[self.convert](atom) for atom in run.given]


@dataclass(frozen=True, eq=False, repr=False)
class Indices(SOp):
    """0, 1, 2, ..."""

    @property
    def key(self) -> Hashable:
        return ("indices",)

    def compute(self, run: Evaluation) -> list[Any]:
        return list(range(run.length))


@dataclass(frozen=True, eq=False, repr=False)
class Constant(SOp):
    """The same atom at every position."""

    value: Atom

    @property
    def key(self) -> Hashable:
        return ("constant", type(self.value), self.value)

    def compute(self, run: Evaluation) -> list[Any]:
        return [self.value] * run.length


@dataclass(frozen=True)
class Function:
    """A pure function of atoms. Functions with the same name and settings are equal."""

    name: str  # as written: "+", "round", "if", "index"
    call: Callable[..., Atom] = field(compare=False, repr=False)
    settings: Hashable = ()  # further parameters: the dict or list of a lookup


@dataclass(frozen=True, eq=False, repr=False)
class Map(SOp):
    """A function applied position by position to one or more s-ops."""

    function: Function
    arguments: tuple[SOp, ...]

    @property
    def parts(self) -> tuple[Node, ...]:
        return self.arguments

    @property
    def key(self) -> Hashable:
        return ("map", self.function)

    def compute(self, run: Evaluation) -> list[Any]:
        call = self.function.call
        return [call(*atoms) for atoms in zip(*map(run.of, self.arguments), strict=True)]


@dataclass(frozen=True, eq=False, repr=False)
class Aggregate(SOp):
    """The mean of the selected values; a single value unchanged; the default if nothing is selected."""

    selector: Selector
    value: SOp
    default: Atom = 0

    @property
    def parts(self) -> tuple[Node, ...]:
        return (self.selector, self.value)

    @property
    def key(self) -> Hashable:
        return ("aggregate", type(self.default), self.default)

    def work(self, run: Evaluation) -> int:
        return run.length * len(set(run.of(self.selector)))

    def compute(self, run: Evaluation) -> list[Any]:
        rows, values = run.of(self.selector), run.of(self.value)
        results: dict[int, Atom] = {}
        for row in rows:
            if row not in results:
                chosen = [value for value, bit in zip(values, bits_of(row, run.length), strict=True) if bit]
                results[row] = mean(chosen) if chosen else self.default
        return [results[row] for row in rows]


@dataclass(frozen=True, eq=False, repr=False)
class Selector(Node):
    """A function from a sequence of length n to n x n bools. Call it on an input to compute its rows."""

    def __call__(self, given: Input) -> list[list[bool]]:
        return Evaluation(given).rows(self)

    def __and__(self, other: Selector) -> Selector:
        return Combined("and", (self, as_selector(other)))

    def __or__(self, other: Selector) -> Selector:
        return Combined("or", (self, as_selector(other)))

    def __invert__(self) -> Selector:
        return Combined("not", (self,))


@dataclass(frozen=True, eq=False, repr=False)
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

    def work(self, run: Evaluation) -> int:
        return run.length * len(set(run.of(self.queries)))

    def compute(self, run: Evaluation) -> list[Any]:
        compare, keys, queries = COMPARISONS[self.comparison], run.of(self.keys), run.of(self.queries)
        rows: dict[Atom, int] = {}  # rows of equal queries are equal
        for query in queries:
            if query not in rows:
                rows[query] = int("".join(["1" if compare(key, query) else "0" for key in reversed(keys)]), 2)
        return [rows[query] for query in queries]


@dataclass(frozen=True, eq=False, repr=False)
class Combined(Selector):
    """The "and" or "or" of two selectors, or the "not" of one."""

    how: str
    operands: tuple[Selector, ...]

    @property
    def parts(self) -> tuple[Node, ...]:
        return self.operands

    @property
    def key(self) -> Hashable:
        return ("combined", self.how)

    def work(self, run: Evaluation) -> int:
        return run.length * (1 + run.length // 64)

    def compute(self, run: Evaluation) -> list[Any]:
        operands = [run.of(operand) for operand in self.operands]
        if self.how == "not":
            every = (1 << run.length) - 1
            return [every & ~row for row in operands[0]]
        if self.how == "and":
            return [a & b for a, b in zip(*operands, strict=True)]
        return [a | b for a, b in zip(*operands, strict=True)]


def in_order(roots: Iterable[Node]) -> list[Node]:
    """Return every node that the roots depend on, once, parts first. Iterative, because programs may be deep."""
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


def as_sop(value: object) -> SOp:
    """Return the s-op unchanged, or a constant s-op for an atom."""
    if isinstance(value, SOp):
        return value
    if not is_atom(value):
        raise RaspError(f"Expected s-op or atom, got: {value!r}")
    return Constant(value)  # type: ignore[arg-type]


def as_selector(value: object) -> Selector:
    if not isinstance(value, Selector):
        raise RaspError(f"Expected selector, got: {value!r}")
    return value


def elementwise(name: str, *arguments: object) -> SOp:
    """Apply one of the built-in functions (`atoms.FUNCTIONS`) position by position."""
    return Map(Function(name, FUNCTIONS[name]), tuple(as_sop(argument) for argument in arguments))


def same(a: Node, b: Node) -> bool:
    """Return True if two graphs have the same structure. Linear in size: equal subgraphs share a number."""
    numbers: dict[Hashable, int] = {}
    number_of: dict[int, int] = {}
    for node in in_order([a, b]):
        whole = (node.key, tuple(number_of[id(part)] for part in node.parts))
        number_of[id(node)] = numbers.setdefault(whole, len(numbers))
    return number_of[id(a)] == number_of[id(b)]


INDICES: Final = Indices()
FULL_SELECTOR: Final = Select(Constant(1), Constant(1), "==")
LENGTH: Final = round(1 / Aggregate(FULL_SELECTOR, elementwise("indicator", INDICES == 0)))


def element(sop: SOp, index: int) -> SOp:
    """Copy the value at one index to every position. Negative indices count from the end; 0 if out of range."""
    if not isinstance(index, int):
        raise RaspError(f"index into sequence has to be integer, got: {index!r}")
    position = as_sop(index) if index >= 0 else LENGTH + index
    return Aggregate(Select(INDICES, position, "=="), sop)
