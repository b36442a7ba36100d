"""What an s-op can be, exactly: values are Python's own, made by the functions of the interpreter.

    map         f of every combination of the values of its variables that can occur together
    mean        s / c for every sum s of c <= L values, as the interpreter divides them; and the default
    width       0 .. L

Combinations that cannot occur are left out where that is easily seen: an index is below the length, widths of disjoint
parts add up to no more than the length, and what a causal mask hides is not counted. Where f fails (1/0, an index out
of range), so would the interpreter: such a combination is not told apart from others.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from allyouneed.rasp.atoms import PYTHON_ERRORS, Atom
from allyouneed.rasp.compiler.ir import NEVER, Bools, Ints, Sop
from allyouneed.rasp.compiler.refusal import Unable
from allyouneed.rasp.errors import RaspError

GRID = 300_000  # combinations of values that one elementwise function may have
DENOMINATOR = 1_000_000  # of a number that a float stands for
VALUES = 20_000  # that one s-op may have


@dataclass(frozen=True)
class Bounds:
    """What all inputs have in common."""

    length: int  # at most
    causal: bool


def finite(value: Atom) -> bool:
    return not isinstance(value, float) or math.isfinite(value)


def grid_size(frontier: Sequence[Sop]) -> int:
    return math.prod(len(variable.values) for variable in frontier)


def union(arguments: Sequence[Sop]) -> tuple[Sop, ...]:
    """The variables of several s-ops."""
    return tuple(dict.fromkeys(variable for argument in arguments for variable in argument.frontier))


def spread(sop: Sop, frontier: Sequence[Sop]) -> Ints:
    """The table of an s-op over more variables than its own."""
    own = sop.frontier
    places = [own.index(variable) for variable in frontier if variable in own]
    shape = [len(variable.values) if variable in own else 1 for variable in frontier]
    table = sop.table.transpose(places).reshape(shape) if own else sop.table
    return np.broadcast_to(table, [len(variable.values) for variable in frontier])


def tabulate(
    call: Callable[..., Atom], arguments: Sequence[Sop], bounds: Bounds
) -> tuple[tuple[Sop, ...], Ints, tuple[Atom, ...]]:
    """Variables, table and values of f of some s-ops."""
    frontier = union(arguments)
    tables = [spread(argument, frontier).ravel() for argument in arguments]
    reached = reachable(frontier, bounds).ravel()
    combined = np.zeros(len(reached), dtype=np.int64)
    for table, argument in zip(tables, arguments, strict=True):
        reached &= table != NEVER
        combined = combined * len(argument.values) + table
    # Each combination of arguments is computed once, however many combinations of variables lead to it.
    distinct, inverse = np.unique(combined[reached], return_inverse=True)
    results = [_called(call, _unpacked(int(number), arguments)) for number in distinct]
    numbers: dict[Atom, int] = {}
    for result in results:
        if result is not None:
            numbers.setdefault(result, len(numbers))
    if not numbers:
        raise Unable("fails on every input")
    values = _sorted(numbers)
    place = {value: number for number, value in enumerate(values)}
    of_distinct = np.array([NEVER if result is None else place[result] for result in results], dtype=np.int64)
    table = np.full(len(reached), NEVER, dtype=np.int64)
    table[reached] = of_distinct[inverse]
    return frontier, table.reshape([len(variable.values) for variable in frontier]), values


def _unpacked(number: int, arguments: Sequence[Sop]) -> list[Atom]:
    atoms: list[Atom] = []
    for argument in reversed(arguments):
        number, own = divmod(number, len(argument.values))
        atoms.append(argument.values[own])
    return atoms[::-1]


def _called(call: Callable[..., Atom], atoms: list[Atom]) -> Atom | None:
    try:
        value = call(*atoms)
    except (*PYTHON_ERRORS, RaspError):
        return None
    return value if finite(value) else None


def _sorted(values: Any) -> tuple[Atom, ...]:
    """Numbers rising, then strings rising: neighbours in a table are neighbours on the line."""
    return tuple(sorted(values, key=lambda value: (isinstance(value, str), value)))


def reachable(frontier: Sequence[Sop], bounds: Bounds) -> Bools:
    """Which combinations of the values of some variables may occur together."""
    shape = [len(variable.values) for variable in frontier]
    reached = np.ones(shape, dtype=np.bool_)
    for first, a in enumerate(frontier):
        for second, b in enumerate(frontier):
            possible = _together(a, b, bounds) if first != second else None
            if possible is not None:
                axes = [len(v.values) if place in (first, second) else 1 for place, v in enumerate(frontier)]
                reached &= (possible if first < second else possible.T).reshape(axes)
    return reached


def _together(a: Sop, b: Sop, bounds: Bounds) -> Bools | None:
    """Which values of two variables may meet; None: all that is known is said elsewhere."""
    if b.kind != "width" or a.kind not in ("index", "width"):
        return None
    x, y = a.numbers()[:, None], b.numbers()[None, :]
    if a.kind == "index":
        if bounds.causal:
            return (y == x + 1) if b.everywhere else (y <= x + 1)
        return (x < y) if b.everywhere else None
    if b.everywhere:
        return x <= y
    if a.group and a.group == b.group:
        return x + y <= bounds.length  # they count disjoint parts
    return None


def means(values: Sequence[Atom], default: Atom | None, length: int) -> tuple[Atom, ...]:
    """Every mean of one to `length` numbers, and the default."""
    exact = [rational(value) for value in values]
    unit = math.lcm(*(number.denominator for number in exact))
    steps = sorted({int(number * unit) for number in exact})
    if max(map(abs, steps)) * length >= 1 << 62:
        raise Unable("averages numbers too large, or with too many different denominators, to be added up exactly")
    found: set[tuple[int, int]] = set()
    sums = {0}
    for count in range(1, length + 1):
        sums = {a + b for a in sums for b in steps} if len(steps) < 3 else _sums(sums, steps)
        if len(found) + len(sums) > 4 * VALUES:
            raise Unable(f"has more than {VALUES:,} different means of up to {length} values: fewer, or shorter inputs")
        for total in sums:
            shared = math.gcd(total, count)
            found.add((total // shared, count // shared))
    if len(found) > VALUES:
        raise Unable(f"has {len(found):,} different means of up to {length} values; at most {VALUES:,} are told apart")
    results: dict[Atom, None] = dict.fromkeys(values)  # first: a single whole number stays one
    for top, bottom in found:
        mean = Fraction(top, bottom * unit)
        results.setdefault(int(mean) if mean.denominator == 1 else float(mean))
    if default is not None:
        results.setdefault(default)
    return _sorted(results)


def rational(value: Atom) -> Fraction:
    """The number that a float stands for: 0.333... is 1/3, so that means of means meet where they should."""
    exact = Fraction(value)
    near = exact.limit_denominator(DENOMINATOR)
    return near if abs(near - exact) <= abs(exact) * Fraction(1, 1 << 50) else exact


def _sums(sums: set[int], steps: list[int]) -> set[int]:
    return set(np.unique(np.add.outer(np.fromiter(sums, np.int64), np.array(steps))).tolist())


def distinct(values: Sequence[Atom]) -> tuple[Atom, ...]:
    """Values without repetition, in order."""
    return _sorted(dict.fromkeys(values))
