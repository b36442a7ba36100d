"""A short version of kill.py: three kills, one of each kind."""

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
def test_a_killed_run_ends_in_the_same_bits() -> None:
    command = [sys.executable, str(Path(__file__).with_name("kill.py")), "--kind", "translation", "--kills", "3"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "translation: 3 kills" in done.stdout
    assert "all ended in the bits of the undisturbed run" in done.stdout
