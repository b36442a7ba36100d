"""The loop learns, resumes to the bit, guards against bad gradients, and reports errors."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import allyouneed
from allyouneed.config import merge, parse
from allyouneed.errors import ConfigError, TrainingError
from allyouneed.mixers.performer import draw_directions
from allyouneed.storage import verify
from allyouneed.training import Interrupted, Recipe, load_recipe, train
from allyouneed.training.checkpoint import Checkpoints
from allyouneed.training.guards import MAX_SKIPS, accept_gradient
from allyouneed.training.log import read_log
from allyouneed.training.loop import Run
from allyouneed.training.progress import SilentListener
from allyouneed.training.recipe_files import find_recipe
from helpers import file_hash

TINY: dict[str, Any] = {
    "task": {"type": "copy", "batch": 16, "valid": 20, "test": 20},
    "model": {
        "type": "encoder-decoder",
        "width": 16,
        "hidden": 32,
        "encoder_layers": 1,
        "decoder_layers": 1,
        "norm": "pre",
        "mixer": {"type": "softmax", "heads": 2},
    },
    "train": {
        "budget": {"steps": 8},
        "accumulate": 2,
        "workers": 2,
        "evaluate_every": 0.25,
        "optimizer": {"type": "muon"},
        "average": {"type": "ema", "decay": 0.9},
    },
    "decode": {"beam": 2},
}


MEMORY = {"type": "xl", "heads": 2, "memory": 6}


def recipe(**train: Any) -> Recipe:
    return parse(Recipe, {**TINY, "train": {**TINY["train"], **train}})


def weights(folder: Path) -> str:
    verify(folder / "model")
    return file_hash(folder / "model" / "model.safetensors")


class Stopper(SilentListener):
    """Stops a run from inside, as a signal would, at its n-th evaluation."""

    def __init__(self, after: int) -> None:
        self.after = after

    def progress(self, fraction: float, record: dict[str, Any]) -> None:
        if record["kind"] == "evaluation":
            self.after -= 1
            if self.after == 0:
                import os
                import signal

                os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.slow
@pytest.mark.parametrize(("average", "stop"), [("ema", 2), ("last", 2), ("none", 1), ("none", 4)])
@pytest.mark.parametrize("lr", [1e-3, 1e-30])  # with the second the first evaluation stays the best one
def test_stopped_and_resumed_ends_in_the_same_bits(average: str, stop: int, lr: float, tmp_path: Path) -> None:
    wanted = recipe(average={"type": average}, optimizer={"type": "adam", "lr": lr})
    train(wanted, tmp_path / "whole")
    with pytest.raises(Interrupted, match=f"step {2 * stop}"):
        train(wanted, tmp_path / "parts", Stopper(stop))
    train(wanted, tmp_path / "parts")
    assert weights(tmp_path / "whole") == weights(tmp_path / "parts")
    steps = [json.loads(line)["step"] for line in (tmp_path / "parts" / "log.jsonl").read_text().splitlines()]
    assert steps == sorted(steps)
    again = train(wanted, tmp_path / "parts")  # finished: nothing happens
    assert allyouneed.load(str(again)).model.parameter_count() > 0


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_features_redrawn_in_training_are_the_same_after_a_resume(workers: int, tmp_path: Path) -> None:
    """New features every third step: for the model, for its replicas, and for a run that was stopped in between."""
    mixer = {"type": "performer", "heads": 2, "features": 4, "redraw": 3}
    changed = {**TINY, "model": {**TINY["model"], "mixer": mixer}, "train": {**TINY["train"], "workers": workers}}
    wanted = parse(Recipe, changed)
    train(wanted, tmp_path / "whole")
    with pytest.raises(Interrupted):
        train(wanted, tmp_path / "parts", Stopper(2))
    train(wanted, tmp_path / "parts")
    assert weights(tmp_path / "whole") == weights(tmp_path / "parts")
    checkpoints = Checkpoints(tmp_path / "parts")
    last = checkpoints.latest()
    assert last is not None
    kept = checkpoints.load(last).tensors["model"]
    salt = int(kept["decoder.blocks.0.mixer.salt"])
    assert torch.equal(kept["decoder.blocks.0.mixer.direction_HMK"], draw_directions(2, 4, 8, salt, draw=2))


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_a_text_read_in_segments_resumes_to_the_same_bits(workers: int, tmp_path: Path) -> None:
    """No state is carried from one step to the next, so none has to be saved."""
    (tmp_path / "text").write_text("".join(f"line {number} of the text\n" for number in range(60)))
    task = {"type": "language", "train": str(tmp_path / "text"), "split": [0.8, 0.2], "context": 13, "segment": 4}
    model = {"type": "decoder", "width": 16, "hidden": 32, "layers": 2, "positions": "none", "mixer": MEMORY}
    wanted = parse(Recipe, {"task": task, "model": model, "train": {**TINY["train"], "workers": workers}})
    train(wanted, tmp_path / "whole")
    with pytest.raises(Interrupted):
        train(wanted, tmp_path / "parts", Stopper(2))
    train(wanted, tmp_path / "parts")
    assert weights(tmp_path / "whole") == weights(tmp_path / "parts")


def test_a_changed_byte_falls_back_to_the_previous_checkpoint(tmp_path: Path) -> None:
    wanted = recipe()
    train(wanted, tmp_path / "whole")
    with pytest.raises(Interrupted):
        train(wanted, tmp_path / "hurt", Stopper(3))
    newest = Checkpoints(tmp_path / "hurt").latest()
    assert newest is not None
    data = bytearray((newest / "model.safetensors").read_bytes())
    data[-1] ^= 1
    (newest / "model.safetensors").write_bytes(data)
    train(wanted, tmp_path / "hurt")
    assert weights(tmp_path / "whole") == weights(tmp_path / "hurt")


def test_a_damaged_best_checkpoint_or_model_is_replaced(tmp_path: Path) -> None:
    wanted = recipe(optimizer={"type": "adam", "lr": 1e-30}, average={"type": "none"})
    with pytest.raises(Interrupted):
        train(wanted, tmp_path, Stopper(4))
    best = Checkpoints(tmp_path).best()
    assert best is not None
    assert best.name == "step-00000002"
    (best / "model.safetensors").write_bytes(b"")
    model = train(wanted, tmp_path)
    whole = weights(tmp_path)
    (model / "model.safetensors").write_bytes(b"")
    train(wanted, tmp_path)
    assert weights(tmp_path) == whole


def test_a_first_attempt_that_failed_does_not_block_the_folder(tmp_path: Path) -> None:
    wrong = parse(Recipe, merge(TINY, {"model": {"mixer": {"heads": 3}}}))
    with pytest.raises(ConfigError, match="not divisible"):
        train(wrong, tmp_path)
    train(recipe(budget={"steps": 1}), tmp_path)


def test_another_recipe_in_the_same_folder_is_refused(tmp_path: Path) -> None:
    train(recipe(budget={"steps": 2}), tmp_path)
    with pytest.raises(ConfigError, match="the budget of this run is 2 steps, not 1 step; give the same steps"):
        train(recipe(budget={"steps": 1}), tmp_path)
    other = parse(
        Recipe, merge(TINY, {"seed": 2, "train": {"budget": {"steps": 2}, "clip": 2.0, "spike": 1.0, "patience": 3}})
    )
    with pytest.raises(ConfigError, match=r"seed is 1 there, 2 now; .*; and 1 more; choose"):
        train(other, tmp_path)


def test_unusable_gradients_are_skipped_and_then_refused(tmp_path: Path) -> None:
    run = Run(recipe(), tmp_path, SilentListener(), torch.device("cpu"))
    before = [parameter.detach().clone() for parameter in run.model.parameters()]
    assert not accept_gradient(run.progress, float("nan"), run.config.spike)
    assert accept_gradient(run.progress, 1.0, run.config.spike)
    with torch.no_grad():
        run.model.head.weight_VD.fill_(float("nan"))
    for _ in range(MAX_SKIPS - 1):
        run.step()
    with pytest.raises(TrainingError, match=r"lower train\.optimizer\.lr"):
        run.step()
    after = list(run.model.parameters())[1:]
    assert all(torch.equal(one, other) for one, other in zip(before[1:], after, strict=True))
    run.workers.close()


def test_early_stopping_and_unknown_metric(tmp_path: Path) -> None:
    stuck = recipe(patience=1, optimizer={"type": "adam", "lr": 1e-30}, budget={"steps": 40}, average={"type": "none"})
    train(stuck, tmp_path / "stuck")
    last = json.loads((tmp_path / "stuck" / "log.jsonl").read_text().splitlines()[-1])
    assert last["steps"] < 40
    with pytest.raises(ConfigError, match="no score 'blue'"):
        train(recipe(metric="blue"), tmp_path / "blue")


@pytest.mark.slow
@pytest.mark.parametrize("average", ["ema", "last", "none"])
def test_a_run_with_a_high_loss_restarts_in_the_first_half_of_its_budget_even_if_stopped(
    average: str, tmp_path: Path
) -> None:
    wanted = recipe(average={"type": average}, restart_above=1e-6, budget={"steps": 12}, spike=3.0)
    train(wanted, tmp_path / "whole")
    log = [json.loads(line) for line in (tmp_path / "whole" / "log.jsonl").read_text().splitlines()]
    assert [(record["kind"], record["step"]) for record in log if record["kind"] in ("restart", "evaluation")] == [
        ("evaluation", 3),
        ("restart", 4),
        ("evaluation", 6),
        ("restart", 7),
        ("evaluation", 9),
        ("evaluation", 12),
    ]
    for stop in (1, 2):  # the moment at which it is to restart
        with pytest.raises(Interrupted, match=f"step {3 * stop}"):
            train(wanted, tmp_path / f"parts-{stop}", Stopper(stop))
        train(wanted, tmp_path / f"parts-{stop}")
        assert weights(tmp_path / "whole") == weights(tmp_path / f"parts-{stop}")


def test_a_restart_changes_the_weights_and_a_good_run_does_not_restart(tmp_path: Path) -> None:
    unmoved = recipe(restart_above=1e-6, optimizer={"type": "adam", "lr": 1e-30})
    run = Run(unmoved, tmp_path, SilentListener(), torch.device("cpu"))
    before = [parameter.detach().clone() for parameter in run.model.parameters()]
    run.step()
    assert all(torch.allclose(one, other) for one, other in zip(before, run.model.parameters(), strict=True))
    run.evaluate()
    run.step()
    assert not all(torch.allclose(one, other) for one, other in zip(before, run.model.parameters(), strict=True))
    run.close()
    train(recipe(restart_above=1e6), tmp_path / "good")
    train(recipe(), tmp_path / "never")
    assert weights(tmp_path / "good") == weights(tmp_path / "never")


def test_a_restart_contradicts_initial_weights_of_another_run() -> None:
    tree = merge(TINY, {"train": {"restart_above": 1.0}, "start": {"folder": "runs/a", "sha256": "0" * 64}})
    with pytest.raises(ConfigError, match="restart_above restarts from random"):
        parse(Recipe, tree)


def test_the_loss_breaks_ties_of_the_metric(tmp_path: Path) -> None:
    """After these few steps no output is exactly right; the last weights have the lowest loss."""
    train(recipe(metric="exact", budget={"steps": 12}, evaluate_every=0.25), tmp_path)
    records = read_log(tmp_path / "log.jsonl")
    evaluations = [record for record in records if record["kind"] == "evaluation"]
    assert {record["exact"] for record in evaluations} == {0.0}
    least = min(evaluations, key=lambda record: record["loss"])
    assert records[-1]["chosen"] == least["step"] > evaluations[0]["step"]


def test_the_metric_of_the_task_can_choose(tmp_path: Path) -> None:
    folder = train(recipe(metric="exact", budget={"tokens": 2000}), tmp_path)
    assert "exact = " in (folder / "README.md").read_text()


def test_a_model_of_the_wrong_kind_is_refused() -> None:
    tree = merge(TINY, {"model": {"type": "encoder", "width": 16}})
    with pytest.raises(ConfigError, match="needs a model of kind"):
        parse(Recipe, tree)


def test_recipes_by_name_and_overrides() -> None:
    loaded = load_recipe("numbers-en-de", {"train": {"budget": {"steps": 3}}}, ["model.mixer.heads=2"])
    assert loaded.train.budget.steps == 3
    assert loaded.train.budget.minutes is None
    with pytest.raises(ConfigError, match="did you mean 'numbers-en-de'"):
        find_recipe("number-en-de")
    with pytest.raises(ConfigError, match="did you mean 'label_smoothing'"):
        load_recipe("numbers-en-de", None, ["train.label_smothing=0.2"])


def test_a_loss_per_example_has_gradients_as_many_times_larger_as_a_row_has_tokens(tmp_path: Path) -> None:
    norms = {}
    for per in ("token", "example"):
        wanted = recipe(loss_per=per, budget={"steps": 1}, log_every=1, accumulate=1, evaluate_every=1.0)
        train(wanted, tmp_path / per)
        steps = [json.loads(line) for line in (tmp_path / per / "log.jsonl").read_text().splitlines()]
        norms[per] = next(line for line in steps if line["kind"] == "step")
    ratio = norms["token"]["tokens"] / 16  # the batch has 16 rows
    assert ratio > 1.5
    assert norms["example"]["norm"] == pytest.approx(ratio * norms["token"]["norm"], rel=1e-4)
    assert norms["example"]["loss"] == pytest.approx(
        norms["token"]["loss"], rel=1e-6
    )  # the reported loss stays per token
