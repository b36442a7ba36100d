"""No setting is dead: every setting of every table and recipe changes what is built or computed, or is refused.

`dead_settings` tries other values for each setting. A setting is dead if such a value is accepted and the fingerprint
(the tensors of the built modules, their cost, losses, batches, updates) stays the same. What a module merely stores
does not count, except in `meta_fingerprint`, whose models are too large to run.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from mixer_contracts import CONTRACTS
from settings import dead_settings, module_fingerprint
from test_models import SMALL as SMALL_MODELS
from torch import nn

from allyouneed.config import Config, parse, read_recipe
from allyouneed.decode import SearchConfig, search
from allyouneed.dropout import seed_dropout
from allyouneed.models import MODELS
from allyouneed.positions import POSITIONS
from allyouneed.sizes import Sizes
from allyouneed.tasks import TASKS
from allyouneed.tasks.base import Batch
from allyouneed.tasks.loss import losses
from allyouneed.training import load_recipe, recipe_folder
from allyouneed.training.average import AVERAGES
from allyouneed.training.optimizer import OPTIMIZERS
from allyouneed.training.schedule import SCHEDULES

VOCABULARY = 13
RECIPES = sorted(path.stem for path in recipe_folder().glob("*.toml"))
WIDE = {"width": 60, "hidden": 20, "layers": 2}  # 60: divisible by every number of heads


def random_ids(rows: int, length: int, least: int, seed: int) -> torch.Tensor:
    return torch.randint(least, VOCABULARY, (rows, length), generator=torch.Generator().manual_seed(seed))


def model_fingerprint(config: Any) -> object:
    """Return what a model is made of, what it costs, and the objectives of one training step in segments."""
    torch.manual_seed(5)
    model = config.build(Sizes(VOCABULARY, VOCABULARY, shared=True)).train()
    target_BT = random_ids(16, 25, 5, seed=2)
    image = (config.size, config.channels) if config.type in ("show-attend-tell", "vit") else None
    if config.kind == "encoder":
        source_BS = random_ids(16, 30 if image is None else image[0] ** 2 * image[1], 1, seed=1)
        each = getattr(config, "pool", None) == "none"
        batch = Batch(source_BS=source_BS, **({"class_BS": source_BS} if each else {"class_B": target_BT[:, 0]}))
    else:
        source_BS = random_ids(16, 30 if image is None else image[0] ** 2 * image[1] + 1, 1, seed=1)
        source = None if config.kind == "decoder" else source_BS
        segment = 5 if config.kind == "decoder" else None
        batch = Batch(source_BS=source, input_BT=target_BT[:, :-1], output_BT=target_BT[:, 1:], segment=segment)
    initial = module_fingerprint(model)
    with torch.no_grad():
        for parameter in model.parameters():  # some start at zero, such as biases of distances
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
    seed_dropout(3)
    objectives = [float(loss.objective.detach()) for loss in losses(model, batch)]
    for module in model.modules():
        if hasattr(module, "after_step"):
            for step in (6, 1000):  # what changes with the steps, like drawn features
                module.after_step(step)
    return initial, module_fingerprint(model), model.flops(7, 5), objectives


def mixer_cases() -> Iterator[Any]:
    for name, contract in CONTRACTS.items():
        for number, mixer in enumerate(contract.settings):
            if getattr(mixer, "block", 0) > 25:  # longer than the text of `model_fingerprint`
                continue
            kind = "decoder" if "causal" in mixer.roles else "encoder"
            yield pytest.param(kind, mixer, id=f"{name}{number}")


@pytest.mark.parametrize(("name", "number"), [(name, i) for name, all in SMALL_MODELS.items() for i in range(len(all))])
def test_models(name: str, number: int) -> None:
    config = parse(MODELS[name], SMALL_MODELS[name][number])
    # A blind model does not look at its images; their form is compared with the task's all the same.
    allowed = {"channels"} if getattr(config, "blind", False) else set()
    assert set(dead_settings(config, model_fingerprint)) <= allowed


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "mixer"), list(mixer_cases()))
def test_mixers(kind: str, mixer: Config) -> None:
    config = parse(MODELS[kind], {**WIDE, "mixer": mixer.model_dump()})
    # With a memory of one token no distance is long enough; `clamp` acts once the memory is lengthened for inference.
    allowed = {"mixer.clamp"} if getattr(mixer, "memory", None) == 1 else set()
    assert {name for name in dead_settings(config, model_fingerprint) if name.startswith("mixer.")} <= allowed


@pytest.mark.parametrize("name", POSITIONS)
def test_positions(name: str) -> None:
    small = {"shaw": {"clip": 2}, "t5": {"buckets": 8, "max_distance": 5}, "learned": {"max_length": 64}}
    config = parse(
        MODELS["decoder"], {**WIDE, "mixer": {"heads": 3}, "positions": {"type": name, **small.get(name, {})}}
    )
    assert [name for name in dead_settings(config, model_fingerprint) if name.startswith("positions.")] == []


# --- training ---


class Blocks(nn.Module):
    """Parameters with the names of a model: a table, matrices inside blocks, vectors."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Parameter(torch.randn(5, 6))
        self.blocks = nn.ModuleList([nn.Linear(6, 18), nn.Linear(18, 6)])

    def step(self) -> None:
        self.zero_grad()
        x = torch.full((2, 6), 0.3, dtype=self.table.dtype)
        for block in self.blocks:
            x = block(x).tanh()
        ((x @ self.table.T).square().sum() * 1e-4).backward()  # small, so that epsilon counts


