"""Several processes train like one: the same losses, from any checkpoint, with any process stopped or killed."""

import contextlib
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import distributed_run
import pytest
import torch

from allyouneed.config import merge, parse, to_toml
from allyouneed.errors import ConfigError, TrainingError
from allyouneed.training import Recipe, train
from allyouneed.training.checkpoint import Checkpoints
from allyouneed.training.log import read_log
from allyouneed.training.loop import Interrupted, Run
from allyouneed.training.process_group import ProcessGroup
from allyouneed.training.progress import SilentListener
from allyouneed.training.stopping import stop_signals
from waiting import PATIENCE, until

HERE = Path(__file__).resolve().parent
pytestmark = pytest.mark.no_shapes
T = TypeVar("T")

TINY: dict[str, Any] = {
    "task": {"type": "copy", "batch": 4, "valid": 8, "test": 8},
    "model": {
        "type": "encoder-decoder",
        "width": 10,  # 4 processes get 3, 3, 3 and 1 of its rows
        "hidden": 12,
        "encoder_layers": 1,
        "decoder_layers": 1,
        "mixer": {"type": "softmax", "heads": 2},
        "dropout": 0.2,
    },
    "train": {
        "budget": {"steps": 4},
        "accumulate": 4,
        "workers": 1,
        "evaluate_every": 0.5,
        "log_every": 1,
        "clip": 0.5,
        "optimizer": {"type": "muon", "weight_decay": 0.01, "lr": 0.01},
        "average": {"type": "ema", "decay": 0.9},
    },
    "decode": {"beam": 1},
}
LAST: dict[str, Any] = {"average": {"type": "last", "count": 2, "every": 2}}
CHANGES: dict[str, dict[str, Any]] = {
    "muon": {},
    "adamw": {"optimizer": {"type": "adamw", "weight_decay": 0.1, "lr": 0.01}, **LAST},
    "rmsprop": {"optimizer": {"type": "rmsprop", "lr": 0.001}, "average": {"type": "none"}},
    "sgd": {"optimizer": {"type": "sgd", "lr": 0.1}, "loss_per": "example"},
}
PARALLEL = ("ddp", "fsdp")
TWO = [("ddp", "muon"), ("ddp", "sgd"), *(("fsdp", name) for name in CHANGES)]
RESUMES = [("ddp", "none"), ("fsdp", "none"), ("ddp", "fsdp"), ("fsdp", "ddp")]
CHANGES["threads"] = {"workers": 2}
CHANGES["minutes"] = {"budget": {"minutes": 0.05}, "evaluate_every": 0.25}
CHANGES["hopeless"] = {"optimizer": {"type": "sgd", "lr": 1e300, "momentum": 0.0}, "budget": {"steps": 60}, "clip": 0.0}


def tree(parallel: str, train: dict[str, Any]) -> dict[str, Any]:
    return merge(TINY, {"train": {"parallel": parallel}}) | {"train": {**TINY["train"], "parallel": parallel, **train}}


# The folder of all runs; the results of those of two processes, in each of them; the results of all later ones.
Done = tuple[Path, list[list[str]], list[list[str]]]


def free_port() -> int:
    """Return a free port below those that the system gives to connections, which other tests open all the time."""
    while True:
        port = random.SystemRandom().randrange(20_000, 32_000)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def environment(**more: object) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
    folders = [HERE.parents[1] / "src", HERE.parent, HERE.parent / "contracts"]
    source = os.pathsep.join([*map(str, folders), kept.get("PYTHONPATH", "")])
    return kept | {"PYTHONPATH": source, "OMP_NUM_THREADS": "1"} | {name: str(value) for name, value in more.items()}


