"""Text in, text out: what a finished model says to a text."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from allyouneed.decode.base import device_of, evaluating, pad_right
from allyouneed.decode.beam import SearchConfig, search
from allyouneed.models import Model
from allyouneed.tasks import Codec

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
            logprob_BV = model.classify(source_BS, valid_BS).float().log_softmax(dim=-1)
            best = torch.topk(logprob_BV, min(n_best, logprob_BV.shape[1]), dim=-1)
            for i, values, classes in zip(chosen, best.values.tolist(), best.indices.tolist(), strict=True):
                answers[i] = [Answer(codec.classes[c], value, value) for value, c in zip(values, classes, strict=True)]
            if progress is not None:
                progress(len(chosen))
    return answers
