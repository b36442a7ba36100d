"""The log of a server: lines of text or of JSON on stderr.

A thread writes them. A pipe that is not read then blocks that thread, but not the event loop; lines beyond a bound are
dropped and counted.
"""

import json
import logging
import os
import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from logging.handlers import QueueHandler
from typing import Any

from allyouneed.serve.config import ServeConfig

MAX_QUEUED = 10_000  # lines that wait to be written
LAST_LINES_TIMEOUT = 2  # seconds to write the last lines at exit
ACCESS = "allyouneed.access"


class DroppingHandler(QueueHandler):
    """Passes lines to the writing thread, and drops them while it is too far behind."""

    dropped = 0

    def enqueue(self, record: logging.LogRecord) -> None:
        """Enqueue a line, preceded by a count of those dropped before it."""
        try:
            if self.dropped:
                arguments = (record.name, logging.WARNING, "", 0, "%d lines of the log were dropped", (self.dropped,))
                self.queue.put_nowait(logging.LogRecord(*arguments, None))
                self.dropped = 0
            self.queue.put_nowait(record)
        except queue.Full:
            self.dropped += 1

    def prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        """Return the line unchanged: the other thread is in the same process and formats it."""
        return record


class TextFormatter(logging.Formatter):
    """One line of text for each entry; tracebacks follow theirs."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the entry as text."""
        message = super().format(record)
        if record.name == ACCESS and record.levelno == logging.INFO:
            return f"{_time(record)} {message}"
        return f"{_time(record)} {record.levelname}: {record.name}: {message}"


class JSONFormatter(logging.Formatter):
    """One JSON object for each entry. Those of the access log have a field for each value."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the entry as JSON."""
        fields: dict[str, Any] = {"time": _time(record), "level": record.levelname.lower(), "logger": record.name}
        entry: dict[str, Any] | None = getattr(record, "entry", None)
        return json.dumps(fields | ({"message": super().format(record)} if entry is None else entry))


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


@contextmanager
def logging_to_stderr(config: ServeConfig) -> Iterator[None]:
    """Write the log while the context is open: the access log, and everything else from the configured level up."""
    level = getattr(logging, config.log_level.upper())
    formatter = JSONFormatter() if config.access_log == "json" else TextFormatter()
    waiting: queue.Queue[logging.LogRecord | None] = queue.Queue(MAX_QUEUED)
    handler = DroppingHandler(waiting)
    root = logging.getLogger()
    root.addHandler(handler)
    # Libraries report every start and connection at `info`: only `debug` shows that.
    root.setLevel(level if level == logging.DEBUG else max(level, logging.WARNING))
    logging.getLogger("allyouneed").setLevel(level)
    logging.getLogger(ACCESS).setLevel(logging.CRITICAL if config.access_log == "none" else logging.INFO)
    writer = threading.Thread(target=_write, args=(waiting, formatter), name="log writer", daemon=True)
    writer.start()
    try:
        yield
    finally:
        root.removeHandler(handler)
        with suppress(queue.Full):
            waiting.put_nowait(None)
        writer.join(LAST_LINES_TIMEOUT)


def _write(waiting: "queue.Queue[logging.LogRecord | None]", formatter: logging.Formatter) -> None:
    # Neither `sys.stderr` nor a handler: at exit the interpreter would wait for the lock of a thread that blocks in it.
    with os.fdopen(os.dup(2), "w", encoding="utf-8", errors="backslashreplace") as stream:
        while (record := waiting.get()) is not None:
            with suppress(OSError):  # a closed pipe must not end the server
                stream.write(f"{formatter.format(record)}\n")
                stream.flush()
