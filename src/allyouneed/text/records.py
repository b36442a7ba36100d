"""Texts of records: what the readers of TSV, JSONL, TMX and Arrow share.

A record is a tuple of texts, one for each side that a task reads (source and target; text and label; text). A side that
a record does not have is an empty text, which the tasks skip and count.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from allyouneed.errors import DataError
from allyouneed.text.lines import LONGEST_LINE
from allyouneed.words import printable

Row = tuple[str, ...]
Column = int | str  # which column or field holds a side: a number from 1, or a name
LONGEST_TEXT = LONGEST_LINE  # bytes of UTF-8
MOST_NAMES = 10  # fields that a message lists
_REFUSED = re.compile("[\0\ud800-\udfff]")


def checked_text(value: Any, where: Callable[[], str]) -> str:
    """Return the text of a value. Raise DataError if it is not a text, or cannot be one of a corpus.

    `where` is called for messages only.
    """
    if isinstance(value, str):
        bad = _REFUSED.search(value)
        if bad is None and len(value) <= LONGEST_TEXT // 4:  # a character has at most 4 bytes
            return value
        if len(value.encode("utf-8", "surrogatepass")) > LONGEST_TEXT:
            raise DataError(f"{where()}: longer than {LONGEST_TEXT:,} bytes; a field should hold one text")
        if bad is not None:
            what = "NUL" if bad[0] == "\0" else f"half of a surrogate pair (U+{ord(bad[0]):04X})"
            raise DataError(f"{where()}: character {bad.start() + 1} is {what}; this is not text")
        return value
    if value is None:
        return ""
    if isinstance(value, int):  # labels are often numbers
        return str(value)
    raise DataError(f"{where()}: is a {type(value).__name__}, should be a text; choose a field of texts")


def one_line(text: str) -> str:
    """Return a text with its line ends replaced by blanks: a text of a pair is one line, wherever it comes from."""
    if "\n" not in text and "\r" not in text:
        return text
    return " ".join(text.replace("\r\n", "\n").replace("\r", "\n").split("\n"))


def one_line_rows(rows: Iterable[Row]) -> Iterator[Row]:
    """Yield rows whose texts are one line each."""
    for row in rows:
        yield tuple([one_line(text) for text in row])


def missing_field(where: str | Path, name: str, known: Sequence[str], side: str) -> DataError:
    """Return the error for a field that a record does not have."""
    listed = ", ".join(printable(one)[:40] for one in known[:MOST_NAMES]) + (", ..." if len(known) > MOST_NAMES else "")
    return DataError(f'{where}: has no field {name!r}; it has: {listed or "none"}; choose one: {side} = "NAME"')
