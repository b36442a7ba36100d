"""Labels of nodes: a node's name, or its expression in terms of named nodes.

    length - indices - 1        aggregate(same or first, indicator(indices == 0))

Brackets appear where the language needs them; `grammar.lark` defines the precedences.
"""

from collections.abc import Mapping
from typing import Final
from unicodedata import east_asian_width

from allyouneed.rasp.graph import Aggregate, Combined, Constant, Indices, Map, Node, Select, Tokens

LEVELS: Final = 5  # nesting of expressions; deeper ones are shown as …
LONGEST: Final = 40  # columns of a constant
# Precedence of operators. All are left-associative.
BINDING: Final = {
    "in": 1,
    "if": 2,
    **dict.fromkeys(("and", "or"), 3),
    **dict.fromkeys(("==", "!=", "<=", ">=", ">", "<"), 4),
    **dict.fromkeys("+-", 5),
    "%": 6,
    **dict.fromkeys("*/", 7),
    "^": 8,
    **dict.fromkeys(("not", "neg", "pos"), 9),
}
ATOM: Final = 10


def title(node: Node, names: Mapping[Node, str], levels: int = LEVELS) -> str:
    """Return the name of a node, or its expression."""
    return names[node] if node in names else _expression(node, names, levels)[0]


def expression(node: Node, names: Mapping[Node, str]) -> str:
    """Return the expression of a node, even if it has a name."""
    return _expression(node, names, LEVELS)[0]


def _part(node: Node, names: Mapping[Node, str], levels: int, binding: int = 0) -> str:
    if node in names:
        return names[node]
    text, own = _expression(node, names, levels) if levels or not node.parts else ("…", ATOM)
    return text if own >= binding else f"({text})"


def _expression(node: Node, names: Mapping[Node, str], levels: int) -> tuple[str, int]:
    """Return the text, and the precedence of its outermost operator."""

    def part(inner: Node, binding: int = 0) -> str:
        return _part(inner, names, levels - 1, binding)

    match node:
        case Tokens(convert):
            return ("tokens" if convert == "str" else f"tokens_{convert}"), ATOM
        case Indices():
            return "indices", ATOM
        case Constant(value):
            return (f'"{cut(value, LONGEST)}"' if isinstance(value, str) else cut(str(value), LONGEST)), ATOM
        case Select(keys, queries, comparison):
            return f"select({part(keys)}, {part(queries)}, {comparison})", ATOM
        case Aggregate(selector, value, default):
            last = "" if type(default) is int and default == 0 else f", {_part(Constant(default), {}, 1)}"
            return f"aggregate({part(selector)}, {part(value)}{last})", ATOM
        case Combined(how, operands):
            return _operator(how, [part(one, BINDING[how] + place) for place, one in enumerate(operands)])
        case Map(function, arguments) if function.name == "if":
            condition, yes, no = arguments
            return f"{part(yes, BINDING['if'])} if {part(condition, 3)} else {part(no, 3)}", BINDING["if"]
        case Map(function, arguments) if function.name in BINDING and len(arguments) <= 2:
            own = BINDING[function.name]
            return _operator(function.name, [part(one, own + place) for place, one in enumerate(arguments)])
        case Map(function, arguments) if function.name == "index":
            return f"table[{part(arguments[0])}]", ATOM
        case Map(function, arguments):
            return f"{function.name}({', '.join(part(one) for one in arguments)})", ATOM
    raise AssertionError(f"no such node: {node!r}")


def _operator(name: str, parts: list[str]) -> tuple[str, int]:
    if name == "in":  # the list is a setting of the function
        return f"{parts[0]} in [...]", BINDING[name]
    if len(parts) == 1:
        return {"neg": "-", "pos": "+"}.get(name, f"{name} ") + parts[0], BINDING[name]
    return f"{parts[0]} {name} {parts[1]}", BINDING[name]


def columns(text: str) -> int:
    """Return the width of a text in columns of a monospaced font."""
    return sum(2 if east_asian_width(one) in "WF" else 1 for one in text)


def cut(text: str, most: int) -> str:
    """Truncate a text to at most `most` columns."""
    if columns(text) <= most:
        return text
    kept, used = "", 1
    for one in text:
        used += columns(one)
        if used > most:
            break
        kept += one
    return kept + "…"
