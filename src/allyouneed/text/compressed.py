"""Compressed text files: gzip, bzip2 and xz are read as if they were unpacked, recognised by their first bytes."""

import bz2
import gzip
import io
import lzma
import re
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, cast

from allyouneed.errors import DataError

SUFFIXES = (".gz", ".bz2", ".xz")
# First bytes of formats that are not text: the name, and the program that unpacks it. A text may start with the first
# three bytes of bzip2, so the block size and the mark of a block, or of the end, are compared, too.
_PACKED = {
    rb"\x1f\x8b": ("gzip", "gzip -d"),
    rb"BZh[1-9](1AY&SY|\x17\x72\x45\x38\x50\x90)": ("bzip2", "bzip2 -d"),
    rb"\xfd7zXZ\x00": ("xz", "xz -d"),
    rb"\x28\xb5\x2f\xfd": ("zstd", "zstd -d"),
    rb"PK\x03\x04": ("zip", "unzip"),
}
_READERS: dict[str, Callable[[BinaryIO], Any]] = {"gzip": gzip.open, "bzip2": bz2.open, "xz": lzma.open}
LONGEST_MARK = 10  # bytes


def packed_format(start: bytes) -> tuple[str, str] | None:
    """Return the format of a compressed file, by its first bytes, and the command that unpacks it."""
    return next((found for mark, found in _PACKED.items() if re.match(mark, start)), None)


def refuse_packed(start: bytes, where: Path) -> None:
    """Raise DataError if these are the first bytes of a compressed file."""
    found = packed_format(start)
    if found is not None:
        name, command = found
        raise DataError(f"{where}: is compressed with {name}; unpack it first: {command}")


def unpacked(file: BinaryIO, path: Path) -> BinaryIO:
    """Return a file as it is, or a reader of its unpacked bytes. Raise DataError for a format that cannot be read."""
    start = file.read(LONGEST_MARK)
    file.seek(0)
    found = packed_format(start)
    if found is None:
        return file
    if found[0] not in _READERS:
        file.close()
        refuse_packed(start, path)
    return cast(BinaryIO, _Unpacked(file, found[0], path))


class _Unpacked(io.RawIOBase):
    """A reader of unpacked bytes. Raises DataError where the compressed file is damaged."""

    def __init__(self, file: BinaryIO, name: str, path: Path) -> None:
        self._file, self._name, self._path = file, name, path
        self._reader = _READERS[name](file)

    def read(self, size: int = -1) -> bytes:
        """Return at most `size` bytes; fewer only at the end."""
        try:
            data: bytes = self._reader.read(size)
        except (EOFError, OSError, lzma.LZMAError, zlib.error) as error:
            raise DataError(f"{self._path}: damaged, or not {self._name}: {error}; copy it again") from None
        return data

    def close(self) -> None:
        """Close the reader and the file."""
        if not self.closed:
            self._reader.close()
            self._file.close()
        super().close()
