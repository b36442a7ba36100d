"""Storage: whole or not there, whatever happens; and every changed byte is noticed."""

import errno
import json
import os
import random
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save

from allyouneed import storage
from allyouneed.errors import FolderError, StorageError
from allyouneed.storage import (
    MANIFEST,
    discard,
    lock,
    new_folder,
    open_folder,
    parse_tensors,
    sweep,
    verify,
    write_atomic,
    write_tensors,
)

pytestmark = pytest.mark.no_shapes


def write_example(path: Path, text: str = "hello") -> Path:
    with new_folder(path) as folder:
        (folder / "a.txt").write_text(text)
        (folder / "empty").touch()
        (folder / "sub").mkdir()
        write_tensors(folder / "sub" / "x.safetensors", {"x": torch.arange(7.0), "n": torch.tensor(3)})
    return path


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def leftovers(parent: Path) -> list[str]:
    return [path.name for path in parent.iterdir() if path.name.startswith(".")]


def test_a_folder_is_written_and_read_back(tmp_path: Path) -> None:
    folder = write_example(tmp_path / "deep" / "final")
    sealed = verify(folder)
    assert sorted(sealed.files) == ["a.txt", "empty", "sub/x.safetensors"]
    assert sealed.read_text("a.txt") == "hello"
    tensors = sealed.read_tensors("sub/x.safetensors")
    torch.testing.assert_close(tensors, {"x": torch.arange(7.0), "n": torch.tensor(3)})
    assert leftovers(folder.parent) == []


def test_an_error_inside_leaves_what_was_there(tmp_path: Path) -> None:
    folder = write_example(tmp_path / "final", "old")
    with pytest.raises(UnicodeEncodeError), new_folder(folder) as temporary:
        (temporary / "a.txt").write_text("\ud800", encoding="utf-8")
    assert verify(folder).read_text("a.txt") == "old"
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize("can_exchange", [True, False])
def test_a_folder_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, can_exchange: bool) -> None:
    if not can_exchange:
        monkeypatch.setattr(storage, "_exchange", lambda one, other: False)
    folder = write_example(tmp_path / "final", "old")
    with new_folder(folder) as temporary:
        (temporary / "b.txt").write_text("new")
        assert verify(folder).read_text("a.txt") == "old"
    assert list(verify(folder).files) == ["b.txt"]
    assert leftovers(tmp_path) == []


