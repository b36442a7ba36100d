"""Atoms and the operators on them: Python's arithmetic, with size limits.

An operation that raises in Python (1/0, 1 + "a") raises a `RaspFailure` with Python's message. Differs from Python: %
does not format strings, and powers are real.
"""

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from allyouneed.rasp import limits
from allyouneed.rasp.errors import RaspError, RaspFailure, RaspLimitError

Atom = bool | int | float | str
PYTHON_ERRORS: Final = (TypeError, ValueError, ArithmeticError)


def limited(value: Atom) -> Atom:
    """Return the value. Raise RaspLimitError if it is too large."""
    if isinstance(value, int) and value.bit_length() > limits.BITS:
        raise RaspLimitError(f"integer of more than {limits.BITS} bits")
    if isinstance(value, str) and len(value) > limits.TEXT:
        raise RaspLimitError(f"string of more than {limits.TEXT} characters")
    return value


def multiply(a: Any, b: Any) -> Atom:
    for text, times in ((a, b), (b, a)):
        if isinstance(text, str) and isinstance(times, int) and len(text) * times > limits.TEXT:
            raise RaspLimitError(f"string of more than {limits.TEXT} characters")
    return limited(a * b)


def power(a: Any, b: Any) -> Atom:
    if isinstance(a, int) and isinstance(b, int) and abs(a) > 1 and b > limits.BITS:
        raise RaspLimitError(f"integer of more than {limits.BITS} bits")
    result = a**b
    if isinstance(result, complex):
        raise RaspFailure(f"{a} ^ {b} is not a real number")
    return limited(result)


def remainder(a: Any, b: Any) -> Atom:
    if isinstance(a, str):
        # Python would format: "%9999999999d" % 1 would exhaust memory.
        raise RaspFailure(f"unsupported operand type(s) for %: 'str' and '{type(b).__name__}'")
    return a % b


def both(a: Atom, b: Atom) -> bool:
    return bool(a) and bool(b)


def either(a: Atom, b: Atom) -> bool:
    return bool(a) or bool(b)


def indicator(a: Atom) -> int:
    return 1 if a else 0


def choose(condition: Atom, yes: Atom, no: Atom) -> Atom:
    return yes if condition else no


COMPARISONS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    ">": operator.gt,
    "<=": operator.le,
    ">=": operator.ge,
}
FUNCTIONS: Final[Mapping[str, Callable[..., Atom]]] = {
    "+": lambda a, b: limited(a + b),
    "-": lambda a, b: limited(a - b),
    "*": multiply,
    "/": operator.truediv,
    "%": remainder,
    "^": power,
    **COMPARISONS,
    "and": both,
    "or": either,
    "not": operator.not_,
    "neg": operator.neg,
    "pos": operator.pos,
    "round": round,
    "indicator": indicator,
    "if": choose,
}
CONVERSIONS: Final[Mapping[str, Callable[[Any], Atom]]] = {
    "asis": lambda atom: atom,
    "str": str,
    "int": lambda atom: limited(int(atom)),
    "float": float,
    "bool": bool,
}


def is_atom(value: object) -> bool:
    return isinstance(value, bool | int | float | str)


def kind(values: Sequence[Atom]) -> str:
    """Return the kind of a sequence: "bools", "ints", "floats" or "strings". Raise RaspError for any other mixture.

    Ints beside floats count as floats. Python's bools are ints, so bools beside numbers count as numbers.
    """
    types = set(map(type, values))
    if types == {bool}:
        return "bools"
    if types == {str}:
        return "strings"
    if types <= {bool, int}:
        return "ints"
    if types <= {bool, int, float}:
        return "floats"
    wrong = "vals of different types"
    if not all(map(is_atom, values)):
        wrong = "illegal val types (vals must be bool, float, int or string)"
    raise RaspError(f"attempted to create sequence with {wrong}:\n\t\t {shortened(list(values))}")


def shortened(value: object, most: int = 2_000) -> str:
    """Return Python's text of a value, truncated if it is long."""
    text = str(value)
    return text if len(text) <= most else f"{text[:most]}..."


def mean(values: Sequence[Atom]) -> Atom:
    """Return the aggregate of one or more selected values."""
    if len(values) == 1:
        return values[0]
    if not all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        raise RaspFailure(f"asked to average multiple values, but they are non-numbers: {shortened(list(values))}")
    return sum(values) / len(values)  # type: ignore[arg-type]
