"""Every setting of `[train]` changes a tiny run: its weights or its log."""

from pathlib import Path
from typing import Any

import pytest

from allyouneed.config import parse
from allyouneed.training import Recipe, TrainConfig, train
from allyouneed.training.log import read_log
from helpers import file_hash

TINY: dict[str, Any] = {
    "task": {"type": "copy", "batch": 8, "valid": 8, "test": 8},
    "model": {"type": "encoder-decoder", "width": 16, "hidden": 16, "encoder_layers": 1, "decoder_layers": 1},
    "train": {"budget": {"steps": 4}, "evaluate_every": 0.25, "accumulate": 2, "workers": 1, "log_every": 1},
}
OTHERS: dict[str, Any] = {
    "budget": {"steps": 3},
    "optimizer": "sgd",
    "schedule": "constant",
    "average": "ema",
    "label_smoothing": 0.3,
    "loss_per": "example",
    "accumulate": 1,
    "workers": 2,
    "clip": 0.01,
    "precision": "bfloat16",
    "evaluate_every": 0.5,
    "metric": "exact",
    "restart_above": 0.001,
    "deterministic": True,
    "log_every": 2,
    "freeze": ["encoder.*"],
}
EXEMPT = {
    "lora": "needs a model to start from: tests/training/test_lora.py",
    "evaluation_share": "needs a budget in minutes: tests/training/test_pace.py",
    "parallel": "needs several processes: tests/training/test_distributed.py",
    "patience": "needs a run that stops improving: tests/training/test_loop.py",
    "spike": "needs a running mean of many gradients: tests/training/test_loop.py",
    "save_minutes": "changes only when checkpoints are written, not what the run computes",
}
TIMES = {"seconds", "tokens_per_second", "time", "spent"}


def fingerprint(settings: dict[str, Any], folder: Path) -> object:
    model = train(parse(Recipe, {**TINY, "train": {**TINY["train"], **settings}}), folder, cores=2)
    records = [
        {name: value for name, value in record.items() if not TIMES & {name} and "second" not in name}
        for record in read_log(folder / "log.jsonl")
    ]
    return file_hash(model / "model.safetensors"), records


@pytest.fixture(scope="module")
def usual(tmp_path_factory: pytest.TempPathFactory) -> object:
    first, second = (fingerprint({}, tmp_path_factory.mktemp("usual")) for _ in range(2))
    assert first == second
    return first


def test_every_setting_is_tried_or_exempt() -> None:
    assert {*OTHERS, *EXEMPT} == {*TrainConfig.model_fields}


@pytest.mark.slow
@pytest.mark.parametrize("name", OTHERS)
def test_a_setting_changes_the_run(name: str, usual: object, tmp_path: Path) -> None:
    assert fingerprint({name: OTHERS[name]}, tmp_path) != usual
