"""The child process that reads Parquet and Arrow files: `python -m allyouneed.text.arrow_process`; see `arrow.py`."""

import json
import os
import resource
import sys
import threading
from collections.abc import Iterator, Sequence
from typing import Any

from allyouneed.errors import DataError
from allyouneed.text.arrow import DONE, ERROR, FILE, HEADER, MEMORY, ROWS
from allyouneed.text.records import checked_text, missing_field

BATCH_ROWS = 64  # rows decoded at once: few, because each may have megabytes
CHUNK, CHUNK_ROWS = 1 << 20, 1024  # characters and rows sent at once
MAGIC = {b"PAR1": "parquet", b"ARROW1": "file", b"FEA1": "feather"}


def main() -> None:
    """Send the rows of the files in the settings to standard output."""
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, resource.getrlimit(resource.RLIMIT_DATA)[1]))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.environ["ARROW_DEFAULT_MEMORY_POOL"] = "system"  # others reserve memory beyond the limit
    settings = json.loads(sys.argv[1])
    threading.Thread(target=_stop_with_parent, args=(os.getppid(),), daemon=True).start()
    try:
        for number, path in enumerate(settings["paths"]):
            _send(FILE, json.dumps(number).encode())
            for rows in _chunks(read(path, settings["sides"], settings["fields"])):
                _send(ROWS, json.dumps(rows, ensure_ascii=False).encode("utf-8"))
        _send(DONE, b"")
    except DataError as error:
        _send(ERROR, str(error).encode("utf-8", "replace"))
    except MemoryError:
        message = f"{path}: needs more than {MEMORY >> 20:,} MiB; it is damaged, or its values are too large"
        _send(ERROR, message.encode("utf-8", "replace"))
    except BrokenPipeError:
        os._exit(1)  # the parent needs no more rows


def _send(kind: int, body: bytes) -> None:
    sys.stdout.buffer.write(HEADER.pack(kind, len(body)) + body)
    sys.stdout.buffer.flush()


def _stop_with_parent(parent: int) -> None:
    """End this process when its parent is gone, even if it is decoding."""
    import time

    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


def _chunks(rows: Iterator[list[str]]) -> Iterator[list[list[str]]]:
    chunk: list[list[str]] = []
    held = 0
    for row in rows:
        chunk.append(row)
        held += sum(map(len, row))
        if held >= CHUNK or len(chunk) >= CHUNK_ROWS:
            yield chunk
            chunk, held = [], 0
    if chunk:
        yield chunk


def read(path: str, sides: Sequence[str], fields: Sequence[str]) -> Iterator[list[str]]:
    """Yield the fields of each row of a file. Raise DataError where the file is damaged or has other fields."""
    import pyarrow

    try:
        row = 0
        for batch in _batches(path, sides, fields):
            columns = [_texts(batch, field, path, row) for field in fields]
            row += batch.num_rows
            yield from map(list, zip(*columns, strict=True))
    except MemoryError:
        raise
    except (pyarrow.ArrowException, OSError, ValueError, UnicodeDecodeError, KeyError, OverflowError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0][:200]
        raise DataError(f"{path}: cannot be read as Parquet or Arrow: {reason}; write it again") from None


def _batches(path: str, sides: Sequence[str], fields: Sequence[str]) -> Iterator[Any]:
    import pyarrow
    import pyarrow.parquet

    with open(path, "rb") as file:
        start = file.read(6)
    kind = next((kind for mark, kind in MAGIC.items() if start.startswith(mark)), "stream")
    if kind == "parquet":
        parquet = pyarrow.parquet.ParquetFile(path, buffer_size=1 << 20, pre_buffer=False, memory_map=False)
        _check_fields(path, parquet.schema_arrow, sides, fields)
        columns = [field if _in(parquet.schema_arrow, field) else field.partition(".")[0] for field in fields]
        for batch in parquet.iter_batches(batch_size=BATCH_ROWS, columns=columns, use_threads=False):
            batch.validate()
            yield batch
        return
    options = pyarrow.ipc.IpcReadOptions(use_threads=False)
    with pyarrow.memory_map(path) as source:
        if kind == "stream":
            reader = pyarrow.ipc.open_stream(source, options=options)
            _check_fields(path, reader.schema, sides, fields)
            batches: Any = iter(reader)
        else:
            opened = pyarrow.ipc.open_file(source, options=options)
            _check_fields(path, opened.schema, sides, fields)
            batches = (opened.get_batch(number) for number in range(opened.num_record_batches))
        for batch in batches:
            batch.validate(full=True)  # offsets, lengths and UTF-8 are as the file states them
            for begin in range(0, batch.num_rows, BATCH_ROWS):
                yield batch.slice(begin, BATCH_ROWS)


def _in(schema: Any, field: str) -> bool:
    return bool(schema.get_field_index(field) >= 0)


def _check_fields(path: str, schema: Any, sides: Sequence[str], fields: Sequence[str]) -> None:
    """Raise DataError if a field is missing, or does not hold texts or whole numbers."""
    import pyarrow.types as types

    for side, field in zip(sides, fields, strict=True):
        kind = _type_of(schema, field)
        if kind is None:
            raise missing_field(path, field, _names(schema), side)
        plain = kind.value_type if types.is_dictionary(kind) else kind
        texts = (types.is_string, types.is_large_string, types.is_string_view, types.is_integer, types.is_boolean)
        if not any(test(plain) for test in texts):
            raise DataError(f"{path}: column {field!r} holds {str(kind)[:60]}, should hold texts; choose another one")


def _type_of(schema: Any, field: str) -> Any:
    """Return the type of a field, None if there is no such field."""
    import pyarrow.types as types

    if _in(schema, field):
        return schema.field(field).type
    first, *inner = field.split(".")
    if not _in(schema, first):
        return None
    kind = schema.field(first).type
    for name in inner:
        if not types.is_struct(kind) or kind.get_field_index(name) < 0:
            return None
        kind = kind.field(name).type
    return kind


def _names(schema: Any) -> list[str]:
    """Return the names of all fields, those of structures as a.b."""
    import pyarrow.types as types

    found = []
    for field in schema:
        inner = [field.type.field(i).name for i in range(field.type.num_fields)] if types.is_struct(field.type) else []
        found += [f"{field.name}.{name}" for name in inner] or [field.name]
    return found


def _texts(batch: Any, field: str, path: str, before: int) -> list[str]:
    """Return a field of all rows of a batch."""
    if _in(batch.schema, field):
        values = batch.column(field)
    else:
        first, *inner = field.split(".")
        values = batch.column(first)
        for name in inner:
            import pyarrow.compute

            values = pyarrow.compute.struct_field(values, name)  # a missing structure gives a missing field
    return [
        checked_text(value, lambda number=number: f"{path}: row {number:,}: {field}")  # type: ignore[misc]
        for number, value in enumerate(values.to_pylist(), before + 1)
    ]


if __name__ == "__main__":
    main()
