"""Reading text files: streamed, in constant memory. Bytes that are not text are refused with file, line and byte.

Only LF ends a line. U+2028, U+0085, VT, FF and a lone CR are part of their line (`str.splitlines` splits there and
misaligns parallel files). The last LF is optional. A BOM at the start of a file and a CR before an LF are dropped.
"""

import codecs
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from allyouneed.errors import DataError, MissingFileError
from allyouneed.text.compressed import refuse_packed, unpacked

LONGEST_LINE = 4 << 20  # bytes; a longer one is refused without being read whole
BLOCK = 1 << 20  # bytes of one read
CHUNK_ROWS = 2048  # rows tokenised together, or fewer if they are long
CHUNK_CHARACTERS = 1 << 20
DATA_VARIABLE = "ALLYOUNEED_DATA"
DATA_DEFAULT = "../shared/data"
NO_DATA = "the data of an imported model are not known"  # in place of file names in the recipe of an import

_OTHER_ENCODINGS = {
    codecs.BOM_UTF32_LE: "UTF-32",
    codecs.BOM_UTF32_BE: "UTF-32",
    codecs.BOM_UTF16_LE: "UTF-16",
    codecs.BOM_UTF16_BE: "UTF-16",
}
Pair = tuple[str, str]
T = TypeVar("T")


def resolve(name: str) -> Path:
    """Return the path of a recipe's file: in the current folder, or in $ALLYOUNEED_DATA if it starts with `$DATA/`."""
    if not name.startswith("$DATA/"):
        return Path(name)
    folder = Path(os.environ.get(DATA_VARIABLE, DATA_DEFAULT))
    if not folder.is_dir():
        raise DataError(
            f"{name}: $DATA is {folder}, which is not a folder; set {DATA_VARIABLE} to the folder with the data"
        )
    return folder / name.removeprefix("$DATA/")


def open_text(path: Path) -> BinaryIO:
    """Open a file for reading bytes, unpacked if it is compressed. Raise DataError with the reason if that fails."""
    try:
        if path.exists() and not path.is_file():
            raise DataError(f"{path}: not a regular file; data is read more than once, so it must be one")
        return unpacked(path.open("rb"), path)
    except FileNotFoundError:
        if path.name == NO_DATA:
            raise MissingFileError(NO_DATA) from None
        hint = ""
        if "," in str(path):
            names = ",".join(f'"{name.strip()}"' for name in str(path).split(","))
            hint = f"; several files are a list in brackets, quoted for the shell: --set 'task.train=[{names}]'"
        raise MissingFileError(f"{path}: no such file{hint}") from None
    except (OSError, ValueError) as error:
        raise DataError(f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}") from None


def lines(path: Path) -> Iterator[str]:
    """Yield the lines of a UTF-8 file, without line ends."""
    number = 1
    for raw in _whole_lines(path):
        found = decode_text(raw, path, number).split("\n")  # many lines at once: a quarter of the time
        if b"\r" in raw:
            found = [line.removesuffix("\r") for line in found]
        yield from found
        number += len(found)


def blocks(path: Path) -> Iterator[str]:
    """Yield the whole text of a UTF-8 file in pieces of at most about 1 MiB, each cut after an LF where there is one.

    CR LF becomes LF. Unlike `lines`, this accepts lines of any length, because running text may have no line ends.
    """
    rest, number, given, ended = b"", 1, 0, False
    for block in _blocks(path):
        rest += block
        # An incomplete line is kept until its end is read, unless it is as long as a block.
        cut = rest.rfind(b"\n") + 1 or (_whole_characters(rest) if len(rest) >= BLOCK else 0)
        if cut:
            yield decode_text(rest[:cut], path, number, given).replace("\r\n", "\n")
            ends = rest.count(b"\n", 0, cut)
            number, ended, given = number + ends, ended or ends > 0, 0 if ends else given + cut
            rest = rest[cut:]
    if rest:
        _refuse_lone_carriage_returns(path, rest, ended)
        yield decode_text(rest, path, number, given).replace("\r\n", "\n")


def _whole_characters(raw: bytes) -> int:
    """Return how many bytes of `raw` end with a complete character (and not with a CR whose LF may follow)."""
    end = len(raw)
    while end > len(raw) - 4 and raw[end - 1] & 0xC0 == 0x80:
        end -= 1
    if raw[end - 1] >= 0xC0 or raw[end - 1] == 0x0D:
        return end - 1
    return len(raw)


def _blocks(path: Path) -> Iterator[bytes]:
    with open_text(path) as file:
        block = without_mark(file.read(BLOCK), path)
        while block:
            yield block
            block = file.read(BLOCK)


def without_mark(block: bytes, path: Path) -> bytes:
    """Return the first bytes of a text without a UTF-8 BOM. Raise DataError if they are not those of a UTF-8 text."""
    refuse_packed(block, path)
    for mark, encoding in _OTHER_ENCODINGS.items():
        if block.startswith(mark):
            raise DataError(f"{path}: line 1: is {encoding}; convert it: iconv -f {encoding} -t UTF-8")
    return block.removeprefix(codecs.BOM_UTF8)


