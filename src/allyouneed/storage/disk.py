"""Files on a disk that may fail: atomic writes, fsync, and one line for what the operating system refuses."""

import errno
import os
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from allyouneed.errors import FolderError, StorageError

TEMPORARY = ".tmp-"
_REASONS = {
    errno.ENOSPC: "disk full",
    errno.EDQUOT: "disk quota used up",
    errno.EFBIG: "file size limit reached",
    errno.EROFS: "file system is read-only",
    errno.EIO: "the disk reports an input/output error",
    errno.EACCES: "permission denied",
    errno.EPERM: "operation not permitted",
}


@contextmanager
def writing(what: Path) -> Iterator[None]:
    """Turn an OSError into a StorageError of one line about `what`."""
    try:
        yield
    except OSError as error:
        reason = _REASONS.get(error.errno or 0) or error.strerror or str(error)
        raise StorageError(f"{reason} while writing {what}; what was saved before is intact") from error


@contextmanager
def reading(what: Path) -> Iterator[None]:
    """Turn an OSError into a FolderError of one line about `what`."""
    try:
        yield
    except OSError as error:
        raise FolderError(f"{what}: not readable: {error.strerror or error}") from error


def write_atomic(path: Path, data: bytes) -> None:
    """Write a file so that at any instant it holds the old content or the new one."""
    path = absolute(path)
    temporary = temporary_name(path)
    with writing(path):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with temporary.open("xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
            sync(path.parent)
        except BaseException:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise


def refuse_links(folder: Path, names: Iterable[str]) -> None:
    """Raise StorageError if one of these names in a folder is a link: what is written there would end up elsewhere."""
    for name in names:
        if (folder / name).is_symlink():
            raise StorageError(
                f"{folder / name}: is a link; a run keeps its files itself: remove it, or copy what is there"
            )


def absolute(path: Path) -> Path:
    """Return an absolute path that names a file or a folder."""
    path = Path(os.path.abspath(path))
    if not path.name:
        raise StorageError(f"{path}: cannot be written; name a file or a folder inside it")
    return path


def temporary_name(final: Path) -> Path:
    """Return a new name beside the final one."""
    return final.with_name(f"{TEMPORARY}{final.name[:100]}-{uuid.uuid4().hex[:12]}")


def open_plain(path: Path) -> int:
    """Open a file for reading; refuse links."""
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)


def sync_files(folder: Path, pattern: str) -> None:
    """Wait until the files of a folder that match a pattern are on the disk."""
    for path in folder.glob(pattern):
        with writing(path):
            sync(path)


def sync_all(folder: Path) -> None:
    """Wait until all files and folders below a folder are on the disk."""
    for root, _, files in os.walk(folder, topdown=False):
        for name in files:
            sync(Path(root) / name)
        sync(Path(root))


def sync(path: Path) -> None:
    """Wait until a file or folder is on the disk."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(file)
    finally:
        os.close(file)
