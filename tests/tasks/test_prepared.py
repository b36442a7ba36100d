"""Prepared data: built once, and again if its key or a byte changes."""

from pathlib import Path

from allyouneed.tasks.prepared import prepared


def test_prepared_once_and_again_when_the_key_or_a_byte_changes(tmp_path: Path) -> None:
    made = []

    def build(folder: Path) -> None:
        made.append(1)
        (folder / "data").write_text("content")

    for key, times in (({"a": 1}, 1), ({"a": 1}, 1), ({"a": 2}, 2), ({"a": 2}, 2)):
        prepared(tmp_path, key, build)
        assert len(made) == times
    (tmp_path / "prepared" / "data").write_text("konTent")
    prepared(tmp_path, {"a": 2}, build)
    assert len(made) == 3
    assert (tmp_path / "prepared" / "data").read_text() == "content"
