"""`allyouneed verify`: good folders pass, and each kind of damage is named."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from cli_commands import Commands
from safetensors.torch import load_file, save_file

from allyouneed.storage.manifest import write_manifest


@pytest.fixture
def copied(numbers: str, tmp_path: Path) -> Path:
    return Path(shutil.copytree(numbers, tmp_path / "run"))


def test_an_intact_run_passes_and_reproduces_its_scores_exactly(run: Commands, numbers: str) -> None:
    before = {path: path.stat().st_mtime_ns for path in Path(numbers).rglob("*")}
    done = run("verify", numbers)
    assert done.status == 0, done.out + done.err
    assert "failed   " not in done.out
    assert done.out.count("identical") == 5
    assert "check       ok  failed  skipped" in done.out
    assert before == {path: path.stat().st_mtime_ns for path in Path(numbers).rglob("*")}  # nothing is changed


def test_a_model_folder_alone_is_compared_with_its_card(run: Commands, numbers: str, tmp_path: Path) -> None:
    alone = shutil.copytree(Path(numbers) / "model", tmp_path / "alone")
    done = run("verify", str(alone))
    assert done.status == 0, done.out + done.err
    assert done.out.count("the same to the four decimals of the card") + done.out.count("identical") == 5


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def write_nan(path: Path) -> None:
    tensors = load_file(path)
    next(iter(tensors.values())).view(-1)[0] = torch.nan
    save_file(tensors, path)
    write_manifest(path.parent)


def other_weights(path: Path) -> None:
    save_file({name: tensor + 0.1 for name, tensor in load_file(path).items()}, path)
    write_manifest(path.parent)


def another_score(path: Path) -> None:
    text = path.read_text()
    path.write_text(text.replace("- loss = ", "- loss = 1"))
    write_manifest(path.parent)


def link(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")


DAMAGE: dict[str, tuple[str, Callable[[Path], None], str]] = {
    "a flipped bit": ("model/model.safetensors", flip, "failed   sha256"),
    "a changed manifest": ("model/manifest.json", flip, "failed   manifest"),
    "NaN": ("model/model.safetensors", write_nan, "failed   numbers"),
    "other weights": ("model/model.safetensors", other_weights, "failed   score"),
    "another score": ("model/README.md", another_score, "failed   score"),
    "a link in the model": ("model/model.safetensors", link, "failed   manifest"),
    "a link for the model": ("model", link, "failed   links"),
    "a link for a checkpoint": ("checkpoints/step-00000030", link, "failed   checkpoint"),
    "a harmed checkpoint": ("checkpoints/step-00000030/optimizer.safetensors", flip, "failed   checkpoint"),
    "harmed data": ("data/prepared/key.json", flip, "failed   data"),
    "no recipe": ("recipe.toml", Path.unlink, "failed   recipe"),
    "a log of something else": ("log.jsonl", lambda path: path.write_text("[]\n") and None, "failed   log"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_named(name: str, run: Commands, copied: Path) -> None:
    file, damage, line = DAMAGE[name]
    damage(copied / file)
    done = run("verify", str(copied), *([] if "score" in line else ["--no-scores"]))
    assert done.status == 2
    assert line in done.out
    assert "checks failed" in done.err
    assert "Traceback" not in done.err


def test_all_damage_is_named_with_a_remedy(run: Commands, copied: Path, tmp_path: Path) -> None:
    model = copied / "model"
    (model / "codec.json").unlink()
    (model / "config.json").write_text("")
    (model / "notes.txt").write_text("mine")
    flip(model / "model.safetensors")
    link(model / "README.md")
    alone = shutil.copytree(model, tmp_path / "alone", symlinks=True)
    again = f"`allyouneed train {copied / 'recipe.toml'} --out {copied}` makes its model folder again"
    for folder, given, advice in [
        (model, copied, again),
        (model, model, again),
        (alone, alone, "copy the whole folder again"),
    ]:
        done = run("verify", str(given), "--no-scores")
        assert done.status == 2
        assert f"failed   manifest    {folder}/codec.json: is missing\n" in done.out
        assert f"failed   manifest    {folder}/config.json: 0 bytes, but" in done.out
        assert f"failed   manifest    {folder}/notes.txt: is not in the manifest; it was added later\n" in done.out
        assert f"failed   manifest    {folder}/README.md: is a link" in done.out
        assert f"failed   sha256      {folder}/model.safetensors: changed since it was written" in done.out
        assert f"ok       sha256      {folder}/tokenizer.json" in done.out
        assert advice in done.err


def test_train_makes_a_damaged_model_folder_again(run: Commands, copied: Path) -> None:
    """As `verify` advises."""
    before = (copied / "model" / "config.json").read_bytes()
    (copied / "model" / "config.json").unlink()
    done = run("train", str(copied / "recipe.toml"), "--out", str(copied))
    assert done.status == 0, done.err
    assert (copied / "model" / "config.json").read_bytes() == before


def test_a_path_is_named_once(run: Commands, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("mine")
    write_manifest(tmp_path / "other")
    done = run("verify", str(tmp_path / "other"))
    assert done.status == 2
    assert f"failed   loads       {tmp_path / 'other'}: has no config.json; it is not a model folder\n" in done.out


def test_missing_data_is_not_damage(run: Commands, language: str, tmp_path: Path) -> None:
    alone = shutil.copytree(Path(language) / "model", tmp_path / "alone")
    done = run("verify", str(alone), folder=tmp_path)
    assert done.status == 0, done.out
    assert "skipped  score" in done.out
    assert "text.txt: no such file" in done.out


def test_not_a_folder(run: Commands, tmp_path: Path) -> None:
    done = run("verify", "nowhere", folder=tmp_path)
    assert done.status == 2
    assert "copy" not in done.err  # there is nothing to copy again
    assert run("verify", str(tmp_path)).status == 2
