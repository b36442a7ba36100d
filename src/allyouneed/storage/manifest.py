"""The manifest of a folder: the sha256 and size of each file in it."""

import hashlib
import json
import os
import re
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from allyouneed.errors import FolderError
from allyouneed.storage.disk import open_plain, reading

MANIFEST = "manifest.json"
FORMAT = 1
LARGEST_MANIFEST = 1 << 20
DEEPEST = 8  # folders inside a folder
CHUNK = 1 << 20
IS_LINK = "is a link; a folder must hold its files itself"
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Entry:
    """The manifest's entry for a file."""

    sha256: str
    size: int


@dataclass(frozen=True)
class Fault:
    """A difference between a folder and its manifest."""

    name: str  # of the file in the folder
    what: str
    missing: bool = False


def write_manifest(folder: Path) -> None:
    """Write the manifest of all files that are in a folder now."""
    files = {name: Entry(*digest(folder / name)) for name in walk(folder)}
    (folder / MANIFEST).write_bytes(_manifest_bytes(files))


def read_manifest(folder: Path) -> Mapping[str, Entry]:
    """Read the manifest of a folder, without comparing it with the folder."""
    if not folder.is_dir():
        raise FolderError(f"{folder}: " + ("is a file, not a folder" if folder.exists() else "no such folder"))
    if not os.path.lexists(folder / MANIFEST):
        raise FolderError(f"{folder}: has no {MANIFEST}; it is not a folder that allyouneed wrote, or it is incomplete")
    if (folder / MANIFEST).is_symlink():
        raise FolderError(f"{folder / MANIFEST}: {IS_LINK}")
    with reading(folder), open(open_plain(folder / MANIFEST), "rb") as file:
        data = file.read(LARGEST_MANIFEST + 1)
    return parse_manifest(data, folder / MANIFEST)


def digest(path: Path) -> tuple[str, int]:
    """Return the sha256 and the size of a file."""
    sha256, size = hashlib.sha256(), 0
    with open(open_plain(path), "rb") as file:
        while chunk := file.read(CHUNK):
            sha256.update(chunk)
            size += len(chunk)
    return sha256.hexdigest(), size


def walk(folder: Path, prefix: str = "", faults: list[Fault] | None = None) -> Iterator[str]:
    """Yield the names of all files below a folder, except its manifest.

    Anything but folders and plain files raises FolderError, or is added to `faults` if that list is passed.
    """
    if prefix.count("/") > DEEPEST:
        raise FolderError(f"{folder}: more than {DEEPEST} folders inside each other")
    for entry in sorted(os.scandir(folder / prefix), key=lambda entry: entry.name):
        name, mode = prefix + entry.name, entry.stat(follow_symlinks=False).st_mode
        if stat.S_ISDIR(mode):
            yield from walk(folder, name + "/", faults)
        elif not stat.S_ISREG(mode):
            fault = Fault(name, IS_LINK if stat.S_ISLNK(mode) else "is not a plain file")
            if faults is None:
                raise FolderError(f"{folder / name}: {fault.what}")
            faults.append(fault)
        elif name != MANIFEST:
            yield name


def parse_manifest(data: bytes, where: Path) -> dict[str, Entry]:
    """Parse the bytes of a manifest; raise FolderError unless they are exactly what `write_manifest` writes."""
    if len(data) > LARGEST_MANIFEST:
        raise FolderError(f"{where}: more than {LARGEST_MANIFEST:,} bytes")
    try:
        tree = json.loads(data.decode("ascii"))
        files = {name: Entry(item["sha256"], item["size"]) for name, item in tree["files"].items()}
        found = tree["format"]
        valid = all(_SHA256.fullmatch(entry.sha256) and _is_size(entry.size) for entry in files.values())
    except (ValueError, RecursionError, TypeError, KeyError, AttributeError):
        raise FolderError(f"{where}: is not a manifest, or was changed since it was written") from None
    if found != FORMAT:
        raise FolderError(f"{where}: format {found!r}; this version of allyouneed reads format {FORMAT}")
    if not valid:
        raise FolderError(f"{where}: every file should have its sha256 and its size in bytes")
    for name in files:
        if name.startswith("/") or "\\" in name or not set(name.split("/")).isdisjoint({"", ".", ".."}):
            raise FolderError(f"{where}: {name!r} is a path outside the folder")
    # A manifest has one form only, so that even a changed blank is noticed.
    if _manifest_bytes(files) != data:
        raise FolderError(f"{where}: changed since it was written")
    return files


def _manifest_bytes(files: Mapping[str, Entry]) -> bytes:
    tree = {name: {"sha256": files[name].sha256, "size": files[name].size} for name in sorted(files)}
    return (json.dumps({"format": FORMAT, "files": tree}, indent=1) + "\n").encode("ascii")


def _is_size(value: object) -> bool:
    return type(value) is int and 0 <= value < 1 << 62
