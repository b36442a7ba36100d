"""Beam search: extend the `beam` best prefixes in parallel.

    live_0 = {BOS};   candidates_t = the 2 beam best of  live_(t-1) x vocabulary  by log P
    finished += candidates_t that end in EOS and are among the beam best;   live_t = the beam best of the others

Finished hypotheses are ranked by log P / lp (see penalty.py). Each row has only one candidate that ends, so at least
`beam` of the 2 beam candidates continue. Defaults are the paper's: beam 4, alpha 0.6, at most source length + 50
tokens, "but terminate early when possible".

Stopping is exact: a sentence ends when no live prefix can overtake its n best finished hypotheses. The log P = s of a
prefix can only decrease, and its largest possible divisor is that of the maximum length L, so none of its completions
scores above s / lp(L). A hypothesis that is cut at L is unfinished and ranks after all finished ones.

A beam of one is greedy search: the first finished hypothesis is the result.

Cost: one `step` of (sentences x beam) rows for each token; the rows of the state are reordered at each step.
Paper: Vaswani et al. 2017, arXiv:1706.03762, section 6.1; Wu et al. 2016, arXiv:1609.08144, section 7.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import torch
from pydantic import Field, NonNegativeInt, PositiveInt, model_validator
from torch import Tensor
from torch.nn import functional as F

from allyouneed.config import Config
from allyouneed.decode.base import (
    FIRST_TOKEN,
    Hypothesis,
    as_float32,
    device_of,
    start_targets,
    top_tokens,
)
from allyouneed.decode.penalty import length_penalty
from allyouneed.decode.shortlist_head import BatchShortlist
from allyouneed.mixers import select_rows
from allyouneed.models import Model
from allyouneed.text.specials import EOS, PAD

BEYOND_SOURCE = 50  # section 6.1: "maximum output length during inference to input length + 50"
NEVER = float("-inf")


class SearchConfig(Config):
    """Settings of the search for the best target."""

    beam: PositiveInt = 4
    length_penalty: Annotated[float, Field(ge=0)] = 0.6  # alpha; 0 ranks by log P alone
    n_best: PositiveInt = 1
    max_length: NonNegativeInt | None = None  # maximum number of tokens, EOS included; None: source length + 50
    batch_tokens: PositiveInt = 4096  # source tokens in a batch, counted once per beam

    @model_validator(mode="after")
    def _enough_beams(self) -> "SearchConfig":
        if self.n_best > self.beam:
            raise ValueError(
                f"n_best {self.n_best} is more than the {self.beam} hypotheses that the beam keeps; use at most beam"
            )
        return self

    @property
    def signature(self) -> str:
        """Return the search settings as they appear in the signature of a score."""
        return "greedy" if self.beam == 1 else f"beam:{self.beam}|lp:{self.length_penalty:g}"

    def limit(self, source: Sequence[int]) -> int:
        """Return the maximum target length for a source."""
        return len(source) + BEYOND_SOURCE if self.max_length is None else self.max_length


@dataclass(frozen=True)
class Candidates:
    """The best continuations of N sentences, best first."""

    logprob_NC: Tensor
    row_NC: Tensor  # the row (of B) that is continued
    token_NC: Tensor

    def first(self, count: int) -> "Candidates":
        """Return the `count` best of each sentence."""
        return Candidates(self.logprob_NC[:, :count], self.row_NC[:, :count], self.token_NC[:, :count])

    def choose(self, place_NK: Tensor) -> "Candidates":
        """Return the candidates at the given places of each sentence."""
        return Candidates(
            self.logprob_NC.gather(1, place_NK),
            self.row_NC.gather(1, place_NK),
            self.token_NC.gather(1, place_NK),
        )

    def of_sentences(self, sentence_N: Tensor) -> "Candidates":
        """Return the candidates of some sentences."""
        return Candidates(self.logprob_NC[sentence_N], self.row_NC[sentence_N], self.token_NC[sentence_N])


def best_continuations(logits_BV: Tensor, logprob_NK: Tensor, count: int) -> Candidates:
    """Return the `count` best continuations of each sentence's K rows, filled up with impossible ones."""
    N, K = logprob_NK.shape
    # The best of a union are among the best of its parts.
    per_row = min(count, logits_BV.shape[1] - FIRST_TOKEN)
    more_BR, token_BR = top_tokens(logits_BV, per_row)
    logprob_NM = (more_BR + logprob_NK.flatten()[:, None]).view(N, K * per_row)
    logprob_NC, place = logprob_NM.topk(min(count, K * per_row), dim=1)
    token_NC = token_BR.view(N, K * per_row).gather(1, place)
    first_N1 = torch.arange(0, N * K, K, device=logits_BV.device)[:, None]
    row_NC = place // per_row + first_N1
    missing = count - logprob_NC.shape[1]
    if missing:
        logprob_NC = F.pad(logprob_NC, (0, missing), value=NEVER)
        token_NC = F.pad(token_NC, (0, missing), value=PAD)
        row_NC = torch.cat([row_NC, first_N1.expand(N, missing)], dim=1)
    return Candidates(logprob_NC, row_NC, token_NC)


