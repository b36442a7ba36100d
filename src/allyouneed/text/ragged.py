"""Sequences of different lengths on disk, memory-mapped: written once as a stream, read anywhere at any time.

    name.bin      all values, concatenated (uint8, uint16 or uint32)
    name.ends     where each sequence ends (int64)

Plain numbers, no pickle.
"""

import shutil
from collections.abc import Iterable, Sequence
from itertools import chain, islice
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from allyouneed.errors import FolderError

Array = np.ndarray[Any, np.dtype[Any]]
TOGETHER = 1 << 11  # sequences that are written together
_CHUNK = 1 << 20  # sequences whose lengths are computed together


def dtype_for(size: int) -> str:
    """Return the smallest dtype for ids below `size`."""
    return "<u2" if size <= 1 << 16 else "<u4"


class RaggedWriter:
    """A writer that appends sequences, keeping only a small buffer in memory."""

    def __init__(self, folder: Path, name: str, dtype: str) -> None:
        self._values = (folder / f"{name}.bin").open("xb")
        self._ends = (folder / f"{name}.ends").open("xb")
        self._dtype = np.dtype(dtype)
        self._end = 0

    def extend(self, sequences: Iterable[Sequence[int] | bytes]) -> None:
        """Append sequences."""
        source = iter(sequences)
        while given := list(islice(source, TOGETHER)):
            lengths = np.fromiter(map(len, given), np.int64, len(given))
            if self._dtype.itemsize == 1:
                self._values.write(b"".join(map(bytes, given)))
            else:  # one array of all: twice as fast as one for each
                self._values.write(np.fromiter(chain.from_iterable(given), self._dtype, int(lengths.sum())).tobytes())
            ends = self._end + np.cumsum(lengths, dtype="<i8")
            self._ends.write(ends.tobytes())
            self._end = int(ends[-1])

    def __enter__(self) -> "RaggedWriter":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Flush and close both files."""
        self._values.close()
        self._ends.close()


class Ragged:
    """The sequences that a RaggedWriter wrote."""

    def __init__(self, folder: Path, name: str, dtype: str) -> None:
        self.values = _mapped(folder / f"{name}.bin", dtype)
        self.ends = _mapped(folder / f"{name}.ends", "<i8")
        if len(self.values) != (int(self.ends[-1]) if len(self.ends) else 0):
            raise FolderError(f"{folder / name}.bin: does not match its .ends file")

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, index: int) -> Array:
        start = int(self.ends[index - 1]) if index else 0
        return self.values[start : int(self.ends[index])]

    def lengths(self) -> Array:
        """Return the length of each sequence."""
        return np.diff(self.ends, prepend=np.int64(0))

    def short_lengths(self, more: int = 0) -> Array:
        """Return the length of each sequence, plus `more`, in 16 or 32 bits; in chunks, to save memory."""
        starts = range(0, len(self.ends), _CHUNK)
        bounds = [(begin, self.ends[max(0, begin - 1) : begin + _CHUNK]) for begin in starts]
        parts = (np.diff(ends, prepend=ends[:0] if begin else np.int64(0)) for begin, ends in bounds)
        longest = max((int(part.max()) for part in parts if len(part)), default=0) + more
        found = np.empty(len(self.ends), dtype=np.uint16 if longest < 1 << 16 else np.uint32)
        for begin, ends in bounds:
            part = np.diff(ends, prepend=ends[:0] if begin else np.int64(0))
            found[begin : begin + len(part)] = part + more
        return found

    def lengths_of(self, indices: Array) -> Array:
        """Return the lengths of some sequences."""
        return self.ends[indices] - np.where(indices > 0, self.ends[indices - 1], 0)

    def joined(self, indices: Array) -> Array:
        """Return several sequences, concatenated."""
        lengths = self.lengths_of(indices)
        starts = self.ends[indices] - lengths
        shift = np.repeat(starts - np.cumsum(lengths) + lengths, lengths)
        return self.values[shift + np.arange(len(shift))]

    def text(self, index: int) -> str:
        """Return a sequence of UTF-8 bytes as text."""
        return self[index].tobytes().decode("utf-8")


def concatenate(files: Sequence[Path], final: Path) -> None:
    """Write several `.bin` files, or several `.ends` files, of the same name as one: as a single writer would."""
    with final.open("xb") as out:
        if final.suffix == ".bin":
            for file in files:
                with file.open("rb") as part:
                    shutil.copyfileobj(part, out, 1 << 20)
            return
        last = 0
        for file in files:
            ends = _mapped(file, "<i8") + last
            out.write(ends.astype("<i8").tobytes())
            last = int(ends[-1]) if len(ends) else last


def padded(rows: Sequence[Array], before: Sequence[int] = (), after: Sequence[int] = (), pad: int = 0) -> Array:
    """Return rows as one int64 array: the ids `before`, the row, the ids `after`, padding on the right."""
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
