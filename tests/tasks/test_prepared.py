"""Prepared data: built once, and again if its key or a byte changes; in stages that survive an interruption."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from allyouneed.storage import lock, new_folder
from allyouneed.tasks.meter import Meter, reporting_to
from allyouneed.tasks.preparation import Preparation
from allyouneed.tasks.prepared import PREPARING, prepared
from allyouneed.text.ragged import Ragged, RaggedWriter


def test_prepared_once_and_again_when_the_key_or_a_byte_changes(tmp_path: Path) -> None:
    made = []

    def build(preparation: Preparation) -> None:
        made.append(1)
        (preparation.folder / "data").write_text("content")

    for key, times in (({"a": 1}, 1), ({"a": 1}, 1), ({"a": 2}, 2), ({"a": 2}, 2)):
        prepared(tmp_path, key, build)
        assert len(made) == times
    (tmp_path / "prepared" / "data").write_text("konTent")
    prepared(tmp_path, {"a": 2}, build)
    assert len(made) == 3
    assert (tmp_path / "prepared" / "data").read_text() == "content"


def write_rows(folder: Path, rows: Iterator[int]) -> int:
    """Write a sequence of `row` numbers for each row; return the number of rows."""
    with RaggedWriter(folder, "rows", "<u2") as out:
        kept = [[row] * row for row in rows]
        out.extend(kept)
    return len(kept)


def build_rows(read: list[int], stop_at: int | None = None) -> Callable[[Preparation], None]:
    """Return a build of ten rows in parts of three. `read` receives the rows that were written, `stop_at` kills it."""

    def rows() -> Iterator[int]:
        for row in range(10):
            if row == stop_at:
                raise KeyboardInterrupt
            yield row

    def write(folder: Path, part: Iterator[int]) -> int:
        def seen() -> Iterator[int]:
            for row in part:
                read.append(row)
                yield row

        return write_rows(folder, seen())

    def build(preparation: Preparation) -> None:
        preparation.stage("first", lambda folder: (folder / "first").write_text("1"))
        assert sum(preparation.parts("rows", rows, write, Meter("writing", "rows"), 3)) == 10

    return build


@pytest.mark.parametrize("stop_at", [0, 2, 3, 7, 9])
def test_an_interruption_loses_one_part_at_most(tmp_path: Path, stop_at: int) -> None:
    whole = prepared(tmp_path / "whole", {"a": 1}, build_rows([]))
    with pytest.raises(KeyboardInterrupt):
        prepared(tmp_path / "stopped", {"a": 1}, build_rows([], stop_at))
    read: list[int] = []
    folder = prepared(tmp_path / "stopped", {"a": 1}, build_rows(read))
    assert read == list(range(stop_at // 3 * 3, 10))  # parts before the interruption are not written again
    assert sorted(path.name for path in (tmp_path / "stopped").iterdir()) == ["prepared"]
    for file in sorted(whole.iterdir()):
        assert (folder / file.name).read_bytes() == file.read_bytes(), file.name
    assert [len(row) for row in map(Ragged(folder, "rows", "<u2").__getitem__, range(10))] == list(range(10))


def test_stages_of_another_key_or_damaged_ones_are_built_again(tmp_path: Path) -> None:
    for key, change in (({"a": 2}, False), ({"a": 1}, True)):
        with pytest.raises(KeyboardInterrupt):
            prepared(tmp_path, {"a": 1}, build_rows([], 7))
        if change:
            part = tmp_path / PREPARING / "rows-00001" / "rows.bin"
            part.write_bytes(b"\1" * part.stat().st_size)
        read: list[int] = []
        prepared(tmp_path, key, build_rows(read))
        assert read == ([3, 4, 5, 6, 7, 8, 9] if change else list(range(10)))


def test_what_killed_processes_left_is_removed_and_nothing_else(tmp_path: Path) -> None:
    left = tmp_path / ".tmp-prepared-0123456789ab"
    left.mkdir()
    (left / "data").write_text("half")
    with new_folder(tmp_path / "other") as writing:  # by a process that is alive
        prepared(tmp_path, {"a": 1}, build_rows([]))
        assert not left.exists()
        assert writing.exists()


def test_two_processes_at_once(tmp_path: Path) -> None:
    """The second one does not wait, and does not touch the stages of the first."""
    with lock(tmp_path / PREPARING):
        folder = prepared(tmp_path, {"a": 1}, build_rows([]))
        assert (folder / "rows.bin").exists()
        assert (tmp_path / PREPARING / "lock").exists()


def test_another_process_ends_while_this_one_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = lock(tmp_path / PREPARING)
    other.__enter__()

    def finish(seconds: float) -> None:
        shutil.rmtree(tmp_path / PREPARING)
        other.__exit__(None, None, None)

    monkeypatch.setattr("allyouneed.storage.locks.time.sleep", finish)
    assert (prepared(tmp_path, {"a": 1}, build_rows([])) / "rows.bin").exists()
    assert not (tmp_path / PREPARING).exists()


def test_progress_has_speed_and_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, *(10.0 + second for second in range(10))])
    monkeypatch.setattr("allyouneed.tasks.meter.time.monotonic", lambda: next(clock))
    reports: list[tuple[str, float | None]] = []
    with reporting_to(lambda text, fraction: reports.append((text, fraction))):
        meter = Meter("encoding train", "pairs", total=4000)
        meter.skip(1000)
        meter.add(500)
    Meter("silent", "pairs").add()
    assert reports[-1] == ("encoding train: 1,500 pairs  45/s  left 0:55", 0.375)
    assert len(reports) == 2
