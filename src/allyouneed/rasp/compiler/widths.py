"""Recognises the library's counting idioms. A single head can count; in the language it takes two and a division.

For a selector S, and the mean of [i = 0] over the selected positions:

    round(1 / mean over S of [i = 0])                                    = |S|    if position 0 is always in S
    round(1 / mean over (S or {0}) of [i = 0] - 1 + mean over (S and {0}) of [i = 0])   = |S|    for any S
    round(|S| x mean over S of [v])                                      = |S and v|
"""

from allyouneed.rasp.graph import Aggregate, Combined, Constant, Indices, Map, Select, Selector, SOp

Width = tuple[Selector, int]  # the selector that is counted, and a constant to add


def match_width(node: SOp, number: dict[int, int]) -> Width | None:
    """Return the selector that an s-op counts, and an offset. `number` is equal for nodes that compute the same."""
    if not (isinstance(node, Map) and node.function.name == "round" and len(node.arguments) == 1):
        return None
    whole = _part(node.arguments[0], number)
    if whole is not None:
        return whole, 0
    terms, offset = _sum(node.arguments[0])
    counts = [term for term in terms if _counted(term) is not None]
    others = [term for term in terms if _counted(term) is None]
    if len(counts) != 1 or len(others) > 1:
        return None
    selector = _counted(counts[0])
    assert selector is not None
    if not others:
        return (selector, offset) if _has_first(selector) else None
    # |S or {0}| - 1 + [0 in S]
    within, together = _witness(others[0]), _other_operand(selector, "or")
    inside = _other_operand(within, "and") if within is not None else None
    if together is None or inside is None or number[id(together)] != number[id(inside)]:
        return None
    return together, offset + 1


def _part(node: SOp, number: dict[int, int]) -> Selector | None:
    """Return S and v if the node is |S| times the mean over S of [v]."""
    if not (isinstance(node, Map) and node.function.name == "*"):
        return None
    for size, mean in (node.arguments, node.arguments[::-1]):
        if isinstance(mean, Aggregate) and isinstance(mean.value, Map) and mean.value.function.name == "indicator":
            counted = match_width(size, number)
            same = counted is not None and counted[1] == 0 and number[id(counted[0])] == number[id(mean.selector)]
            if same or (_is_up_to_here(mean.selector) and _is_index_plus_one(size)):
                return Combined("and", (mean.selector, Select(mean.value, Constant(1), "==")))
    return None


def _is_up_to_here(selector: Selector) -> bool:
    if not (isinstance(selector, Select) and selector.comparison == "<="):
        return False
    return isinstance(selector.keys, Indices) and isinstance(selector.queries, Indices)


def _is_index_plus_one(node: SOp) -> bool:
    """Return True if the node is indices + 1."""
    if not (isinstance(node, Map) and node.function.name == "+"):
        return False
    return any(
        isinstance(a, Indices) and isinstance(b, Constant) and b.value == 1
        for a, b in (node.arguments, node.arguments[::-1])
    )


def _sum(node: SOp) -> tuple[list[SOp], int]:
    """Return the summands, and the sum of integer constants."""
    if isinstance(node, Constant) and isinstance(node.value, int):
        return [], int(node.value)
    if isinstance(node, Map) and node.function.name in ("+", "-") and len(node.arguments) == 2:
        left, right = map(_sum, node.arguments)
        if node.function.name == "+":
            return left[0] + right[0], left[1] + right[1]
        if not right[0]:
            return left[0], left[1] - right[1]
    return [node], 0


def _counted(node: SOp) -> Selector | None:
    """Return S if the node is 1 / mean over S of [i = 0]."""
    if not (isinstance(node, Map) and node.function.name == "/"):
        return None
    top, bottom = node.arguments
    return _witness(bottom) if isinstance(top, Constant) and top.value == 1 else None


def _witness(node: SOp) -> Selector | None:
    """Return S if the node is the mean over S of [i = 0]."""
    if not isinstance(node, Aggregate) or node.default != 0:
        return None
    value = node.value
    if not (isinstance(value, Map) and value.function.name == "indicator"):
        return None
    (test,) = value.arguments
    if not (isinstance(test, Map) and test.function.name == "=="):
        return None
    left, right = test.arguments
    at_first = isinstance(left, Indices) and isinstance(right, Constant) and right.value == 0
    return node.selector if at_first else None


def _is_first(selector: Selector) -> bool:
    if not (isinstance(selector, Select) and selector.comparison == "=="):
        return False
    keys, queries = selector.keys, selector.queries
    return isinstance(keys, Indices) and isinstance(queries, Constant) and queries.value == 0


def _other_operand(selector: Selector, how: str) -> Selector | None:
    """Return S if the selector is S and {0} (or S or {0})."""
    if not (isinstance(selector, Combined) and selector.how == how):
        return None
    left, right = selector.operands
    if _is_first(right):
        return left
    return right if _is_first(left) else None


def _has_first(selector: Selector) -> bool:
    if isinstance(selector, Select):
        keys, queries = selector.keys, selector.queries
        constant = isinstance(keys, Constant) and isinstance(queries, Constant)
        return _is_first(selector) or (constant and selector.comparison == "==" and keys.value == queries.value)  # type: ignore[attr-defined]
    return _other_operand(selector, "or") is not None
