"""The exact domain of an s-op: Python values, computed by the interpreter's own functions.

    map         f of every combination of its variables' values that can occur together
    mean        s / c for every sum s of c <= L values, divided as the interpreter divides; and the default
    width       0 .. L

Impossible combinations are excluded where that is easy to see: an index is below the length, widths of disjoint sets
add up to at most the length, and widths do not count masked positions. Where f fails (1/0, an index out of range) the
interpreter fails too, so the result for such a combination is arbitrary.
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

GRID = 300_000  # maximum combinations of values of one elementwise function
SUM_GRID = 500_000  # of a sum, which is usually read as a sum and rarely separated
DENOMINATOR = 1_000_000  # maximum, of the rational number that a float stands for
VALUES = 20_000  # maximum size of a domain
LARGEST = 2**53  # integers up to here are exact in float64, in which tables are computed
SUMS = 4 * VALUES  # maximum sums behind the means of an aggregate, with duplicates


@dataclass(frozen=True)
class Bounds:
    """The bounds on all inputs."""

    length: int  # maximum
    causal: bool


def finite(value: Atom) -> bool:
    return not isinstance(value, float) or math.isfinite(value)


def grid_size(frontier: Sequence[TabulatedSOp]) -> int:
    return math.prod(len(variable.values) for variable in frontier)


def union(arguments: Sequence[TabulatedSOp]) -> tuple[TabulatedSOp, ...]:
    """Return the variables of several s-ops."""
    return tuple(dict.fromkeys(variable for argument in arguments for variable in argument.frontier))


def spread(sop: TabulatedSOp, frontier: Sequence[TabulatedSOp]) -> Ints:
    """Broadcast the table of an s-op to a larger set of variables."""
    own = sop.frontier
    places = [own.index(variable) for variable in frontier if variable in own]
    shape = [len(variable.values) if variable in own else 1 for variable in frontier]
    table = sop.table.transpose(places).reshape(shape) if own else sop.table
    return np.broadcast_to(table, [len(variable.values) for variable in frontier])


def tabulate(
    call: Callable[..., Atom], arguments: Sequence[TabulatedSOp], bounds: Bounds
) -> tuple[tuple[TabulatedSOp, ...], Ints, tuple[Atom, ...]]:
    """Return the variables, table and domain of f applied to some s-ops."""
    frontier, size = union(arguments), grid_size(arguments)
    alone = len(arguments) == 1
    reached = None if alone else _reached(arguments, frontier, bounds)
    names: Ints | None = None
    if alone or (reached is None and sum(len(argument.frontier) for argument in arguments) == len(frontier)):
        found = np.arange(size)  # independent arguments: all combinations occur
        combined = None
    else:
        combined, found, names = _combined(arguments, frontier, reached)
    results = _results(call, _argument_rows(found if names is None else names[found], arguments))
    numbers = dict.fromkeys(result for result in results if result is not None)
    if not numbers:
        raise Obstacle("fails on every input")
    values = _sorted(numbers)
    place: dict[Atom | None, int] = {value: number for number, value in enumerate(values)}
    place[None] = NEVER
    number_of = np.full(
        (size if names is None else len(names)) + 1, NEVER, dtype=np.int32
    )  # the last entry is for NEVER
    number_of[found] = [place[result] for result in results]
    if alone:
        same = len(values) == size and (number_of[:-1] == found).all()
        return frontier, arguments[0].table if same else number_of[arguments[0].table], values
    if combined is None:
        small = number_of[:-1].reshape([len(argument.values) for argument in arguments])
        combined, number_of = np.ix_(*(argument.table.ravel() for argument in arguments)), small  # type: ignore[assignment]
    return frontier, number_of[combined].reshape([len(variable.values) for variable in frontier]), values


def _reached(arguments: Sequence[TabulatedSOp], frontier: Sequence[TabulatedSOp], bounds: Bounds) -> Bools | None:
    """Return which combinations of variables can occur and have values; None if all."""
    reached = reachable(frontier, bounds)
    for argument in arguments:
        if (argument.table == NEVER).any():
            known = spread(argument, frontier) != NEVER
            reached = known if reached is None else reached & known
    return reached


def _combined(
    arguments: Sequence[TabulatedSOp], frontier: Sequence[TabulatedSOp], reached: Bools | None
) -> tuple[Ints, Ints, Ints | None]:
    """Return each variable combination's argument combination (or NEVER), those that occur, and their indices.

    Each combination of arguments is evaluated once, even if many combinations of variables lead to it.
    """
    combined: Any = np.int64(0)
    for argument in arguments:
        combined = combined * len(argument.values) + spread(argument, frontier)
    if reached is not None:
        combined = np.where(reached, combined, NEVER)
    size, names = grid_size(arguments), None
    if size > 1000 + 4 * combined.size:  # arguments share variables, so most do not occur
        names, places = np.unique(combined, return_inverse=True)
        names, combined = (names[1:], places - 1) if names[0] == NEVER else (names, places)
        size = len(names)
    occurs = np.zeros(size + 1, dtype=np.bool_)
    occurs[combined] = True
    return combined, np.flatnonzero(occurs[:-1]), names


def _argument_rows(numbers: Ints, arguments: Sequence[TabulatedSOp]) -> list[tuple[Atom, ...]]:
    """Return the arguments of each combination."""
    columns: list[list[Atom]] = []
    for argument in reversed(arguments):
        numbers, own = np.divmod(numbers, len(argument.values))
        columns.append([argument.values[number] for number in own.tolist()])
    return list(zip(*reversed(columns), strict=True))


def _results(call: Callable[..., Atom], rows: Sequence[Sequence[Atom]]) -> list[Atom | None]:
    """Apply the function to each row of arguments; None where it fails."""
    try:
        return [value if finite(value) else None for value in starmap(call, rows)]
    except (*PYTHON_ERRORS, RaspError):  # some row failed: evaluate them one by one
        if len(rows) == 1:
            return [None]
    return [value for row in rows for value in _results(call, [row])]


def _sorted(values: Collection[Atom]) -> tuple[Atom, ...]:
    """Sort numbers, then strings: neighbours in a table are neighbours on the line."""
    kinds = set(map(type, values))
    if str not in kinds or kinds == {str}:
        return tuple(sorted(values))
    return tuple(sorted(values, key=lambda value: (isinstance(value, str), value)))


def reachable(frontier: Sequence[TabulatedSOp], bounds: Bounds) -> Bools | None:
    """Return which combinations of variables' values can occur together; None if all."""
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
    """Return which values of two variables can occur together; None if this pair gives no constraint."""
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
        return x + y <= bounds.length  # they count disjoint sets
    return None


