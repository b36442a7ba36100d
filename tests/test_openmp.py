"""How OpenMP's threads wait: set before torch loads it, for every way in, unless the user has decided."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from allyouneed.openmp import CHOICES, WAITING
from helpers import ROOT, file_hash

# OpenMP prints its settings when it is loaded.
SHOW = {"OMP_DISPLAY_ENV": "verbose", "OMP_NUM_THREADS": "2", "PYTHONPATH": str(ROOT / "src")}
SETTINGS = "import sys; assert 'torch' not in sys.modules; import torch"


def run(code: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if name not in CHOICES}
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, env=clean | SHOW | variables, check=True, capture_output=True, text=True)


def settings(code: str, **variables: str) -> dict[str, str]:
    """Return OpenMP's settings in a process that runs this code."""
    lines = [line.partition(" = ") for line in run(code, **variables).stderr.splitlines()]
    found = {name.split()[-1]: value.strip("'") for name, _, value in lines if value}
    if "GOMP_SPINCOUNT" not in found:
        pytest.skip("torch uses another OpenMP here")
    return found


@pytest.mark.parametrize("code", ["import allyouneed.cli", "import allyouneed.rasp", "import allyouneed"])
def test_threads_wait_passively_after_a_short_spin(code: str) -> None:
    found = settings(f"{code}; {SETTINGS}")
    assert (found["OMP_WAIT_POLICY"], found["GOMP_SPINCOUNT"]) == ("PASSIVE", WAITING["GOMP_SPINCOUNT"])


def test_children_wait_passively_too() -> None:
    """Runs of an experiment and workers of a server are processes that may import torch first."""
    code = "import subprocess, sys, allyouneed; subprocess.run([sys.executable, '-c', 'import torch'], check=True)"
    assert settings(code)["GOMP_SPINCOUNT"] == WAITING["GOMP_SPINCOUNT"]


@pytest.mark.parametrize(("name", "value"), [("OMP_WAIT_POLICY", "active"), ("GOMP_SPINCOUNT", "77")])
def test_the_choice_of_the_user_is_respected(name: str, value: str) -> None:
    plain, ours = (settings(code + SETTINGS, **{name: value}) for code in ("", "import allyouneed; "))
    assert {setting: ours[setting] for setting in plain} == plain
    assert ours[name] == value.upper()


def test_waiting_changes_no_bit_of_a_run(tmp_path: Path) -> None:
    """One worker with two OpenMP threads, so that products and sums are shared between them."""
    code = """
import sys
from pathlib import Path
from allyouneed.training import load_recipe, train
sets = ["train.workers=1", "train.budget.steps=2", "train.deterministic=true", "task.pairs=300", "task.valid=40"]
train(load_recipe("numbers-en-de", None, [*sets, "task.test=20"]), Path(sys.argv[1]), cores=2)
"""
    run(code, str(tmp_path / "spinning"), GOMP_SPINCOUNT="20000")  # active ones would take minutes on a busy machine
    run(code, str(tmp_path / "ours"))
    hashes = {file_hash(folder / "model" / "model.safetensors") for folder in tmp_path.iterdir()}
    assert len(list(tmp_path.iterdir())) == 2
    assert len(hashes) == 1
