"""Tensor files, and disks that refuse."""

import errno
import os
import resource
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save
from storage_examples import leftovers, write_example

from allyouneed.errors import FolderError, StorageError
from allyouneed.storage import (
    lock,
    new_folder,
    open_tensors,
    verify,
    write_atomic,
    write_tensors,
)

pytestmark = pytest.mark.no_shapes


def test_tensors_of_every_kind(tmp_path: Path) -> None:
    tied = torch.randn(3, 5)
    tensors = {
        "float": tied,
        "half": torch.randn(2, 2).half(),
        "brain": torch.randn(3).bfloat16(),
        "double": torch.randn(1, 1, 4, dtype=torch.float64),
        "bytes": torch.get_rng_state(),
        "flag": torch.tensor([True, False]),
        "none": torch.empty(0, 3),
        "number": torch.tensor(2**40),
        "turned": tied.T,
        "gradient": torch.randn(3, requires_grad=True),
    }
    with new_folder(tmp_path / "final") as folder:
        write_tensors(folder / "x.safetensors", tensors)
        write_tensors(folder / "empty.safetensors", {})
    sealed = verify(tmp_path / "final")
    found = sealed.read_tensors("x.safetensors")
    assert found.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor)
    assert sealed.read_tensors("empty.safetensors") == {}


@given(noise=st.binary(max_size=64))
def test_noise_is_no_tensor_file(noise: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.getbasetemp() / "noise.safetensors"
    header = len(noise).to_bytes(8, "little")
    for data in (noise, header + noise, (2**63).to_bytes(8, "little") + noise, save({"x": torch.ones(2)})[:-1]):
        path.write_bytes(data)
        with pytest.raises(FolderError, match="not a safetensors file"):
            open_tensors(path)


def test_a_file_beyond_the_limit_is_not_read(tmp_path: Path) -> None:
    sealed = verify(write_example(tmp_path / "final"))
    with pytest.raises(FolderError, match="at most 4 are read"):
        sealed.read("a.txt", limit=4)
    with pytest.raises(FolderError, match=r"b\.txt is missing"):
        sealed.read("b.txt")
    with pytest.raises(FolderError, match="not JSON"):
        sealed.read_json("a.txt")


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system of one megabyte."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"cannot mount a small file system here: {mounted.stderr.decode().strip()}")
    try:
        yield disk
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_a_full_disk(tiny_disk: Path) -> None:
    folder = write_example(tiny_disk / "final", "old")
    message = r"^disk full while writing \S*/final; what was saved before is intact$"
    with pytest.raises(StorageError, match=message), new_folder(folder) as temporary:
        (temporary / "large").write_bytes(bytes(2 << 20))
    with pytest.raises(StorageError, match="disk full"), new_folder(folder) as temporary:
        write_tensors(temporary / "large.safetensors", {"x": torch.zeros(1 << 19)})
    with pytest.raises(StorageError, match="disk full"):
        write_atomic(tiny_disk / "file", bytes(2 << 20))
    assert leftovers(tiny_disk) == []
    assert verify(folder).read_text("a.txt") == "old"


def test_a_read_only_disk(tiny_disk: Path) -> None:
    folder = write_example(tiny_disk / "final", "old")
    subprocess.run(["mount", "-o", "remount,ro", str(tiny_disk)], check=True)
    with pytest.raises(StorageError, match="file system is read-only"):
        write_example(folder, "new")
    with pytest.raises(StorageError, match="file system is read-only"), lock(tiny_disk / "run"):
        pass
    assert verify(folder).read_text("a.txt") == "old"


def test_a_file_size_limit(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, hard))
    try:
        with pytest.raises(StorageError, match="file size limit"), new_folder(tmp_path / "final") as folder:
            write_tensors(folder / "large.safetensors", {"x": torch.zeros(1 << 19)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("code", [errno.EIO, errno.EACCES, errno.EDQUOT, errno.ENAMETOOLONG])
def test_what_the_system_refuses_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    def fsync(_: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(StorageError, match=r"while writing .*final; what was saved before is intact"):
        write_example(tmp_path / "final")
    assert list(tmp_path.iterdir()) == []
