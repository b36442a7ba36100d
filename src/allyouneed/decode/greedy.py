"""Greedy search: the most probable token at every step. Beam search with a beam of one, without what a beam needs.

y_t = argmax_v P(v | y_<t, source)    until EOS
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from allyouneed.decode.base import Hypothesis, device_of, pad_right
from allyouneed.decode.generation_loop import best_token, generation_loop
from allyouneed.decode.penalty import length_penalty
from allyouneed.decode.shortlist_head import Listed
from allyouneed.models import Model
from allyouneed.text.specials import BOS


def greedy_batch(
    model: Model, sources: Sequence[Sequence[int]], limits: Sequence[int], alpha: float, listed: Listed | None = None
) -> list[list[Hypothesis]]:
    """One hypothesis for each source. `limits` are the longest permitted lengths, EOS included, at least 1.

    `listed` has the words that the sources allow; None: all.
    """
    device = device_of(model)
    model = model if listed is None else listed.model
    state = model.condition(*pad_right(sources, device))
    logits, state = model.advance(torch.full((len(sources),), BOS, device=device), state)
    if listed is None:
        said = generation_loop(model, logits, state, limits, lambda logits_BV, _: best_token(logits_BV))
    else:
        said = generation_loop(
            model, logits, state, limits, lambda logits_BL, _: _best_of(listed, logits_BL), listed.only
        )
    return [[_ranked(hypothesis, alpha)] for hypothesis in said]


def _best_of(listed: Listed, logits: Tensor) -> tuple[Tensor, Tensor]:
    """The most probable of the words (B) that each row may say, and its log-probability (B) among them."""
    place_B, logprob_B = best_token(listed.own(logits))
    return listed.words(place_B[:, None])[:, 0], logprob_B


def _ranked(hypothesis: Hypothesis, alpha: float) -> Hypothesis:
    length = len(hypothesis.ids) + hypothesis.finished
    return replace(hypothesis, score=hypothesis.logprob / length_penalty(length, alpha))