def means(values: Sequence[Atom], default: Atom | None, length: int) -> tuple[Atom, ...]:
    """Return every mean of one to `length` of the values, and the default."""
    exact = [rational(value) for value in values]
    unit = math.lcm(*(number.denominator for number in exact))
    steps = np.array(sorted({number.numerator * (unit // number.denominator) for number in exact}), dtype=object)
    if max(map(abs, steps)) * length >= 1 << 62:
        raise Obstacle("averages numbers that are too large, or have too many denominators, for exact sums")
    sums, counts = _sums(steps.astype(np.int64), length)
    different = np.unique(_quotients(sums, counts, unit))
    if len(different) > VALUES:
        raise Obstacle(
            f"has {len(different):,} different means of up to {length} values; at most {VALUES:,} are supported"
        )
    results: dict[Atom, None] = dict.fromkeys(values)  # first, so that a single integer stays an integer
    results |= dict.fromkeys(int(mean) if mean.is_integer() else mean for mean in different.tolist())
    if default is not None:
        results.setdefault(default)
    return _sorted(results)


def _sums(steps: Ints, length: int) -> tuple[Ints, Ints]:
    """Return all sums of one to `length` numbers, and the count of numbers in each."""
    many = Obstacle(
        f"has more than {VALUES:,} different means of up to {length} values; use fewer values or shorter inputs"
    )
    gaps, numbers = np.diff(steps), np.arange(1, length + 1)
    sizes = len(gaps) * numbers + 1  # for evenly spaced numbers; others have more sums
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
    """Return the means, rounded once, so that equal means are equal floats."""
    if max(int(counts[-1]) * unit, int(np.abs(sums).max())) < 1 << 53:
        return np.asarray(sums / (counts * unit))
    pairs = zip(sums.tolist(), counts.tolist(), strict=True)
    return np.array([total / (count * unit) for total, count in pairs])


def rational(value: Atom) -> Fraction:
    """Return the rational that a float stands for: 0.333... is 1/3, so that equal means of means compare equal."""
    exact = Fraction(value)
    if exact.denominator == 1:
        return exact
    near = exact.limit_denominator(DENOMINATOR)
    return near if abs(near - exact) <= abs(exact) * Fraction(1, 1 << 50) else exact


def distinct(values: Sequence[Atom]) -> tuple[Atom, ...]:
    """Return the distinct values, sorted."""
    return _sorted(dict.fromkeys(values))
