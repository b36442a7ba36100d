"""Reranking by a reverse model: of the n best translations, the one that explains its source best.

    score(y) = log P(y | x) + w log P(x | y)

The second term comes from a model that translates in the other direction. It penalizes translations that leave
something out: their sources are improbable.

Cost: the reverse model reads the n best translations of a text and scores the text for each, all at once.
Paper: Yee et al. 2019, arXiv:1908.05731 (noisy channel); Li et al. 2016, arXiv:1510.03055.
Differs: no separate language model and no length penalty: w is the only weight.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from allyouneed.decode.score import score
from allyouneed.decode.translate import Answer
from allyouneed.errors import ConfigError, DataError
from allyouneed.models import Model
from allyouneed.text.codec import Codec


@dataclass(frozen=True)
class Reverse:
    """A model from the target to the source, and the weight of its log-probabilities."""

    model: Model
    codec: Codec
    weight: float = 1.0

    def __post_init__(self) -> None:
        if self.codec.source is None or self.codec.target is None or self.codec.classes is not None:
            raise ConfigError("the reverse model does not translate; use one that translates into the source language")
        if not 0 <= self.weight < float("inf"):
            raise ConfigError(f"the weight of the reverse model is {self.weight}; should be a number of at least 0")


def rerank(texts: Sequence[str], answers: Sequence[Sequence[Answer]], reverse: Reverse) -> list[list[Answer]]:
    """Return the answers of each text, best first, with their new scores. As in beam search, cut answers come last."""
    codec = reverse.codec
    pairs = [(answer.text, text) for text, ranked in zip(texts, answers, strict=True) for answer in ranked]
    sources = codec.encode_sources([answer for answer, _ in pairs])
    targets = [codec.encode_target(text) for _, text in pairs]
    start = codec.target_start
    _require_readable(reverse.model, pairs, sources, [len(start) + len(ids) for ids in targets])
    scored = iter(score(reverse.model, list(zip(sources, targets, strict=True)), prefix=start))
    return [
        sorted(
            (replace(one, score=one.logprob + reverse.weight * next(scored).logprob) for one in ranked),
            key=lambda answer: (not answer.finished, -answer.score),
        )
        for ranked in answers
    ]


def _require_readable(
    model: Model, pairs: Sequence[tuple[str, str]], sources: Sequence[Sequence[int]], targets: Sequence[int]
) -> None:
    """Raise DataError for a text or a translation that the reverse model has no positions for."""
    for (answer, text), source, target in zip(pairs, sources, targets, strict=True):
        joined = len(source) if model.kind == "decoder" else 0
        for what, length, most in (
            (answer, len(source), model.longest_source),
            (text, joined + target, model.longest),
        ):
            if most is not None and length > most:
                raise DataError(
                    f"{what[:60]!r}: {length} tokens; the reverse model reads at most {most}; split the text"
                )
