"""One writer for a run folder."""

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from allyouneed.errors import StorageError
from allyouneed.storage.disk import writing


class LockedError(StorageError):
    """Another process has the lock."""


@contextmanager
def lock(folder: Path) -> Iterator[None]:
    """Hold the lock of a run folder; raise LockedError if another process has it.

    The operating system releases it, however this process ends.
    """
    path = folder / "lock"
    file = _take_new(path)
    while not _is_at(file, path):  # another process removed the folder while this one waited
        os.close(file)
        file = _take_new(path)
    try:
        with writing(path):
            os.ftruncate(file, 0)
            os.pwrite(file, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(file)


def _take_new(path: Path) -> int:
    """Open a lock file and take its lock. Raise LockedError if another process has it."""
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    try:
        _take(file)
    except BlockingIOError:
        owner = os.read(file, 32).decode("ascii", "replace").strip() or "unknown"
        os.close(file)
        raise LockedError(
            f"{path.parent}: process {owner} is writing to this folder; wait until it ends, or choose another folder"
        ) from None
    except BaseException:
        os.close(file)
        raise
    return file


def _is_at(file: int, path: Path) -> bool:
    """Return whether an open file is still the one at a path."""
    try:
        return os.path.samestat(os.fstat(file), os.lstat(path))
    except FileNotFoundError:
        return False


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
