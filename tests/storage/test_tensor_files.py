"""Tensor files are written as the library writes them, read one tensor at a time, and refused in one line."""

import hashlib
import json
import os
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from allyouneed.errors import FolderError
from allyouneed.storage import new_folder, open_folder, open_tensors, write_tensors

pytestmark = pytest.mark.no_shapes
TYPES = ["float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool"]


@pytest.mark.parametrize("seed", range(8))
def test_the_bytes_are_those_of_the_library(tmp_path: Path, seed: int) -> None:
    draw = random.Random(seed)
    tensors = {}
    for _ in range(9):
        shape = [draw.randint(0, 4) for _ in range(draw.randint(0, 3))]
        tensors["".join(draw.choices('ab.é"', k=5))] = torch.zeros(shape, dtype=getattr(torch, draw.choice(TYPES)))
    save_file(tensors, tmp_path / "theirs")
    write_tensors(tmp_path / "ours", tensors)
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "theirs").read_bytes()


def large(path: Path) -> dict[str, torch.Tensor]:
    """Write a file with tensors that are worth a mapping and some that are not."""
    torch.manual_seed(0)
    tensors = {
        "large": torch.randn(700, 500),
        "half": torch.randn(900, 601).bfloat16(),
        "odd": torch.randint(0, 9, (7,), dtype=torch.int8),
        "small": torch.randn(3),
    }
    write_tensors(path, tensors)
    return tensors


def test_read_and_mapped_tensors_are_the_same(tmp_path: Path) -> None:
    tensors = large(tmp_path / "x")
    file = open_tensors(tmp_path / "x")
    sha256 = hashlib.sha256()
    for found in (file.read_all(sha256), {name: file.map(name) for name in file.places}, load_file(tmp_path / "x")):
        assert found.keys() == tensors.keys()
        assert all(torch.equal(found[name], tensor) for name, tensor in tensors.items())
    assert sha256.hexdigest() == hashlib.sha256((tmp_path / "x").read_bytes()).hexdigest()
    before = (tmp_path / "x").read_bytes()
    file.map("large").zero_()
    assert (tmp_path / "x").read_bytes() == before


def test_memory_of_a_mapped_tensor_is_given_back(tmp_path: Path) -> None:
    large(tmp_path / "name of the file")

    def mappings() -> int:
        return Path("/proc/self/maps").read_text().count("name of the file")

    mapped = open_tensors(tmp_path / "name of the file").map("large")
    assert mappings() == 1
    del mapped
    assert mappings() == 0


def test_a_file_that_becomes_shorter_while_it_is_open(tmp_path: Path) -> None:
    large(tmp_path / "x")
    file = open_tensors(tmp_path / "x")
    os.truncate(tmp_path / "x", 5000)
    for use in (file.read, file.map):
        with pytest.raises(FolderError, match="became shorter"):
            use("half")


def test_a_changed_file_is_not_mapped(tmp_path: Path) -> None:
    with new_folder(tmp_path / "final") as folder:
        large(folder / "x")
    sealed = open_folder(tmp_path / "final")
    data = bytearray((tmp_path / "final" / "x").read_bytes())
    for place in (20, len(data) // 2):  # in the header, and in a tensor
        data[place] ^= 1
        (tmp_path / "final" / "x").write_bytes(data)
        for read in (sealed.read_tensors, sealed.map_tensors):
            with pytest.raises(FolderError, match="its sha256 differs"):
                read("x")
        data[place] ^= 1


def entry(kind: Any = "F32", shape: Any = (2,), offsets: Any = (0, 8)) -> dict[str, Any]:
    return {"dtype": kind, "shape": shape, "data_offsets": offsets}


HOSTILE: dict[str, tuple[Any, str]] = {
    "no object": ([], "should be an object"),
    "a type that does not exist": ({"x": entry("F7")}, "unknown type 'F7'"),
    "no type": ({"x": 3}, "unknown type"),
    "a shape that is no list": ({"x": entry(shape=2)}, "a shape and two offsets"),
    "a negative size": ({"x": entry(shape=[-2])}, "a shape and two offsets"),
    "a size of a terabyte": ({"x": entry(shape=[1 << 40])}, "do not fit its shape"),
    "sizes that overflow": ({"x": entry(shape=[1 << 40] * 8)}, "do not fit its shape"),
    "a truth value": ({"x": entry(shape=[True, 2])}, "a shape and two offsets"),
    "three offsets": ({"x": entry(offsets=[0, 4, 8])}, "a shape and two offsets"),
    "offsets beyond the end": ({"x": entry(offsets=[8, 16])}, "follows a gap"),
    "overlapping tensors": ({"x": entry(), "y": entry()}, "overlaps another"),
    "bytes of no tensor": ({"x": entry(shape=[1], offsets=[0, 4])}, "its tensors end at"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_headers(tmp_path: Path, name: str) -> None:
    tree, message = HOSTILE[name]
    text = json.dumps(tree).encode()
    (tmp_path / "x").write_bytes(len(text).to_bytes(8, "little") + text + bytes(8))
    with pytest.raises(FolderError, match=message) as caught:
        open_tensors(tmp_path / "x")
    assert "\n" not in str(caught.value)


def test_a_name_that_occurs_twice(tmp_path: Path) -> None:
    one = json.dumps(entry())
    text = f'{{"x": {one}, "x": {one}}}'.encode()
    (tmp_path / "x").write_bytes(len(text).to_bytes(8, "little") + text + bytes(8))
    with pytest.raises(FolderError, match="occurs twice"):
        open_tensors(tmp_path / "x")
