"""Scores of a model on a held-out split, each with the signature needed to reproduce it."""

import math
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from typing import Any

import torch

from allyouneed.decode import SearchConfig, translate
from allyouneed.decode.base import device_of, evaluating
from allyouneed.decode.threads import run_concurrently
from allyouneed.models import Model
from allyouneed.shortlist.table import Shortlist
from allyouneed.tasks import Score, TaskData
from allyouneed.tasks.base import Batch, Split
from allyouneed.tasks.loss import batch_loss
from allyouneed.version import __version__


def to_device(batch: Batch, device: torch.device) -> Batch:
    """Return the batch on the model's device."""
    if device.type == "cpu":
        return batch
    tensors: dict[str, Any] = {
        name: value.to(device) for name, value in vars(batch).items() if isinstance(value, torch.Tensor)
    }
    return replace(batch, **tensors)


def held_out_loss(
    model: Model, data: TaskData, split: Split, progress: Callable[[int], None] | None = None
) -> list[Score]:
    """Return the loss in nats per prediction, and the scores derived from it."""
    device, losses = device_of(model), dict[int, tuple[float, int]]()

    def measure(numbered: tuple[int, Batch]) -> tuple[float, int]:
        loss = batch_loss(model, to_device(numbered[1], device))
        return float(loss.total), loss.count

    with evaluating(model), closing(run_concurrently(measure, enumerate(data.held_out(split)), device)) as measured:
        for (number, _), loss in measured:
            losses[number] = loss
            if progress is not None:
                progress(0)  # progress counts texts, and these were counted before
    # In the order of the batches: the sum does not depend on which of them was done first.
    total, count = sum(losses[number][0] for number in range(len(losses))), sum(n for _, n in losses.values())
    units = data.units(split)
    how = f"{units.how}|" if units is not None and units.how else ""
    signature = f"split:{split}|n:{count}|{how}allyouneed:{__version__}"
    nats = total / max(count, 1)
    scores = [Score("loss", nats, f"nats|{signature}", higher_is_better=False)]
    if model.kind != "encoder":
        scores.append(Score("perplexity", math.exp(min(nats, 700.0)), f"token|{signature}", higher_is_better=False))
    if units is not None:
        bits = total / math.log(2)
        scores.append(Score("bits_per_char", bits / units.characters, f"char|{signature}", higher_is_better=False))
    return scores


def evaluate(
    model: Model,
    data: TaskData,
    split: Split,
    search: SearchConfig | None = None,
    progress: Callable[[int], None] | None = None,
    shortlist: Shortlist | None = None,
) -> list[Score]:
    """Return all scores of a split: of decoded text or classes (unless search is None), then of the loss."""
    scores = []
    examples = data.examples(split) if search is not None else []
    if examples and search is not None:
        answers = translate(model, data.codec, [source for source, _ in examples], search, progress, shortlist)
        decoded = data.measure([best[0].text for best in answers], [reference for _, reference in examples])
        how = "" if data.codec.target is None else f"|{search.signature}"  # classes are not searched for
        how += "" if shortlist is None else f"|{shortlist.signature}"
        scores = [
            Score(score.name, score.value, f"{score.signature}|split:{split}{how}", score.higher_is_better)
            for score in decoded
        ]
    return scores + held_out_loss(model, data, split, progress)


def names_of_scores(data: TaskData, kind: str) -> dict[str, bool]:
    """Return the names of the scores that `evaluate` computes, in order, and whether higher is better."""
    references = [reference for _, reference in data.examples("valid")[:1]]
    decoded = data.measure(references, references) if references else []
    names = {score.name: score.higher_is_better for score in decoded} | {"loss": False}
    if kind != "encoder":
        names["perplexity"] = False
    if data.units("valid") is not None:
        names["bits_per_char"] = False
    return names


def find_score(scores: list[Score], name: str) -> Score | None:
    """Return the score of that name, or None."""
    return next((score for score in scores if score.name == name), None)
