"""Standard input as lines, under the rules of `text/lines.py`, in batches that never block a pipe.

A batch is everything that can be read without waiting: a file arrives in large batches, and a slow writer gets an
output after each line.
"""

import os
import select
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import typer

from allyouneed.errors import DataError

NAME = Path("standard input")
MOST_LINES = 1024
MARKS = b"\xef\xff\xfe\x00"  # first bytes of byte order marks, which may arrive in pieces


def line_batches(
    most: int = MOST_LINES, check: Callable[[str, int], None] = lambda line, before: None
) -> Iterator[list[str]]:
    """Yield batches of lines as they arrive. A line that `check(line, lines before it)` or decoding refuses raises an
    error after the lines before it were yielded."""
    batch: list[str] = []
    try:
        for number, (line, more) in enumerate(_lines(sys.stdin.fileno())):
            check(line, number)
            batch.append(line)
            if len(batch) == most or not more:
                yield batch
                batch = []
    except DataError:
        if batch:
            yield batch
        raise
    if batch:
        yield batch


def text_argument(value: str | None) -> str | None:
    """Return a text argument of a command. Raise BadParameter if it is not UTF-8."""
    try:
        (value or "").encode()
    except UnicodeEncodeError:
        raise typer.BadParameter("has bytes that are not UTF-8; set the terminal, or the script, to UTF-8") from None
    return value


def read_all() -> str:
    """Return the whole input as one text, without the last line end."""
    return "\n".join(line for batch in line_batches() for line in batch)


def _lines(file: int) -> Iterator[tuple[str, bool]]:
    """Yield each line, and whether more can be read without waiting."""
    from allyouneed.text.lines import BLOCK, LONGEST_LINE, decode_text, without_mark

    rest, number, first = b"", 0, True
    while block := os.read(file, BLOCK):
        if first:
            while block[0] in MARKS and len(block) < 4 and (more := os.read(file, BLOCK)):
                block += more
            block, first = without_mark(block, NAME), False
        *whole, rest = (rest + block).split(b"\n") if b"\n" in block else [rest + block]
        for place, raw in enumerate(whole, start=1):
            number += 1
            _refuse_long(raw, number, LONGEST_LINE)
            yield decode_text(raw.removesuffix(b"\r"), NAME, number), place < len(whole) or _ready(file)
        _refuse_long(rest, number + 1, LONGEST_LINE)
    if rest:
        yield decode_text(rest.removesuffix(b"\r"), NAME, number + 1), False


def _refuse_long(raw: bytes, number: int, longest: int) -> None:
    if len(raw) > longest:
        raise DataError(f"{NAME}: line {number}: longer than {longest:,} bytes; a line should hold one text")


def _ready(file: int) -> bool:
    return bool(select.select([file], [], [], 0)[0])
