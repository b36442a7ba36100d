"""What an s-op can be, exactly: values are Python's own, made by the functions of the interpreter.

    map         f of every combination of the values of its variables that can occur together
    mean        s / c for every sum s of c <= L values, as the interpreter divides them; and the default
    width       0 .. L

Combinations that cannot occur are left out where that is easily seen: an index is below the length, widths of disjoint
parts add up to no more than the length, and what a causal mask hides is not counted. Where f fails (1/0, an index out
of range), so would the interpreter: such a combination is not told apart from others.
"""

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import starmap
from typing import Any

import numpy as np

from allyouneed.rasp.atoms import PYTHON_ERRORS, Atom
from allyouneed.rasp.compiler.ir import NEVER, Bools, Floats, Ints, TabulatedSOp
from allyouneed.rasp.compiler.refusal import Obstacle
from allyouneed.rasp.errors import RaspError

GRID = 300_000  # combinations of values that one elementwise function may have
SUM_GRID = 500_000  # those of a sum, which is seldom told apart: it is read as the sum that it is
DENOMINATOR = 1_000_000  # of a number that a float stands for
VALUES = 20_000  # that one s-op may have
LARGEST = 2**53  # whole numbers up to here are exact in the float64 that tables are made in
SUMS = 4 * VALUES  # of which means are made, equal ones among them


@dataclass(frozen=True)
class Bounds:
    """What all inputs have in common."""

    length: int  # at most
    causal: bool


def finite(value: Atom) -> bool:
    return not isinstance(value, float) or math.isfinite(value)


def grid_size(frontier: Sequence[TabulatedSOp]) -> int:
    return math.prod(len(variable.values) for variable in frontier)


def union(arguments: Sequence[TabulatedSOp]) -> tuple[TabulatedSOp, ...]:
    """The variables of several s-ops."""
    return tuple(dict.fromkeys(variable for argument in arguments for variable in argument.frontier))


def spread(sop: TabulatedSOp, frontier: Sequence[TabulatedSOp]) -> Ints:
    """The table of an s-op over more variables than its own."""
    own = sop.frontier
    places = [own.index(variable) for variable in frontier if variable in own]
    shape = [len(variable.values) if variable in own else 1 for variable in frontier]
    table = sop.table.transpose(places).reshape(shape) if own else sop.table
    return np.broadcast_to(table, [len(variable.values) for variable in frontier])


def tabulate(
    call: Callable[..., Atom], arguments: Sequence[TabulatedSOp], bounds: Bounds
) -> tuple[tuple[TabulatedSOp, ...], Ints, tuple[Atom, ...]]:
    """Variables, table and values of f of some s-ops."""
    frontier, size = union(arguments), grid_size(arguments)
    alone = len(arguments) == 1
    reached = None if alone else _reached(arguments, frontier, bounds)
    names: Ints | None = None
    if alone or (reached is None and sum(len(argument.frontier) for argument in arguments) == len(frontier)):
        found = np.arange(size)  # independent of each other: all combinations of arguments
        combined = None
    else:
        combined, found, names = _combined(arguments, frontier, reached)
    results = _called(call, _unpacked(found if names is None else names[found], arguments))
    numbers = dict.fromkeys(result for result in results if result is not None)
    if not numbers:
        raise Obstacle("fails on every input")
    values = _sorted(numbers)
    place: dict[Atom | None, int] = {value: number for number, value in enumerate(values)}
    place[None] = NEVER
    number_of = np.full((size if names is None else len(names)) + 1, NEVER, dtype=np.int32)  # the last for NEVER
    number_of[found] = [place[result] for result in results]
    if alone:
        same = len(values) == size and (number_of[:-1] == found).all()
        return frontier, arguments[0].table if same else number_of[arguments[0].table], values
    if combined is None:
        small = number_of[:-1].reshape([len(argument.values) for argument in arguments])
        combined, number_of = np.ix_(*(argument.table.ravel() for argument in arguments)), small  # type: ignore[assignment]
    return frontier, number_of[combined].reshape([len(variable.values) for variable in frontier]), values


def _reached(arguments: Sequence[TabulatedSOp], frontier: Sequence[TabulatedSOp], bounds: Bounds) -> Bools | None:
    """Which combinations of variables there are, and have values; None: all."""
    reached = reachable(frontier, bounds)
    for argument in arguments:
        if (argument.table == NEVER).any():
            known = spread(argument, frontier) != NEVER
            reached = known if reached is None else reached & known
    return reached


def _combined(
    arguments: Sequence[TabulatedSOp], frontier: Sequence[TabulatedSOp], reached: Bools | None
) -> tuple[Ints, Ints, Ints | None]:
    """For each combination of variables that of the arguments, or NEVER; which of them occur; and their numbers.

    Each combination of arguments is to be computed once, however many combinations of variables lead to it.
    """
    combined: Any = np.int64(0)
    for argument in arguments:
        combined = combined * len(argument.values) + spread(argument, frontier)
    if reached is not None:
        combined = np.where(reached, combined, NEVER)
    size, names = grid_size(arguments), None
    if size > 1000 + 4 * combined.size:  # most do not occur: arguments of the same variables
        names, places = np.unique(combined, return_inverse=True)
        names, combined = (names[1:], places - 1) if names[0] == NEVER else (names, places)
        size = len(names)
    occurs = np.zeros(size + 1, dtype=np.bool_)
    occurs[combined] = True
    return combined, np.flatnonzero(occurs[:-1]), names


