"""Named tensors as safetensors files: written in a stream, read or mapped one tensor at a time.

    8 bytes    length of the header
    header     JSON: the type, shape and place of each tensor, padded with blanks
    data       the tensors, one after another

A file may be damaged or hostile: the header is checked before anything is allocated, and an error is one line.

A mapped tensor costs memory only where it is read, and gives it back when it is freed. But a process dies (SIGBUS) if
it reads a page of a mapped file that another program has cut off in the meantime. So tensors stay mapped only while
they are converted: packed for inference, or written in another layout. Everything that lives longer is read.
"""

import json
import math
import mmap
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeGuard

from allyouneed.errors import FolderError
from allyouneed.storage.disk import open_plain, reading, writing

if TYPE_CHECKING:
    import torch
    from torch import Tensor

LARGEST_TENSORS = 1 << 38
LARGEST_HEADER = 1 << 24  # the names and shapes of some hundred thousand tensors
LARGE = 1 << 16  # bytes of a tensor that is worth a mapping of its own
PIECE = 1 << 22  # bytes that are hashed and written at once
_TYPES = {  # in the order in which the library writes them: every tensor is aligned
    "I64": "int64",
    "F64": "float64",
    "F32": "float32",
    "I32": "int32",
    "BF16": "bfloat16",
    "F16": "float16",
    "I16": "int16",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "I8": "int8",
    "U8": "uint8",
    "BOOL": "bool",
}
_CODES = {name: code for code, name in _TYPES.items()}
_RANKS = {code: rank for rank, code in enumerate(_TYPES)}


class Hash(Protocol):
    """What hashlib gives."""

    def update(self, data: Any, /) -> None: ...


@dataclass(frozen=True)
class Place:
    """A tensor of a file: its type and shape, and where its bytes begin and end."""

    dtype: "torch.dtype"
    shape: tuple[int, ...]
    begin: int
    end: int


class LazyTensors(Protocol):
    """Named tensors whose types and shapes are known before their values are computed."""

    def specs(self) -> "Mapping[str, tuple[torch.dtype, tuple[int, ...]]]": ...

    def compute(self, name: str) -> "Tensor": ...


class TensorFile:
    """An open safetensors file whose header is valid. It owns the file descriptor."""

    def __init__(self, file: int, where: Path) -> None:
        self._file, self.where = file, where
        with reading(where):
            self.size = os.fstat(file).st_size
            length = int.from_bytes(os.pread(file, 8, 0), "little")
            if self.size < 8 or length > min(LARGEST_HEADER, self.size - 8):
                raise FolderError(f"{where}: not a safetensors file (its header does not fit into it)")
            self._header = os.pread(file, 8 + length, 0)
        self.places = _places(self._header[8:], 8 + length, self.size, where)

    def __del__(self) -> None:
        os.close(self._file)

    def read(self, name: str) -> "Tensor":
        """Return a tensor in memory."""
        import torch

        place = self.places[name]
        data = torch.empty(place.end - place.begin, dtype=torch.uint8)
        left, at = data.numpy().data, place.begin
        with reading(self.where):
            while left:
                count = os.preadv(self._file, [left[: 1 << 30]], at)
                if not count:
                    raise FolderError(f"{self.where}: became shorter while it was read")
                left, at = left[count:], at + count
        return data.view(place.dtype).view(place.shape)

    def map(self, name: str) -> "Tensor":
        """Return a tensor whose pages are read when they are used; a small one is read at once.

        Writing to it changes this process's copy only.
        """
        import torch

        place = self.places[name]
        if place.end - place.begin < LARGE:
            return self.read(name)
        aligned = place.begin - place.begin % mmap.ALLOCATIONGRANULARITY
        with reading(self.where):
            if os.fstat(self._file).st_size < self.size:
                raise FolderError(f"{self.where}: became shorter while it was read")
            mapped = mmap.mmap(self._file, place.end - aligned, access=mmap.ACCESS_COPY, offset=aligned)
        count = (place.end - place.begin) // place.dtype.itemsize
        if place.begin % place.dtype.itemsize:  # allowed by the format, but not by torch
            return self.read(name)
        flat = torch.frombuffer(mapped, dtype=place.dtype, offset=place.begin - aligned, count=count)
        return flat.view(place.shape)

    def read_all(self, digest: Hash) -> "dict[str, Tensor]":
        """Return all tensors in memory, and add the bytes of the file to a hash: those that are in memory now."""
        digest.update(self._header)
        found = {}
        for name in sorted(self.places, key=lambda name: self.places[name].begin):
            found[name] = self.read(name)
            digest.update(_bytes(found[name]).numpy().data)
        return found

    def add_to(self, digest: Hash) -> int:
        """Add all bytes of the file to a hash, without keeping them; return their number."""
        at, piece = 0, bytearray(PIECE)
        with reading(self.where):
            while count := os.preadv(self._file, [piece], at):
                digest.update(memoryview(piece)[:count])
                at += count
        return at


