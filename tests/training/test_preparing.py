"""Data that is prepared before a run: by several processes, and used by several runs."""

import json
import sys
from pathlib import Path

import pytest

from allyouneed.errors import ConfigError
from allyouneed.lab.jobs import Job
from allyouneed.lab.runs import run_all
from allyouneed.storage import read_manifest
from allyouneed.tasks.prepared import reusing
from allyouneed.training import Recipe, load_recipe
from allyouneed.training.preparing import prepare, reusing_data_of, run_data

SMALL = ["model.width=8", "model.hidden=8", "model.mixer.heads=2", "model.encoder_layers=1", "model.decoder_layers=1"]


@pytest.fixture
def recipe(tmp_path: Path) -> Recipe:
    for name, rows in (("train", 300), ("valid", 20)):
        lines = [f"word{number % 7} {number}\tWort{number % 5} {number}\n" for number in range(rows)]
        (tmp_path / name).write_text("".join(lines), encoding="utf-8")
    tree = {
        "task": {
            "type": "translation",
            "train": str(tmp_path / "train"),
            "valid": str(tmp_path / "valid"),
            "tokenizer": {"kind": "words"},
        },
        "model": {"type": "encoder-decoder"},
        "train": {"budget": {"steps": 1}},
    }
    return load_recipe(tree, None, SMALL)


def with_task(recipe: Recipe, **changes: object) -> Recipe:
    return recipe.model_copy(update={"task": recipe.task.model_copy(update=changes)})


def is_shared(run: Path, other: Path) -> bool:
    """Return whether the files of two runs are the same on the disk."""
    names = read_manifest(run / "data" / "prepared")
    both = [(run / "data" / "prepared" / name, other / "data" / "prepared" / name) for name in names]
    return all(one.samefile(two) for one, two in both)


def test_several_processes_prepare_the_same_bytes(recipe: Recipe, tmp_path: Path) -> None:
    notes: list[str] = []
    for count in (1, 2):
        data = prepare(recipe, tmp_path / f"run{count}", count, notes.append)
        assert data.notes[0] == "train: 300 pairs"
    assert notes == []
    one, two = (read_manifest(tmp_path / f"run{count}" / "data" / "prepared") for count in (1, 2))
    assert one == two


def test_a_process_that_cannot_help_is_noted(recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notes: list[str] = []
    monkeypatch.setattr(sys, "executable", "/bin/false")
    prepare(recipe, tmp_path / "run", 2, notes.append)
    assert notes == ["another process ended with status 1: no message"]


def test_runs_use_the_data_of_another_run(recipe: Recipe, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    prepare(recipe, first)
    with reusing_data_of(first):
        assert run_data(recipe, second).notes == run_data(recipe, first).notes
    assert is_shared(first, second)
    other = with_task(recipe, max_length=9)
    with reusing_data_of(first), pytest.raises(ConfigError, match=r"other settings: its max_length differ; prepare it"):
        run_data(other, tmp_path / "third")
    with reusing_data_of(tmp_path), pytest.raises(ConfigError, match=r"prepared: no such folder; prepare it"):
        run_data(recipe, tmp_path / "third")
    with reusing(first / "data", required=False):
        run_data(other, tmp_path / "third")
    assert json.loads((tmp_path / "third" / "data" / "prepared" / "key.json").read_text())["max_length"] == 9


def test_jobs_use_prepared_data_if_it_is_theirs(recipe: Recipe, tmp_path: Path) -> None:
    prepare(recipe, tmp_path / "given")
    recipes = [recipe, with_task(recipe, max_length=9)]
    jobs = [Job(f"job{number}", one, tmp_path / "given" / "data") for number, one in enumerate(recipes)]
    assert not any(outcome.failed for outcome in run_all(jobs, tmp_path / "runs"))
    assert [is_shared(tmp_path / "runs" / job.name, tmp_path / "given") for job in jobs] == [True, False]


def test_the_run_of_another_task_keeps_its_data(recipe: Recipe, tmp_path: Path) -> None:
    (outcome,) = run_all([Job("run", recipe)], tmp_path)
    assert not outcome.failed
    prepare(recipe, tmp_path / "run")
    with pytest.raises(ConfigError, match="holds a run with another task"):
        prepare(with_task(recipe, max_length=9), tmp_path / "run")
