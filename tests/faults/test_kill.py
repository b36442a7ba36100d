"""A short version of kill.py: three kills, one of each kind."""

from pathlib import Path

import pytest
from kill import torment


@pytest.mark.slow
@pytest.mark.no_shapes
def test_a_killed_run_ends_in_the_same_bits(tmp_path: Path) -> None:
    kills, differences = torment(tmp_path, "translation", kills=3, seed=4)
    assert [kill.way for kill in kills] == ["start", "save", "any"]
    assert differences == []
