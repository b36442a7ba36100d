"""`allyouneed.train`: recipes by name, by path and as objects, with overrides."""

from pathlib import Path

import pytest

import allyouneed
from allyouneed.errors import ConfigError
from allyouneed.training import load_recipe
from allyouneed.training.log import read_log

SMALL = [
    "task.batch=8",
    "task.valid=10",
    "task.test=10",
    "model.width=16",
    "model.hidden=16",
    "train.evaluate_every=1.0",
    "train.log_every=1",
]


def test_a_recipe_by_name_gives_a_ready_bundle_and_shows_progress(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    bundle = allyouneed.train("copy", tmp_path / "run", steps=2, sets=SMALL)
    assert bundle.model.parameter_count() > 0
    assert "100%  step 2" in capfd.readouterr().err
    assert read_log(tmp_path / "run" / "log.jsonl")[-1]["steps"] == 2


def test_a_recipe_object_and_quiet(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    recipe = load_recipe("copy", sets=SMALL)
    allyouneed.train(recipe, tmp_path / "run", steps=1, seed=5, progress=False)
    assert capfd.readouterr().err == ""
    with pytest.raises(ConfigError, match="seed is 5 there, 6 now"):
        allyouneed.train(recipe, tmp_path / "run", steps=1, seed=6, progress=False)


def test_settings_are_checked_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="give one budget"):
        allyouneed.train("copy", tmp_path / "run", steps=1, minutes=1.0)
    with pytest.raises(ConfigError, match="did you mean 'copy'"):
        allyouneed.train("copi", tmp_path / "run")
    assert not (tmp_path / "run").exists()
