"""The log of a run: one JSON object per line, in the order of events.

A line is passed to the operating system at once, so a killed process loses at most the line it was writing. Such a
torn line is dropped when the log is opened again. On resume, `rewind` drops the records after the checkpoint: those
steps are repeated and would otherwise be logged twice.
"""

import json
import os
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from allyouneed.errors import FolderError
from allyouneed.storage import write_atomic, writing

Record = dict[str, Any]


class Log:
    """Appends records to a file. Records of steps have a field `step`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self._open()  # first: it refuses a link, which truncating would follow
            self._drop_torn_line()

    def append(self, record: Record) -> None:
        """Append one line."""
        with writing(self.path):
            left = memoryview((json.dumps(record, ensure_ascii=False) + "\n").encode())
            while left:
                left = left[os.write(self._file, left) :]

    def rewind(self, step: int) -> None:
        """Drop the records of later steps, atomically."""
        with writing(self.path):
            lines = self.path.read_bytes().split(b"\n")[:-1]
        kept = b"".join(line + b"\n" for line in lines if _step(line) <= step)
        os.close(self._file)
        try:
            write_atomic(self.path, kept)
        finally:
            self._file = self._open()

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _open(self) -> int:
        return os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)

    def _drop_torn_line(self) -> None:
        if not self.path.exists():
            return
        data = self.path.read_bytes()
        whole = data.rfind(b"\n") + 1
        if whole < len(data):
            os.truncate(self.path, whole)


class NoLog(Log):
    """A log that writes nothing, for ranks other than 0."""

    def __init__(self) -> None: ...
    def append(self, record: Record) -> None: ...
    def rewind(self, step: int) -> None: ...
    def close(self) -> None: ...


def read_log(path: Path) -> list[Record]:
    """Return all records. A torn last line is left out; any other damage raises FolderError with the line number."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise FolderError(f"{path}: not readable: {error.strerror}") from None
    lines = data.split(b"\n")[:-1]  # the rest after the last LF is torn, or empty
    records = []
    for number, line in enumerate(lines, start=1):
        record = _parse(line)
        if record is None:
            raise FolderError(f"{path}:{number}: not a JSON object; remove the line to read the rest")
        records.append(record)
    return records


def _parse(line: bytes) -> Record | None:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def _step(line: bytes) -> float:
    """Return the step of a record. Records without one, or unreadable ones, count as early and are kept."""
    record = _parse(line) or {}
    step = record.get("step")
    return step if isinstance(step, int | float) else float("-inf")