def open_tensors(path: Path) -> TensorFile:
    """Open a safetensors file; refuse links."""
    with reading(path):
        return TensorFile(open_plain(path), path)


def _bytes(tensor: "Tensor") -> "Tensor":
    import torch

    return tensor.detach().contiguous().view(-1).view(torch.uint8)


def _places(header: bytes, begin: int, size: int, where: Path) -> dict[str, Place]:
    """Return the places of all tensors. Raise FolderError unless they fill the file without gaps."""
    import torch

    bad = f"{where}: not a safetensors file: "
    try:
        tree = json.loads(header.decode("utf-8"), object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise FolderError(f"{bad}its header is not JSON: {str(error) or 'too deep'}") from None
    if not isinstance(tree, dict):
        raise FolderError(f"{bad}its header should be an object")
    places = {}
    for name, one in tree.items():
        if name == "__metadata__":
            continue
        fields: dict[str, Any] = one if isinstance(one, dict) else {}
        kind, shape, offsets = (fields.get(key) for key in ("dtype", "shape", "data_offsets"))
        if not isinstance(kind, str) or kind not in _TYPES:
            raise FolderError(f"{bad}tensor {name!r}: unknown type {str(kind)[:20]!r}")
        if not _numbers(shape) or not _numbers(offsets) or len(offsets) != 2:
            raise FolderError(f"{bad}tensor {name!r}: should have a shape and two offsets")
        dtype = getattr(torch, _TYPES[kind])
        if offsets[1] - offsets[0] != math.prod(shape) * dtype.itemsize:
            raise FolderError(f"{bad}tensor {name!r}: its offsets do not fit its shape")
        places[name] = Place(dtype, tuple(shape), begin + offsets[0], begin + offsets[1])
    at = begin
    for name, place in sorted(places.items(), key=lambda item: (item[1].begin, item[1].end)):
        if place.begin != at:
            raise FolderError(f"{bad}tensor {name!r}: overlaps another, or follows a gap")
        at = place.end
    if at != size:
        raise FolderError(f"{bad}{size:,} bytes, but its tensors end at {at:,}")
    return places


def _numbers(value: Any) -> TypeGuard[list[int]]:
    return isinstance(value, list) and len(value) <= 64 and all(type(n) is int and 0 <= n < 1 << 48 for n in value)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name occurs twice")
    return found


class Given:
    """Tensors that are in memory, as `LazyTensors`."""

    def __init__(self, tensors: "Mapping[str, Tensor]") -> None:
        self._tensors = tensors

    def specs(self) -> "dict[str, tuple[torch.dtype, tuple[int, ...]]]":
        return {name: (tensor.dtype, tuple(tensor.shape)) for name, tensor in self._tensors.items()}

    def compute(self, name: str) -> "Tensor":
        return self._tensors[name]


def write_tensors(path: Path, tensors: "Mapping[str, Tensor] | LazyTensors") -> None:
    """Write named tensors to one safetensors file, one at a time. Not atomic: call it inside `new_folder`."""
    lazy = Given(tensors) if isinstance(tensors, Mapping) else tensors
    specs = lazy.specs()
    order = sorted(specs, key=lambda name: (_RANKS[_code(specs[name][0])], name))
    with writing(path), path.open("wb") as file:
        file.write(_header(specs, order))
        for name in order:
            for piece in _bytes(_checked(lazy.compute(name), specs[name], name)).split(PIECE):
                file.write(piece.cpu().numpy().data)


def _code(dtype: "torch.dtype") -> str:
    return _CODES[str(dtype).removeprefix("torch.")]


def _header(specs: "Mapping[str, tuple[torch.dtype, tuple[int, ...]]]", order: list[str]) -> bytes:
    tree, at = {}, 0
    for name in order:
        dtype, shape = specs[name]
        end = at + math.prod(shape) * dtype.itemsize
        tree[name] = {"dtype": _code(dtype), "shape": list(shape), "data_offsets": [at, end]}
        at = end
    text = json.dumps(tree, separators=(",", ":"), ensure_ascii=False).encode("utf-8")
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _checked(tensor: "Tensor", spec: "tuple[torch.dtype, tuple[int, ...]]", name: str) -> "Tensor":
    assert (tensor.dtype, tuple(tensor.shape)) == spec, f"{name}: {tensor.dtype} {tuple(tensor.shape)}, not {spec}"
    return tensor
