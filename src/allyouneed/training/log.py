"""The log of a run: one JSON object a line, in the order in which things happened.

A line is handed to the operating system as soon as it is written, so a killed process loses at most the line it was
writing. Such a torn line is dropped when the log is next opened. On resume, `rewind` drops what lies after the
checkpoint: those steps are made again and would otherwise be logged twice.
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
    """Appends records to a file. Records of a step have a `step`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self._open()  # first: it refuses a link, which dropping a line would follow
            self._drop_torn_line()

    def append(self, record: Record) -> None:
        """Adds one line."""
        with writing(self.path):
            left = memoryview((json.dumps(record, ensure_ascii=False) + "\n").encode())
            while left:
                left = left[os.write(self._file, left) :]

    def rewind(self, step: int) -> None:
        """Drops the records of later steps, atomically."""
        with writing(self.path):
            lines = self.path.read_bytes().split(b"\n")[:-1]
        kept = b"".join(line + b"\n" for line in lines if _step(line) <= step)
        os.close(self._file)
        try:
            write_atomic(self.path, kept)
        finally:
            self._file = self._open()

    def close(self) -> None:
        """Closes the file."""
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
    """For processes that leave the logging to another."""

    def __init__(self) -> None: ...
    def append(self, record: Record) -> None: ...
    def rewind(self, step: int) -> None: ...
    def close(self) -> None: ...


def read_log(path: Path) -> list[Record]:
    """All records. A torn last line is left out; any other damage is an error that names the line."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise FolderError(f"{path}: not readable: {error.strerror}") from None
    lines = data.split(b"\n")[:-1]  # what follows the last LF is torn, or empty
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
    """The step of a record; what has none, or cannot be read, counts as early: a log is cut, never cleaned."""
    record = _parse(line) or {}
    step = record.get("step")
    return step if isinstance(step, int | float) else float("-inf")
