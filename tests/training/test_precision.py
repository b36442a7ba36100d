"""`train.precision = "auto"`: what it chooses, and that a run keeps what it began with. No test depends on a time."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from allyouneed.config import merge, parse
from allyouneed.errors import ConfigError
from allyouneed.lab.jobs import Job
from allyouneed.sizes import Sizes
from allyouneed.training import Interrupted, Recipe, load_recipe, precision, train
from allyouneed.training.log import read_log
from allyouneed.training.precision import Shape, common_shape, speed_factor
from allyouneed.training.progress import SilentListener
from allyouneed.training.recipe_files import precision_of_run
from helpers import file_hash

TINY: dict[str, Any] = {
    "task": {"type": "copy", "batch": 8, "valid": 8, "test": 8},
    "model": {"type": "decoder", "width": 16, "hidden": 24, "layers": 1, "mixer": {"type": "softmax", "heads": 2}},
    "train": {"budget": {"steps": 4}, "evaluate_every": 0.5},
}
FAST, SLOW = 1.9, 0.02  # how many times as fast products in bfloat16 are, with and without such instructions


class Notes(SilentListener):
    """Keeps the notes; stops the run at its first evaluation, if wanted."""

    def __init__(self, stop: bool = False) -> None:
        self.notes: list[str] = []
        self.stop = stop

    def note(self, text: str) -> None:
        self.notes.append(text)

    def progress(self, fraction: float, record: dict[str, Any]) -> None:
        if self.stop and record["kind"] == "evaluation":
            os.kill(os.getpid(), signal.SIGTERM)


Machine = Callable[[float | None], None]


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    """Stand in for machines: tiny models count as wide, and the measurement finds this factor (None: none is made)."""

    def become(factor: float | None) -> None:
        def measured(shape: Shape) -> float:
            assert factor is not None
            return factor

        monkeypatch.setattr(precision, "LEAST_WIDTH", 16)
        monkeypatch.setattr(precision, "speed_factor", measured)

    return become


def recipe(**changes: Any) -> Recipe:
    return parse(Recipe, merge(TINY, changes))


def weights(folder: Path) -> str:
    return file_hash(folder / "model" / "model.safetensors")


def recorded(folder: Path) -> tuple[str, set[str]]:
    """The precision in the stored recipe, and that of each start in the log."""
    starts = {one["precision"] for one in read_log(folder / "log.jsonl") if one["kind"] == "start"}
    return precision_of_run(folder / "recipe.toml"), starts


@pytest.mark.parametrize(("factor", "chosen"), [(FAST, "bfloat16"), (SLOW, "float32"), (1.0, "float32")])
def test_the_choice_is_stated_and_recorded(factor: float, chosen: str, machine: Machine, tmp_path: Path) -> None:
    machine(factor)
    listener = Notes()
    train(recipe(), tmp_path / "auto", listener, cores=1)
    assert recorded(tmp_path / "auto") == (chosen, {chosen})
    (line,) = [note for note in listener.notes if note.startswith("products in")]
    assert f"products in {chosen}: " in line
    assert f"those of 16 x 48 in bfloat16 are {factor:.2g} times as fast as in float32" in line
    train(recipe(train={"precision": chosen}), tmp_path / "given", cores=1)
    assert weights(tmp_path / "auto") == weights(tmp_path / "given")


@pytest.mark.parametrize(("first", "then"), [(FAST, SLOW), (SLOW, FAST)])
def test_a_run_keeps_its_precision_on_another_machine(
    first: float, then: float, machine: Machine, tmp_path: Path
) -> None:
    machine(first)
    train(recipe(), tmp_path / "whole", cores=1)
    with pytest.raises(Interrupted):
        train(recipe(), tmp_path / "parts", Notes(stop=True), cores=1)
    machine(then)
    train(recipe(), tmp_path / "parts", cores=1)
    assert recorded(tmp_path / "parts") == recorded(tmp_path / "whole")
    assert weights(tmp_path / "parts") == weights(tmp_path / "whole")
    other = "float32" if first == FAST else "bfloat16"
    with pytest.raises(ConfigError, match=r"train\.precision is '\w+' there, "):
        train(recipe(train={"precision": other}), tmp_path / "parts", cores=1)


def test_a_run_of_an_earlier_version_stays_in_float32(machine: Machine, tmp_path: Path) -> None:
    machine(None)
    with pytest.raises(Interrupted):
        train(recipe(train={"precision": "float32"}), tmp_path, Notes(stop=True), cores=1)
    stored = tmp_path / "recipe.toml"
    for line in ('precision = "float32"\n', ""):  # as the last version wrote it, and one without the setting
        stored.write_text(stored.read_text().replace('precision = "float32"\n', line))
        train(recipe(), tmp_path, cores=1)
        assert recorded(tmp_path) == ("float32", {"float32"})


@pytest.mark.parametrize(
    "changes",
    [
        {"model": {"width": 12}},  # narrow
        {"train": {"deterministic": True}},  # a measurement cannot be repeated
        {"model": {"mixer": {"type": "softmax", "heads": 2}}, "train": {"precision": "float32"}},
    ],
)
def test_nothing_is_measured_where_the_answer_is_known(
    changes: dict[str, Any], machine: Machine, tmp_path: Path
) -> None:
    machine(None)
    listener = Notes()
    train(recipe(**changes), tmp_path, listener, cores=1)
    assert recorded(tmp_path) == ("float32", {"float32"})
    assert not [note for note in listener.notes if "products in" in note]


def test_a_recipe_of_another_machine_is_trained_as_it_says_with_a_warning(machine: Machine, tmp_path: Path) -> None:
    wanted = recipe(train={"precision": "bfloat16"})
    for factor, warnings in ((FAST, 0), (SLOW, 1)):
        machine(factor)
        listener = Notes()
        train(wanted, tmp_path / str(factor), listener, cores=1)
        assert recorded(tmp_path / str(factor)) == ("bfloat16", {"bfloat16"})
        found = [
            note for note in listener.notes if note.startswith("products in bfloat16: on this machine they take 50")
        ]
        assert len(found) == warnings


def test_the_shape_is_that_of_most_weights_in_blocks() -> None:
    found = {}
    for name in ("shakespeare-char", "multi30k-en-de", "numbers-en-de", "ntm-copy", "memn2n-babi"):
        with torch.device("meta"):
            found[name] = common_shape(load_recipe(name).model.build(Sizes(8, 8, shared=True)))
    assert found == {
        "shakespeare-char": Shape(512, 128),
        "multi30k-en-de": Shape(384, 128),
        "numbers-en-de": Shape(288, 96),
        "ntm-copy": None,
        "memn2n-babi": None,
    }


def test_the_measurement_restores_the_threads() -> None:
    threads = torch.get_num_threads()
    assert speed_factor(Shape(40, 24)) > 0
    assert torch.get_num_threads() == threads


def test_compared_runs_are_in_float32() -> None:
    assert Job("one", recipe()).recipe.train.precision == "float32"
    assert Job("one", recipe(train={"precision": "bfloat16"})).recipe.train.precision == "bfloat16"
