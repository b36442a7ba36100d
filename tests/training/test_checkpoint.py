"""Checkpoints: killed at any instant or damaged in any byte, a run resumes from the newest intact one."""

import math
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from allyouneed.errors import FolderError, StorageError
from allyouneed.storage import lock
from allyouneed.training.checkpoint import Checkpoints, write_parts
from allyouneed.training.shards import rows_of

pytestmark = pytest.mark.no_shapes


def parts(step: int) -> dict[str, dict[str, Tensor]]:
    return {
        "model": {"weight": torch.full((3, 5), float(step)), "count": torch.tensor(step)},
        "optimizer": {"weight.moment": torch.full((7,), step / 3)},
        "average": {},
    }


def save(checkpoints: Checkpoints, *steps: int, best: int | None = None) -> None:
    for step in steps:
        checkpoints.save(step, parts(step), {"spent": step / 7}, best=step == best)


def kept(run: Path) -> list[int]:
    return sorted(int(path.name.removeprefix("step-")) for path in (run / "checkpoints").iterdir())


def damage(run: Path, step: int, name: str = "model.safetensors") -> None:
    path = run / "checkpoints" / f"step-{step:08d}" / name
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def test_a_round_trip_keeps_every_bit(tmp_path: Path) -> None:
    state: dict[str, Any] = {
        "spent": 0.1 + 0.2,
        "best": math.inf,
        "seed": 2**63,
        "names": ["ü", None, True],
        "nested": {"a": []},
    }
    checkpoints = Checkpoints(tmp_path)
    assert checkpoints.latest() is None
    assert checkpoints.best() is None
    path = checkpoints.save(123, parts(123), state, best=True)
    assert path == tmp_path / "checkpoints" / "step-00000123"
    assert checkpoints.latest() == checkpoints.best() == path
    loaded = checkpoints.load(path)
    assert (loaded.step, loaded.best, loaded.state) == (123, True, state)
    assert loaded.tensors.keys() == parts(123).keys()
    for part, tensors in parts(123).items():
        assert loaded.tensors[part].keys() == tensors.keys()
        assert all(torch.equal(loaded.tensors[part][name], tensor) for name, tensor in tensors.items())


