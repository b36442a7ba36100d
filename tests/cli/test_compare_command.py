"""`allyouneed compare` in processes: killed and resumed, on Ray, refused."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from cli_commands import ENVIRONMENT, Commands
from test_bad_input import assert_one_line

from allyouneed.errors import ConfigError
from allyouneed.lab.ray_jobs import run_on_ray
from allyouneed.storage import is_locked, open_folder
from allyouneed.training import load_recipe, train
from allyouneed.training.evaluate import names_of_scores

pytestmark = pytest.mark.no_shapes
SETS = ["task.valid=10", "task.test=10", "task.batch=8", "task.lengths=[1,5]", "model.width=16", "model.hidden=16"]
SETS += ["train.evaluate_every=0.5", "train.log_every=5"]
FLAGS = [flag for pair in SETS for flag in ("--set", pair)]
COMPARE = ["compare", "copy", "--vary", "model.norm=pre,post", "--seeds", "2", "--steps", "12", *FLAGS]
RUNS = [f"copy.{system}.seed-{seed}" for seed in (1, 2) for system in ("baseline", "norm=post")]


def is_finished(folder: Path) -> bool:
    return (folder / "model" / "manifest.json").exists()


def files(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Return the modification time and content of each file."""
    every = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return {str(path): (path.stat().st_mtime_ns, path.read_bytes()) for path in every}


