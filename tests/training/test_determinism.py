"""Determinism: what is refused, what the log and the card state, and stopped or forged runs."""

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import allyouneed
from allyouneed.config import merge, parse
from allyouneed.errors import ConfigError, FolderError, StorageError
from allyouneed.storage.checkpoints import checkpoint_paths
from allyouneed.storage.manifest import write_manifest
from allyouneed.training import Interrupted, Recipe, train, validation
from allyouneed.training.determinism import determinism_lines
from allyouneed.training.evaluate import Measurement
from allyouneed.training.progress import SilentListener
from helpers import file_hash

TINY: dict[str, Any] = {
    "task": {"type": "copy", "batch": 16, "valid": 20, "test": 20},
    "model": {"type": "decoder", "width": 16, "hidden": 32, "layers": 1, "mixer": {"type": "softmax", "heads": 2}},
    "train": {"budget": {"steps": 8}, "accumulate": 2, "evaluate_every": 0.25, "log_every": 1, "deterministic": True},
}


def recipe(**changes: Any) -> Recipe:
    return parse(Recipe, merge(TINY, changes))


def weights(folder: Path) -> str:
    return file_hash(folder / "model" / "model.safetensors")


def starts(folder: Path) -> list[dict[str, Any]]:
    records = [json.loads(line) for line in (folder / "log.jsonl").read_text().splitlines()]
    return [record for record in records if record["kind"] == "start"]


def test_two_runs_are_equal_and_state_it(tmp_path: Path) -> None:
    for name in ("one", "other"):
        train(recipe(), tmp_path / name)
    assert weights(tmp_path / "one") == weights(tmp_path / "other")
    assert not torch.are_deterministic_algorithms_enabled()
    (record,) = starts(tmp_path / "one")
    assert record["deterministic"]
    assert {"torch", "processor", "workers", "threads", "evaluation_threads"} <= record.keys()
    assert "Deterministic: the same recipe gives the same bits" in allyouneed.load(str(tmp_path / "one")).card


def test_later_children_of_the_process_are_not_affected(tmp_path: Path) -> None:
    """MKL_CBWR changes what MKL computes, so a variable left behind would change the bits of other runs."""
    before = dict(os.environ)
    train(recipe(), tmp_path)
    assert dict(os.environ) == before


def test_the_card_states_what_was_not_deterministic(tmp_path: Path) -> None:
    train(recipe(train={"deterministic": False, "budget": {"steps": 2}}), tmp_path)
    assert "torch chose its algorithms freely" in allyouneed.load(str(tmp_path)).card
    timed = recipe(train={"deterministic": False}).model_copy()
    minutes = parse(Recipe, {**TINY, "train": {"budget": {"minutes": 1}}})
    lives = [{"kind": "start", "threads": 1}, {"kind": "start", "threads": 2}]
    lines = "\n".join(determinism_lines(minutes, lives))
    assert "the budget is in minutes" in lines
    assert "another threads: 1, then 2" in lines
    assert "minutes" not in "\n".join(determinism_lines(timed, []))


def test_a_budget_in_minutes_is_refused() -> None:
    with pytest.raises(ConfigError, match="give the budget in steps, tokens or flops"):
        parse(Recipe, {**TINY, "train": {"deterministic": True, "budget": {"minutes": 1}}})


class Signal(SilentListener):
    """SIGTERM at the n-th record of a kind."""

    def __init__(self, kind: str, after: int) -> None:
        self.kind, self.after = kind, after

    def progress(self, fraction: float, record: dict[str, Any]) -> None:
        self.after -= record["kind"] == self.kind
        if self.after == 0:
            self.after = -1
            os.kill(os.getpid(), signal.SIGTERM)


def test_resuming_needs_the_same_number_of_threads(tmp_path: Path) -> None:
    train(recipe(), tmp_path / "whole", cores=1)
    with pytest.raises(Interrupted):
        train(recipe(), tmp_path / "run", Signal("evaluation", 1), cores=1)
    with pytest.raises(ConfigError, match=r"began with workers=1, now it is 2"):
        train(recipe(), tmp_path / "run", cores=2)
    train(recipe(), tmp_path / "run", cores=1)
    assert weights(tmp_path / "run") == weights(tmp_path / "whole")


def test_a_signal_during_an_evaluation_stops_at_once_and_the_resumed_run_repeats_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The evaluation after step 4 is abandoned after its first batch; the resumed run starts with it."""
    train(recipe(), tmp_path / "whole")
    calls = []

    def signalled(*arguments: Any) -> Any:
        calls.append(1)
        if len(calls) == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return Measurement(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(validation, "Measurement", signalled)
        with pytest.raises(Interrupted, match="step 4"):
            train(recipe(), tmp_path / "run")
    evaluated = [json.loads(line)["kind"] for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    assert evaluated.count("evaluation") == 1
    train(recipe(), tmp_path / "run")
    assert weights(tmp_path / "run") == weights(tmp_path / "whole")
    logs = [
        [(record["step"], record["loss"]) for record in map(json.loads, text.splitlines()) if record["kind"] in KINDS]
        for text in ((tmp_path / name / "log.jsonl").read_text() for name in ("run", "whole"))
    ]
    assert logs[0] == logs[1]


KINDS = ("step", "evaluation")


@pytest.mark.parametrize("name", ["checkpoints", "data", "log.jsonl", "model", "recipe.toml", "lock"])
def test_a_run_is_not_written_through_links(name: str, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("precious") if "." in name or name == "lock" else elsewhere.mkdir()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / name).symlink_to(elsewhere)
    with pytest.raises(StorageError, match="is a link"):
        train(recipe(), tmp_path / "run")
    assert elsewhere.is_dir() or elsewhere.read_text() == "precious"


def without_spent(folder: Path) -> None:
    head = json.loads((folder / "state.json").read_text())
    del head["state"]["spent"]
    (folder / "state.json").write_text(json.dumps(head))


def text_for_steps(folder: Path) -> None:
    head = json.loads((folder / "state.json").read_text())
    head["state"]["spent"]["steps"] = "many"
    (folder / "state.json").write_text(json.dumps(head))


def without_a_moment(folder: Path) -> None:
    tensors = load_file(folder / "optimizer.safetensors")
    tensors.pop(sorted(tensors)[0])
    save_file(tensors, folder / "optimizer.safetensors")


def other_shape(folder: Path) -> None:
    tensors = load_file(folder / "optimizer.safetensors")
    name = next(name for name, tensor in tensors.items() if tensor.dim() == 2)
    save_file({**tensors, name: tensors[name][:1]}, folder / "optimizer.safetensors")


@pytest.mark.parametrize("forge", [without_spent, text_for_steps, without_a_moment, other_shape])
def test_a_forged_checkpoint_is_one_line(forge: Callable[[Path], None], tmp_path: Path) -> None:
    """Its manifest is right, so only its content can reveal the forgery."""
    with pytest.raises(Interrupted):
        train(recipe(), tmp_path, Signal("evaluation", 1))
    for path in checkpoint_paths(tmp_path / "checkpoints"):
        forge(path)
        write_manifest(path)
    with pytest.raises(FolderError, match="is not a checkpoint of this recipe"):
        train(recipe(), tmp_path)
