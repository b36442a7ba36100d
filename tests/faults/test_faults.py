"""A short version of faults.py and flip.py; `make faults` runs all of them."""

from pathlib import Path

import pytest
from flip import FINE, harm

from faults import tried


@pytest.mark.slow
@pytest.mark.parametrize("name", ["disk full (tmpfs of 12 MB)", "I/O error in write", "second writer"])
def test_a_fault_is_survived(name: str) -> None:
    problems, told = tried(name)
    if told.startswith("skipped"):
        pytest.skip(told)
    assert problems == []


@pytest.mark.slow
@pytest.mark.no_shapes
def test_damage_is_noticed_in_every_kind_of_file(tmp_path: Path) -> None:
    results = harm(tmp_path, changes=13, seed=5)
    assert {what for counts in results.values() for what in counts} <= FINE
    assert len(results) == 14
