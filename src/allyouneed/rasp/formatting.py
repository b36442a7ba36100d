"""Prints values exactly as the published REPL does, including tabs.

    s-op         "     s-op: NAME", then its value on the example
    sequence     [h, e, l, l, o] (strings); floats with 3 digits, bools as T and F, equal values as [v]*n
    selector     a row for each query position, with 1 at the selected positions
    atom         "    value: NAME =  V"
    list, dict   on one line if they hold only atoms, else one value a line

Differs from the published REPL: a bool among numbers is printed as a number, and a full display shows the type of its
input (`compat` prints T, F and "strings").
"""

from collections.abc import Sequence
from typing import Any

from allyouneed.rasp import limits
from allyouneed.rasp.atoms import Atom, is_atom, kind, shortened
from allyouneed.rasp.errors import RaspError
from allyouneed.rasp.graph import Input, SOp
from allyouneed.rasp.values import Dict, List, NamedNode, Procedure, Value


def _atom(atom: Atom, numbers: bool = False) -> str:
    if isinstance(atom, bool):
        return str(int(atom)) if numbers else "T" if atom else "F"
    return str(round(atom, 3)) if isinstance(atom, float) else str(atom)


def sequence(values: Sequence[Atom], compat: bool = False) -> str:
    """Return a sequence as text, such as `[1, 2] (ints)`."""
    what = kind(values)
    numbers = what != "bools" and not compat
    if len(values) > 1 and all(value == values[0] for value in values):
        text = f"[{_atom(values[0], numbers)}]*{len(values)}"
    else:
        text = f"[{', '.join(_atom(value, numbers) for value in values)}]"
    return f"{_cut(text)} ({what})"


def _cut(text: str) -> str:
    return text if len(text) <= limits.SHOWN else f"{text[: limits.SHOWN]}..."


def given_text(given: Input) -> str:
    """Return an input as program text."""
    return f'"{given}"' if isinstance(given, str) else _cut(str(list(given)))


def full(given: Input, values: Sequence[Atom], compat: bool = False) -> list[str]:
    """Return input and output as aligned lines. Of bools, only the rarer value is printed."""
    kinds = [_kind(list(given)), kind(values)]
    rows = [_cells(list(given), kinds[0], compat), _cells(list(values), kinds[1], compat)]
    width = max(len(cell) for row in rows for cell in row)
    above, below = (_cut(" ".join(cell.rjust(width) for cell in row)) for row in rows)
    return [
        f" \t\tinput:   {above} \t ({'strings' if compat else kinds[0]})",
        f" \t\toutput:  {below} \t ({kinds[1]})",
    ]


def _kind(given: list[Any]) -> str:
    """Return the kind of an input, which, unlike a sequence, may be mixed."""
    try:
        return kind(given)
    except RaspError:
        return "mixed"


def _cells(values: list[Any], what: str, compat: bool) -> list[str]:
    if what != "bools":
        return [str(value) if compat else _atom(value, numbers=what != "mixed") for value in values]
    true, false = values.count(True), values.count(False)
    shown = {True: "T" if true <= false else "", False: "F" if false <= true else ""}
    return [shown[bool(value)] for value in values]


def grid(given: Input, rows: Sequence[Sequence[bool]]) -> list[str]:
    """Return a selector as lines, queries on the left and keys above."""
    names = [str(atom) for atom in given]
    width = max(map(len, names))
    lines = [f" \t\t\t {' ' * width}   {' '.join(name.rjust(width) for name in names)}"]
    for name, row in zip(names, rows, strict=True):
        cells = " ".join(("1" if bit else " ").rjust(width) for bit in row)
        lines.append(f" \t\t\t {name.rjust(width)} | {cells}")
    return lines


def value_lines(name: str, value: Value) -> list[str]:
    """Return a value and its name as lines, without examples."""
    if isinstance(value, List | Dict):
        return _collection(name, value)
    if is_atom(value):
        return [f"    value: {name} =  {_literal(value)}"]
    return [f" {_short(value, name)}"]


def _short(value: Value, name: str = "") -> str:
    """Return the text of a value inside a list."""
    if isinstance(value, NamedNode):
        return f"    {'s-op' if isinstance(value.node, SOp) else 'selector'}: {name or value.title}"
    if isinstance(value, Procedure):
        return f"    {value.home.title} function: {name or value.name}({', '.join(value.parameters)})"
    return _literal(value)


def _literal(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value)


def _collection(name: str, value: List | Dict) -> list[str]:
    what, brackets = ("list", "[]") if isinstance(value, List) else ("dict", "{}")
    if _is_flat(value):
        plain = list(value.items) if isinstance(value, List) else value.items
        return [f"     {what}: {name} = {_cut(str(plain))}"]
    start = f"     {what}: {name} =  "
    return [
        f"{start}{brackets[0]}",
        *_items(value, tabs=3 if isinstance(value, Dict) else 2),
        " " * (len(start) - 1) + brackets[1],
    ]


def _is_flat(value: List | Dict) -> bool:
    items = value.items if isinstance(value, List) else value.items.values()
    return all(map(is_atom, items))


def _items(value: List | Dict, tabs: int) -> list[str]:
    pairs = (
        [("", item) for item in value.items]
        if isinstance(value, List)
        else [(f"{_literal(key)} : ", item) for key, item in value.items.items()]
    )
    lines: list[str] = []
    shown = 0
    for key, item in pairs:
        start, before = "\t" * tabs + f" {key}", len(lines)
        if not isinstance(item, List | Dict):
            lines.append(f"{start}{_short(item)}")
        elif _is_flat(item):
            lines.append(f"{start}{shortened(list(item.items) if isinstance(item, List) else item.items)}")
        else:
            brackets = "[]" if isinstance(item, List) else "{}"
            lines += [start + brackets[0], *_items(item, tabs + 2), "\t" * tabs + f" {brackets[1]}"]
        shown += sum(len(line) for line in lines[before:])
        if shown > limits.SHOWN:
            return [*lines, "..."]
    return lines