def test_the_old_folder_comes_back_if_the_kill_falls_between_two_renames(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(storage, "_exchange", lambda one, other: False)
    folder = write_example(tmp_path / "final", "old")
    real = os.rename

    def rename(source: Path, target: Path) -> None:
        if Path(target) == folder:
            raise KeyboardInterrupt
        real(source, target)

    monkeypatch.setattr(os, "rename", rename)
    with pytest.raises(KeyboardInterrupt):
        write_example(folder, "new")
    assert not folder.exists()
    monkeypatch.setattr(os, "rename", real)
    sweep(tmp_path)
    assert verify(folder).read_text("a.txt") == "old"
    assert leftovers(tmp_path) == []


def test_what_we_did_not_write_is_not_replaced(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "thesis.txt").write_text("years of work")
    with pytest.raises(StorageError, match="did not write"), new_folder(home):
        pass
    (tmp_path / "link").symlink_to(home)
    with pytest.raises(StorageError, match="link"), new_folder(tmp_path / "link"):
        pass
    with pytest.raises(StorageError, match="file"), new_folder(home / "thesis.txt"):
        pass
    with pytest.raises(StorageError, match="cannot be written"), new_folder(Path("/")):
        pass
    assert files_of(home) == {"thesis.txt": b"years of work"}


def test_an_empty_folder_may_be_used(tmp_path: Path) -> None:
    (tmp_path / "final").mkdir()
    write_example(tmp_path / "final")
    verify(tmp_path / "final")


def test_sweep_removes_the_dead_and_spares_the_living(tmp_path: Path) -> None:
    (tmp_path / ".tmp-dead-1").mkdir()
    (tmp_path / ".tmp-dead-1" / "x").write_text("x")
    (tmp_path / ".tmp-file-2").write_text("x")
    (tmp_path / "mine").write_text("x")
    with new_folder(tmp_path / "final") as living:
        sweep(tmp_path)
        assert leftovers(tmp_path) == [living.name]
        (living / "x").write_text("x")
    verify(tmp_path / "final")
    assert (tmp_path / "mine").exists()
    sweep(tmp_path / "no such folder")


def test_discard(tmp_path: Path) -> None:
    discard(write_example(tmp_path / "final"))
    assert list(tmp_path.iterdir()) == []


@given(content=st.binary(max_size=50))
def test_write_atomic(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "atomic" / "file"
    write_atomic(path, content)
    assert path.read_bytes() == content
    assert leftovers(path.parent) == []


# --- changes are noticed ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_example(tmp_path_factory.mktemp("example") / "final")


@given(data=st.data())
def test_every_flipped_bit_is_noticed(example: Path, data: st.DataObject) -> None:
    for name, content in files_of(example).items():
        if not content:
            continue
        where = data.draw(st.integers(0, len(content) - 1), label=f"byte of {name}")
        bit = data.draw(st.integers(0, 7), label="bit")
        changed = bytearray(content)
        changed[where] ^= 1 << bit
        try:
            (example / name).write_bytes(changed)
            with pytest.raises(FolderError):
                verify(example)
            with pytest.raises(FolderError):
                open_folder(example).read(name)
        finally:
            (example / name).write_bytes(content)
    verify(example)


def test_every_byte_of_a_manifest_counts(example: Path) -> None:
    content, files = (example / MANIFEST).read_bytes(), open_folder(example).files
    missed = []
    for where in range(len(content)):
        for byte in {*b" \t\r\n0A", *(content[where] ^ 1 << bit for bit in range(8))} - {content[where]}:
            changed = bytearray(content)
            changed[where] = byte
            try:
                if storage._parse_manifest(bytes(changed), example / MANIFEST) == files:
                    missed.append((where, byte))
            except FolderError:
                continue
    assert missed == []


@given(data=st.data())
def test_every_truncation_is_noticed(example: Path, data: st.DataObject) -> None:
    for name, content in files_of(example).items():
        if not content:
            continue
        length = data.draw(st.integers(0, len(content) - 1), label=f"length of {name}")
        try:
            (example / name).write_bytes(content[:length])
            with pytest.raises(FolderError, match=name.split("/")[0]):
                verify(example)
        finally:
            (example / name).write_bytes(content)


def test_messages_name_the_file_and_what_is_wrong(tmp_path: Path) -> None:
    def refused(message: str) -> None:
        with pytest.raises(FolderError, match=message) as caught:
            verify(folder)
        assert "\n" not in str(caught.value)

    folder = tmp_path / "none"
    refused("none: no such folder")
    folder.write_text("x")
    refused("is a file, not a folder")
    folder = tmp_path / "final"
    folder.mkdir()
    refused(r"final: has no manifest\.json")
    write_example(folder)
    (folder / "a.txt").write_text("hellp")
    refused("a.txt: changed since it was written")
    (folder / "a.txt").write_text("hello!")
    refused("a.txt: 6 bytes, but 5 were written")
    (folder / "a.txt").unlink()
    refused("a.txt is missing")
    (folder / "a.txt").symlink_to(tmp_path / "none")
    refused("a.txt: is a link")
    (folder / "a.txt").unlink()
    os.mkfifo(folder / "a.txt")
    refused("a.txt: is not a plain file")
    (folder / "a.txt").unlink()
    (folder / "a.txt").write_text("hello")
    (folder / "sub" / "more").write_text("x")
    refused("sub/more: is not in the manifest")
    (folder / "sub" / "more").unlink()
    verify(folder)


def test_links_to_folders_are_refused(tmp_path: Path) -> None:
    folder = write_example(tmp_path / "final")
    (folder / "sub").rename(tmp_path / "elsewhere")
    (folder / "sub").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(FolderError, match="sub: is a link"):
        verify(folder)


def test_a_link_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(FolderError, match="is a link"), new_folder(tmp_path / "final") as folder:
        (folder / "x").symlink_to("/etc/passwd")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "a/../../secret", "./a.txt", "a//b", "..\\secret", ""])
def test_paths_outside_are_refused(tmp_path: Path, name: str) -> None:
    folder = write_example(tmp_path / "final")
    (tmp_path / "secret").write_text("hello")
    tree = json.loads((folder / MANIFEST).read_text())
    tree["files"][name] = tree["files"]["a.txt"]
    (folder / MANIFEST).write_text(json.dumps(tree, indent=1) + "\n")
    with pytest.raises(FolderError, match="path outside the folder"):
        verify(folder)


