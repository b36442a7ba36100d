"""A stopped or finished run goes on with a larger budget, if its schedule allows it."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from allyouneed.config import parse
from allyouneed.errors import ConfigError
from allyouneed.folder import load_folder
from allyouneed.storage import verify
from allyouneed.training import Interrupted, Recipe, train
from allyouneed.training.checkpoint import Checkpoints
from allyouneed.training.extension import schedule_of
from allyouneed.training.log import read_log
from allyouneed.training.loop import Run
from allyouneed.training.progress import SilentListener

TINY: dict[str, Any] = {
    "task": {"type": "copy", "batch": 8, "valid": 16, "test": 8},
    "model": {"type": "encoder-decoder", "width": 16, "hidden": 16, "encoder_layers": 1, "decoder_layers": 1},
    "train": {"evaluate_every": 0.25, "log_every": 1, "average": "ema"},
    "decode": {"beam": 1},
}
LASTING = {
    "constant": {"type": "constant", "warmup": 0.5},
    "inverse-sqrt": {"type": "inverse-sqrt", "warmup": 0.25},
    "stable-decay": {"type": "stable-decay", "warmup": 0.25, "decay": 0.25},
}


def recipe(schedule: Any, **budget: float) -> Recipe:
    return parse(Recipe, {**TINY, "train": {**TINY["train"], "schedule": schedule, "budget": budget}})


class StopAfter(SilentListener):
    """Stops a run after a step, as a signal would."""

    def __init__(self, step: int) -> None:
        self.step = step

    def progress(self, fraction: float, record: dict[str, Any]) -> None:
        if record["step"] == self.step:
            import os
            import signal

            self.step = -1
            os.kill(os.getpid(), signal.SIGTERM)


class Notes(SilentListener):
    """Keeps the notes of a run."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def note(self, line: str) -> None:
        self.lines.append(line)


def factors(folder: Path) -> dict[int, float]:
    return {
        record["step"]: record["lr_factor"] for record in read_log(folder / "log.jsonl") if record["kind"] == "step"
    }


def last_weights(folder: Path) -> dict[str, torch.Tensor]:
    checkpoints = Checkpoints(folder)
    latest = checkpoints.latest()
    assert latest is not None
    return checkpoints.load(latest).tensors["model"]


@pytest.mark.parametrize("name", LASTING)
def test_a_stopped_run_goes_on_as_if_it_had_been_planned_to_be_longer(name: str, tmp_path: Path) -> None:
    """8 steps, extended to 16: the same bits as 16 steps with the warm-up of 8."""
    schedule = LASTING[name]
    planned = {**schedule, "warmup": schedule["warmup"] / 2}
    train(recipe(planned, steps=16), tmp_path / "planned")
    with pytest.raises(Interrupted):
        train(recipe(schedule, steps=8), tmp_path / "run", StopAfter(5))
    notes = Notes()
    train(recipe(schedule, steps=16), tmp_path / "run", notes)
    assert "resuming from step 5 with a larger budget: 16 steps" in notes.lines
    assert factors(tmp_path / "run") == pytest.approx(factors(tmp_path / "planned"))
    one, other = last_weights(tmp_path / "run"), last_weights(tmp_path / "planned")
    assert all(torch.equal(one[tensor], other[tensor]) for tensor in one)
    card = (tmp_path / "run" / "model" / "README.md").read_text()
    assert "its budget was raised from 8 to 16 steps at step 5" in card
    train(recipe(schedule, steps=16), tmp_path / "run", notes)
    assert notes.lines[-1].endswith(f"this run is finished; its model is in {tmp_path / 'run' / 'model'}")


def test_a_finished_run_goes_on_and_its_model_stays_until_the_end(tmp_path: Path) -> None:
    short, long = recipe("constant", tokens=300), recipe("constant", tokens=900)
    train(short, tmp_path)
    before = (tmp_path / "model" / "model.safetensors").read_bytes()
    with pytest.raises(Interrupted):
        train(long, tmp_path, StopAfter(max(factors(tmp_path)) + 2))
    verify(tmp_path / "model")
    assert (tmp_path / "model" / "model.safetensors").read_bytes() == before
    with pytest.raises(ConfigError, match="the budget of this run is 900 tokens, not 300 tokens"):
        train(short, tmp_path)
    train(long, tmp_path)  # the same command resumes
    assert load_folder(tmp_path).recipe["train"]["budget"]["tokens"] == 900
    ends = [record for record in read_log(tmp_path / "log.jsonl") if record["kind"] == "end"]
    assert [record["tokens"] >= least for record, least in zip(ends, (300, 900), strict=True)] == [True, True]


@pytest.mark.parametrize("name", ["cosine", "linear", "stable-decay"])
def test_a_schedule_that_has_begun_to_fall_is_refused_with_advice(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(recipe(name, steps=8), tmp_path)
    monkeypatch.delattr("allyouneed.training.loop.prepare_data")  # refused before data is prepared
    advice = rf"schedule '{name}' was planned for 8 steps.*allyouneed train --from {tmp_path} --steps 4 --out OTHER"
    with pytest.raises(ConfigError, match=advice):
        train(recipe(name, steps=12), tmp_path)
    train(recipe(name, steps=8), tmp_path)  # nothing has changed: still finished


def test_a_falling_schedule_can_be_extended_during_its_warm_up(tmp_path: Path) -> None:
    schedule = {"type": "cosine", "warmup": 0.5}
    with pytest.raises(Interrupted):
        train(recipe(schedule, steps=8), tmp_path, StopAfter(3))
    train(recipe(schedule, steps=16), tmp_path)
    assert factors(tmp_path)[4] == 1
    assert factors(tmp_path)[16] == 0


def test_a_finished_run_without_checkpoints_is_refused_with_advice(tmp_path: Path) -> None:
    train(recipe("constant", steps=4), tmp_path)
    shutil.rmtree(tmp_path / "checkpoints")
    with pytest.raises(ConfigError, match=r"its checkpoints are gone; to train on .* --steps 4 --out OTHER"):
        train(recipe("constant", steps=8), tmp_path)
    train(recipe("constant", steps=4), tmp_path)


def test_other_changes_beside_a_larger_budget_are_refused(tmp_path: Path) -> None:
    train(recipe("constant", steps=4), tmp_path)
    with pytest.raises(ConfigError, match=r"train\.schedule\.type is 'constant' there, 'inverse-sqrt' now"):
        train(recipe("inverse-sqrt", steps=8), tmp_path)
    with pytest.raises(ConfigError, match="the budget of this run is 4 steps, not"):
        train(recipe("constant", tokens=8000), tmp_path)


def test_a_run_in_minutes_goes_on(tmp_path: Path) -> None:
    train(recipe("constant", minutes=0.03), tmp_path)
    steps = max(factors(tmp_path))
    run = Run(recipe("constant", minutes=6), tmp_path, SilentListener(), torch.device("cpu"))
    assert run.progress.pace.fraction == pytest.approx(0.03 / 6)
    assert run.has_budget()
    run.step()
    assert run.progress.spent.steps == steps + 1
    assert schedule_of(run.progress, run.config).warmup == pytest.approx(0.04 * 0.03 / 6)
    run.close()