def _whole_lines(path: Path) -> Iterator[bytes]:
    """Yield the bytes of whole lines, about a block of them at a time, without the last LF."""
    parts: list[bytes] = []  # pieces of the current line: joining them once keeps this linear
    held, number = 0, 1
    for block in _blocks(path):
        end = block.rfind(b"\n")
        if end >= 0:
            _refuse_long(path, number, held + block.find(b"\n"))
            whole = b"".join([*parts, block[:end]])
            number, held = number + whole.count(b"\n") + 1, 0
            parts.clear()
            yield whole
        parts.append(block[end + 1 :])
        held += len(parts[-1])
        if held > LONGEST_LINE:
            _refuse_lone_carriage_returns(path, b"".join(parts), number > 1)
        _refuse_long(path, number, held)
    last = b"".join(parts)
    if last:
        _refuse_lone_carriage_returns(path, last, number > 1)
        yield last


def _refuse_long(path: Path, number: int, length: int) -> None:
    if length > LONGEST_LINE:
        raise DataError(f"{path}: line {number}: longer than {LONGEST_LINE:,} bytes; a line should hold one text")


def _refuse_lone_carriage_returns(path: Path, last: bytes, ended: bool) -> None:
    """Raise DataError if a file has CR but no LF (line ends of old Macintoshes): it would be read as one line."""
    if not ended and b"\r" in last.removesuffix(b"\r"):
        raise DataError(f"{path}: line 1: lines end in CR; they should end in LF: tr '\\r' '\\n' converts the file")


def decode_text(raw: bytes, path: Path, number: int, given: int = 0) -> str:
    """Decode whole lines. The first is line `number`, of which `given` bytes are decoded already."""
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        bad = error.start
        what = (
            f"0x{raw[bad]:02X} is not UTF-8 ({error.reason}); convert the file: iconv -f LATIN1 -t UTF-8, for example"
        )
    else:
        if "\0" not in text:
            return text
        bad, what = raw.index(0), "is NUL; this is not a text file, or it is UTF-16"
    before = raw.rfind(b"\n", 0, bad) + 1
    line, byte = number + raw.count(b"\n", 0, bad), bad - before + 1 + (0 if before else given)
    raise DataError(f"{path}: line {line}: byte {byte} {what}")


@dataclass
class Skips:
    """Counts of what was skipped in a corpus, by reason."""

    where: str
    read: int = 0
    reasons: dict[str, int] = field(default_factory=dict)

    def skip(self, reason: str) -> None:
        self.reasons[reason] = self.reasons.get(reason, 0) + 1

    @property
    def kept(self) -> int:
        return self.read - sum(self.reasons.values())

    def notes(self) -> list[str]:
        """Return one line for each reason."""
        return [f"{self.where}: {count:,} of {self.read:,} skipped: {why}" for why, count in self.reasons.items()]


def merged(parts: Sequence[dict[str, Any]]) -> Skips:
    """Return the sum of counts of the same split, each as a dictionary."""
    total = Skips(parts[0]["where"])
    for part in parts:
        total.read += part["read"]
        for reason, count in part["reasons"].items():
            total.reasons[reason] = total.reasons.get(reason, 0) + count
    return total


def parallel(source: Path, target: Path) -> Iterator[Pair]:
    """Yield the pairs of two files with the same number of lines."""
    left, right = lines(source), lines(target)
    for number, (ours, theirs) in enumerate(zip_longest(left, right), 1):
        if ours is None or theirs is None:
            longer = number + sum(1 for _ in (right if ours is None else left))
            counts = (number - 1, longer) if ours is None else (longer, number - 1)
            raise DataError(
                f"{source} has {counts[0]:,} lines, {target} has {counts[1]:,}: they should have the same number, "
                f"each line the translation of the other (line {number:,} has no partner)"
            )
        yield ours, theirs


def chunks(rows: Iterator[tuple[str, T]]) -> Iterator[list[tuple[str, T]]]:
    """Yield rows in lists: long enough to be worth a call, short enough for constant memory."""
    chunk: list[tuple[str, T]] = []
    held = 0
    for row in rows:
        chunk.append(row)
        held += sum(len(item) for item in row if isinstance(item, str))
        if len(chunk) >= CHUNK_ROWS or held >= CHUNK_CHARACTERS:
            yield chunk
            chunk, held = [], 0
    if chunk:
        yield chunk


def filled(rows: Iterator[Pair], skips: Skips, names: Pair = ("source", "target")) -> Iterator[Pair]:
    """Yield the pairs without an empty side; count the others in `skips`."""
    for pair in rows:
        skips.read += 1
        if pair[0].strip() and pair[1].strip():
            yield pair
        else:
            missing = [name for name, text in zip(names, pair, strict=True) if not text.strip()]
            skips.skip(f"empty {' and '.join(missing)}")
