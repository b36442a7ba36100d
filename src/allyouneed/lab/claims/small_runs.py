"""Small training runs in this process, and scores of the trained model.

No checkpoint is saved: a cell takes seconds, and only its numbers are stored. Cells measured by the same process share
prepared data.
"""

import atexit
import hashlib
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

from allyouneed.config import parse
from allyouneed.decode.base import evaluating
from allyouneed.errors import TrainingError
from allyouneed.models import Model
from allyouneed.tasks import TaskData
from allyouneed.tasks.base import NO_CLASS, Split
from allyouneed.text.specials import PAD
from allyouneed.training import Recipe
from allyouneed.training.evaluate import held_out_loss
from allyouneed.training.loop import Run
from allyouneed.training.progress import SilentListener

Tree = Mapping[str, Any]
WORST = 20.0  # nats, the value used for a NaN loss


@dataclass(frozen=True)
class TrainedModel:
    """A trained model with its data."""

    model: Model
    data: TaskData
    seconds: float  # of training
    flops: float


def train_small(
    task: Tree, model: Tree, train: Tree, seed: int, change: Callable[[Model], None] | None = None
) -> TrainedModel:
    """Train a model. `change` modifies the untrained model in ways no setting offers. A diverged run ends early.

    The held-out loss is evaluated only if a bad start should be abandoned (`restart_above`).
    """
    recipe = parse(Recipe, {"seed": seed, "task": task, "model": model, "train": {"label_smoothing": 0.0, **train}})
    run = Run(recipe, scratch(repr((sorted(task.items()), seed))), SilentListener(), torch.device("cpu"), cores=1)
    every = max(1, round(run.config.evaluate_every * (run.config.budget.steps or 1)))
    try:
        if change is not None:
            change(run.model)
        while run.has_budget():
            run.step()
            if run.config.restart_above and run.progress.spent.steps % every == 0:
                run.progress.held_out_loss = loss(run.model, run.data)
                run.progress.evaluated_at = run.progress.spent.steps
    except TrainingError:
        pass  # the gradient is NaN: the model as it is now is the result
    finally:
        run.close()
    return TrainedModel(run.model, run.data, run.progress.spent.seconds, run.progress.spent.flops)


@cache
def _root() -> Path:
    root = Path(tempfile.mkdtemp(prefix="allyouneed-claims-"))
    atexit.register(shutil.rmtree, root, ignore_errors=True)
    return root


def scratch(key: str) -> Path:
    """Return a temporary folder of this process for the key."""
    folder = _root() / hashlib.blake2b(key.encode(), digest_size=8).hexdigest()
    folder.mkdir(exist_ok=True)
    return folder


def loss(model: Model, data: TaskData, split: Split = "valid") -> float:
    """Return the held-out loss in nats per prediction."""
    value = held_out_loss(model, data, split)[0].value
    return min(value, WORST) if value == value else WORST


def classifier_scores(trained: TrainedModel, chance: float) -> dict[str, float]:
    """Return loss and accuracy of a classifier. If the loss is NaN or above `WORST`, the accuracy is that of chance,
    and the run counts as diverged."""
    nats = loss(trained.model, trained.data)
    diverged = nats >= WORST
    share = chance if diverged else accuracies(trained.model, trained.data)[1]
    return {"right": share, "loss": nats, "diverged": float(diverged)}


def accuracies(model: Model, data: TaskData, split: Split = "valid") -> tuple[float, float]:
    """Return the shares of correct held-out predictions and of sequences without an error.

    Predictions are teacher-forced; a sequence without an error is exactly what greedy search would generate.
    """
    tokens = rows = good_tokens = good_rows = 0
    with evaluating(model):
        for batch in data.held_out(split):
            assert batch.source_BS is not None
            if batch.output_BT is None:
                answer = model.classify(batch.source_BS, batch.source_mask_BS).argmax(dim=-1)
                wanted = batch.class_B if batch.class_B is not None else batch.class_BS
                assert wanted is not None
                counts = wanted != NO_CLASS
            else:
                assert batch.input_BT is not None
                state = model.condition(batch.source_BS, batch.source_mask_BS)
                answer = model.step(batch.input_BT, state)[0].argmax(dim=-1)
                wanted, counts = batch.output_BT, batch.output_BT != PAD
            hit = (answer == wanted) & counts
            tokens, good_tokens = tokens + int(counts.sum()), good_tokens + int(hit.sum())
            whole = (hit == counts).reshape(hit.shape[0], -1).all(dim=1)
            rows, good_rows = rows + whole.shape[0], good_rows + int(whole.sum())
    return good_tokens / max(1, tokens), good_rows / max(1, rows)


# --- default settings ------------------------------------------------------------------------------------------------


def adam(steps: int, lr: float = 3e-3, warmup: float = 0.05, **more: Any) -> dict[str, Any]:
    """Return the training settings of most experiments: Adam with linear decay."""
    return {
        "budget": {"steps": steps},
        "optimizer": {"type": "adam", "lr": lr},
        "schedule": {"type": "linear", "warmup": warmup},
        **more,
    }


def small(**more: Any) -> dict[str, Any]:
    """Return the settings of a small Transformer."""
    return {"width": 64, "hidden": 128, "norm": "pre", "dropout": 0.0, "mixer": {"type": "softmax", "heads": 4}, **more}


def shakespeare(context: int = 64, batch: int = 16, **more: Any) -> dict[str, Any]:
    """Return the task of predicting characters of Shakespeare; 2 % of the text is held out."""
    return {
        "type": "language",
        "train": "$DATA/lm/tinyshakespeare/input.txt",
        "split": [0.96, 0.02, 0.02],
        "tokenizer": {"kind": "characters"},
        "context": context,
        "batch": batch,
        **more,
    }


def number_words(**more: Any) -> dict[str, Any]:
    """Return the task of translating English number words into French, word by word."""
    return {
        "type": "numbers",
        "source": "en",
        "target": "fr",
        "up_to": 999_999,
        "pairs": 4000,
        "valid": 300,
        "test": 1,
        "tokenizer": {"kind": "words"},
        "shared": True,  # a decoder reads both sides as one text
        "batch_tokens": 1024,
        "max_length": 64,
        **more,
    }
