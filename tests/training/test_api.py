"""`allyouneed.train`: recipes by name, by path and as objects, with overrides."""

from pathlib import Path

import pytest
import torch
from tuning_runs import OTHER, first_loss, write_labels, write_pairs

import allyouneed
from allyouneed.cli import run
from allyouneed.decode import SearchConfig
from allyouneed.errors import ConfigError
from allyouneed.evaluation.measure import evaluate_files
from allyouneed.evaluation.settings import recipe_of
from allyouneed.folder import load_folder
from allyouneed.models.encoder_decoder import EncoderDecoderConfig
from allyouneed.tasks.translation import TranslationConfig
from allyouneed.training import Recipe, load_recipe
from allyouneed.training.log import read_log
from allyouneed.weights import model_tensors

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


def test_start_tunes_a_model_on_files_as_the_command_does(translator: str, tmp_path: Path) -> None:
    base, files = load_folder(translator), [Path(name) for name in write_pairs(tmp_path, "other", OTHER)]
    given = {"train": files, "valid": files, "steps": 2, "progress": False}
    tuned = allyouneed.train(None, tmp_path / "run", start=Path(translator), **given)
    assert tuned.codec.same_ids_as(base.codec)
    assert tuned.recipe["start"] == {"folder": translator, "sha256": base.sha256}
    before = {one.name: one.value for one in evaluate_files(base, list(map(str, files)), SearchConfig(), print)}
    assert first_loss(tmp_path / "run") == pytest.approx(before["loss"], rel=1e-5)  # the weights of the folder
    assert len(tuned.translate(["free games"])) == 1
    options = [*(f"--train={file}" for file in files), *(f"--valid={file}" for file in files), "--steps", "2"]
    assert run(["train", "--from", translator, *options, "--out", str(tmp_path / "command")]) == 0
    ours, theirs = (model_tensors(load_folder(tmp_path / name).model) for name in ("run", "command"))
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(tensor, theirs[name]) for name, tensor in ours.items())


def test_start_alone_trains_on_with_the_data_of_the_folder(translator: str, tmp_path: Path) -> None:
    tuned = allyouneed.train(None, tmp_path / "run", start=translator, steps=1, progress=False)
    assert recipe_of(tuned).task == recipe_of(load_folder(translator)).task


def test_start_with_a_recipe_object_keeps_what_it_does_not_set(translator: str, tmp_path: Path) -> None:
    files = write_pairs(tmp_path, "other", OTHER)
    task, model = TranslationConfig(train=files, valid=files), EncoderDecoderConfig(dropout=0.0)  # type: ignore[arg-type]
    recipe = Recipe(task=task, model=model)
    tuned = allyouneed.train(recipe, tmp_path / "run", start=translator, steps=1, progress=False)
    found = recipe_of(tuned).model.model_dump()
    assert (found["dropout"], found["width"], found["encoder_layers"]) == (0.0, 16, 1)


def test_start_with_another_task(classifier: str, tmp_path: Path) -> None:
    table = write_labels(tmp_path, "other.tsv", "xyz")
    tuned = allyouneed.train(
        None, tmp_path / "run", start=classifier, task="classification", train=table, valid=table, steps=1
    )
    assert tuned.codec.classes == ("x", "y", "z")
    assert tuned.classify(["text x 1"])[0] in "xyz"


def test_start_refuses_what_cannot_be(translator: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="None needs start"):
        allyouneed.train(None, tmp_path / "run")
    with pytest.raises(ConfigError, match="start: of type int"):
        allyouneed.train(None, tmp_path / "run", start=3)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"task\.shared: has no effect with --from"):
        allyouneed.train(None, tmp_path / "run", start=translator, sets=["task.shared=true"])
    assert not (tmp_path / "run").exists()