def together(processes: int, folder: Path, runs: list[dict[str, Any]]) -> list[list[str]]:
    """Make runs with this number of processes; return the result of each run in each process."""
    file = folder / f"runs-of-{processes}.json"
    file.write_text(json.dumps(runs))
    command = [sys.executable, str(HERE / "distributed_run.py"), str(file)]
    common: dict[str, object] = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    common |= {"WORLD_SIZE": processes, "LOCAL_WORLD_SIZE": processes}
    several = [{"RANK": rank, "LOCAL_RANK": rank, **common} for rank in range(processes)]
    started = [subprocess.Popen(command, env=environment(**env), stderr=subprocess.PIPE) for env in several]
    for process in started:
        _, errors = process.communicate(timeout=300)
        assert process.returncode == 0, errors.decode()
    return [json.loads(Path(f"{file}.{rank}").read_text()) for rank in range(processes)]


def losses(run: Path) -> dict[tuple[str, int], float]:
    """Return the loss of every step and every evaluation."""
    return {(r["kind"], r["step"]): r["loss"] for r in read_log(run / "log.jsonl") if "loss" in r}


def alone(runs: list[dict[str, Any]]) -> list[str]:
    """Make runs in this process, as each of several would."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        return [distributed_run.one(run) for run in runs]
    finally:
        torch.set_default_dtype(before)


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> "Done":
    """Make all runs: by one, two, four and again one process, each resuming a stopped run."""
    folder = tmp_path_factory.mktemp("runs")

    def run(parallel: str, name: str, out: str, **more: Any) -> dict[str, Any]:
        return {"recipe": tree(parallel, CHANGES[name]), "out": str(folder / out), **more}

    alone([run("none", name, f"one-{name}") for name in list(CHANGES)[:4]])
    alone([run("none", "threads", "one-threads"), run("none", "muon", "1-stopped", stop=2)])
    for parallel in PARALLEL:
        shutil.copytree(folder / "1-stopped", folder / f"1-to-2-{parallel}")
    two = together(
        2,
        folder,
        [run(parallel, name, f"two-{parallel}-{name}") for parallel, name in TWO]
        + [run(parallel, "muon", f"1-to-2-{parallel}") for parallel in PARALLEL]
        + [run("fsdp", "minutes", "minutes")]
        + [run(parallel, "muon", f"2-{parallel}-stopped", stop=2) for parallel in PARALLEL]
        + [run("fsdp", "hopeless", "hopeless")],
    )
    for before, after in RESUMES:
        shutil.copytree(folder / f"2-{before}-stopped", folder / f"2-{before}-to-{after}")
    by_four = [(before, after) for before, after in RESUMES if after != "none"]
    four = together(4, folder, [run(after, "muon", f"2-{before}-to-{after}") for before, after in by_four])
    by_one = alone([run("none", "muon", f"2-{before}-to-none") for before, after in RESUMES if after == "none"])
    return folder, two, [*four, by_one]


def assert_same(run: Path, expected: Path) -> None:
    ours, theirs = losses(run), losses(expected)
    assert ours.keys() == theirs.keys()
    assert max(abs(ours[key] - theirs[key]) for key in ours) < 1e-10
    tensors = []
    for folder in (run, expected):
        checkpoints = Checkpoints(folder)
        latest = checkpoints.latest()
        assert latest is not None
        tensors.append(checkpoints.load(latest).tensors)
    for part, named in tensors[1].items():
        assert named.keys() == tensors[0][part].keys()
        for name, tensor in named.items():
            assert (tensors[0][part][name] - tensor).abs().max() < 1e-8, name


@pytest.mark.parametrize(("parallel", "name"), TWO)
def test_two_processes_have_the_losses_of_one(parallel: str, name: str, done: Done) -> None:
    assert_same(done[0] / f"two-{parallel}-{name}", done[0] / f"one-{name}")


def test_two_processes_equal_two_threads(done: Done) -> None:
    assert_same(done[0] / "two-ddp-muon", done[0] / "one-threads")


@pytest.mark.parametrize(("before", "after"), RESUMES)
def test_one_or_four_processes_resume_a_run_stopped_by_two(before: str, after: str, done: Done) -> None:
    assert_same(done[0] / f"2-{before}-to-{after}", done[0] / "one-muon")


@pytest.mark.parametrize("parallel", PARALLEL)
def test_two_processes_resume_a_run_stopped_by_one(parallel: str, done: Done) -> None:
    assert_same(done[0] / f"1-to-2-{parallel}", done[0] / "one-muon")


def test_all_processes_end_alike_and_rank_0_reports_why(done: Done) -> None:
    _, (first, second), others = done
    assert first[-3:-1] == ["Interrupted: stopped and saved at step 2; the same command resumes from there"] * 2
    assert "unusable 25 times" in first[-1]
    assert second[-3:] == ["ReportedElsewhere: "] * 3
    assert {*first[:-3], *second[:-3], *(what for results in others for what in results)} == {"done"}


def test_minutes_end_all_processes_at_one_step(done: Done) -> None:
    """All processes follow the plan of rank 0's clock: tests of the cost, evaluations, the last step."""
    *_, time, end = read_log(done[0] / "minutes" / "log.jsonl")
    assert (time["kind"], end["kind"]) == ("time", "end")
    assert time["fraction"] == 1
    assert end["steps"] >= 1


