"""Operators, indexing, `in`, `range`, `zip` and `len` on values of every type.

atom, atom            Python's arithmetic; `and`, `or` return one of the operands
s-op, s-op or atom    pointwise; `and`, `or` return bools
selector, selector    `and`, `or`, `not` only
list                  + concatenates, * repeats, == compares
"""

from collections.abc import Callable
from typing import Any, Final

from allyouneed.rasp import api, limits
from allyouneed.rasp.atoms import COMPARISONS, FUNCTIONS, PYTHON_ERRORS, Atom, is_atom
from allyouneed.rasp.errors import RaspError, RaspFailure, RaspLimitError
from allyouneed.rasp.graph import Combined, Selector, SOp, elementwise
from allyouneed.rasp.values import Dict, List, NamedNode, Procedure, Value, atoms_of, describe

_SIGNS: Final = {"neg": "-", "pos": "+"}
_TYPES: Final[dict[type, str]] = {List: "list", Dict: "dict", Procedure: "function", NamedNode: "s-op"}


def is_sop(value: Value) -> bool:
    return isinstance(value, NamedNode) and isinstance(value.node, SOp)


def is_selector(value: Value) -> bool:
    return isinstance(value, NamedNode) and isinstance(value.node, Selector)


def _operand(value: Value) -> SOp | Atom:
    """Return an operand of an s-op's operator. Raise RaspError if it is neither an s-op nor an atom."""
    if isinstance(value, NamedNode) and isinstance(value.node, SOp):
        return value.node
    if not is_atom(value):
        raise RaspError(f"Expected s-op or atom, got: {describe(value)}")
    return value  # type: ignore[return-value]


def as_selector(value: Value) -> Selector:
    if isinstance(value, NamedNode) and isinstance(value.node, Selector):
        return value.node
    raise RaspError(f"Expected selector, got: {describe(value)}")


def as_atom(value: Value) -> Atom:
    if not is_atom(value):
        raise RaspError(f"Expected atom, got: {describe(value)}")
    return value  # type: ignore[return-value]


