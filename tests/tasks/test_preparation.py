"""Several processes prepare the same data together: the same bytes, also if some of them are killed."""

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from allyouneed.storage import is_locked
from allyouneed.tasks.meter import Meter
from allyouneed.tasks.preparation import Preparation
from allyouneed.tasks.prepared import PREPARING, prepared
from allyouneed.text.ragged import RaggedWriter
from waiting import PATIENCE, until

ROWS, PART = 20, 3
FORK = get_context("fork")


def build(log: Path, stops: bool = False, others: int = 0) -> Callable[[Preparation], None]:
    """Return a build of rows in parts, which logs each part.

    `stops`: for ever, at the first row. `others`: wait until as many other processes make a part, too.
    """

    def write(folder: Path, part: Iterator[int]) -> int:
        (log / f"working-{os.getpid()}").touch()
        until(lambda: len(list(log.glob("working-*"))) > others)
        with RaggedWriter(folder, "rows", "<u2") as out:
            for row in part:
                if stops:
                    (log / "stopped").touch()
                    time.sleep(PATIENCE)
                out.extend([[row] * row])
        with (log / "parts").open("a") as file:
            file.write(f"{os.getpid()}\n")
        return os.getpid()

    def run(preparation: Preparation) -> None:
        first = preparation.stage("first", lambda folder: (folder / "first").write_text("made once"))
        made = preparation.parts("rows", lambda: range(ROWS), write, Meter("writing", "rows"), PART)
        last = preparation.stage("last", lambda folder: (folder / "last").write_text("made once, too"))
        (preparation.folder / "sizes.json").write_text(json.dumps([first, len(made), last]))

    return run


def start(folder: Path, log: Path, stops: bool = False, others: int = 0) -> BaseProcess:
    def run() -> None:
        prepared(folder, {"a": 1}, build(log, stops, others))

    process = FORK.Process(target=run)
    process.start()
    return process


@pytest.fixture
def alone(tmp_path: Path) -> dict[str, bytes]:
    log = tmp_path / "alone"
    log.mkdir()
    return contents(prepared(log / "data", {"a": 1}, build(log)))


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_processes_divide_the_parts(alone: dict[str, bytes], tmp_path: Path) -> None:
    processes = [start(tmp_path / "data", tmp_path, others=1) for _ in range(4)]
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * 4
    assert contents(tmp_path / "data" / "prepared") == alone
    assert [path.name for path in (tmp_path / "data").iterdir()] == ["prepared"]
    makers = (tmp_path / "parts").read_text().split()
    assert len(makers) == ROWS // PART + 1  # each part was made once
    assert len(set(makers)) > 1


@pytest.mark.parametrize("killed", ["leader", "helper"])
def test_a_killed_process_is_replaced(killed: str, alone: dict[str, bytes], tmp_path: Path) -> None:
    folder = tmp_path / "data"
    leader = start(folder, tmp_path, stops=killed == "leader", others=1)
    until(lambda: is_locked(folder / PREPARING) and (folder / PREPARING / "first").exists())
    helper = start(folder, tmp_path, stops=killed == "helper", others=1)
    victim, other = (leader, helper) if killed == "leader" else (helper, leader)
    until((tmp_path / "stopped").exists)
    if killed == "leader":  # the other process goes on until only the part of the victim is missing
        until(lambda: (folder / PREPARING / f"rows-{ROWS // PART:05}").exists())
    assert victim.pid is not None
    os.kill(victim.pid, signal.SIGKILL)
    for process in (victim, other):
        process.join()
    assert (victim.exitcode, other.exitcode) == (-signal.SIGKILL, 0)
    assert contents(folder / "prepared") == alone
    assert [path.name for path in folder.iterdir()] == ["prepared"]
    assert (tmp_path / "parts").read_text().split() == [str(other.pid)] * (ROWS // PART + 1)


def test_a_process_with_other_data_does_not_wait(tmp_path: Path) -> None:
    other = start(tmp_path / "data", tmp_path, stops=True)
    until((tmp_path / "stopped").exists)
    folder = prepared(tmp_path / "data", {"a": 2}, build(tmp_path))
    assert (folder / "rows.bin").stat().st_size == ROWS * (ROWS - 1)
    other.kill()
    other.join()


def test_an_error_ends_all_processes_with_it(tmp_path: Path) -> None:
    """A helper that finds what is wrong with the data does not depend on the leader, and the other way round."""

    def fail(preparation: Preparation) -> None:
        preparation.parts("rows", lambda: iter([1, 2]), lambda folder, part: 1 // 0, Meter("writing", "rows"), 1)

    processes = [FORK.Process(target=prepared, args=(tmp_path / "data", {"a": 1}, fail)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [1, 1, 1]
