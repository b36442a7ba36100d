"""Records in lines: columns separated by TABs, and JSON objects."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from allyouneed.errors import DataError
from allyouneed.text.lines import lines
from allyouneed.text.records import Column, Row, checked_text, missing_field
from allyouneed.words import counted


def tsv_rows(
    path: Path,
    sides: Sequence[str],
    columns: Sequence[Column] | None = None,
    order: Sequence[str] | None = None,
) -> Iterator[Row]:
    """Yield the sides in the rows of a TAB-separated file. An empty line is a row of empty columns.

    `columns`: where each side is, by number (from 1) or by a name in the first line. None: the file has one column for
    each side, in the order of `order` (default: of `sides`).
    """
    rows, names = enumerate(lines(path), 1), list(order or sides)
    in_order = [names.index(side) for side in sides]
    places = in_order if columns is None else _places(path, sides, columns, rows)
    width = max(places) + 1
    for number, line in rows:
        row = line.split("\t") if line else [""] * width
        if len(row) != width and (columns is None or len(row) < width):
            least = "" if columns is None else "at least "
            listed = f": {', '.join(names)}" if columns is None else ""
            raise DataError(
                f"{path}: line {number}: {counted(len(row), 'column')}; "
                f"should be {least}{width}, separated by TABs{listed}"
            )
        yield tuple([row[place] for place in places])


def _places(path: Path, sides: Sequence[str], columns: Sequence[Column], rows: Iterator[tuple[int, str]]) -> list[int]:
    """Return the index of each column. A name is looked up in the first line, which then is no row."""
    if not any(isinstance(column, str) for column in columns):
        return [int(column) - 1 for column in columns]
    header = next(rows, (1, ""))[1].split("\t")
    places = []
    for side, column in zip(sides, columns, strict=True):
        if isinstance(column, str) and column not in header:
            raise missing_field(f"{path}: line 1", column, header, side)
        places.append(header.index(column) if isinstance(column, str) else column - 1)
    return places


def json_rows(path: Path, sides: Sequence[str], fields: Sequence[str]) -> Iterator[Row]:
    """Yield fields of the JSON objects of a file, one object a line. `a.b` is the field b of the object a."""
    paths = [field.split(".") for field in fields]
    for number, line in enumerate(lines(path), 1):
        if not line.strip():
            continue
        where = f"{path}: line {number}"
        record = _object(line, where)
        yield tuple([_field(record, *chosen, where) for chosen in zip(sides, fields, paths, strict=True)])


def _object(line: str, where: str) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except RecursionError:
        raise DataError(f"{where}: is nested too deeply; a record should be a flat object") from None
    except ValueError as error:
        reason = str(error).splitlines()[0].partition(": line ")[0]
        raise DataError(f"{where}: is not JSON: {reason}; there should be one object a line") from None
    if not isinstance(record, dict):
        raise DataError(f"{where}: is a JSON {type(record).__name__}; there should be one object a line")
    return record


def _field(record: dict[str, Any], side: str, field: str, path: Sequence[str], where: str) -> str:
    if field in record:  # also if its name contains a dot
        return checked_text(record[field], lambda: f"{where}: {field}")
    value: Any = record
    for part in path:
        if not isinstance(value, dict) or part not in value:
            raise missing_field(where, field, list(record), side)
        value = value[part]
    return checked_text(value, lambda: f"{where}: {field}")
