"""Sequences of different lengths on disk, memory-mapped: written once as a stream, read anywhere at any time.

    name.bin      all values, one sequence after another (uint8, uint16 or uint32)
    name.ends     where each sequence ends (int64)

Plain numbers, no pickle. They stand in a sealed folder (storage.py) together with `key.json`, which says what
they were made from: the same sources and settings find them again, anything else makes them anew.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from allyouneed.errors import FolderError
from allyouneed.storage import new_folder, verify
from allyouneed.text.lines import BLOCK, open_text, resolve

FORMAT = 1  # of what is prepared; a change in how data is made raises it
Array = np.ndarray[Any, np.dtype[Any]]


def dtype_for(size: int) -> str:
    """The smallest type that holds ids below `size`."""
    return "<u2" if size <= 1 << 16 else "<u4"


class RaggedWriter:
    """Appends sequences; everything but a small buffer is on disk."""

    def __init__(self, folder: Path, name: str, dtype: str) -> None:
        self._values = (folder / f"{name}.bin").open("xb")
        self._ends = (folder / f"{name}.ends").open("xb")
        self._dtype = np.dtype(dtype)
        self._end = 0

    def extend(self, sequences: Iterable[Sequence[int] | bytes]) -> None:
        """Writes some sequences."""
        lengths = []
        for sequence in sequences:
            raw = sequence if isinstance(sequence, bytes) else np.asarray(sequence, self._dtype).tobytes()
            self._values.write(raw)
            lengths.append(len(sequence))
        ends = self._end + np.cumsum(lengths, dtype="<i8")
        self._ends.write(ends.tobytes())
        self._end += sum(lengths)

    def __enter__(self) -> "RaggedWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Everything is on disk."""
        self._values.close()
        self._ends.close()


class Ragged:
    """Reads what a RaggedWriter wrote."""

    def __init__(self, folder: Path, name: str, dtype: str) -> None:
        self.values = _mapped(folder / f"{name}.bin", dtype)
        self.ends = _mapped(folder / f"{name}.ends", "<i8")
        if len(self.values) != (int(self.ends[-1]) if len(self.ends) else 0):
            raise FolderError(f"{folder / name}.bin: does not fit its .ends")

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, index: int) -> Array:
        start = int(self.ends[index - 1]) if index else 0
        return self.values[start : int(self.ends[index])]

    def lengths(self) -> Array:
        """How long each sequence is."""
        return np.diff(self.ends, prepend=np.int64(0))

    def lengths_of(self, indices: Array) -> Array:
        """How long some sequences are."""
        return self.ends[indices] - np.where(indices > 0, self.ends[indices - 1], 0)

    def joined(self, indices: Array) -> Array:
        """Several sequences as one."""
        lengths = self.lengths_of(indices)
        starts = self.ends[indices] - lengths
        shift = np.repeat(starts - np.cumsum(lengths) + lengths, lengths)
        return self.values[shift + np.arange(len(shift))]

    def text(self, index: int) -> str:
        """A sequence of bytes as text."""
        return self[index].tobytes().decode("utf-8")


def padded(rows: Sequence[Array], before: Sequence[int] = (), after: Sequence[int] = (), pad: int = 0) -> Array:
    """Rows as one int64 array, each between the ids `before` and `after`, padded on the right."""
    first, last = len(before), len(after)
    width = max(len(row) for row in rows) + first + last
    array = np.full((len(rows), width), pad, dtype=np.int64)
    array[:, :first] = before
    for line, row in zip(array, rows, strict=True):
        line[first : first + len(row)] = row
        line[first + len(row) : first + len(row) + last] = after
    return array


def _mapped(path: Path, dtype: str) -> Array:
    if path.stat().st_size == 0:
        return np.zeros(0, dtype=dtype)  # an empty file cannot be mapped
    return np.memmap(path, dtype=dtype, mode="r")


def source_hashes(names: Iterable[str]) -> dict[str, str]:
    """The sha256 of each source file, by the name the recipe gives it."""
    return {name: _sha256(resolve(name)) for name in dict.fromkeys(names)}


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with open_text(path) as file:
        while block := file.read(BLOCK):
            digest.update(block)
    return digest.hexdigest()


def prepared(folder: Path, key: dict[str, Any], build: Callable[[Path], None]) -> Path:
    """The folder that `build` filled for exactly this key: an old one if it is there and unharmed, else a new one."""
    final = folder / "prepared"
    text = json.dumps({"format": FORMAT, **key}, ensure_ascii=False, indent=1, sort_keys=True, default=str)
    try:
        if verify(final).read_text("key.json") == text:
            return final
    except FolderError:
        pass  # absent, incomplete or harmed: it is only a copy of the sources
    with new_folder(final) as temporary:
        build(temporary)
        (temporary / "key.json").write_text(text, encoding="utf-8")
    return final
