"""Folders that are replaced as a whole: written beside their final place, then renamed."""

import ctypes
import errno
import fcntl
import glob
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from allyouneed.errors import ConfigError, StorageError
from allyouneed.storage.disk import TEMPORARY, absolute, sync, sync_all, temporary_name, writing
from allyouneed.storage.manifest import MANIFEST, write_manifest

ASIDE = ".old-"
EXCHANGE = 2  # linux/fs.h: RENAME_EXCHANGE


@contextmanager
def new_folder(final: Path) -> Iterator[Path]:
    """Yield a temporary folder to write into; at the end of the block it becomes `final`, with a manifest.

    An error inside the block removes the temporary folder and leaves the old one. An old folder is replaced only if
    this program wrote it (it has a manifest) or it is empty.
    """
    final = absolute(final)
    temporary = temporary_name(final)
    with writing(final):
        final.parent.mkdir(parents=True, exist_ok=True)
        _require_own(final)
        temporary.mkdir()
        held = _hold(temporary)
        try:
            yield temporary
            write_manifest(temporary)
            sync_all(temporary)
            _put_in_place(temporary, final)
            sync(final.parent)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)  # an incomplete folder, or the one that was replaced
            if held is not None:
                os.close(held)


def sweep(parent: Path, name: str | None = None) -> None:
    """Remove what killed writers left in `parent`, but not what a running one is writing.

    `name`: remove only what writers of the folder of that name left; for a `parent` that is not ours.
    """
    if not parent.is_dir():
        return
    aside, temporary = f"{ASIDE}*", f"{TEMPORARY}*"
    if name is not None:
        aside, temporary = ASIDE + glob.escape(name), f"{TEMPORARY}{glob.escape(name[:100])}-{'[0-9a-f]' * 12}"
    with writing(parent):
        for path in sorted(parent.glob(aside)):
            final = parent / path.name.removeprefix(ASIDE)
            if not os.path.lexists(final):
                os.rename(path, final)  # killed between the two renames of `_put_in_place`
            else:
                _remove(path)
        for path in sorted(parent.glob(temporary)):
            _remove_stale(path)


def require_replaceable(folder: Path) -> None:
    """Raise StorageError for a folder that `new_folder` could not replace: to be called before long work."""
    folder = absolute(folder)
    temporary = temporary_name(folder)
    with writing(folder):
        _require_own(folder)
        for path in (folder, folder / MANIFEST):  # read-only: meant to be kept
            if path.exists() and not os.access(path, os.W_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        temporary.mkdir()
        temporary.rmdir()


def refuse_foreign(folder: Path, what: str, marks: Sequence[str], names: Sequence[str]) -> None:
    """Raise ConfigError for a folder with files that this program did not write: results do not mix with other work.

    `what`: the kind of the folder. It is accepted if it holds all `marks`, or nothing besides `names`.
    """
    if not folder.exists() or all((folder / mark).exists() for mark in marks):
        return
    if not folder.is_dir():
        raise ConfigError(f"{folder}: is a file; should be a new or an empty folder: --out")
    found = sorted(path.name for path in folder.iterdir())
    foreign = [name for name in found if name not in names and not name.startswith(".")]
    if foreign:
        shown = ", ".join(foreign[:3]) + (", ..." if len(foreign) > 3 else "")
        raise ConfigError(f"{folder}: is not {what} and holds {shown}; choose a new or an empty folder: --out")


def discard(folder: Path) -> None:
    """Remove a folder. It is renamed first, so that a killed process never leaves half of it under its name."""
    temporary = temporary_name(absolute(folder))
    with writing(folder):
        os.rename(folder, temporary)
        shutil.rmtree(temporary)


def exchange(one: Path, other: Path) -> bool:
    """Swap two paths in one system call; return False if the system cannot."""
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        return False
    here = -100  # fcntl.h: AT_FDCWD; both paths are absolute anyway
    status: int = rename(here, os.fsencode(one), here, os.fsencode(other), EXCHANGE)
    return status == 0


def _require_own(final: Path) -> None:
    if final.is_symlink() or (final.exists() and not final.is_dir()):
        raise StorageError(f"{final}: is not a folder but a link or a file; remove it or choose another name")
    if final.is_dir() and any(final.iterdir()) and not (final / MANIFEST).is_file():
        raise StorageError(f"{final}: holds files that allyouneed did not write; choose another name")


def _hold(folder: Path) -> int | None:
    """Open and lock a folder, so that `sweep` sees its writer. Some network file systems cannot lock folders."""
    with suppress(OSError):
        held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        with suppress(OSError):
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return held
    return None


def _remove_stale(path: Path) -> None:
    if path.is_symlink() or not path.is_dir():
        _remove(path)
        return
    held = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with suppress(OSError):
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _remove(path)
    finally:
        os.close(held)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _put_in_place(temporary: Path, final: Path) -> None:
    """Rename. An old folder is swapped with the new one in one system call, if the kernel can do that."""
    if not final.exists():
        os.rename(temporary, final)
    elif not exchange(temporary, final):
        aside = final.with_name(ASIDE + final.name)
        shutil.rmtree(aside, ignore_errors=True)
        os.rename(final, aside)
        os.rename(temporary, final)  # killed before this line: `sweep` restores the old folder
        sync(final.parent)
        shutil.rmtree(aside)
