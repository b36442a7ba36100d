"""Files that are either whole or not there, and that say so when they were changed.

A folder is written beside its final place, under a name that begins with `.tmp-`:

    files -> manifest.json (sha256 and size of each) -> fsync files and folders -> rename -> fsync parent

so a process killed at any instant leaves the old folder, or the new one, and perhaps a temporary that `sweep` removes.
What is read back is compared with the manifest first: a flipped bit loads silently from every tensor format we know of.

No pickle: tensors are safetensors, everything else is JSON or text. Links and paths that leave the folder are refused.
"""

import ctypes
import errno
import fcntl
import glob
import hashlib
import json
import os
import re
import shutil
import stat
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from allyouneed.errors import FolderError, StorageError

if TYPE_CHECKING:
    from torch import Tensor

MANIFEST = "manifest.json"
TEMPORARY = ".tmp-"
ASIDE = ".old-"
FORMAT = 1
LARGEST_MANIFEST = 1 << 20
LARGEST_TEXT = 1 << 28  # JSON, tokenisers, cards
LARGEST_TENSORS = 1 << 38
LARGEST_HEADER = 1 << 24  # the names and shapes of some hundred thousand tensors
DEEPEST = 8  # folders inside a folder
PIECE = 1 << 20
EXCHANGE = 2  # linux/fs.h: RENAME_EXCHANGE
IS_LINK = "is a link; a folder must hold its files itself"
_SHA256 = re.compile(r"[0-9a-f]{64}")

