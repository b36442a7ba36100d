"""Scores of a model on a held-out split, each with the signature needed to reproduce it."""

import math
import random
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from functools import cached_property
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


class OutOfTime(Exception):
    """A measurement was still busy at its deadline."""


class Measurement:
    """The scores of a model on a held-out split, or on a part of it: its first items in a fixed random order."""

    def __init__(
        self,
        model: Model,
        data: TaskData,
        split: Split,
        search: SearchConfig | None = None,
        progress: Callable[[int], None] | None = None,
        shortlist: Shortlist | None = None,
    ) -> None:
        """`search` decodes texts or finds classes; None: only the loss is computed."""
        self.model, self.data, self.split = model, data, split
        self.search, self.shortlist, self._progress = search, shortlist, progress
        self.deadline = math.inf  # of the monotonic clock
        self.whole = False  # whether all items were measured
        self._items = 0
        self.decodes = search is not None and bool(data.examples(split))
        self._answers: dict[int, str] = {}
        self._losses: dict[int, tuple[float, int]] = {}  # the sum of a batch, and the number of its predictions

    @cached_property
    def size(self) -> int:
        """The number of items: of texts to decode, or else of rows in all batches."""
        return len(self._examples) if self.decodes else sum(self._rows)

    @cached_property
    def target_length(self) -> float:
        """The mean number of predictions in an item: of tokens in a target."""
        return sum(batch.tokens for batch in self.data.held_out(self.split)) / max(1, sum(self._rows))

    @property
    def items(self) -> int:
        """The number of items measured so far."""
        return self.size if self.whole else self._items

    @cached_property
    def _examples(self) -> list[tuple[str, str]]:
        return self.data.examples(self.split) if self.decodes else []

    @cached_property
    def _rows(self) -> list[int]:
        return [batch.examples for batch in self.data.held_out(self.split)]

    def extend(self, items: int | None = None) -> None:
        """Measure more items, up to this number; None: all of them.

        Raise OutOfTime between two batches after the deadline; what was measured before the call then still counts.
        """
        whole = items is None or items >= self.size
        before = dict(self._answers), dict(self._losses)
        try:
            if self.decodes:
                self._decode(range(len(self._examples)) if whole else _shuffled(len(self._examples))[:items])
            chosen = None if whole else self._first_batches(items or 0)
            self._add_losses(chosen)
        except OutOfTime:
            self._answers, self._losses = before
            raise
        rows = (items or 0) if self.decodes or chosen is None else sum(self._rows[number] for number in chosen)
        self.whole, self._items = whole or rows >= self.size, rows

    def _between_batches(self, texts: int) -> None:
        if self._progress is not None:
            self._progress(texts)
        if time.monotonic() > self.deadline:
            raise OutOfTime

    def _decode(self, numbers: Sequence[int]) -> None:
        assert self.search is not None
        new = sorted(number for number in numbers if number not in self._answers)
        texts = [self._examples[number][0] for number in new]
        answers = translate(self.model, self.data.codec, texts, self.search, self._between_batches, self.shortlist)
        self._answers |= {number: best[0].text for number, best in zip(new, answers, strict=True)}

    def _first_batches(self, items: int) -> set[int]:
        """Return batches that together hold the same share of all rows as this number of items, or a little more."""
        chosen: set[int] = set()
        left = -(-items * sum(self._rows) // self.size)
        for number in _shuffled(len(self._rows)):
            if left <= 0:
                break
            chosen.add(number)
            left -= self._rows[number]
        return chosen

    def _add_losses(self, chosen: set[int] | None) -> None:
        device = device_of(self.model)
        batches = (
            (number, batch)
            for number, batch in enumerate(self.data.held_out(self.split))
            if number not in self._losses and (chosen is None or number in chosen)
        )

        def measure(numbered: tuple[int, Batch]) -> tuple[float, int]:
            loss = batch_loss(self.model, to_device(numbered[1], device))
            return float(loss.total), loss.count

        with evaluating(self.model), closing(run_concurrently(measure, batches, device)) as measured:
            for (number, _), loss in measured:
                self._losses[number] = loss
                self._between_batches(0)  # progress counts texts, and these were counted before

    def scores(self) -> list[Score]:
        """Return the scores of what was measured: of decoded text or classes, then of the loss."""
        part = "" if self.whole else f"|items:{self.items}/{self.size}"
        return [*self._decoded_scores(part), *self._loss_scores(part)]

    def _decoded_scores(self, part: str) -> list[Score]:
        if not self.decodes or self.search is None:
            return []
        places = sorted(self._answers)
        references = [self._examples[place][1] for place in places]
        decoded = self.data.measure([self._answers[place] for place in places], references)
        how = "" if self.data.codec.target is None else f"|{self.search.signature}"  # classes are not searched for
        how += "" if self.shortlist is None else f"|{self.shortlist.signature}"
        return [
            Score(score.name, score.value, f"{score.signature}|split:{self.split}{part}{how}", score.higher_is_better)
            for score in decoded
        ]

    def _loss_scores(self, part: str) -> list[Score]:
        # In the order of the batches: the sum does not depend on which of them was done first.
        total = sum(self._losses[number][0] for number in sorted(self._losses))
        count, units = sum(count for _, count in self._losses.values()), self.data.units(self.split)
        how = f"{units.how}|" if units is not None and units.how else ""
        signature = f"split:{self.split}{part}|n:{count}|{how}allyouneed:{__version__}"
        nats = total / max(count, 1)
        scores = [Score("loss", nats, f"nats|{signature}", higher_is_better=False)]
        if self.model.kind != "encoder":
            perplexity = math.exp(min(nats, 700.0))
            scores.append(Score("perplexity", perplexity, f"token|{signature}", higher_is_better=False))
        if units is not None:
            bits = total / math.log(2)
            # The characters of a part of the text are not counted: they are estimated from its tokens.
            characters = units.characters * count / units.tokens if part else units.characters
            value = bits / max(characters, 1e-9)
            scores.append(Score("bits_per_char", value, f"char|{signature}", higher_is_better=False))
        return scores


def _shuffled(count: int) -> list[int]:
    """Return the numbers below `count` in an order that is random, but always the same."""
    return random.Random(count).sample(range(count), count)


def held_out_loss(model: Model, data: TaskData, split: Split) -> list[Score]:
    """Return the loss in nats per prediction, and the scores derived from it."""
    return evaluate(model, data, split)


def evaluate(
    model: Model,
    data: TaskData,
    split: Split,
    search: SearchConfig | None = None,
    shortlist: Shortlist | None = None,
    items: int | None = None,
) -> list[Score]:
    """Return all scores of a split, or of the first `items` of it: of decoded text (unless search is None), of loss."""
    measurement = Measurement(model, data, split, search, shortlist=shortlist)
    measurement.extend(items)
    return measurement.scores()


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
