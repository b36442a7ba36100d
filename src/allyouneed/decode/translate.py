"""From text to text: translate or classify texts with a finished model."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from allyouneed.decode.base import Hypothesis, device_of, evaluation_mode, pad_right
from allyouneed.decode.beam import SearchConfig
from allyouneed.decode.phrases import begins_word, encode_constraint
from allyouneed.decode.target_search import search
from allyouneed.decode.threads import run_concurrently, worker_count
from allyouneed.errors import ConfigError
from allyouneed.models import Model
from allyouneed.shortlist.table import Shortlist
from allyouneed.tasks.base import FIRST_CLASS
from allyouneed.text.checks import check_known, check_length
from allyouneed.text.codec import Codec
from allyouneed.text.glossary import Constraint

ROWS = 64  # texts in a batch of a classifier


@dataclass(frozen=True)
class Answer:
    """One output for a text: a translation, or the name of a class."""

    text: str
    score: float  # ranks it among others
    logprob: float
    tokens: int = 0  # generated; a class is not
    pieces: tuple[str, ...] = ()  # of a translation that was made in pieces
    finished: bool = True  # False: it was cut at the maximum length


def translate(
    model: Model,
    codec: Codec,
    texts: Sequence[str],
    config: SearchConfig,
    progress: Callable[[int], None] | None = None,
    shortlist: Shortlist | None = None,
    constraints: Sequence[Constraint] | None = None,
) -> list[list[Answer]]:
    """Return the best answers for each text, best first: translations, or names of classes.

    A `shortlist` (such as `bundle.shortlist`) makes translation faster (see `search`). `constraints`: what the
    translation of each text must contain and begin with.
    """
    if codec.classes is not None:
        if constraints is not None:
            raise ConfigError("a classifier has no outputs to constrain; remove the glossary and the prefixes")
        answers: list[list[Answer]] = [[] for _ in texts]
        for chosen, logprobs in class_logprobs(model, codec, texts):
            for i, logprob in zip(chosen, logprobs, strict=True):
                answers[i] = (
                    _tagged(logprob, codec.classes) if codec.per_position else _named(logprob, codec.classes, config)
                )
            if progress is not None:
                progress(len(chosen))
        return answers
    sources = codec.encode_sources(texts)
    if constraints is None:
        return as_answers(codec, search(model, sources, config, progress, shortlist, codec.prefix))
    assert codec.target is not None
    wanted = [encode_constraint(codec.target, constraint) for constraint in constraints]
    words_V = begins_word(codec.target) if any(one.phrases for one in wanted) else None
    # What the model generates first by itself (BART: <s>) must not come between BOS and a prescribed start.
    found = search(model, sources, config, progress, shortlist, codec.target_start, wanted, words_V)
    return as_answers(codec, found)


def as_answers(codec: Codec, found: Sequence[Sequence[Hypothesis]]) -> list[list[Answer]]:
    """Return the hypotheses of each text as answers."""
    return [[_answer(codec, one) for one in hypotheses] for hypotheses in found]


def _answer(codec: Codec, found: Hypothesis) -> Answer:
    text = codec.decode_target(found.ids)
    return Answer(text, found.score, found.logprob, len(found.ids), finished=found.finished)


def class_logprobs(model: Model, codec: Codec, texts: Sequence[str]) -> Iterator[tuple[list[int], list[Tensor]]]:
    """Yield log P of the classes in batches of similar lengths: the places of the texts, and a tensor for each text.

    The tensor is (V), or (S, V) if each token has a class.
    """
    assert codec.classes is not None
    if not codec.classes:
        raise ConfigError(
            "a model without classes has no output; in Python, `model.pooled` returns a vector for each text"
        )
    sources = codec.encode_sources(texts)
    if codec.per_position:
        for number, (text, ids) in enumerate(zip(texts, sources, strict=True), start=1):
            check_known(text, ids, f"text {number}")
            check_length(codec, ids, model.longest_source, f"text {number}")
    order = sorted(range(len(sources)), key=lambda i: len(sources[i]))
    device, classes = device_of(model), len(codec.classes)
    rows = min(ROWS, max(1, -(-len(order) // worker_count(device))))

    def classify(chosen: list[int]) -> list[Tensor]:
        source_BS, mask_BS = pad_right([sources[i] for i in chosen], device)
        with torch.inference_mode():  # not in the code between two yields
            logprobs = list(_logprobs(model, source_BS, mask_BS, classes))
        if codec.per_position:  # BOS and EOS have no classes
            logprobs = [one_SV[codec.text_slice(len(sources[i]))] for i, one_SV in zip(chosen, logprobs, strict=True)]
        return logprobs

    with evaluation_mode(model):
        batches = [order[begin : begin + rows] for begin in range(0, len(order), rows)]
        yield from run_concurrently(classify, batches, device)


def _logprobs(model: Model, source_BS: Tensor, mask_BS: Tensor | None, classes: int) -> Tensor:
    if model.kind == "decoder":  # it generates the id of a class
        logits_BSV, _ = model.step(source_BS, model.start(), mask_BS)
        return logits_BSV.float().log_softmax(dim=-1).narrow(-1, FIRST_CLASS, classes)
    return model.classify(source_BS, mask_BS).float().log_softmax(dim=-1)


def _named(logprob_V: Tensor, classes: Sequence[str], config: SearchConfig) -> list[Answer]:
    """Return the best classes."""
    best = torch.topk(logprob_V, min(config.n_best, len(logprob_V)))
    return [
        Answer(classes[c], value, value) for value, c in zip(best.values.tolist(), best.indices.tolist(), strict=True)
    ]


def _tagged(logprob_SV: Tensor, classes: Sequence[str]) -> list[Answer]:
    """Return the best class of each token, joined to one answer."""
    best = logprob_SV.max(dim=-1)
    logprob = sum(best.values.tolist())
    return [Answer(" ".join(classes[c] for c in best.indices.tolist()), logprob, logprob)]
