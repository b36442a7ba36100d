"""Many runs: finished ones are reused, killed ones resume, failed ones do not stop the others."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from allyouneed.errors import ConfigError, StorageError
from allyouneed.lab.jobs import Job, outcome_of
from allyouneed.lab.runs import run_all
from allyouneed.storage import lock, open_folder
from allyouneed.training import Recipe, load_recipe, train
from waiting import until

pytestmark = pytest.mark.no_shapes


def recipe(seed: int = 1, *more: str) -> Recipe:
    sets = [
        "task.valid=20",
        "task.test=20",
        "task.batch=8",
        "train.budget.steps=40",
        "train.evaluate_every=0.25",
        "model.width=32",
    ]
    return load_recipe("copy", {"seed": seed}, [*sets, *more])


def weights(folder: Path) -> bytes:
    return open_folder(folder / "model").read("model.safetensors")


def test_parallel_runs_equal_single_runs(tmp_path: Path) -> None:
    jobs = [Job(f"seed-{seed}", recipe(seed)) for seed in (1, 2)]
    outcomes = run_all(jobs, tmp_path / "many", workers=2)
    train(recipe(2), tmp_path / "alone", cores=1)
    assert weights(tmp_path / "many" / "seed-2") == weights(tmp_path / "alone")
    assert [outcome.name for outcome in outcomes] == ["seed-1", "seed-2"]
    assert outcomes[1].steps == 40
    assert len(outcomes[1].curve) == 4
    assert outcomes[1].scores["loss"] > 0
    assert outcomes[1] == outcome_of(tmp_path / "many" / "seed-2")


def test_a_run_that_fails_is_an_outcome(tmp_path: Path) -> None:
    jobs = [Job("bad", recipe(1, "train.metric=charm")), Job("good", recipe())]
    bad, good = run_all(jobs, tmp_path, workers=2)
    assert bad.failed
    assert "charm" in bad.error
    assert not good.failed


def test_another_recipe_in_the_folder_is_refused(tmp_path: Path) -> None:
    run_all([Job("one", recipe())], tmp_path)
    with pytest.raises(ConfigError, match="another recipe"):
        run_all([Job("one", recipe(7))], tmp_path)


def test_other_cores_are_refused(tmp_path: Path) -> None:
    split = recipe(1, "train.budget.steps=2", "train.accumulate=2")
    train(split, tmp_path / "one", cores=1)
    (outcome,) = run_all([Job("one", split)], tmp_path)
    assert outcome.steps == 2
    with pytest.raises(ConfigError, match=r"run on 1 core .*not on --cores 2"):
        run_all([Job("one", split)], tmp_path, cores=2)
    train(split, tmp_path / "two", cores=3)  # two workers of one thread: a core is left over
    run_all([Job("two", split)], tmp_path, cores=3)


def test_concurrent_calls_for_one_folder_are_refused(tmp_path: Path) -> None:
    with lock(tmp_path), pytest.raises(StorageError, match="is writing to this folder"):
        run_all([Job("one", recipe())], tmp_path)
    assert not (tmp_path / "one").exists()


SCRIPT = """
import sys
from pathlib import Path
sys.path[:0] = {tests!r}
from test_runs import recipe
from allyouneed.lab.jobs import Job
from allyouneed.lab.runs import run_all
run_all([Job("one", recipe(1, "train.budget.steps=400"))], Path({folder!r}))
"""


def test_children_stop_with_their_parent_and_the_run_resumes(tmp_path: Path) -> None:
    script = SCRIPT.format(tests=[str(one) for one in Path(__file__).parents[:2]], folder=str(tmp_path / "killed"))
    with subprocess.Popen([sys.executable, "-c", script]) as parent:
        lock = tmp_path / "killed" / "one" / "lock"
        until(lambda: (tmp_path / "killed" / "one" / "checkpoints").exists() and lock.read_text().strip() != "")
        child = int(lock.read_text())
        parent.send_signal(signal.SIGKILL)
    until(lambda: not is_alive(child))
    long = recipe(1, "train.budget.steps=400")
    (outcome,) = run_all([Job("one", long)], tmp_path / "killed")
    train(long, tmp_path / "whole", cores=1)
    assert outcome.steps == 400
    assert weights(tmp_path / "killed" / "one") == weights(tmp_path / "whole")


def is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True
