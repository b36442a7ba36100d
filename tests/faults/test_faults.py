"""A short version of faults.py and flip.py; `make faults` runs all of them."""

import subprocess
import sys
from pathlib import Path

import pytest
from flip import FINE, count_outcomes


@pytest.mark.slow
@pytest.mark.parametrize("name", ["disk full (tmpfs of 12 MB)", "second writer"])
def test_a_fault_is_survived(name: str) -> None:
    command = [sys.executable, str(Path(__file__).with_name("faults.py")), "--only", name]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    if "skipped: " in done.stdout:
        pytest.skip(done.stdout)


@pytest.mark.slow
@pytest.mark.no_shapes
def test_damage_is_detected_in_every_kind_of_file(tmp_path: Path) -> None:
    results = count_outcomes(tmp_path, changes=13, seed=5)
    assert {what for counts in results.values() for what in counts} <= FINE
    assert len(results) == 14
