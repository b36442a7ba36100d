"""`allyouneed serve` as a process, for tests of signals, logs and files."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def process(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], str, int]]:
    """Start `allyouneed serve` as a process, and yield it with its address."""
    quiet = [] if "--access-log" in arguments else ["--access-log", "none"]
    command = [sys.executable, "-m", "allyouneed", "serve", *arguments, "--port", "0", *quiet]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            host, port = server.stdout.readline().split("http://")[1].split()[0].split(":")
            yield server, host, int(port)
        finally:
            server.kill()
