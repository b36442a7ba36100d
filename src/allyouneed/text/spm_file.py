"""Reads a SentencePiece model (`spiece.model`, `source.spm`, `tokenizer.model`) from an untrusted source.

The file is a protocol buffer. Its fields are parsed and checked here, and `SpmModel.proto` writes a new file with
nothing but the checked fields: the library reads a table of normal forms without bounds checks, and a text with forged
tables could take any time. Fields that only concern training are left out.
"""

import re
import struct
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from math import isfinite
from typing import Any, Literal

import numpy as np

from allyouneed.errors import FolderError

LARGEST_SPM = 32 << 20  # bytes; the vocabulary of 256,000 pieces of Gemma has 4 million
MOST_PIECES = 1 << 20
LONGEST_PIECE = 1000  # bytes
LONGEST_FORM = 64  # bytes of one normal form
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)  # types of pieces
BYTE_NAME = re.compile("<0x[0-9A-F]{2}>")
KINDS = {1: "unigram", 2: "bpe", 3: "word", 4: "char"}
SpmKind = Literal["unigram", "bpe", "word", "char"]
# Fields of TrainerSpec and NormalizerSpec that are kept: number, and the type of the value.
_TRAINER = {3: int, 24: int, 35: int, 44: str, 45: str, 46: str, 47: str, 48: str}
_NORMALIZER = {2: bytes, 3: int, 4: int, 5: int}
_MODEL_TYPE, _CHARSMAP, _DUMMY_PREFIX = 3, 2, 3
Value = int | bytes


@dataclass(frozen=True)
class SpmModel:
    """The pieces of a model with their scores and types, and its other settings as they are written."""

    kind: SpmKind
    pieces: tuple[str, ...]
    scores: tuple[float, ...]
    types: tuple[int, ...]
    settings: bytes

    def proto(self, prefix: bool = True) -> bytes:
        """Return the bytes of a file with the checked fields. Without `prefix`, no blank is added before a text."""
        rows = zip(self.pieces, self.scores, self.types, strict=True)
        written = [_field(1, _field(1, name.encode()) + _field(2, score) + _field(3, one)) for name, score, one in rows]
        return b"".join([*written, self.settings, b"" if prefix else _field(3, _field(_DUMMY_PREFIX, 0))])

    def with_controls(self, numbers: Collection[int]) -> "SpmModel":
        """Return the model with these pieces as control symbols, which no text contains."""
        types = tuple(CONTROL if one in numbers else kind for one, kind in enumerate(self.types))
        return replace(self, types=types)

    def of_type(self, *types: int) -> list[int]:
        """Return the ids of pieces of some types."""
        return [number for number, one in enumerate(self.types) if one in types]


def parse_spm(data: bytes, where: object) -> SpmModel:
    """Return the checked model. Raise FolderError if the bytes are not one."""
    try:
        return _parsed(data)
    except (ValueError, IndexError, struct.error, UnicodeDecodeError) as error:
        raise FolderError(f"{where}: not a SentencePiece model: {error or type(error).__name__}") from None


def _parsed(data: bytes) -> SpmModel:
    pieces: list[tuple[str, float, int]] = []
    parts: dict[int, dict[int, Value]] = {2: {}, 3: {}, 5: {}}  # trainer, normaliser and denormaliser
    for number, value in _fields(data):
        if number == 1:
            pieces.append(_piece(value))
            if len(pieces) > MOST_PIECES:
                raise ValueError(f"more than {MOST_PIECES:,} pieces")
        elif number in parts:
            if not isinstance(value, bytes):
                raise ValueError(f"field {number} is a number")
            parts[number] |= _settings(value, _TRAINER if number == 2 else _NORMALIZER)
    names, scores, types = zip(*pieces, strict=True) if pieces else ((), (), ())
    if types.count(UNKNOWN) != 1:
        raise ValueError(f"{types.count(UNKNOWN)} unknown pieces; should have 1")
    if len(set(names)) != len(names):
        raise ValueError("two pieces are the same")
    kind = KINDS.get(int(parts[2].get(_MODEL_TYPE, 1)))
    if kind is None:
        raise ValueError(f"model type {parts[2][_MODEL_TYPE]!r}; should be one of {', '.join(KINDS.values())}")
    for number in (3, 5):
        _check_forms(bytes(parts[number].get(_CHARSMAP, b"")))
    written = [_field(n, b"".join(_field(*one) for one in settings.items())) for n, settings in parts.items()]
    return SpmModel(kind, names, scores, types, b"".join(written))  # type: ignore[arg-type]


def _piece(value: Value | float) -> tuple[str, float, int]:
    if not isinstance(value, bytes):
        raise ValueError("a piece is a number")
    name, score, kind = "", 0.0, NORMAL
    for number, inner in _fields(value):
        if number == 1 and isinstance(inner, bytes):
            name = inner.decode("utf-8")
        elif number == 2 and isinstance(inner, float):
            score = inner
        elif number == 3 and isinstance(inner, int):
            kind = inner
    if not name or len(name.encode()) > LONGEST_PIECE or "\0" in name:
        raise ValueError(f"piece {name[:20]!r}: should have 1 to {LONGEST_PIECE} bytes, none of them 0")
    if not isfinite(score) or not NORMAL <= kind <= BYTE or (kind == BYTE and not BYTE_NAME.fullmatch(name)):
        raise ValueError(f"piece {name[:20]!r}: score {score}, type {kind}")
    return name, score, kind