def optimizer_fingerprint(config: Any) -> object:
    model = Blocks().double()
    optimizers = config.build(model)
    for _ in range(3):
        model.step()
        optimizers.step(1.0)
    return module_fingerprint(model)


def average_fingerprint(config: Any) -> object:
    model = Blocks()
    average, found = config.build(model), []
    steps = config.every * (config.count + 3) if config.type == "last" else 3000
    for step in range(1, steps + 1):
        with torch.no_grad():
            model.table.fill_(float(step))
        average.update(step)
        if step % 250 == 0:
            with average.swapped_in():
                found.append(float(model.table.detach().mean()))
    return found


def schedule_fingerprint(config: Any) -> object:
    return [config.factor(step / 200) for step in range(201)]


FINGERPRINTS = {
    "optimizer": (OPTIMIZERS, optimizer_fingerprint),
    "schedule": (SCHEDULES, schedule_fingerprint),
    "average": (AVERAGES, average_fingerprint),
}


@pytest.mark.parametrize(("table", "name"), [(table, name) for table, (all, _) in FINGERPRINTS.items() for name in all])
def test_tables_of_training(table: str, name: str) -> None:
    configs, fingerprint = FINGERPRINTS[table]
    assert dead_settings(parse(configs[name], {}), fingerprint) == []


# --- decoding ---


def search_fingerprint(config: Any) -> object:
    torch.manual_seed(7)
    model = parse(MODELS["encoder-decoder"], SMALL_MODELS["encoder-decoder"][0]).build(Sizes(VOCABULARY, VOCABULARY))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.5)
    sources = random_ids(6, 9, 4, seed=4).tolist()
    sizes: list[int] = []
    found = search(model.double().eval(), sources, config, sizes.append)
    return [[(h.ids, h.score) for h in ranked] for ranked in found], sizes  # batch_tokens: the sizes of batches


@pytest.mark.parametrize("beam", [1, 3])
def test_search(beam: int) -> None:
    config = SearchConfig(beam=beam, max_length=9, batch_tokens=40)
    assert dead_settings(config, search_fingerprint) == []


# --- tasks ---

SMALL_TASK = {"valid": 20, "test": 20, "batch": 8}
SMALL_PAIRS = {"pairs": 60, "valid": 20, "test": 20, "batch_tokens": 200, "max_length": 40}
SMALL_TASKS: dict[str, dict[str, Any]] = {
    "numbers": {**SMALL_PAIRS, "tokenizer": {"kind": "bpe", "size": 300}, "up_to": 5000},
    "dates": {**SMALL_PAIRS},
    "copy": SMALL_TASK,
    "reverse": SMALL_TASK,
    "sort": SMALL_TASK,
    "addition": SMALL_TASK,
    "associative-recall": SMALL_TASK,
    "listops": {**SMALL_TASK, "lengths": (10, 40), "depth": 4},
    "copy-bits": {**SMALL_TASK, "bits": 4},
    "repeat-copy": {**SMALL_TASK, "bits": 4},
    "recall-bits": {**SMALL_TASK, "bits": 4},
    "priority-sort": {**SMALL_TASK, "bits": 4, "lengths": (6, 6), "keep": 4},
    "binary-addition": SMALL_TASK,
    "binary-multiplication": SMALL_TASK,
}


def task_fingerprint(config: Any) -> object:
    """Return batches, held-out batches, texts and sizes of the prepared data."""
    folder = Path(os.environ["SETTINGS_FOLDER"]) / str(len(os.listdir(os.environ["SETTINGS_FOLDER"])))
    data = config.prepare(folder, 3)
    batches = [data.batch(3, index) for index in (0, 1, 2, 9)] + [*data.held_out("valid")] + [*data.held_out("test")]
    tensors = [
        [(name, value.tolist()) for name, value in vars(batch).items() if isinstance(value, torch.Tensor)]
        for batch in batches
    ]
    return tensors, data.examples("valid"), data.examples("test"), vars(data.sizes)


@pytest.mark.parametrize("name", SMALL_TASKS)
def test_tasks(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SETTINGS_FOLDER", str(tmp_path))
    assert dead_settings(parse(TASKS[name], SMALL_TASKS[name]), task_fingerprint) == []


# --- recipes ---


def meta_fingerprint(config: Any) -> object:
    """Return what a model of any size is made of, without its memory."""
    with torch.device("meta"):
        model = config.build(Sizes(59, 59, shared=True))
    return module_fingerprint(model, attributes=True), model.flops(70, 50)


# Settings that act in the forward pass alone; the tests of models, mixers and positions above run it on small models.
IN_FORWARD = {"noise", "linear_start", "separators", "decoder.penalty", "positions.base", "mixer.stretch"}


@pytest.mark.slow
@pytest.mark.parametrize("name", RECIPES)
def test_every_setting_that_a_recipe_writes_has_an_effect(name: str) -> None:
    recipe, written = load_recipe(name), read_recipe(recipe_folder() / f"{name}.toml")
    for table, (_, fingerprint) in FINGERPRINTS.items():
        in_file = _names(written.get("train", {}).get(table, {}))
        assert dead_settings(getattr(recipe.train, table), fingerprint, in_file.__contains__) == [], table
    in_file = _names(written["model"]) - IN_FORWARD
    assert dead_settings(recipe.model, meta_fingerprint, in_file.__contains__) == []


def _names(tree: Any, path: str = "") -> set[str]:
    """Return the dotted names of the settings that a table of a file holds."""
    if isinstance(tree, list) and tree and isinstance(tree[0], dict):
        return _names(tree[0], f"{path}0.")
    if not isinstance(tree, dict):
        return {path.removesuffix(".")}
    return {found for name, below in tree.items() for found in _names(below, f"{path}{name}.")}
