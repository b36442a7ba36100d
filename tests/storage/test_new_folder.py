"""A new folder is complete or absent, whatever happens."""

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from storage_examples import files_of, leftovers, write_example

from allyouneed.errors import StorageError
from allyouneed.storage import discard, folders, new_folder, sweep, verify, write_atomic

pytestmark = pytest.mark.no_shapes


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
        monkeypatch.setattr(folders, "exchange", lambda one, other: False)
    folder = write_example(tmp_path / "final", "old")
    with new_folder(folder) as temporary:
        (temporary / "b.txt").write_text("new")
        assert verify(folder).read_text("a.txt") == "old"
    assert list(verify(folder).files) == ["b.txt"]
    assert leftovers(tmp_path) == []


def test_the_old_folder_comes_back_if_the_kill_falls_between_two_renames(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folders, "exchange", lambda one, other: False)
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


WRITER = """
import sys
from pathlib import Path
from allyouneed.storage import folders, new_folder, sweep
if sys.argv[2] == "aside":
    folders.exchange = lambda one, other: False
final = Path(sys.argv[1])
number = 0
while True:
    sweep(final.parent)
    with new_folder(final) as folder:
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
