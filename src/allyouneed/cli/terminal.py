"""Untrusted text, made safe to print: control characters, which a terminal would interpret, are escaped."""

import shlex
import sys
from typing import TYPE_CHECKING

from allyouneed.words import printable

if TYPE_CHECKING:
    from allyouneed.lab.report import Table


def shown(text: str) -> str:
    """Return text for standard output: unchanged for a pipe or file, escaped for a terminal."""
    return printable(text, keep="\n\t") if sys.stdout.isatty() else text


def one_line(text: str) -> str:
    """Return a generated text as one line."""
    return shown(text.replace("\r\n", " ").replace("\n", " "))


def note(line: str) -> None:
    """Print one line for the user on standard error."""
    print(printable(line), file=sys.stderr, flush=True)


def typed() -> str:
    """Return the running command line, quoted for a shell."""
    return shlex.join(["allyouneed", *sys.argv[1:]])


def text_table(table: "Table", *, ruled: bool = False) -> str:
    """Return a table as text; all columns but the first are right-aligned. `ruled`: a line below the header."""
    rows = [[printable(cell) for cell in row] for row in (table.columns, *table.rows)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(table.columns))]
    lines = ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in rows]
    if ruled:
        lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(line.rstrip() for line in lines)
