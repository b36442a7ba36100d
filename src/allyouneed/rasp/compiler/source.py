"""Writes a graph as the text of a `.rasp` file, with a name for each node."""

from collections.abc import Mapping
from typing import Any

from allyouneed.rasp.atoms import Atom
from allyouneed.rasp.errors import RaspError
from allyouneed.rasp.graph import (
    Aggregate,
    Combined,
    Constant,
    Function,
    Indices,
    Map,
    Node,
    Select,
    SOp,
    Tokens,
    in_order,
)

INFIX = frozenset(["+", "-", "*", "/", "%", "^", "==", "<=", ">=", "<", ">", "and", "or"])


def source(outputs: Mapping[str, SOp], known: Mapping[Node, str] | None = None) -> str:
    """Return a text that defines the outputs under their names; other nodes get known or private names (`_1`)."""
    names: dict[int, str] = {}
    lines: list[str] = []
    taken = set(outputs)
    for node in in_order(outputs.values()):
        text = _node_text(node, [names[id(part)] for part in node.parts])
        if isinstance(node, Tokens | Indices | Constant):
            names[id(node)] = text
        else:
            name = (known or {}).get(node, "")
            if not name.isidentifier() or name in taken:
                name = f"_{len(lines) + 1}"
            taken.add(name)
            names[id(node)] = name
            lines.append(f"{names[id(node)]} = {text};")
    lines += [f"{name} = {names[id(sop)]};" for name, sop in outputs.items()]
    return "\n".join(lines) + "\n"


def _node_text(node: Node, parts: list[str]) -> str:
    match node:
        case Tokens(convert):
            return "tokens_str" if convert == "str" else f"tokens_{convert}"
        case Indices():
            return "indices"
        case Constant(value):
            return atom(value)
        case Map(function):
            return _call_text(function, parts)
        case Aggregate(default=default):
            return f"aggregate({parts[0]}, {parts[1]}, {atom(default)})"
        case Select(comparison=comparison):
            return f"select({parts[0]}, {parts[1]}, {comparison})"
        case Combined(how):
            return f"not {parts[0]}" if how == "not" else f"{parts[0]} {how} {parts[1]}"
    raise AssertionError(f"no such node: {node!r}")


def _call_text(function: Function, parts: list[str]) -> str:
    name = function.name
    if name in INFIX and len(parts) == 2:
        return f"{parts[0]} {name} {parts[1]}"
    if name == "!=":
        return f"not ({parts[0]} == {parts[1]})"
    if name in ("neg", "pos"):
        return ("-" if name == "neg" else "+") + parts[0]
    if name in ("round", "indicator"):
        return f"{name}({parts[0]})"
    if name == "not":
        return f"not {parts[0]}"
    if name == "if":
        return f"{parts[1]} if {parts[0]} else {parts[2]}"
    if name in ("in", "index"):
        return _lookup_text(name, function.settings, parts[0])
    raise RaspError(f"the function {name!r} has no notation in the language, so the program cannot be written as text")


def _lookup_text(name: str, settings: Any, part: str) -> str:
    if name == "in":
        return f"{part} in [{', '.join(atom(value) for _, value in settings)}]"
    kind, *columns = settings
    if kind == "dict":
        keys, values = columns
        entries = ", ".join(f"{atom(key)}: {atom(value)}" for (_, key), (_, value) in zip(keys, values, strict=True))
        return f"{{{entries}}}[{part}]"
    return f"[{', '.join(atom(value) for _, value in columns[0])}][{part}]"


def atom(value: Atom) -> str:
    """Return an atom as program text."""
    if isinstance(value, str):
        if '"' in value or "\n" in value:
            raise RaspError(
                f"the string {value!r} has no notation in the language, so the program cannot be written as text"
            )
        return f'"{value}"'
    if isinstance(value, bool):
        return str(value)
    text = (
        f"{abs(value):f}" if isinstance(value, float) and float(f"{abs(value):f}") == abs(value) else repr(abs(value))
    )
    if isinstance(value, float) and ("e" in text or "n" in text):
        raise RaspError(
            f"the number {value!r} has no notation in the language, so the program cannot be written as text"
        )
    return f"(-{text})" if value < 0 else text
