"""Greedy search: the most probable token at every step. Beam search with a beam of one, without a beam's overhead.

y_t = argmax_v P(v | y_<t, source)    until EOS
"""

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from allyouneed.decode.base import Hypothesis, start_targets
from allyouneed.decode.generation_loop import best_token, generation_loop
from allyouneed.decode.penalty import length_penalty
from allyouneed.decode.shortlist_head import BatchShortlist
from allyouneed.models import Model


def greedy_batch(
    model: Model,
    sources: Sequence[Sequence[int]],
    limits: Sequence[int],
    alpha: float,
    shortlist: BatchShortlist | None = None,
    prefixes: Sequence[Sequence[int]] | None = None,
) -> list[list[Hypothesis]]:
    """Return one hypothesis for each source. `limits` are maximum lengths, EOS included, at least 1.

    `shortlist` restricts the tokens; None allows all. Targets begin with `prefixes`, which are not returned.
    """
    state, begin_B = start_targets(model, sources, prefixes)
    model = model if shortlist is None else shortlist.model
    logits, state = model.advance(begin_B, state)
    if shortlist is None:
        found = generation_loop(model, logits, state, limits, lambda logits_BV, _: best_token(logits_BV))
    else:
        found = generation_loop(
            model, logits, state, limits, lambda logits_BL, _: _best_of(shortlist, logits_BL), shortlist.keep_sources
        )
    return [[_ranked(hypothesis, alpha)] for hypothesis in found]


def _best_of(shortlist: BatchShortlist, logits: Tensor) -> tuple[Tensor, Tensor]:
    """Return the most probable allowed token (B) of each row, and its log-probability (B) among the allowed ones."""
    place_B, logprob_B = best_token(shortlist.row_logits(logits))
    return shortlist.token_ids(place_B[:, None])[:, 0], logprob_B


def _ranked(hypothesis: Hypothesis, alpha: float) -> Hypothesis:
    length = len(hypothesis.ids) + hypothesis.finished
    return replace(hypothesis, score=hypothesis.logprob / length_penalty(length, alpha))