_WHY = {
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
    """Turns what the operating system refuses into one line about `what`."""
    try:
        yield
    except OSError as error:
        why = _WHY.get(error.errno or 0) or error.strerror or str(error)
        raise StorageError(f"{why} while writing {what}; what was saved before is intact") from error


# --- writing ---------------------------------------------------------------------------------------------------------


def write_atomic(path: Path, data: bytes) -> None:
    """Writes a file so that at any instant it holds the old content or the new one."""
    path = _absolute(path)
    temporary = _temporary_name(path)
    with writing(path):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with temporary.open("xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
            _sync(path.parent)
        except BaseException:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise


@contextmanager
def new_folder(final: Path) -> Iterator[Path]:
    """Gives a temporary folder to write into; at the end of the block it becomes `final`, with a manifest.

    An error inside the block removes the temporary and leaves what was there. A folder that was there is replaced, but
    only if this program wrote it (it has a manifest) or it is empty.
    """
    final = _absolute(final)
    temporary = _temporary_name(final)
    with writing(final):
        final.parent.mkdir(parents=True, exist_ok=True)
        _refuse_foreign(final)
        temporary.mkdir()
        held = _hold(temporary)
        try:
            yield temporary
            _write_manifest(temporary)
            _sync_all(temporary)
            _put_in_place(temporary, final)
            _sync(final.parent)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)  # what failed, or what was replaced
            if held is not None:
                os.close(held)


def sweep(parent: Path, name: str | None = None) -> None:
    """Removes what killed writers left in `parent`; what a living one is writing stays.

    `name`: only what writers of the folder of that name left, where `parent` is not ours.
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
    """Refuses a folder that `new_folder` could not replace, before the work that leads there."""
    folder = _absolute(folder)
    temporary = _temporary_name(folder)
    with writing(folder):
        _refuse_foreign(folder)
        for path in (folder, folder / MANIFEST):  # who made them read-only wants to keep them
            if path.exists() and not os.access(path, os.W_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        temporary.mkdir()
        temporary.rmdir()


def discard(folder: Path) -> None:
    """Removes a folder: first its name, in one step, so that a killed process leaves no half of it."""
    temporary = _temporary_name(_absolute(folder))
    with writing(folder):
        os.rename(folder, temporary)
        shutil.rmtree(temporary)


def refuse_links(folder: Path, names: Iterable[str]) -> None:
    """What is written into a folder must not end up elsewhere: none of these names in it may be a link."""
    for name in names:
        if (folder / name).is_symlink():
            raise StorageError(
                f"{folder / name}: is a link; a run keeps its files itself: remove it, or copy what is there"
            )


@contextmanager
def lock(folder: Path) -> Iterator[None]:
    """Keeps a second writer out of a run folder. The operating system releases it, however this process ends."""
    path = folder / "lock"
    with writing(path):
        folder.mkdir(parents=True, exist_ok=True)
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    try:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
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


def is_locked(folder: Path) -> bool:
    """Whether somebody writes to a run folder now."""
    try:
        file = os.open(folder / "lock", os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(file)
    return False


def _absolute(path: Path) -> Path:
    path = Path(os.path.abspath(path))
    if not path.name:
        raise StorageError(f"{path}: cannot be written; name a file or a folder inside it")
    return path


def _temporary_name(final: Path) -> Path:
    return final.with_name(f"{TEMPORARY}{final.name[:100]}-{uuid.uuid4().hex[:12]}")


def _refuse_foreign(final: Path) -> None:
    if final.is_symlink() or (final.exists() and not final.is_dir()):
        raise StorageError(f"{final}: is not a folder but a link or a file; remove it or choose another name")
    if final.is_dir() and any(final.iterdir()) and not (final / MANIFEST).is_file():
        raise StorageError(f"{final}: holds files that allyouneed did not write; choose another name")


def _hold(folder: Path) -> int | None:
    """An open, locked folder: `sweep` sees that its writer lives. Some network file systems cannot lock folders."""
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
    """Renames. Where there was a folder, the two change places in one system call if the kernel can do that."""
    if not final.exists():
        os.rename(temporary, final)
    elif not _exchange(temporary, final):
        aside = final.with_name(ASIDE + final.name)
        shutil.rmtree(aside, ignore_errors=True)
        os.rename(final, aside)
        os.rename(temporary, final)  # killed before this line: `sweep` brings the old folder back
        _sync(final.parent)
        shutil.rmtree(aside)


def _exchange(one: Path, other: Path) -> bool:
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        return False
    here = -100  # fcntl.h: AT_FDCWD; both paths are absolute anyway
    status: int = rename(here, os.fsencode(one), here, os.fsencode(other), EXCHANGE)
    return status == 0


def _write_manifest(folder: Path) -> None:
    files = {name: Entry(*_digest(folder / name)) for name in _walk(folder)}
    (folder / MANIFEST).write_bytes(_manifest_bytes(files))


def sync_files(folder: Path, pattern: str) -> None:
    """Waits until the files of a folder that fit a pattern are on the disk."""
    for path in folder.glob(pattern):
        with writing(path):
            _sync(path)


def _sync_all(folder: Path) -> None:
    for root, _, files in os.walk(folder, topdown=False):
        for name in files:
            _sync(Path(root) / name)
        _sync(Path(root))


def _sync(path: Path) -> None:
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(file)
    finally:
        os.close(file)


# --- reading ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Entry:
    """What the manifest says of a file."""

    sha256: str
    size: int


@dataclass(frozen=True)
class Sealed:
    """A folder whose manifest and listing agree. `read` gives content only if it is the content that was written."""

    path: Path
    files: Mapping[str, Entry]

    def read(self, name: str, limit: int = LARGEST_TEXT) -> bytes:
        """The bytes of a file, read once and compared with the manifest."""
        entry = self.files.get(name)
        if entry is None:
            raise FolderError(f"{self.path}: {name} is missing")
        if entry.size > limit:
            raise FolderError(f"{self.path / name}: {entry.size:,} bytes; at most {limit:,} are read")
        with _reading(self.path / name), open(_open(self.path / name), "rb") as file:
            data = file.read(entry.size + 1)
        self._compare(name, hashlib.sha256(data).hexdigest(), len(data))
        return data

    def read_json(self, name: str) -> Any:
        """A JSON file."""
        try:
            return json.loads(self.read(name).decode("utf-8"))
        except (ValueError, RecursionError) as error:
            raise FolderError(f"{self.path / name}: not JSON: {error}") from None

    def read_text(self, name: str) -> str:
        """A text file."""
        try:
            return self.read(name).decode("utf-8")
        except UnicodeDecodeError as error:
            raise FolderError(f"{self.path / name}: not UTF-8: {error}") from None

    def read_tensors(self, name: str) -> "dict[str, Tensor]":
        """Named tensors, on the CPU."""
        return parse_tensors(self.read(name, LARGEST_TENSORS), self.path / name)

    def check(self, names: Iterable[str] | None = None) -> None:
        """Compares these files, or all, with the manifest."""
        for name in self.files if names is None else names:
            with _reading(self.path / name):
                digest, size = _digest(self.path / name)
            self._compare(name, digest, size)

    def _compare(self, name: str, digest: str, size: int) -> None:
        entry = self.files[name]
        if size != entry.size:
            raise FolderError(f"{self.path / name}: {size:,} bytes, but {entry.size:,} were written")
        if digest != entry.sha256:
            raise FolderError(f"{self.path / name}: changed since it was written (its sha256 differs)")


@dataclass(frozen=True)
class Fault:
    """Where a folder is not as its manifest says."""

    name: str  # of the file in the folder
    what: str
    missing: bool = False


def read_manifest(folder: Path) -> Mapping[str, Entry]:
    """What the manifest of a folder says, whatever lies in the folder."""
    if not folder.is_dir():
        raise FolderError(f"{folder}: " + ("is a file, not a folder" if folder.exists() else "no such folder"))
    if not os.path.lexists(folder / MANIFEST):
        raise FolderError(f"{folder}: has no {MANIFEST}; it is not a folder that allyouneed wrote, or not a whole one")
    if (folder / MANIFEST).is_symlink():
        raise FolderError(f"{folder / MANIFEST}: {IS_LINK}")
    with _reading(folder), open(_open(folder / MANIFEST), "rb") as file:
        data = file.read(LARGEST_MANIFEST + 1)
    return _parse_manifest(data, folder / MANIFEST)


def compare_listing(folder: Path) -> tuple[Sealed, list[Fault]]:
    """A folder with a manifest, and where its listing and sizes are not those of the manifest."""
    files = read_manifest(folder)
    faults: list[Fault] = []
    with _reading(folder):
        found = {name: (folder / name).lstat().st_size for name in _walk(folder, faults=faults)}
    odd = {fault.name for fault in faults}
    strange, gone = sorted(found.keys() - files.keys()), sorted(files.keys() - found.keys() - odd)
    faults += [Fault(name, "is not in the manifest; somebody put it there") for name in strange]
    faults += [Fault(name, "is missing", missing=True) for name in gone]
    for name in sorted(found.keys() & files.keys()):
        if found[name] != files[name].size:
            faults.append(Fault(name, f"{found[name]:,} bytes, but {files[name].size:,} were written"))
    return Sealed(folder, files), faults


def open_folder(folder: Path, without: Collection[str] = ()) -> Sealed:
    """A folder with a manifest: its listing and sizes are compared here, its bytes when they are read. `without`: files
    that do not matter, whatever has become of them."""
    sealed, faults = compare_listing(folder)
    for fault in faults:
        if fault.name in without:
            continue
        where = f"{folder}: {fault.name}" if fault.missing else f"{folder / fault.name}:"
        raise FolderError(f"{where} {fault.what}")
    return Sealed(sealed.path, {name: entry for name, entry in sealed.files.items() if name not in without})


def verify(folder: Path) -> Sealed:
    """A folder of which every byte is as it was written; FolderError says which file is not."""
    sealed = open_folder(folder)
    sealed.check()
    return sealed


@contextmanager
def _reading(what: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise FolderError(f"{what}: not readable: {error.strerror or error}") from error


def _open(path: Path) -> int:
    return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)


def _digest(path: Path) -> tuple[str, int]:
    digest, size = hashlib.sha256(), 0
    with open(_open(path), "rb") as file:
        while piece := file.read(PIECE):
            digest.update(piece)
            size += len(piece)
    return digest.hexdigest(), size


def _walk(folder: Path, prefix: str = "", faults: list[Fault] | None = None) -> Iterator[str]:
    """The names of all files below a folder, except its manifest. Only folders and plain files are allowed in it.

    Anything else is a FolderError, or is added to `faults` if they are given.
    """
    if prefix.count("/") > DEEPEST:
        raise FolderError(f"{folder}: more than {DEEPEST} folders inside each other")
    for entry in sorted(os.scandir(folder / prefix), key=lambda entry: entry.name):
        name, mode = prefix + entry.name, entry.stat(follow_symlinks=False).st_mode
        if stat.S_ISDIR(mode):
            yield from _walk(folder, name + "/", faults)
        elif not stat.S_ISREG(mode):
            fault = Fault(name, IS_LINK if stat.S_ISLNK(mode) else "is not a plain file")
            if faults is None:
                raise FolderError(f"{folder / name}: {fault.what}")
            faults.append(fault)
        elif name != MANIFEST:
            yield name


def _manifest_bytes(files: Mapping[str, Entry]) -> bytes:
    tree = {name: {"sha256": files[name].sha256, "size": files[name].size} for name in sorted(files)}
    return (json.dumps({"format": FORMAT, "files": tree}, indent=1) + "\n").encode("ascii")


def _parse_manifest(data: bytes, where: Path) -> dict[str, Entry]:
    if len(data) > LARGEST_MANIFEST:
        raise FolderError(f"{where}: more than {LARGEST_MANIFEST:,} bytes")
    try:
        tree = json.loads(data.decode("ascii"))
        files = {name: Entry(item["sha256"], item["size"]) for name, item in tree["files"].items()}
        found = tree["format"]
        sound = all(_SHA256.fullmatch(entry.sha256) and _is_size(entry.size) for entry in files.values())
    except (ValueError, RecursionError, TypeError, KeyError, AttributeError):
        raise FolderError(f"{where}: is not a manifest, or was changed since it was written") from None
    if found != FORMAT:
        raise FolderError(f"{where}: format {found!r}; this version of allyouneed reads format {FORMAT}")
    if not sound:
        raise FolderError(f"{where}: every file should have its sha256 and its size in bytes")
    for name in files:
        if name.startswith("/") or "\\" in name or not set(name.split("/")).isdisjoint({"", ".", ".."}):
            raise FolderError(f"{where}: {name!r} is a path outside the folder")
    # Written in one form only, so that not even a changed blank goes unnoticed.
    if _manifest_bytes(files) != data:
        raise FolderError(f"{where}: changed since it was written")
    return files


def _is_size(value: object) -> bool:
    return type(value) is int and 0 <= value < 1 << 62


# --- tensors ---------------------------------------------------------------------------------------------------------


def write_tensors(path: Path, tensors: "Mapping[str, Tensor]") -> None:
    """Named tensors as one safetensors file (not atomic: for use inside `new_folder`)."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    try:
        save_file({name: tensor.detach().contiguous() for name, tensor in tensors.items()}, path)
        path.chmod(0o644)  # readable like its neighbours; the library keeps it to its owner
    except SafetensorError as error:
        code = re.search(r"\(os error (\d+)\)", str(error))
        if code is None:
            raise
        with writing(path):
            raise OSError(int(code[1]), os.strerror(int(code[1]))) from error


def parse_tensors(data: bytes, where: Path) -> "dict[str, Tensor]":
    """Named tensors from the bytes of a safetensors file."""
    from safetensors import SafetensorError
    from safetensors.torch import load

    header = int.from_bytes(data[:8], "little")
    if len(data) < 8 or header > min(LARGEST_HEADER, len(data) - 8):
        raise FolderError(f"{where}: not a safetensors file (its header does not fit into it)")
    try:
        return load(data)
    except (SafetensorError, ValueError, KeyError, TypeError, RuntimeError, OverflowError) as error:
        raise FolderError(f"{where}: not a safetensors file: {error}") from None