def _unpacked(numbers: Ints, arguments: Sequence[TabulatedSOp]) -> list[tuple[Atom, ...]]:
    """The arguments of each combination."""
    columns: list[list[Atom]] = []
    for argument in reversed(arguments):
        numbers, own = np.divmod(numbers, len(argument.values))
        columns.append([argument.values[number] for number in own.tolist()])
    return list(zip(*reversed(columns), strict=True))


def _called(call: Callable[..., Atom], rows: Sequence[Sequence[Atom]]) -> list[Atom | None]:
    """The function of each row of arguments; None where it fails."""
    try:
        return [value if finite(value) else None for value in starmap(call, rows)]
    except (*PYTHON_ERRORS, RaspError):  # somewhere: one by one
        if len(rows) == 1:
            return [None]
    return [value for row in rows for value in _called(call, [row])]


def _sorted(values: Collection[Atom]) -> tuple[Atom, ...]:
    """Numbers rising, then strings rising: neighbours in a table are neighbours on the line."""
    kinds = set(map(type, values))
    if str not in kinds or kinds == {str}:
        return tuple(sorted(values))
    return tuple(sorted(values, key=lambda value: (isinstance(value, str), value)))


def reachable(frontier: Sequence[TabulatedSOp], bounds: Bounds) -> Bools | None:
    """Which combinations of the values of some variables may occur together; None: all."""
    reached: Bools | None = None
    for first, a in enumerate(frontier):
        for second, b in enumerate(frontier):
            possible = _together(a, b, bounds) if first != second else None
            if possible is not None:
                axes = [len(v.values) if place in (first, second) else 1 for place, v in enumerate(frontier)]
                own = (possible if first < second else possible.T).reshape(axes)
                reached = own if reached is None else reached & own
    return None if reached is None else np.broadcast_to(reached, [len(v.values) for v in frontier])


def _together(a: TabulatedSOp, b: TabulatedSOp, bounds: Bounds) -> Bools | None:
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
    steps = np.array(sorted({number.numerator * (unit // number.denominator) for number in exact}), dtype=object)
    if max(map(abs, steps)) * length >= 1 << 62:
        raise Obstacle("averages numbers too large, or with too many different denominators, to be added up exactly")
    sums, counts = _sums(steps.astype(np.int64), length)
    different = np.unique(_quotients(sums, counts, unit))
    if len(different) > VALUES:
        raise Obstacle(
            f"has {len(different):,} different means of up to {length} values; at most {VALUES:,} are told apart"
        )
    results: dict[Atom, None] = dict.fromkeys(values)  # first: a single whole number stays one
    results |= dict.fromkeys(int(mean) if mean.is_integer() else mean for mean in different.tolist())
    if default is not None:
        results.setdefault(default)
    return _sorted(results)


def _sums(steps: Ints, length: int) -> tuple[Ints, Ints]:
    """All that one to `length` numbers can add up to, and how many numbers they are."""
    many = Obstacle(f"has more than {VALUES:,} different means of up to {length} values: fewer, or shorter inputs")
    gaps, numbers = np.diff(steps), np.arange(1, length + 1)
    sizes = len(gaps) * numbers + 1  # of evenly spaced ones, whose sums are as evenly spaced; others have more
    if sizes.sum() > SUMS:
        raise many
    if len(gaps) == 0 or (gaps == gaps[0]).all():
        counts = np.repeat(numbers, sizes)
        place = np.arange(len(counts)) - np.repeat(sizes.cumsum() - sizes, sizes)
        return counts * steps[0] + (gaps[0] if len(gaps) else 0) * place, counts
    found, sums = [], np.zeros(1, dtype=np.int64)
    for _ in numbers:
        if len(sums) * len(steps) > 100 * SUMS:
            raise many
        sums = np.unique(np.add.outer(sums, steps))
        found.append(sums)
        if sum(map(len, found)) > SUMS:
            raise many
    return np.concatenate(found), np.repeat(numbers, [len(one) for one in found])


def _quotients(sums: Ints, counts: Ints, unit: int) -> Floats:
    """Means, rounded once, so that equal ones are equal floats."""
    if max(int(counts[-1]) * unit, int(np.abs(sums).max())) < 1 << 53:
        return np.asarray(sums / (counts * unit))
    pairs = zip(sums.tolist(), counts.tolist(), strict=True)
    return np.array([total / (count * unit) for total, count in pairs])


def rational(value: Atom) -> Fraction:
    """The number that a float stands for: 0.333... is 1/3, so that means of means meet where they should."""
    exact = Fraction(value)
    if exact.denominator == 1:
        return exact
    near = exact.limit_denominator(DENOMINATOR)
    return near if abs(near - exact) <= abs(exact) * Fraction(1, 1 << 50) else exact


def distinct(values: Sequence[Atom]) -> tuple[Atom, ...]:
    """Values without repetition, in order."""
    return _sorted(dict.fromkeys(values))
