"""Every changed byte is noticed."""

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from storage_examples import files_of, write_example

from allyouneed.errors import FolderError
from allyouneed.storage import MANIFEST, new_folder, open_folder, verify
from allyouneed.storage.manifest import LARGEST_MANIFEST, parse_manifest

pytestmark = pytest.mark.no_shapes


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
                if parse_manifest(bytes(changed), example / MANIFEST) == files:
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
            parse_manifest(json.dumps(value).encode(), Path(MANIFEST))
        assert "\n" not in str(caught.value)


def test_a_deep_manifest_and_a_large_one(tmp_path: Path) -> None:
    for data in (b"[" * 100_000, b" " * (LARGEST_MANIFEST + 1), b"\xff", b"{}", b'{"format": 2, "files": {}}'):
        with pytest.raises(FolderError):
            parse_manifest(data, tmp_path)