def numbers(report: Path) -> list[dict[str, Any]]:
    """Return all runs of a report, without times."""
    runs = json.loads(report.read_text(encoding="utf-8"))["runs"]
    for timed in (*runs, *(point for one in runs for point in one["curve"])):
        del timed["seconds"]
    return runs


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory, run: Commands) -> Path:
    """A comparison that was killed after its first run and resumed."""
    folder = tmp_path_factory.mktemp("compared")
    program = [sys.executable, "-m", "allyouneed", *COMPARE, "--workers", "1", "--out", str(folder)]
    runs = folder / "runs"
    with subprocess.Popen(program, env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        end = time.monotonic() + 900
        while not (is_finished(runs / RUNS[0]) and (runs / RUNS[1]).exists()):
            assert process.poll() is None, process.stderr and process.stderr.read().decode()
            assert time.monotonic() < end, "timed out"
            time.sleep(0.02)
        os.kill(process.pid, signal.SIGKILL)
    assert not is_finished(runs / RUNS[3]), "killed too late"
    while is_locked(runs / RUNS[0]):  # a finished model, but its process may still write the last line of its log
        time.sleep(0.02)
    before = files(runs / RUNS[0])
    done = run(*COMPARE, "--out", str(folder))
    assert done.status == 0, done.err
    assert files(runs / RUNS[0]) == before, "a finished run was touched"
    (folder / "printed").write_text(done.out + done.err, encoding="utf-8")
    return folder


def test_a_killed_comparison_resumes_bit_for_bit(compared: Path, tmp_path: Path) -> None:
    sets = [*SETS, "model.norm=post", "train.budget.steps=12"]
    train(load_recipe("copy", {"seed": 2}, sets), tmp_path / "alone", cores=1)
    made = open_folder(compared / "runs" / RUNS[3] / "model").read("model.safetensors")
    assert made == open_folder(tmp_path / "alone" / "model").read("model.safetensors")


def test_what_is_printed_and_reported(compared: Path, tmp_path: Path) -> None:
    printed = (compared / "printed").read_text(encoding="utf-8")
    assert "norm=pre: already the setting of copy" in printed
    assert "4 runs: 2 systems x 1 task x 2 seeds" in printed
    assert "could be shown with 2 seeds" in printed
    assert f"report: {compared / 'report.html'}" in printed
    page = (compared / "report.html").read_text(encoding="utf-8")
    for part in (
        "What it cost",
        "Learning curves",
        "What differs",
        "model.norm = post (pre)",
        "allyouneed compare copy",
    ):
        assert part in page
    assert "<script" not in page
    runs = numbers(compared / "report.json")
    assert [(one["system"], one["seed"]) for one in runs] == [
        ("baseline", 1),
        ("baseline", 2),
        ("norm=post", 1),
        ("norm=post", 2),
    ]
    assert all(one["steps"] == 12 and len(one["curve"]) == 2 for one in runs)
    assert len({one["tokens"] for one in runs}) == 2  # the runs of one seed saw the same data
    foreseen = names_of_scores(load_recipe("copy", None, SETS).task.prepare(tmp_path, 1), "encoder-decoder")
    assert list(foreseen) == list(runs[0]["scores"])


def test_reused_runs_are_reported(compared: Path, run: Commands) -> None:
    assert "1 of 4 runs kept from before" in (compared / "printed").read_text(encoding="utf-8")
    again = run(*COMPARE, "--out", str(compared))
    assert "4 of 4 runs kept from before" in again.err
    assert "1/4" not in again.err


def test_the_report_of_another_experiment_is_not_replaced(compared: Path, run: Commands) -> None:
    before = (compared / "report.html").read_bytes()
    for other in (["compare", "sort", *COMPARE[2:]], ["cost"], ["flow"], ["scaling", "copy"]):
        assert_one_line(run(*other, "--out", str(compared)), 2, "holds the report of 'compare copy'")
    assert (compared / "report.html").read_bytes() == before


def test_a_folder_of_another_experiment_is_refused_before_data_is_prepared(run: Commands, tmp_path: Path) -> None:
    (tmp_path / "report.json").write_text('{"question": "cost"}')
    done = run("compare", "numbers-en-de", "--vary", "model.norm=pre", "--out", str(tmp_path))
    assert_one_line(done, 2, "holds the report of 'cost', not of 'compare numbers-en-de'")
    done = run("compare", "numbers-en-ge", "--vary", "model.norm=pre", "--out", str(tmp_path))
    assert_one_line(done, 2, "did you mean 'numbers-en-de'")
    assert [path.name for path in tmp_path.iterdir()] == ["report.json"]


def test_an_interrupted_comparison_exits_with_130(tmp_path: Path) -> None:
    program = [sys.executable, "-m", "allyouneed", *COMPARE, "--steps", "5000", "--out", str(tmp_path)]
    with subprocess.Popen(program, env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
        while not (tmp_path / "runs" / RUNS[0]).exists():
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        assert process.stderr is not None
        stderr = process.stderr.read().decode()
    assert (process.returncode, "Traceback" in stderr) == (130, False), stderr
    assert "the same command resumes" in stderr


def test_a_ray_cluster_gives_the_same_numbers(compared: Path, tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'allyouneed[ray]'")
    program = [
        sys.executable,
        "-m",
        "allyouneed",
        *COMPARE,
        "--on",
        "ray",
        "--workers",
        "2",
        "--out",
        str(tmp_path / "ray"),
    ]
    done = subprocess.run(program, env=ENVIRONMENT, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr
    assert numbers(tmp_path / "ray" / "report.json") == numbers(compared / "report.json")


def test_without_ray_the_error_names_the_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)  # as if it were not installed
    with pytest.raises(ConfigError, match="pip install"):
        list(run_on_ray([], tmp_path, 1))


def test_the_test_split_is_measured_as_evaluate_does(compared: Path, run: Commands) -> None:
    done = run(*COMPARE, "--test", "--metric", "loss", "--out", str(compared))
    assert done.status == 0, done.err
    assert "loss (test split)" in done.out
    evaluated = run("evaluate", str(compared / "runs" / RUNS[0]), "--split", "test").out
    kept = json.loads((compared / "runs" / RUNS[0] / "test.json").read_text())
    assert f"loss = {kept['loss']:.4f}" in evaluated
    data = json.loads((compared / "report.json").read_text())
    assert [(one["system"], one["scores"]["loss"]["count"]) for one in data["test"]] == [
        ("baseline", 2),
        ("norm=post", 2),
    ]


BAD = {
    "two budgets": (["copy", "--vary", "model.norm=post", "--steps", "1", "--flops", "1e9"], "steps and flops"),
    "nothing varied": (["copy"], "nothing to compare"),
    "no seeds": (["copy", "--vary", "model.norm=post", "--seeds", "0"], "--seeds"),
    "unknown value": (["copy", "--vary", "model.norm=past"], "norm=past on copy"),
    "unknown setting": (["copy", "--vary", "model.nrom=post"], "did you mean 'norm'"),
    "unknown recipe": (["copi", "--vary", "model.norm=post"], "did you mean 'copy'"),
    "unknown metric": (["copy", "--vary", "model.norm=post", "--metric", "exat", *FLAGS], "did you mean 'exact'"),
    "unknown place": (["copy", "--vary", "model.norm=post", "--on", "moon"], "moon"),
    "unequal": (
        ["copy", "--vary", "model.hidden=400", "--equal", "parameters", *FLAGS],
        "more than 5% away",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_options_are_refused_at_once(name: str, run: Commands, tmp_path: Path) -> None:
    arguments, message = BAD[name]
    assert_one_line(run("compare", *arguments, "--out", str(tmp_path / "out")), 2, message)
    assert not (tmp_path / "out" / "runs").exists()


def test_another_comparison_in_the_folder_is_refused(compared: Path, run: Commands) -> None:
    again = ["13" if argument == "12" else argument for argument in COMPARE]
    assert_one_line(run(*again, "--out", str(compared)), 2, "started with another recipe")
