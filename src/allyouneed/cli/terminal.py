"""Text from anywhere, made safe to show: a terminal obeys control characters, so they are written as escapes."""

import shlex
import sys
from typing import TYPE_CHECKING

from allyouneed.words import printable

if TYPE_CHECKING:
    from allyouneed.lab.report import Table


def shown(text: str) -> str:
    """As it is into a pipe or file; with escapes where a terminal would obey it."""
    return printable(text, keep="\n\t") if sys.stdout.isatty() else text


def one_line(text: str) -> str:
    """An answer as one line, whatever a model has put into it."""
    return shown(text.replace("\r\n", " ").replace("\n", " "))


def note(line: str) -> None:
    """One line for people, beside the output."""
    print(printable(line), file=sys.stderr, flush=True)


def typed() -> str:
    """The command line that is running, as it can be typed again."""
    return shlex.join(["allyouneed", *sys.argv[1:]])


def text_table(table: "Table", *, ruled: bool = False) -> str:
    """A table of a report: the first column on the left, numbers on the right; `ruled`: a line below the names."""
    rows = [[printable(cell) for cell in row] for row in (table.columns, *table.rows)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(table.columns))]
    lines = ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in rows]
    if ruled:
        lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(line.rstrip() for line in lines)
