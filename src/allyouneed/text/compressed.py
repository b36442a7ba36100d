"""Compressed text files: gzip, bzip2, xz and zstd are read as if they were unpacked, recognised by their first bytes.

Unpacking is streamed, so a file that unpacks to terabytes takes no more memory than its dictionary. Its limit is
`LARGEST_DICTIONARY` for xz, and 128 MiB for zstd.
"""

import bz2
import gzip
import io
import lzma
import re
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, Protocol, cast

from allyouneed.errors import DataError, DependencyError

SUFFIXES = (".gz", ".bz2", ".xz", ".zst")
LARGEST_DICTIONARY = 256 << 20  # bytes; `xz -9` needs 65 MiB
# First bytes of formats that are not text: the name, and the program that unpacks it. A text may start with the first
# three bytes of bzip2, so the block size and the mark of a block, or of the end, are compared, too.
_PACKED = {
    rb"\x1f\x8b": ("gzip", "gzip -d"),
    rb"BZh[1-9](1AY&SY|\x17\x72\x45\x38\x50\x90)": ("bzip2", "bzip2 -d"),
    rb"\xfd7zXZ\x00": ("xz", "xz -d"),
    rb"\x28\xb5\x2f\xfd": ("zstd", "zstd -d"),
    rb"PK\x03\x04": ("zip", "unzip"),
}
LONGEST_MARK = 10  # bytes
_PACKED_BLOCK = 1 << 16  # bytes of an xz file read at once


class _Reader(Protocol):
    def read(self, size: int, /) -> bytes: ...
    def close(self) -> None: ...


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


def without_packing(name: str) -> str:
    """Return a file name without the suffix of a compression."""
    return next((name.removesuffix(suffix) for suffix in SUFFIXES if name.endswith(suffix)), name)


class _Unpacked(io.RawIOBase):
    """A reader of unpacked bytes. Raises DataError where the compressed file is damaged."""

    def __init__(self, file: BinaryIO, name: str, path: Path) -> None:
        self._file, self._name, self._path = file, name, path
        try:
            self._reader: _Reader = _READERS[name](file)
        except ImportError:
            file.close()
            command = next(command for known, command in _PACKED.values() if known == name)
            raise DependencyError(
                f"{path}: is compressed with {name}, which pyarrow reads; install it: pip install "
                f"'allyouneed[arrow]', or unpack the file first: {command}"
            ) from None

    def read(self, size: int = -1) -> bytes:
        """Return at most `size` bytes; fewer only at the end."""
        try:
            return self._reader.read(size)
        except (EOFError, OSError, ValueError, lzma.LZMAError, zlib.error) as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            if "emory" in reason:
                raise DataError(
                    f"{self._path}: unpacking needs too much memory; pack it again with a usual {self._name} level"
                ) from None
            raise DataError(f"{self._path}: damaged, or not {self._name}: {reason}; copy it again") from None

    def close(self) -> None:
        """Close the reader and the file."""
        if not self.closed:
            self._reader.close()
            self._file.close()
        super().close()


class _XzReader:
    """A reader of xz files. Unlike `lzma.open` it limits the dictionary, which a file may claim to have 4 GiB."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._waiting = file, b""
        self._stream: lzma.LZMADecompressor | None = None

    def read(self, size: int, /) -> bytes:
        """Return `size` bytes; fewer only at the end."""
        parts, missing = [], size
        while missing > 0 and (part := self._some(missing)):
            parts.append(part)
            missing -= len(part)
        return b"".join(parts)

    def _some(self, most: int) -> bytes:
        """Return some bytes, none only at the end."""
        while True:
            if self._stream is None or self._stream.eof:
                rest = self._waiting if self._stream is None else self._stream.unused_data
                rest = (rest or self._file.read(_PACKED_BLOCK)).lstrip(b"\0")  # zeros may pad a stream
                if not rest:
                    return b""
                self._stream = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=LARGEST_DICTIONARY)
                found = self._stream.decompress(rest, most)
            else:
                block = self._file.read(_PACKED_BLOCK) if self._stream.needs_input else b""
                if self._stream.needs_input and not block:
                    raise EOFError("it ends in the middle")
                found = self._stream.decompress(block, most)
            if found:
                return found

    def close(self) -> None:
        """Do nothing: the file is closed by its owner."""


def _zstd_reader(file: BinaryIO) -> _Reader:
    import pyarrow

    return cast(_Reader, pyarrow.CompressedInputStream(pyarrow.PythonFile(file, mode="r"), "zstd"))


_READERS: dict[str, Callable[[BinaryIO], Any]] = {
    "gzip": gzip.open,
    "bzip2": bz2.open,
    "xz": _XzReader,
    "zstd": _zstd_reader,
}
