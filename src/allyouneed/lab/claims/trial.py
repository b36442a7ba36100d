"""Small experiments: a recipe trained in this process by the loop itself, and what is asked of the model afterwards.

Nothing is saved: a cell takes seconds, and its numbers are what is kept. Prepared data are shared by the cells that a
process measures.
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
WORST = 20.0  # nats: what a loss that is no number counts as


@dataclass(frozen=True)
class Learnt:
    """A trained model and its data."""

    model: Model
    data: TaskData
    seconds: float  # of training
    flops: float


def learn(task: Tree, model: Tree, train: Tree, seed: int, change: Callable[[Model], None] | None = None) -> Learnt:
    """Trains; `change` does to the untrained model what no setting does. A run that cannot go on ends early.

    The held-out loss is looked at only where a bad beginning shall be given up (`restart_above`).
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
        pass  # the gradient is no number any more: what the model is worth then is the result
    finally:
        run.close()
    return Learnt(run.model, run.data, run.progress.spent.seconds, run.progress.spent.flops)


@cache
def _root() -> Path:
    root = Path(tempfile.mkdtemp(prefix="allyouneed-claims-"))
    atexit.register(shutil.rmtree, root, ignore_errors=True)
    return root


def scratch(key: str) -> Path:
    """A folder of this process for whatever the key names."""
    folder = _root() / hashlib.blake2b(key.encode(), digest_size=8).hexdigest()
    folder.mkdir(exist_ok=True)
    return folder


def loss(model: Model, data: TaskData, split: Split = "valid") -> float:
    """Nats per prediction on held-out data."""
    value = held_out_loss(model, data, split)[0].value
    return min(value, WORST) if value == value else WORST


def answers(learnt: Learnt, chance: float) -> dict[str, float]:
    """Loss and share right of a classifier; one whose loss is no number any more, or beyond all
    bounds, counts as answering by chance, and is named."""
    nats = loss(learnt.model, learnt.data)
    diverged = nats >= WORST
    share = chance if diverged else right(learnt.model, learnt.data)[1]
    return {"right": share, "loss": nats, "diverged": float(diverged)}


def right(model: Model, data: TaskData, split: Split = "valid") -> tuple[float, float]:
    """Shares of held-out predictions that are right, and of sequences without a wrong one.

    The right prefix is given; a sequence without a wrong prediction is just what a greedy search would say.
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


# --- the usual settings ----------------------------------------------------------------------------------------------


def adam(steps: int, lr: float = 3e-3, warmup: float = 0.05, **more: Any) -> dict[str, Any]:
    """Adam with a linear decay: what most of these experiments train with."""
    return {
        "budget": {"steps": steps},
        "optimizer": {"type": "adam", "lr": lr},
        "schedule": {"type": "linear", "warmup": warmup},
        **more,
    }


def small(**more: Any) -> dict[str, Any]:
    """The settings of a small Transformer."""
    return {"width": 64, "hidden": 128, "norm": "pre", "dropout": 0.0, "mixer": {"type": "softmax", "heads": 4}, **more}


def shakespeare(context: int = 64, batch: int = 16, **more: Any) -> dict[str, Any]:
    """Characters of Shakespeare; a fiftieth of the text is held out, which a cell can afford to read."""
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
    """English number words into French ones, word by word."""
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
