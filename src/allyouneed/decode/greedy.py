"""Greedy search: the most probable token at every step. Beam search with a beam of one, without what a beam needs.

y_t = argmax_v P(v | y_<t, source)    until EOS
"""

from collections.abc import Sequence
from dataclasses import replace

import torch

from allyouneed.decode.base import Hypothesis, device_of, pad_right
from allyouneed.decode.penalty import length_penalty
from allyouneed.decode.walk import best_token, walk
from allyouneed.models import Model
from allyouneed.tasks.base import BOS


def greedy_batch(
    model: Model, sources: Sequence[Sequence[int]], limits: Sequence[int], alpha: float
) -> list[list[Hypothesis]]:
    """One hypothesis for each source. `limits` are the longest permitted lengths, EOS included, at least 1."""
    device = device_of(model)
    state = model.condition(*pad_right(sources, device))
    logits_BV, state = model.advance(torch.full((len(sources),), BOS, device=device), state)
    said = walk(model, logits_BV, state, limits, lambda logits_BV, _: best_token(logits_BV))
    return [[_ranked(hypothesis, alpha)] for hypothesis in said]


def _ranked(hypothesis: Hypothesis, alpha: float) -> Hypothesis:
    length = len(hypothesis.ids) + hypothesis.finished
    return replace(hypothesis, score=hypothesis.logprob / length_penalty(length, alpha))
