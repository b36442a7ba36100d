"""One writer for a run folder."""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from allyouneed.errors import StorageError
from allyouneed.storage.disk import writing


@contextmanager
def lock(folder: Path) -> Iterator[None]:
    """Hold the lock of a run folder; raise StorageError if another process has it.

    The operating system releases it, however this process ends.
    """
    path = folder / "lock"
    with writing(path):
        folder.mkdir(parents=True, exist_ok=True)
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    try:
        try:
            _take(file)
        except BlockingIOError:
            owner = os.read(file, 32).decode("ascii", "replace").strip() or "unknown"
            raise StorageError(
                f"{folder}: process {owner} is writing to this folder; wait until it ends, or choose another folder"
            ) from None
        with writing(path):
            os.ftruncate(file, 0)
            os.pwrite(file, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(file)


def _take(file: int) -> None:
    """Take the lock, or raise BlockingIOError. Try again for a moment: `is_locked` holds it for an instant."""
    for _ in range(10):
        with suppress(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        time.sleep(0.02)
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def is_locked(folder: Path) -> bool:
    """Return True if a process is writing to a run folder now. Read permission is enough."""
    try:
        file = os.open(folder / "lock", os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(file)
    return False