def _python(call: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return call(*arguments)
    except PYTHON_ERRORS as error:
        raise RaspFailure(str(error)) from error


def truth(value: Value) -> bool:
    if isinstance(value, NamedNode):
        raise RaspError(f"Expected atom or s-op as a condition, got: {describe(value)}")
    return bool(len(value)) if isinstance(value, List | Dict) else bool(value)


def unary(operator: str, value: Value) -> Value:
    if isinstance(value, NamedNode):
        if isinstance(value.node, SOp):
            return NamedNode(elementwise(operator, value.node))
        if operator == "not":
            return NamedNode(Combined("not", (value.node,)))
        raise RaspError(f"Cannot apply {_SIGNS.get(operator, operator)} to selector(s)")
    if operator == "indicator":
        raise RaspError(f"Expected s-op, got: {describe(value)}")
    if operator == "not":
        return not truth(value)
    if not is_atom(value):
        what = "round" if operator == "round" else f"unary {_SIGNS[operator]}"
        raise RaspFailure(f"bad operand type for {what}: '{_TYPES[type(value)]}'")
    return _python(FUNCTIONS[operator], value)


def binary(operator: str, a: Value, b: Value) -> Value:
    if is_selector(a) or is_selector(b):
        if operator not in ("and", "or"):
            raise RaspError(f"Cannot apply {operator} to selector(s)")
        if not (is_selector(a) and is_selector(b)):
            raise RaspError("Cannot apply and/or between selector and non-selector")
        return NamedNode(Combined(operator, (as_selector(a), as_selector(b))))
    if isinstance(a, NamedNode) or isinstance(b, NamedNode):
        return NamedNode(elementwise(operator, _operand(a), _operand(b)))
    if operator == "and":
        return b if truth(a) else a
    if operator == "or":
        return a if truth(a) else b
    if is_atom(a) and is_atom(b):
        return _python(FUNCTIONS[operator], a, b)
    return _of_lists(operator, a, b)


def _of_lists(operator: str, a: Value, b: Value) -> Value:
    """Apply an operator to two values, at least one of them a list, a dict or a function."""
    if operator == "==":
        return a == b
    if operator == "+" and isinstance(a, List):
        if not isinstance(b, List):
            raise RaspFailure(f'can only concatenate list (not "{_type(b)}") to list')
        return List(a.items + b.items)
    if operator == "*":
        for some, times in ((a, b), (b, a)):
            if isinstance(some, List) and isinstance(times, int):
                if len(some) * times > limits.SIZE:
                    raise RaspLimitError(f"list of more than {limits.SIZE} values")
                return List(some.items * times)
    if operator in COMPARISONS and isinstance(a, List) and isinstance(b, List):
        return _python(COMPARISONS[operator], [*map(as_atom, a)], [*map(as_atom, b)])
    if operator in COMPARISONS:
        raise RaspFailure(f"'{operator}' not supported between instances of '{_type(a)}' and '{_type(b)}'")
    raise RaspFailure(f"unsupported operand type(s) for {operator}: '{_type(a)}' and '{_type(b)}'")


def _type(value: Value) -> str:
    return _TYPES.get(type(value), type(value).__name__)


def ternary(condition: Value, yes: Value, no: Value) -> Value:
    """Return the conditional whose condition is an s-op."""
    assert isinstance(condition, NamedNode)
    return NamedNode(elementwise("if", condition.node, _operand(yes), _operand(no)))


def contained(element: Value, within: Value) -> Value:
    """Evaluate `in`: an atom in an s-op, the values of an s-op in a list, or an element of a list, dict or string."""
    if isinstance(within, NamedNode) and isinstance(within.node, SOp):
        return NamedNode(api.contains(within.node, as_atom(element)))
    if isinstance(within, NamedNode | Procedure):
        raise RaspError(f"Expected s-op, list or dict, got: {describe(within)}")
    if isinstance(element, NamedNode) and isinstance(element.node, SOp):
        if not isinstance(within, List | Dict | str):
            raise RaspError(f"Expected list or dict, got: {describe(within)}")
        return NamedNode(api.is_in(element.node, atoms_of(within)))
    if isinstance(within, List):
        return element in within.items
    if isinstance(within, Dict):
        return as_atom(element) in within.items
    return _python(lambda: element in within)  # type: ignore[operator]


def indexed(of: Value, index: Value) -> Value:
    """Evaluate `of[index]`: a position of an s-op, or an entry of a list, dict or string by an atom or s-op."""
    if isinstance(of, NamedNode):
        if isinstance(of.node, Selector):
            raise RaspError(f"Cannot apply [] to selector(s), got: {describe(of)}")
        if not isinstance(index, int):
            raise RaspError(f"index into sequence has to be integer, got: {describe(index)}")
        return NamedNode(api.element(of.node, index))
    if not isinstance(of, List | Dict | str):
        raise RaspError(f"Expected s-op, list, dict or string before [], got: {describe(of)}")
    if isinstance(index, NamedNode) and isinstance(index.node, SOp):
        if isinstance(of, Dict):
            return NamedNode(api.lookup({key: as_atom(value) for key, value in of.items.items()}, index.node))
        return NamedNode(api.lookup(of if isinstance(of, str) else atoms_of(of), index.node))
    if isinstance(of, Dict):
        return api.from_dict(of.items, as_atom(index))
    return api.from_list(of if isinstance(of, str) else of.items, as_atom(index))


def select(keys: Value, queries: Value, comparison: str) -> Value:
    return NamedNode(api.select(_operand(keys), _operand(queries), comparison))


def aggregate(selector: Value, value: Value, default: Value) -> Value:
    return NamedNode(api.aggregate(as_selector(selector), _operand(value), as_atom(default)))


def _range(*bounds: Value) -> Value:
    numbers = _python(range, *(as_atom(bound) for bound in bounds))
    # len() of a range fails above sys.maxsize; slicing it first does not.
    if len(numbers[: limits.SIZE]) >= limits.SIZE:
        raise RaspLimitError(f"range of {limits.SIZE} numbers or more")
    return List(numbers)


def _zip(*sources: Value) -> Value:
    for source in sources:
        if not isinstance(source, List | Dict | str):
            raise RaspFailure(f"'{_type(source)}' object is not iterable")
    return List(List(together) for together in zip(*sources, strict=False))


def _len(*values: Value) -> Value:
    if len(values) != 1:
        raise RaspError(f"wrong number of args for len- expected: 1, got: {len(values)}.")
    if not isinstance(values[0], List | Dict | str):
        raise RaspFailure(f"object of type '{_type(values[0])}' has no len()")
    return len(values[0])


BUILTINS: Final[dict[str, Callable[..., Value]]] = {"range": _range, "zip": _zip, "len": _len}


def cost(value: Value) -> int:
    """Return the steps that a computed value counts for: long strings and lists take time and memory."""
    if isinstance(value, str):
        return 1 + len(value) // 100
    return 1 + value.size // 10 if isinstance(value, List | Dict) else 1
