"""Child processes for untrusted programs: a process that takes too long can be killed, a thread cannot.

A child writes an empty line when it is ready. Then it reads tasks from standard input, and writes answers to standard
output, one JSON object a line: `answer`, or `wrong` with the reason. It limits its own memory.
"""

import json
import os
import queue
import select
import subprocess
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from allyouneed.errors import DataError

START_TIMEOUT = 60.0  # seconds to start a process, which may import torch
MAX_RESPONSE = 64 << 20  # bytes


class BoundedProcesses:
    """At most `count` processes of a command. They start on demand, and are killed if a task exceeds `seconds`.

    `what` is the first word of errors.
    """

    def __init__(self, command: Sequence[str], what: str, count: int, seconds: float) -> None:
        self._command, self._what, self.seconds = command, what, seconds
        self._idle: queue.LifoQueue[subprocess.Popen[bytes] | None] = queue.LifoQueue()
        for _ in range(count):
            self._idle.put(None)

    def run(self, task: dict[str, Any]) -> Any:
        """Run a task and return its answer, or raise DataError on a timeout. Wait while no process is free."""
        process = self._idle.get()
        try:
            if process is None or process.poll() is not None:
                process = subprocess.Popen(self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
                self._read(process, START_TIMEOUT)
            response = json.loads(self._exchange(process, task))
        except BaseException:
            if process is not None:
                _kill(process)
            self._idle.put(None)
            raise
        self._idle.put(process)
        if "wrong" in response:
            raise DataError(response["wrong"])
        return response["answer"]

    def close(self) -> None:
        """Kill the idle processes. The others exit when their input is closed."""
        while True:
            try:
                process = self._idle.get_nowait()
            except queue.Empty:
                return
            if process is not None:
                _kill(process)

    def _exchange(self, process: "subprocess.Popen[bytes]", task: dict[str, Any]) -> bytes:
        """Send a task to a process and return the line that it answers with."""
        assert process.stdin is not None
        try:
            process.stdin.write(json.dumps(task).encode() + b"\n")
            process.stdin.flush()
        except BrokenPipeError:
            raise self._exceeds() from None
        return self._read(process, self.seconds)

    def _read(self, process: "subprocess.Popen[bytes]", seconds: float) -> bytes:
        assert process.stdout is not None
        until, line, out = time.monotonic() + seconds, bytearray(), process.stdout.fileno()
        while not line.endswith(b"\n"):
            left = until - time.monotonic()
            ready = left > 0 and select.select([out], [], [], left)[0]
            if not ready:
                raise DataError(f"{self._what}: took more than {seconds:.0f} seconds; make it or its input smaller")
            chunk = os.read(out, 1 << 20)
            if not chunk or len(line) > MAX_RESPONSE:
                raise self._exceeds()
            line += chunk
        return bytes(line)

    def _exceeds(self) -> DataError:
        return DataError(f"{self._what}: exceeds the limits of the server; make it or its input smaller")


def end_with_parent() -> None:
    """End this process when its standard input closes: the process that started it is gone."""

    def watch() -> None:
        # Read the descriptor directly: a buffered reader would hold a lock that the interpreter needs at exit.
        while os.read(0, 4096):
            pass
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def _kill(process: "subprocess.Popen[bytes]") -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with suppress(BrokenPipeError):
                pipe.close()
