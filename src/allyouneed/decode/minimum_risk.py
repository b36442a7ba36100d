"""Minimum Bayes risk: the candidate that is most alike to all candidates, instead of the most probable one.

    y* = argmax_h  sum_r  w_r u(h, r)        h and r: all candidates

samples   r are N samples of the model, w_r = 1/N: an estimate of the expected utility under the model
beam      r are the N best of beam search, w_r ~ P(r | x)

u is sentence chrF or BLEU (utility.py). The samples of a text depend on the seed and on the text only, so that a text
has the same translation wherever it is.

Cost: N rows of decoding for each text, and N^2 utilities of short vectors.
Paper: Kumar and Byrne 2004, N04-1022; Eikema and Aziz 2022, arXiv:2108.04718 (samples, as candidates and references);
Freitag et al. 2023, arXiv:2305.09860 (epsilon sampling).
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Annotated, Literal

import numpy as np
from pydantic import Field, NonNegativeInt, model_validator

from allyouneed.config import Config
from allyouneed.decode.base import Hypothesis
from allyouneed.decode.beam import SearchConfig
from allyouneed.decode.sample import SampleConfig, sample
from allyouneed.decode.target_search import search
from allyouneed.decode.translate import Answer, as_answers
from allyouneed.decode.utility import Utility, utilities
from allyouneed.models import Model
from allyouneed.text.codec import Codec

MOST = 1024  # candidates of a text


class RiskConfig(Config):
    """Settings of minimum Bayes risk."""

    n: Annotated[int, Field(ge=2, le=MOST)]  # candidates
    candidates: Literal["samples", "beam"] = "samples"
    utility: Utility = "chrf"
    temperature: Annotated[float, Field(gt=0)] = 1.0  # of samples
    epsilon: Annotated[float, Field(ge=0, lt=1)] = 0.02
    seed: NonNegativeInt = 0

    @model_validator(mode="after")
    def _needs_samples(self) -> "RiskConfig":
        if self.candidates == "beam":
            for name in ("temperature", "epsilon", "seed"):
                if name in self.model_fields_set:
                    raise ValueError(f"{name}: has no effect on candidates of the beam; remove it")
        return self


def least_risk(
    model: Model,
    codec: Codec,
    texts: Sequence[str],
    config: SearchConfig,
    risk: RiskConfig,
    progress: Callable[[int], None] | None = None,
) -> list[list[Answer]]:
    """Return the `n_best` candidates of each text with the highest expected utility, which is their score."""
    sources = codec.encode_sources(texts)
    if risk.candidates == "beam":
        wide = config.model_copy(update={"beam": max(config.beam, risk.n), "n_best": risk.n})
        found = search(model, sources, wide, progress, prefix=codec.prefix)
    else:
        found = sampled(model, codec, texts, config, _sampling(risk), sources)
        if progress is not None:
            progress(len(texts))
    return [_ranked(answers, risk)[: config.n_best] for answers in as_answers(codec, found)]


def sampled(
    model: Model,
    codec: Codec,
    texts: Sequence[str],
    config: SearchConfig,
    sampling: SampleConfig,
    sources: Sequence[Sequence[int]] | None = None,
) -> list[list[Hypothesis]]:
    """Return samples of translations. Those of a text depend on the seed and the text, not on other texts."""
    sources = codec.encode_sources(texts) if sources is None else sources
    digests = [hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest() for text in texts]
    return sample(
        model,
        [codec.prefix] * len(texts),
        sampling,
        sources,
        keys=[int.from_bytes(digest, "big") for digest in digests],
        limits=[config.limit(source) for source in sources],
    )


def _sampling(risk: RiskConfig) -> SampleConfig:
    return SampleConfig(n=risk.n, temperature=risk.temperature, epsilon=risk.epsilon, seed=risk.seed)


def _ranked(answers: Sequence[Answer], risk: RiskConfig) -> list[Answer]:
    """Return different answers by their expected utility, best first."""
    first: dict[str, Answer] = {}
    weights: dict[str, float] = {}
    highest = max(answer.logprob for answer in answers)
    for answer in answers:
        first.setdefault(answer.text, answer)
        more = 1.0 if risk.candidates == "samples" else float(np.exp(answer.logprob - highest))
        weights[answer.text] = weights.get(answer.text, 0.0) + more
    share_N = np.array(list(weights.values())) / sum(weights.values())
    expected = (utilities(list(first), risk.utility) @ share_N).tolist()
    scored = [replace(answer, score=value) for answer, value in zip(first.values(), expected, strict=True)]
    return sorted(scored, key=lambda answer: -answer.score)
