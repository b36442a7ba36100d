"""Every command uses the best checkpoint of a run that was stopped, and leaves the run as it is."""

import json
import os
import shutil
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import torch
from cli_commands import ENVIRONMENT, Commands

import allyouneed
from allyouneed.config import parse
from allyouneed.errors import FolderError
from allyouneed.folder import load_folder
from allyouneed.storage import lock
from allyouneed.training import Interrupted, Recipe, train
from allyouneed.training.checkpoint import Checkpoints
from allyouneed.training.progress import SilentListener

TINY: dict[str, Any] = {
    "task": {"type": "numbers", "up_to": 99, "pairs": 60, "valid": 10, "test": 20, "batch_tokens": 512},
    "model": {
        "type": "encoder-decoder",
        "width": 16,
        "hidden": 16,
        "encoder_layers": 1,
        "decoder_layers": 1,
        "mixer": {"type": "softmax", "heads": 2},
    },
    "train": {"budget": {"steps": 30}, "evaluate_every": 0.2, "average": "ema", "optimizer": {"type": "adam"}},
}
TINY["train"]["optimizer"]["lr"] = 0.01
LINE = "not finished; using its best checkpoint of step 12"
COMMANDS = {
    "translate": (["translate", "{}"], "forty-one\n"),
    "generate": (["generate", "{}", "--prompt", "forty-one"], ""),
    "evaluate": (["evaluate", "{}", "--split", "valid"], ""),
    "score": (["score", "{}"], "one\teins\n"),
    "inspect": (["inspect", "{}", "forty-one", "--out", "inspected"], ""),
    "export": (["export", "{}", "--to", "onnx", "--out", "exported"], ""),
    "train --from": (["train", "--from", "{}", "--steps", "2", "--out", "again"], ""),
}


class Stopper(SilentListener):
    """Stops a run at its second evaluation, as a signal would."""

    seen = 0

    def progress(self, fraction: float, record: dict[str, Any]) -> None:
        self.seen += record["kind"] == "evaluation"
        if self.seen == 2:
            os.kill(os.getpid(), signal.SIGTERM)


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stopped") / "x"
    with pytest.raises(Interrupted):
        train(parse(Recipe, TINY), folder, Stopper())
    assert not (folder / "model").exists()
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_uses_the_best_checkpoint_and_changes_nothing(
    name: str, stopped: Path, run: Commands, tmp_path: Path
) -> None:
    if name == "export":
        pytest.importorskip("onnx")
    before = contents(stopped)
    arguments, given = COMMANDS[name]
    with lock(stopped):  # as if the run were still running
        done = run(*(part.format(stopped) for part in arguments), given=given, folder=tmp_path)
    assert done.status == 0, done.err
    assert [line for line in done.err.splitlines() if "not finished" in line] == [f"{stopped}: {LINE}"]
    after = contents(stopped)
    assert {**after, "lock": b""} == {**before, "lock": b""}  # it holds the id of the process


def test_serve_answers_with_a_stopped_run(stopped: Path, tmp_path: Path) -> None:
    pytest.importorskip("uvicorn")
    command = [sys.executable, "-m", "allyouneed", "serve", str(stopped), "--port", "0"]
    with (
        (tmp_path / "err").open("wb") as errors,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, env=ENVIRONMENT, text=True) as server,
    ):
        try:
            assert server.stdout is not None
            address = "http://" + server.stdout.readline().split("http://")[1].split()[0]
            with urllib.request.urlopen(f"{address}/v1/models") as answer:
                assert [model["id"] for model in json.load(answer)["data"]] == ["x"]
        finally:
            server.terminate()
    assert f"{stopped}: {LINE}" in (tmp_path / "err").read_text()


def test_the_weights_are_those_that_were_evaluated(stopped: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The averaged weights of the best checkpoint: the model that `train` would write now."""
    best = Checkpoints(stopped, tidy=False).best()
    assert best is not None
    average = Checkpoints(stopped, tidy=False).load(best).tensors["average"]
    loaded = load_folder(stopped)
    assert loaded.step == 12
    assert all(torch.equal(value, average[f"0/{name}"]) for name, value in loaded.model.named_parameters())
    assert len(allyouneed.load(stopped).translate(["forty-one"])) == 1
    assert capsys.readouterr().err.splitlines() == [f"{stopped}: {LINE}"] * 2


def test_a_damaged_best_checkpoint_gives_way_to_the_newest(stopped: Path, tmp_path: Path) -> None:
    shutil.copytree(stopped, tmp_path / "x")
    paths = sorted((tmp_path / "x" / "checkpoints").iterdir())
    (paths[-1] / "model.safetensors").write_bytes(b"")
    assert load_folder(tmp_path / "x").step == 6
    (paths[0] / "model.safetensors").write_bytes(b"")
    with pytest.raises(FolderError, match="a run that has no intact checkpoint"):
        load_folder(tmp_path / "x")
    shutil.rmtree(tmp_path / "x" / "checkpoints")
    with pytest.raises(FolderError, match="a run that has not saved a checkpoint yet"):
        load_folder(tmp_path / "x")


def test_a_larger_budget_goes_on_and_a_smaller_one_is_refused(stopped: Path, run: Commands, tmp_path: Path) -> None:
    shutil.copytree(stopped, tmp_path / "x")
    folder = str(tmp_path / "x")
    done = run("train", f"{folder}/recipe.toml", "--out", folder, "--steps", "20")
    assert done.status == 2
    assert "the budget of this run is 30 steps, not 20 steps; give the same steps" in done.err
    done = run("train", f"{folder}/recipe.toml", "--out", folder, "--steps", "40")
    assert done.status == 0, done.err
    assert "resuming from step 12 with a larger budget: 40 steps" in done.err


def test_a_shortlist_waits_for_the_end_of_the_run(stopped: Path, run: Commands) -> None:
    done = run("shortlist", str(stopped))
    assert done.status == 2
    assert "the run is not finished" in done.err


def test_a_stopped_run_goes_on_as_if_it_had_not_been_used(stopped: Path, tmp_path: Path) -> None:
    shutil.copytree(stopped, tmp_path / "x")
    load_folder(tmp_path / "x")
    train(parse(Recipe, TINY), tmp_path / "x")
    assert load_folder(tmp_path / "x").step is None
    train(parse(Recipe, TINY), tmp_path / "whole")
    weights = [(tmp_path / name / "model" / "model.safetensors").read_bytes() for name in ("x", "whole")]
    assert weights[0] == weights[1]
