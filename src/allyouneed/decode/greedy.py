"""Greedy search: the most probable token at every step. Beam search with a beam of one, without what a beam needs.

y_t = argmax_v P(v | y_<t, source)    until EOS
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from allyouneed.decode.base import Hypothesis, device_of, pad_right
from allyouneed.decode.penalty import length_penalty
from allyouneed.decode.shortlist import Listed
from allyouneed.decode.walk import Choose, best_token, walk
from allyouneed.models import Model
from allyouneed.tasks.base import BOS


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
    choose = (lambda logits_BV, _: best_token(logits_BV)) if listed is None else _best_of(listed)
    said = walk(model, logits, state, limits, choose)
    return [[_ranked(hypothesis, alpha)] for hypothesis in said]


def _best_of(listed: Listed) -> Choose:
    """The most probable token of what each row may say."""

    def choose(logits_BN: Tensor, row_B: Tensor) -> tuple[Tensor, Tensor]:
        listed.only(row_B)
        column_B, logprob_B = best_token(listed.bar(logits_BN))
        return listed.word_N[column_B], logprob_B

    return choose


def _ranked(hypothesis: Hypothesis, alpha: float) -> Hypothesis:
    length = len(hypothesis.ids) + hypothesis.finished
    return replace(hypothesis, score=hypothesis.logprob / length_penalty(length, alpha))
