"""Text in, text out: what a finished model says to a text."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from allyouneed.decode.base import device_of, evaluating, pad_right
from allyouneed.decode.beam import SearchConfig, search
from allyouneed.errors import DataError
from allyouneed.models import Model
from allyouneed.tasks import UNK, Codec

ROWS = 64  # texts classified at a time


@dataclass(frozen=True)
class Answer:
    """One answer to one text."""

    text: str
    score: float  # what ranks it
    logprob: float


def translate(
    model: Model,
    codec: Codec,
    texts: Sequence[str],
    config: SearchConfig,
    progress: Callable[[int], None] | None = None,
) -> list[list[Answer]]:
    """The best answers for each text, best first: translations, or the names of classes."""
    sources = codec.encode_sources(texts)
    if codec.each:
        # A class for each token is an answer about tokens that are known; a compiled program has none for others.
        for number, (text, ids) in enumerate(zip(texts, sources, strict=True), start=1):
            if UNK in ids:
                raise DataError(f"text {number}: {text!r} holds a token that is not in the model's vocabulary")
    if codec.classes is not None:
        return _classify(model, codec, sources, config.n_best, progress)
    found = search(model, sources, config, progress)
    return [
        [Answer(codec.decode_target(best.ids), best.score, best.logprob) for best in hypotheses] for hypotheses in found
    ]


def _classify(
    model: Model,
    codec: Codec,
    sources: Sequence[Sequence[int]],
    n_best: int,
    progress: Callable[[int], None] | None,
) -> list[list[Answer]]:
    assert codec.classes is not None
    order = sorted(range(len(sources)), key=lambda i: len(sources[i]))
    answers: list[list[Answer]] = [[] for _ in sources]
    with evaluating(model):
        for begin in range(0, len(order), ROWS):
            chosen = order[begin : begin + ROWS]
            source_BS, valid_BS = pad_right([sources[i] for i in chosen], device_of(model))
            logprob = model.classify(source_BS, valid_BS).float().log_softmax(dim=-1)
            if codec.each:
                found = _tagged(logprob, codec.classes, [len(sources[i]) for i in chosen])
            else:
                found = _named(logprob, codec.classes, n_best)
            for i, answer in zip(chosen, found, strict=True):
                answers[i] = answer
            if progress is not None:
                progress(len(chosen))
    return answers


def _named(logprob_BV: Tensor, classes: Sequence[str], n_best: int) -> list[list[Answer]]:
    """The best classes of each row."""
    best = torch.topk(logprob_BV, min(n_best, logprob_BV.shape[1]), dim=-1)
    return [
        [Answer(classes[c], value, value) for value, c in zip(values, numbers, strict=True)]
        for values, numbers in zip(best.values.tolist(), best.indices.tolist(), strict=True)
    ]


def _tagged(logprob_BSV: Tensor, classes: Sequence[str], lengths: Sequence[int]) -> list[list[Answer]]:
    """The best class of each position but BOS, as one answer for each row."""
    best = logprob_BSV[:, 1:].max(dim=-1)
    answers = []
    for values, numbers, length in zip(best.values.tolist(), best.indices.tolist(), lengths, strict=True):
        logprob = sum(values[: length - 1])
        answers.append([Answer(" ".join(classes[c] for c in numbers[: length - 1]), logprob, logprob)])
    return answers
