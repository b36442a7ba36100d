"""What a RASP program is: a graph of s-ops (sequence to equally long sequence) and selectors (sequence to n x n bools).

    map        y_i = f(x_i, ..., z_i)
    select     S_ij = k_j op q_i                     row i asks, column j is asked: the first argument is the key
    aggregate  y_i = mean of v_j over S_ij; the one v_j itself, of any type, if it is alone; the default if none is

The same values come from the language (`interpreter.py`), from Python operators (`api.py`), and go into the compiler.
They know nothing of text, names of variables or weights. Nodes are immutable; `key` says when two of them compute the
same, so that a compiler can share them (`same` compares whole graphs).

Operators build nodes: `tokens == "a"` is an s-op, not an answer. So nodes have no truth value, are told apart by `is`,
and are hashed by identity: they may be keys of dicts and members of sets, but `node in [...]` is refused.

Paper: Weiss, Goldberg and Yahav 2021, arXiv:2106.06981.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NoReturn, TypeAlias

from allyouneed.rasp.atoms import COMPARISONS as COMPARISONS
from allyouneed.rasp.atoms import FUNCTIONS, Atom, is_atom
from allyouneed.rasp.errors import RaspError

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
        """Nodes of equal keys, whose parts are the same too, compute the same."""
        raise NotImplementedError

    def __repr__(self) -> str:
        """Without its parts, which may be as many as a program unrolls to."""
        return f"<{type(self).__name__} {' '.join(map(str, self.key[1:]))}>"  # type: ignore[index]

    def __bool__(self) -> NoReturn:
        raise RaspError("an s-op or selector has no truth value: use & | ~ for and, or, not, and where() for if")


@dataclass(frozen=True, eq=False, repr=False)
class SOp(Node):
    """A function from a sequence to one of equal length. Called on an input, it gives that sequence."""

    def __call__(self, given: Input) -> list[Atom]:
        from allyouneed.rasp.evaluate import evaluate

        return evaluate(self, given)

    def __getitem__(self, index: int) -> SOp:
        from allyouneed.rasp.api import element

        return element(self, index)

    def __iter__(self) -> NoReturn:
        raise RaspError("an s-op has no elements before it gets an input: use contains() and is_in() for in")

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


@dataclass(frozen=True, eq=False, repr=False)
class Indices(SOp):
    """0, 1, 2, ..."""

    @property
    def key(self) -> Hashable:
        return ("indices",)


@dataclass(frozen=True, eq=False, repr=False)
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


@dataclass(frozen=True, eq=False, repr=False)
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


@dataclass(frozen=True, eq=False, repr=False)
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


@dataclass(frozen=True, eq=False, repr=False)
class Selector(Node):
    """A function from a sequence of length n to n x n bools. Called on an input, it gives its rows."""

    def __call__(self, given: Input) -> list[list[bool]]:
        from allyouneed.rasp.evaluate import evaluate

        return evaluate(self, given)

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


@dataclass(frozen=True, eq=False, repr=False)
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


def as_sop(value: object) -> SOp:
    """The s-op itself, or the atom everywhere."""
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
    """One of the language's own functions (`atoms.FUNCTIONS`) of what stands at the same place in each argument."""
    return Map(Function(name, FUNCTIONS[name]), tuple(as_sop(argument) for argument in arguments))


def same(a: Node, b: Node) -> bool:
    """Whether two graphs are built alike. Linear in their size: what was seen equal has one number."""
    numbers: dict[Hashable, int] = {}
    number_of: dict[int, int] = {}
    for node in in_order([a, b]):
        whole = (node.key, tuple(number_of[id(part)] for part in node.parts))
        number_of[id(node)] = numbers.setdefault(whole, len(numbers))
    return number_of[id(a)] == number_of[id(b)]


Values = Sequence[Atom]
Grid = Sequence[Sequence[bool]]