def test_the_last_two_and_the_best_are_kept(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    save(checkpoints, 10, 20, 30, best=20)
    assert kept(tmp_path) == [20, 30]
    save(checkpoints, 40, 50)
    assert kept(tmp_path) == [20, 40, 50]
    best = checkpoints.best()
    assert best is not None
    assert best.name == "step-00000020"
    save(checkpoints, 60, best=60)
    assert kept(tmp_path) == [50, 60]
    save(checkpoints, 100_000_000)
    assert kept(tmp_path) == [60, 100_000_000]


def test_keep_one(tmp_path: Path) -> None:
    save(Checkpoints(tmp_path, keep=1), 1, 2, 3)
    assert kept(tmp_path) == [3]
    with pytest.raises(ValueError, match="at least one"):
        Checkpoints(tmp_path, keep=0)


def test_a_damaged_checkpoint_is_reported_and_skipped(tmp_path: Path) -> None:
    save(Checkpoints(tmp_path), 10, 20, best=20)
    damage(tmp_path, 20)
    reports: list[str] = []
    checkpoints = Checkpoints(tmp_path, report=reports.append)
    latest = checkpoints.latest()
    assert latest is not None
    assert checkpoints.load(latest).step == 10
    assert reports == checkpoints.warnings
    assert len(reports) == 1
    assert "step-00000020/model.safetensors: changed since it was written" in reports[0]
    assert checkpoints.best() is None
    with pytest.raises(FolderError, match=r"model\.safetensors"):
        checkpoints.load(tmp_path / "checkpoints" / "step-00000020")


def test_damaged_newer_checkpoints_do_not_evict_intact_older_ones(tmp_path: Path) -> None:
    save(Checkpoints(tmp_path), 10, 20, best=20)
    damage(tmp_path, 20)
    checkpoints = Checkpoints(tmp_path)
    checkpoints.latest()
    save(checkpoints, 15)
    assert kept(tmp_path) == [10, 15]
    save(checkpoints, 20)
    assert kept(tmp_path) == [15, 20]
    assert checkpoints.latest() == tmp_path / "checkpoints" / "step-00000020"


def test_a_damaged_checkpoint_of_the_same_step_is_replaced(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    save(checkpoints, 10, 20)
    damage(tmp_path, 20)
    save(checkpoints, 20)
    assert checkpoints.load(tmp_path / "checkpoints" / "step-00000020").step == 20


def test_only_damaged_checkpoints(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    save(checkpoints, 10, 20)
    damage(tmp_path, 10, "state.json")
    damage(tmp_path, 20, "optimizer.safetensors")
    with pytest.raises(FolderError, match="all 2 checkpoints are damaged"):
        checkpoints.latest()
    assert len(checkpoints.warnings) == 2


@given(data=st.data())
def test_one_changed_byte_anywhere_costs_one_checkpoint(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    run = tmp_path_factory.mktemp("run")
    save(Checkpoints(run), 10, 20)
    files = sorted((run / "checkpoints" / "step-00000020").iterdir())
    path = data.draw(st.sampled_from(files), label="file")
    content = bytearray(path.read_bytes())
    where = data.draw(st.integers(0, len(content) - 1), label="byte")
    content[where] ^= data.draw(st.integers(1, 255), label="change")
    path.write_bytes(content)
    latest = Checkpoints(run).latest()
    assert latest is not None
    assert latest.name == "step-00000010"


def test_a_folder_of_another_kind_is_not_a_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "checkpoints" / "step-00000030").mkdir(parents=True)
    (tmp_path / "checkpoints" / "notes").mkdir()
    checkpoints = Checkpoints(tmp_path)
    save(checkpoints, 10)
    assert not (tmp_path / "checkpoints" / "step-00000030").exists()
    assert (tmp_path / "checkpoints" / "notes").exists()


def test_bad_names_and_bad_states_leave_nothing(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    with pytest.raises(ValueError, match="cannot name a part"):
        checkpoints.save(1, {"../model": {}}, {}, best=False)
    with pytest.raises(TypeError):
        checkpoints.save(1, {}, {"tensor": torch.ones(1)}, best=False)
    assert list((tmp_path / "checkpoints").iterdir()) == []


def test_a_full_disk_keeps_earlier_checkpoints(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)]
    mounted = subprocess.run(command, capture_output=True, check=False)
    if mounted.returncode:
        pytest.skip(f"cannot mount a small file system here: {mounted.stderr.decode().strip()}")
    try:
        checkpoints = Checkpoints(disk)
        save(checkpoints, 10, 20, best=10)
        with pytest.raises(StorageError, match=r"^disk full while writing"):
            checkpoints.save(30, {"model": {"large": torch.zeros(1 << 19)}}, {}, best=True)
        assert kept(disk) == [10, 20]
        assert Checkpoints(disk).latest() == disk / "checkpoints" / "step-00000020"
        save(checkpoints, 30)  # the temporary files were removed, so the disk has space again
        assert kept(disk) == [10, 20, 30]
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def save_for_ever(run: Path, saved: int) -> None:
    """Save checkpoints for ever as a training run does."""
    with lock(run):
        checkpoints = Checkpoints(run)
        latest = checkpoints.latest()
        step, weight = 0, torch.zeros(20_000, dtype=torch.int64)
        if latest is not None:
            loaded = checkpoints.load(latest)
            step, weight = loaded.state["step"], loaded.tensors["model"]["weight"]
        while True:
            step, weight = step + 1, weight + 1
            tensors = {"model": {"weight": weight}, "optimizer": {"moment": weight / 3}}
            checkpoints.save(step, tensors, {"step": step}, best=step % 5 == 0)
            os.write(saved, b"x")


def kill_savers(run: Path, kills: int) -> None:
    """Fork savers (torch is imported once), kill each at a random instant, and require intact checkpoints."""
    instants, last = random.Random(3), 0
    for _ in range(kills):
        progress, saved = os.pipe()
        saver = os.fork()
        if saver == 0:
            save_for_ever(run, saved)
        for _ in range(instants.randint(1, 3)):
            assert os.read(progress, 1) == b"x"
        time.sleep(instants.uniform(0, 0.02))
        os.kill(saver, signal.SIGKILL)
        os.waitpid(saver, 0)
        os.close(progress)
        os.close(saved)

        checkpoints = Checkpoints(run)
        latest = checkpoints.latest()
        assert checkpoints.warnings == []
        step = 0
        if latest is not None:
            loaded = checkpoints.load(latest)
            step = loaded.step
            assert bool((loaded.tensors["model"]["weight"] == step).all())
        assert step > last  # a saved checkpoint is never lost
        last = step
        best = checkpoints.best()
        assert (best is None) == (step < 5)
        assert best is None or checkpoints.load(best).step == step - step % 5
    save(checkpoints, last + 1)
    assert len(kept(run)) <= 3  # checkpoints that a killed saver was about to remove are gone


def test_kill_at_any_instant(tmp_path: Path) -> None:
    subprocess.run([sys.executable, __file__, str(tmp_path), "12"], check=True)


if __name__ == "__main__":
    kill_savers(Path(sys.argv[1]), int(sys.argv[2]))


def shard(rank: int, size: int) -> dict[str, dict[str, Tensor]]:
    """Return the rows of one process; scalars and buffers belong to rank 0."""
    whole = parts(10)
    rows = {
        part: {n: t[rows_of(len(t), rank, size)] for n, t in named.items() if t.ndim} for part, named in whole.items()
    }
    return {**rows, "model": rows["model"] | ({"count": torch.tensor(10)} if rank == 0 else {})}


def write_shards(run: Path, shards: list[dict[str, dict[str, Tensor]]]) -> Path:
    checkpoints = Checkpoints(run)
    with checkpoints.writing(10, ["average", "model", "optimizer"], {"spent": 1}, True, len(shards)) as folder:
        for number, tensors in enumerate(shards):
            write_parts(folder, tensors, number, len(shards))
    return checkpoints.folder / "step-00000010"


@pytest.mark.parametrize("size", [2, 3, 5])  # of five processes some have no row
def test_shards_of_several_processes_are_read_as_a_whole(size: int, tmp_path: Path) -> None:
    checkpoint = Checkpoints(tmp_path).load(write_shards(tmp_path, [shard(rank, size) for rank in range(size)]))
    for part, named in parts(10).items():
        assert checkpoint.tensors[part].keys() == named.keys()
        assert all(torch.equal(checkpoint.tensors[part][name], tensor) for name, tensor in named.items())


def test_missing_or_mismatched_shards_are_refused(tmp_path: Path) -> None:
    wrong = shard(1, 2)
    wrong["model"] = {"weight": torch.zeros(1, 4)}
    with pytest.raises(FolderError, match="the 2 pieces of weight in model do not fit together"):
        Checkpoints(tmp_path).load(write_shards(tmp_path, [shard(0, 2), wrong]))
    path = write_shards(tmp_path, [shard(0, 3), shard(1, 3), {}])
    with pytest.raises(FolderError, match=r"average-00003-of-00003\.safetensors is missing"):
        Checkpoints(tmp_path).load(path)
    checkpoints = Checkpoints(tmp_path)
    with checkpoints.writing(10, [], {}, False, 5000):
        pass
    with pytest.raises(FolderError, match="shards=5000 should be between"):
        checkpoints.load(path)
