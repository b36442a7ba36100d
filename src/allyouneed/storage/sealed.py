"""Folders that are read back: every byte is compared with the manifest first."""

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from allyouneed.errors import FolderError
from allyouneed.storage.disk import open_plain, reading
from allyouneed.storage.manifest import Entry, Fault, digest, read_manifest, walk
from allyouneed.storage.tensors import LARGEST_TENSORS, TensorFile, open_tensors

if TYPE_CHECKING:
    from torch import Tensor

LARGEST_TEXT = 1 << 28  # JSON, tokenizers, model cards


@dataclass(frozen=True)
class Sealed:
    """A folder whose listing matches its manifest. `read` returns only content that matches the manifest."""

    path: Path
    files: Mapping[str, Entry]

    def read(self, name: str, limit: int = LARGEST_TEXT) -> bytes:
        """Return the bytes of a file, read once and compared with the manifest."""
        entry = self.files.get(name)
        if entry is None:
            raise FolderError(f"{self.path}: {name} is missing")
        if entry.size > limit:
            raise FolderError(f"{self.path / name}: {entry.size:,} bytes; at most {limit:,} are read")
        with reading(self.path / name), open(open_plain(self.path / name), "rb") as file:
            data = file.read(entry.size + 1)
        self._compare(name, hashlib.sha256(data).hexdigest(), len(data))
        return data

    def read_json(self, name: str) -> Any:
        """Return the content of a JSON file."""
        try:
            return json.loads(self.read(name).decode("utf-8"))
        except (ValueError, RecursionError) as error:
            raise FolderError(f"{self.path / name}: not JSON: {error}") from None

    def read_text(self, name: str) -> str:
        """Return the content of a text file."""
        try:
            return self.read(name).decode("utf-8")
        except UnicodeDecodeError as error:
            raise FolderError(f"{self.path / name}: not UTF-8: {error}") from None

    def read_tensors(self, name: str) -> "dict[str, Tensor]":
        """Return the named tensors of a safetensors file, on the CPU: the bytes that were compared."""
        file, sha256 = self._open_tensors(name), hashlib.sha256()
        found = file.read_all(sha256)
        self._compare(name, sha256.hexdigest(), file.size)
        return found

    def map_tensors(self, name: str) -> "dict[str, Tensor]":
        """Return the same tensors, large ones mapped after the file was compared; tensors.py says what they are for."""
        file, sha256 = self._open_tensors(name), hashlib.sha256()
        size = file.add_to(sha256)
        self._compare(name, sha256.hexdigest(), size)
        return {name: file.map(name) for name in file.places}

    def _open_tensors(self, name: str) -> TensorFile:
        entry = self.files.get(name)
        if entry is None:
            raise FolderError(f"{self.path}: {name} is missing")
        if entry.size > LARGEST_TENSORS:
            raise FolderError(f"{self.path / name}: {entry.size:,} bytes; at most {LARGEST_TENSORS:,} are read")
        try:
            return open_tensors(self.path / name)
        except FolderError:
            self.check([name])  # a damaged file is called so, whatever its header looks like
            raise

    def check(self, names: Iterable[str] | None = None) -> None:
        """Compare these files, or all, with the manifest."""
        for name in self.files if names is None else names:
            with reading(self.path / name):
                sha256, size = digest(self.path / name)
            self._compare(name, sha256, size)

    def _compare(self, name: str, sha256: str, size: int) -> None:
        entry = self.files[name]
        if size != entry.size:
            raise FolderError(f"{self.path / name}: {size:,} bytes, but {entry.size:,} were written")
        if sha256 != entry.sha256:
            raise FolderError(f"{self.path / name}: changed since it was written (its sha256 differs)")


def compare_listing(folder: Path) -> tuple[Sealed, list[Fault]]:
    """Return a folder, and all differences between its listing and sizes and those of its manifest."""
    files = read_manifest(folder)
    faults: list[Fault] = []
    with reading(folder):
        found = {name: (folder / name).lstat().st_size for name in walk(folder, faults=faults)}
    reported = {fault.name for fault in faults}
    added, missing = sorted(found.keys() - files.keys()), sorted(files.keys() - found.keys() - reported)
    faults += [Fault(name, "is not in the manifest; it was added later") for name in added]
    faults += [Fault(name, "is missing", missing=True) for name in missing]
    for name in sorted(found.keys() & files.keys()):
        if found[name] != files[name].size:
            faults.append(Fault(name, f"{found[name]:,} bytes, but {files[name].size:,} were written"))
    return Sealed(folder, files), faults


def open_folder(folder: Path, without: Collection[str] = ()) -> Sealed:
    """Open a folder with a manifest: compare its listing and sizes now, and its bytes when they are read.

    `without`: files that are ignored, changed or not.
    """
    sealed, faults = compare_listing(folder)
    for fault in faults:
        if fault.name in without:
            continue
        where = f"{folder}: {fault.name}" if fault.missing else f"{folder / fault.name}:"
        raise FolderError(f"{where} {fault.what}")
    return Sealed(sealed.path, {name: entry for name, entry in sealed.files.items() if name not in without})


def verify(folder: Path) -> Sealed:
    """Open a folder and compare every byte with its manifest; FolderError names the first file that differs."""
    sealed = open_folder(folder)
    sealed.check()
    return sealed