class Beams:
    """A batch of N sentences with `beam` live prefixes each; the rows (B) of the state are N groups of `beam` rows."""

    def __init__(
        self,
        model: Model,
        sources: Sequence[Sequence[int]],
        limits: Sequence[int],
        config: SearchConfig,
        shortlist: BatchShortlist | None = None,
        prefixes: Sequence[Sequence[int]] | None = None,
    ) -> None:
        self.model = model if shortlist is None else shortlist.model
        self.config, self.shortlist, self.device = config, shortlist, device_of(model)
        self.found: list[list[Hypothesis]] = [[] for _ in sources]
        self.item = list(range(len(sources)))  # the sentences still in the batch
        self.limit_N = torch.tensor(limits, device=self.device)
        penalties = [length_penalty(limit, config.length_penalty) for limit in limits]
        self.last_penalty_N = torch.tensor(penalties, device=self.device)
        self.to_beat_N = torch.full((len(limits),), NEVER, device=self.device)  # the n-th best finished score
        self.logprob_NK = torch.zeros(len(limits), 1, device=self.device)
        self.state, begin_B = start_targets(model, sources, prefixes)
        self.ids_BT = begin_B[:, None]

    def run(self) -> list[list[Hypothesis]]:
        """Return the n best hypotheses of every sentence, best first."""
        while self.item:
            logits, self.state = self.model.advance(self.ids_BT[:, -1], self.state)
            live = self._step(as_float32(logits))
            self._extend(live, self._drop_finished(live))
        return self.found

    def _step(self, logits: Tensor) -> Candidates:
        """Keep the hypotheses that end at this step; return the prefixes to extend."""
        best, beam = self._continuations(logits), self.config.beam
        ends_NC = best.token_NC == EOS
        if not bool(ends_NC.any()):
            return best.first(beam)
        self._finish(best, ends_NC[:, :beam])
        return best.choose(ends_NC.to(torch.uint8).argsort(dim=1, stable=True)[:, :beam])

    def _continuations(self, logits: Tensor) -> Candidates:
        count = 2 * self.config.beam
        if self.shortlist is None:
            return best_continuations(logits, self.logprob_NK, count)
        best = best_continuations(self.shortlist.row_logits(logits), self.logprob_NK, count)
        return replace(best, token_NC=self.shortlist.token_ids(best.token_NC))

    def _finish(self, best: Candidates, ends_NK: Tensor) -> None:
        """Keep the n best hypotheses that end at this step."""
        length = self.ids_BT.shape[1]  # BOS does not count, EOS does
        penalty = length_penalty(length, self.config.length_penalty)
        for sentence, place in ends_NK.nonzero().tolist():
            logprob = float(best.logprob_NC[sentence, place])
            if logprob == NEVER:
                continue
            ids = self.ids_BT[best.row_NC[sentence, place], 1:].tolist()
            found = self.found[self.item[sentence]]
            found.append(Hypothesis(ids, logprob, logprob / penalty, finished=True))
            found.sort(key=lambda hypothesis: -hypothesis.score)
            del found[self.config.n_best :]
            if len(found) == self.config.n_best:
                self.to_beat_N[sentence] = found[-1].score

    def _drop_finished(self, live: Candidates) -> Tensor | None:
        """Drop sentences that cannot improve or are at their limit; return the places of the others (None: all)."""
        length = self.ids_BT.shape[1]
        hopeless_N = self.to_beat_N >= live.logprob_NC.amax(1) / self.last_penalty_N
        done_N = hopeless_N | (self.limit_N <= length)
        if not bool(done_N.any()):
            return None
        penalty = length_penalty(length, self.config.length_penalty)
        for sentence in done_N.nonzero()[:, 0].tolist():
            found = self.found[self.item[sentence]]
            prefixes = zip(
                *(part[sentence].tolist() for part in (live.logprob_NC, live.row_NC, live.token_NC)), strict=True
            )
            for logprob, row, token in prefixes:
                if len(found) < self.config.n_best and logprob > NEVER:
                    ids = [*self.ids_BT[row, 1:].tolist(), token]
                    found.append(Hypothesis(ids, logprob, logprob / penalty, finished=False))
        kept = (~done_N).nonzero()[:, 0]
        self.item = [self.item[sentence] for sentence in kept.tolist()]
        if self.shortlist is not None:
            self.shortlist.keep_sources(kept)
        self.limit_N, self.to_beat_N = self.limit_N[kept], self.to_beat_N[kept]
        self.last_penalty_N = self.last_penalty_N[kept]
        return kept

    def _extend(self, live: Candidates, kept: Tensor | None) -> None:
        """Make the chosen prefixes the rows of the state."""
        if not self.item:
            return
        beams_before, beam = self.logprob_NK.shape[1], live.row_NC.shape[1]
        if kept is not None:
            live = live.of_sentences(kept)
        row_B = live.row_NC.flatten()
        if beams_before == beam:
            self.state = select_rows(self.state, row_B)
        else:
            # After BOS the single row of each sentence becomes a group. Sentences are dropped before that, in their own
            # selection: otherwise the state could not detect that the rows of a group share a source.
            if kept is not None:
                self.state = select_rows(self.state, kept)
            group_B = torch.arange(len(self.item), device=self.device).repeat_interleave(beam)
            self.state = select_rows(self.state, group_B)
        self.ids_BT = torch.cat([self.ids_BT[row_B], live.token_NC.reshape(-1, 1)], dim=1)
        self.logprob_NK = live.logprob_NC