LEAVES = st.none() | st.integers() | st.text(max_size=3)
ENTRIES = st.dictionaries(st.sampled_from(["sha256", "size", "x"]), LEAVES)


@given(LEAVES | st.lists(LEAVES, max_size=2) | ENTRIES | st.dictionaries(st.text(max_size=3), ENTRIES | LEAVES))
def test_any_json_as_a_manifest_is_refused_in_one_line(tree: object) -> None:
    for value in (tree, {"format": 1, "files": tree}, {"format": tree, "files": {}}):
        if value == {"format": 1, "files": {}}:
            continue
        with pytest.raises(FolderError) as caught:
            storage._parse_manifest(json.dumps(value).encode(), Path(MANIFEST))
        assert "\n" not in str(caught.value)


def test_a_deep_manifest_and_a_large_one(tmp_path: Path) -> None:
    for data in (b"[" * 100_000, b" " * (storage.LARGEST_MANIFEST + 1), b"\xff", b"{}", b'{"format": 2, "files": {}}'):
        with pytest.raises(FolderError):
            storage._parse_manifest(data, tmp_path)


# --- tensors ---------------------------------------------------------------------------------------------------------


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
def test_noise_is_no_tensor_file(noise: bytes) -> None:
    header = len(noise).to_bytes(8, "little")
    for data in (noise, header + noise, (2**63).to_bytes(8, "little") + noise, save({"x": torch.ones(2)})[:-1]):
        with pytest.raises(FolderError, match="not a safetensors file"):
            parse_tensors(data, Path("x.safetensors"))


def test_a_file_beyond_the_limit_is_not_read(tmp_path: Path) -> None:
    sealed = verify(write_example(tmp_path / "final"))
    with pytest.raises(FolderError, match="at most 4 are read"):
        sealed.read("a.txt", limit=4)
    with pytest.raises(FolderError, match=r"b\.txt is missing"):
        sealed.read("b.txt")
    with pytest.raises(FolderError, match="not JSON"):
        sealed.read_json("a.txt")


# --- the disk refuses ------------------------------------------------------------------------------------------------


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


# --- kill -9 ---------------------------------------------------------------------------------------------------------

WRITER = """
import sys
from pathlib import Path
from allyouneed import storage
if sys.argv[2] == "aside":
    storage._exchange = lambda one, other: False
final = Path(sys.argv[1])
number = 0
while True:
    storage.sweep(final.parent)
    with storage.new_folder(final) as folder:
        for part in range(4):
            (folder / f"{part}.bin").write_bytes(number.to_bytes(8, "big") * 20_000)
    number += 1
    if number == 1:
        print("ready", flush=True)
"""


@pytest.mark.parametrize("way", ["exchange", "aside"])
def test_kill_at_any_instant(tmp_path: Path, way: str) -> None:
    final, instants = tmp_path / "final", random.Random(5)
    for _ in range(10):
        writer = subprocess.Popen([sys.executable, "-c", WRITER, str(final), way], stdout=subprocess.PIPE, text=True)
        with writer:
            assert writer.stdout is not None
            assert writer.stdout.readline() == "ready\n"
            time.sleep(instants.uniform(0, 0.05))
            writer.kill()
        if way == "exchange":
            verify(final)  # at every instant, without any repair
        sweep(tmp_path)
        sealed = verify(final)
        assert len({sealed.read(name) for name in sealed.files}) == 1
        assert leftovers(tmp_path) == []


# --- the lock --------------------------------------------------------------------------------------------------------

HOLDER = """
import sys, time
from pathlib import Path
from allyouneed.storage import lock
with lock(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_second_writer_is_kept_out_until_the_first_is_gone(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with subprocess.Popen([sys.executable, "-c", HOLDER, str(run)], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(StorageError, match=f"process {holder.pid} is writing"), lock(run):
            pass
        holder.kill()
    for _ in range(2):
        with lock(run), pytest.raises(StorageError, match=f"process {os.getpid()} is writing"), lock(run):
            pass


def test_a_lock_is_not_written_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("keep")
    (tmp_path / "lock").symlink_to(tmp_path / "victim")
    with pytest.raises(StorageError), lock(tmp_path):
        pass
    assert (tmp_path / "victim").read_text() == "keep"


def test_importing_storage_imports_no_torch() -> None:
    code = "import sys, allyouneed.storage; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