def _settings(data: bytes, kept: dict[int, Any]) -> dict[int, Value]:
    found: dict[int, Value] = {}
    for number, value in _fields(data):
        kind = kept.get(number)
        if kind is None:
            continue
        if not isinstance(value, int if kind is int else bytes):
            raise ValueError(f"setting {number} has another type")
        if kind is str and len(bytes(value).decode("utf-8")) > LONGEST_PIECE:
            raise ValueError(f"setting {number} is longer than {LONGEST_PIECE} characters")
        found[number] = value
    return found


def _fields(data: bytes) -> Iterator[tuple[int, Value | float]]:
    """Yield the number and the value of each field."""
    place, end = 0, len(data)
    while place < end:
        key, place = _varint(data, place)
        number, wire = key >> 3, key & 7
        if wire == 0:
            value, place = _varint(data, place)
            yield number, value
        elif wire == 5:
            yield number, struct.unpack_from("<f", data, place)[0]
            place += 4
        elif wire == 1:
            place += 8
        elif wire == 2:
            size, place = _varint(data, place)
            if size > end - place:
                raise ValueError("truncated")
            yield number, data[place : place + size]
            place += size
        else:
            raise ValueError(f"field {number} of wire type {wire}")
    if place > end:
        raise ValueError("truncated")


def _varint(data: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if place >= len(data):
            raise ValueError("truncated")
        byte = data[place]
        place += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, place
        shift += 7
        if shift > 63:
            raise ValueError("a number of more than 64 bits")


def _field(number: int, value: Value | float) -> bytes:
    """Return a field as it is written."""
    if isinstance(value, float):
        return _written(number << 3 | 5) + struct.pack("<f", value)
    if isinstance(value, int):
        return _written(number << 3) + _written(value)
    return _written(number << 3 | 2) + _written(len(value)) + value


def _written(number: int) -> bytes:
    found = bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    found.append(number)
    return bytes(found)


def _check_forms(data: bytes) -> None:
    """Raise ValueError unless a table of normal forms is a trie that stays inside its array, and short texts.

    The trie is a double array (Darts): unit p has a label, an offset to its children, and perhaps a value, which is the
    place of a text that ends with a NUL. The library follows offsets without bounds checks.
    """
    if not data:
        return
    size = int.from_bytes(data[:4], "little")
    if len(data) < 4 or size % 1024 or not 0 < size <= len(data) - 4:
        raise ValueError("its normal forms are damaged: the size of the trie")
    unit_P = np.frombuffer(data, "<u4", size // 4, 4)
    texts = data[4 + size :]
    if not texts.endswith(b"\0") or max(map(len, texts.split(b"\0"))) > LONGEST_FORM:
        raise ValueError(f"its normal forms are damaged: texts should have at most {LONGEST_FORM} bytes")
    _check_trie(unit_P, len(texts))


def _check_trie(unit_P: "np.ndarray[Any, np.dtype[np.uint32]]", texts: int) -> None:
    byte_N = np.arange(256, dtype=np.uint32)
    seen = np.zeros(len(unit_P), dtype=bool)
    node_N: Any = np.array([_offset(unit_P[:1])[0]], dtype=np.uint32)
    while len(node_N):
        if int(node_N.max()) >= len(unit_P):
            raise ValueError("its normal forms are damaged: the trie leaves its array")
        seen[node_N] = True
        child_N = (node_N[:, None] ^ byte_N).ravel()  # inside: the array is a multiple of 256 long
        unit_N = unit_P[child_N]
        follows_N = (unit_N & np.uint32(0x800000FF)) == np.tile(byte_N, len(node_N))
        child_N, unit_N = child_N[follows_N], unit_N[follows_N]
        below_N = child_N ^ _offset(unit_N)
        if len(below_N) and int(below_N.max()) >= len(unit_P):
            raise ValueError("its normal forms are damaged: the trie leaves its array")
        leaf_N = below_N[(unit_N & np.uint32(256)) != 0]
        if len(leaf_N) and int((unit_P[leaf_N] & np.uint32(0x7FFFFFFF)).max()) >= texts:
            raise ValueError("its normal forms are damaged: a text outside of the table")
        node_N = np.unique(below_N[~seen[below_N]])


def _offset(unit_N: "np.ndarray[Any, np.dtype[np.uint32]]") -> "np.ndarray[Any, np.dtype[np.uint32]]":
    """Return the offsets to the children of units: bits 10 to 30, times 256 if bit 9 is set."""
    return (unit_N >> np.uint32(10)) << ((unit_N & np.uint32(512)) >> np.uint32(6))