def test_each_process_writes_its_rows(done: Done) -> None:
    path = Checkpoints(done[0] / "two-fsdp-muon").latest()
    assert path is not None
    names = sorted(file.name for file in path.iterdir())
    assert [name for name in names if name.startswith("model")] == [
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
    ]
    sizes = [(path / name).stat().st_size for name in names if name.startswith("optimizer")]
    assert abs(sizes[0] - sizes[1]) < 0.2 * sizes[0]
    log = read_log(done[0] / "two-fsdp-muon" / "log.jsonl")
    assert [(r["processes"], r["parallel"]) for r in log if r["kind"] == "start"] == [(2, "fsdp")]


def test_every_architecture_and_mixer_has_the_gradients_of_one_process(tmp_path: Path) -> None:
    common: dict[str, object] = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port(), "WORLD_SIZE": 2}
    command = [sys.executable, str(HERE / "distributed_gradients.py")]
    started = [
        subprocess.Popen(
            command, env=environment(RANK=rank, **common), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for rank in range(2)
    ]
    outputs = [process.communicate(timeout=300) for process in started]
    assert [process.returncode for process in started] == [0, 0], outputs
    found = json.loads(outputs[0][0])
    assert len(found) > 30
    for name, worst in found.items():
        if name.startswith("neural-gpu"):
            assert "is not contiguous in memory" in worst
        else:
            assert isinstance(worst, float), worst
            assert worst < 1e-10, name


@pytest.mark.parametrize(
    ("parallel", "changes", "message"),
    [
        ("none", {}, "but 3 processes were started"),
        ("ddp", {"accumulate": 2}, r"train\.accumulate=2: 3 processes share"),
        ("fsdp", {"accumulate": 4}, "must be a multiple of 3"),
        ("fsdp", {"accumulate": 6, "workers": 2}, r"train\.workers=2: .* one replica"),
    ],
)
def test_settings_that_processes_cannot_share_are_refused(
    parallel: str, changes: dict[str, Any], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "3")
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(ConfigError, match=message):
        train(parse(Recipe, tree(parallel, changes)), tmp_path)


# --- under torchrun ---


TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


def start(folder: Path) -> "subprocess.Popen[str]":
    """Start a long run of two processes; return when it has evaluated once more."""
    changes = {"budget": {"steps": 100_000}, "evaluate_every": 0.0002, "log_every": 20}
    (folder / "recipe.toml").write_text(to_toml(parse(Recipe, tree("ddp", changes))))
    command = [*TORCHRUN, "-m", "allyouneed", "train", str(folder / "recipe.toml"), "--out", str(folder / "run")]
    before = evaluations(folder / "run")
    process = subprocess.Popen(command, env=environment(), stderr=subprocess.PIPE, text=True)
    until(lambda: evaluations(folder / "run") > before or process.poll() is not None)
    assert process.poll() is None, process.communicate()
    return process


def evaluations(run: Path) -> int:
    log = run / "log.jsonl"
    return log.read_text().count('"evaluation"') if log.exists() else 0


def workers(process: "subprocess.Popen[str]") -> list[int]:
    """Return the processes that torchrun has started, by rank."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    by_rank = {}
    for child in map(int, children):
        variables = Path(f"/proc/{child}/environ").read_bytes().split(b"\0")
        by_rank |= {int(value[5:]): child for value in variables if value.startswith(b"RANK=")}
    return [by_rank[rank] for rank in sorted(by_rank)]


def test_a_signal_does_not_silence_a_process_that_fails_beside_others() -> None:
    """torchrun terminates the remaining processes at once; the failing one must still print its error."""
    usual = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    heard: list[str] = []
    try:
        with stop_signals(lambda: heard.append("stop"), keep_handling=True):
            pass
        assert {number: signal.getsignal(number) for number in usual} == usual
        with pytest.raises(TrainingError), stop_signals(lambda: heard.append("stop"), keep_handling=True):
            raise TrainingError("another process has ended")
        os.kill(os.getpid(), signal.SIGTERM)
        assert heard == ["stop"]
    finally:
        for number, handler in usual.items():
            signal.signal(number, handler)


def test_a_second_signal_ends_a_run_at_once_although_the_first_one_raised() -> None:
    def stop() -> None:
        raise Interrupted("stopped")

    usual = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with stop_signals(stop):
            with pytest.raises(Interrupted):
                os.kill(os.getpid(), signal.SIGINT)
            with pytest.raises(KeyboardInterrupt):
                os.kill(os.getpid(), signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, usual)


def error_lines(errors: str) -> list[str]:
    """Return the lines of our own errors. A reason quoted within such a line may hold "error: " as well."""
    return [line for line in errors.splitlines() if line.startswith("error: ")]


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="needs /proc")
def test_a_killed_process_ends_the_others_and_a_signal_saves(tmp_path: Path) -> None:
    process = start(tmp_path)
    os.kill(workers(process)[1], signal.SIGKILL)
    _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode > 0
    (line,) = error_lines(errors)
    assert "another process of this run has ended" in line
    latest = Checkpoints(tmp_path / "run").latest()
    assert latest is not None

    process = start(tmp_path)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode != 0
    assert f"resuming from step {int(latest.name[5:]):,}" in errors
    (line,) = error_lines(errors)
    assert line.startswith("error: stopped and saved at step")


class OneOfTwo(ProcessGroup):
    """Rank 0 of two processes; the test supplies the sums of both."""

    def __init__(self, sum_of_both: Callable[[list[float]], list[float]]) -> None:
        super().__init__()
        self.size, self._sum_of_both = 2, sum_of_both

    def sum(self, numbers: Sequence[float]) -> list[float]:
        return self._sum_of_both(list(numbers))

    def on_rank0(self, work: Callable[[], T]) -> T:
        return work()


@pytest.fixture
def started_run(tmp_path: Path) -> Iterator[Run]:
    run = Run(parse(Recipe, tree("none", {})), tmp_path, SilentListener(), torch.device("cpu"))
    yield run
    run.close()


def test_a_stop_requested_while_the_processes_agree_is_not_lost(started_run: Run) -> None:
    """The handler of a signal runs after the sum has arrived and before it is read."""

    def requested_meanwhile(numbers: list[float]) -> list[float]:
        started_run.stop()
        return numbers  # the other process adds nothing

    started_run.group = OneOfTwo(requested_meanwhile)
    assert started_run.has_budget()  # the other process did not receive it: both continue
    with pytest.raises(Interrupted):
        started_run.has_budget()


def test_processes_that_agree_to_stop_do_not_start_an_evaluation(started_run: Run) -> None:
    """If only another rank receives a signal (its host shuts down), rank 0 must not evaluate until it is killed."""
    started_run.group = OneOfTwo(lambda numbers: [*numbers[:-1], numbers[-1] + 1])
    started_run.progress.spent.steps = 1000  # an evaluation is due
    with pytest.raises(Interrupted):
        started_run.evaluate_or_save_if_due()
    assert started_run.progress.evaluated_at == -1
