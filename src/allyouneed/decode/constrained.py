"""Lexically constrained beam search: the best target that contains required phrases.

    bank b          the prefixes that lack C - b of the C tokens of the required phrases (phrases.py); of the phrases
                    that are incomplete, only the one with most tokens counts
    candidates_t    for each live prefix: its best tokens, and every token of a required phrase
    live_t          the best candidate of each bank, from bank C down; then the second best of each; ... until K
    finished        candidates of bank C that contain all phrases, end in EOS and are among the beam best of bank C

A prefix without the phrases therefore never displaces those with more of them, and the fullest bank gains a token at
every step until it is bank C: every phrase is found if the maximum length allows it. K = beam x (C + 1) rows, at most
MOST_ROWS, so that a bank has as many rows as the search without constraints. Unused rows of a bank go to the others.
A target that contains the phrases without being required to is the best one, so such searches come first
(target_search.py). Ranking is that of beam.py. The search for a target ends when `beam` hypotheses have finished, or as
in beam.py: an unlikely phrase makes log P so low that the length penalty would favour endless targets. A target that is
cut at its maximum length is one with most phrases.

Cost: one step of (sentences x K) rows for each token, and a sort of K (2 K + F) candidates for F phrase tokens.
Paper: Post and Vilar 2018, arXiv:1804.06609 (dynamic beam allocation), batches as in Hu et al. 2019, N19-1090.
Differs: - the rows grow with the phrases (Hokamp and Liu 2017, arXiv:1704.07138), instead of sharing one beam;
         - phrases may overlap each other, may have alternatives, and end at the end of a word;
         - a phrase that is not continued falls back to its longest suffix that begins it, instead of starting anew.
"""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from allyouneed.decode.base import FIRST_TOKEN, device_of
from allyouneed.decode.beam import NEVER, Beams, Candidates, SearchConfig
from allyouneed.decode.phrases import PhraseProgress, PhraseTables, TokenConstraint
from allyouneed.models import Model
from allyouneed.text.specials import EOS, PAD

MOST_ROWS = 64  # of one sentence, unless the beam itself is larger


def rows_for(constraint: TokenConstraint, config: SearchConfig) -> int:
    """Return how many rows the search for a constrained target has."""
    return max(config.beam, min(MOST_ROWS, config.beam * (constraint.total + 1)))


class ConstrainedBeams(Beams):
    """A batch of sentences with required phrases, and equally many rows for each."""

    def __init__(
        self,
        model: Model,
        sources: Sequence[Sequence[int]],
        limits: Sequence[int],
        config: SearchConfig,
        prefixes: Sequence[Sequence[int]],
        constraints: Sequence[TokenConstraint],
        begins_word_V: Tensor | None = None,
    ) -> None:
        """`prefixes`: with all that targets begin with; those of the constraints are the last part."""
        super().__init__(model, sources, limits, config, prefixes=prefixes)
        self.rows = rows_for(constraints[0], config)
        if begins_word_V is None:
            begins_word_V = torch.ones(model.head.size, dtype=torch.bool)
        self.tables = PhraseTables([one.phrases for one in constraints], begins_word_V.to(device_of(model)))
        self.ended_N = torch.zeros(len(sources), dtype=torch.long, device=self.device)  # finished hypotheses
        self.progress = self.tables.start()
        for tokens in zip(*(one.prefix for one in constraints), strict=True):
            token_N1 = torch.tensor(tokens, device=self.device)[:, None]
            self.progress = self.tables.advance(self.progress, token_N1, self.tables.places(token_N1))

    def _step(self, logits: Tensor) -> Candidates:
        found, parent_NM, forced_NM = self._candidates(logits)
        after = self.tables.advance(self.progress.choose(parent_NM), found.token_NC, forced_NM)
        lacks_NM = self.tables.unmet_tokens(after)
        possible_NM = found.logprob_NC > NEVER
        ends_NM = (found.token_NC == EOS) & possible_NM
        finished_NM = ends_NM & self.tables.met(after)
        if bool(finished_NM.any()):
            better_NM = torch.where((lacks_NM == 0) & (finished_NM | ~ends_NM), found.logprob_NC, NEVER)
            lowest_N1 = better_NM.topk(min(self.config.beam, better_NM.shape[1]), dim=1).values[:, -1:]
            finished_NM &= found.logprob_NC >= lowest_N1
            self._finish(found, finished_NM)
            self.ended_N += finished_NM.sum(1)
            self.to_beat_N[self.ended_N >= self.config.beam] = float("inf")
        place_NK = choose_from_banks(found.logprob_NC.masked_fill(ends_NM, NEVER), lacks_NM, self.rows)
        self.progress = after.choose(place_NK)
        live = found.choose(place_NK)
        live.logprob_NC[live.token_NC == EOS] = NEVER  # chosen only if there are too few others
        return live

    def _candidates(self, logits_BV: Tensor) -> tuple[Candidates, Tensor, Tensor]:
        """Return the continuations of all rows; the continued row among those of its sentence; the phrases' tokens."""
        (N, K), V = self.logprob_NK.shape, logits_BV.shape[1]
        logprob_NKV = logits_BV.log_softmax(dim=1).view(N, K, V) + self.logprob_NK[:, :, None]
        logprob_NKV[:, :, :FIRST_TOKEN] = NEVER
        forced_NKF = self.tables.forced_NF[:, None].expand(-1, K, -1)
        kinds = [(logprob_NKV.gather(2, forced_NKF), forced_NKF)]
        logprob_NKV.scatter_(2, forced_NKF, NEVER)
        most = min(self.rows, V)
        # Where a phrase is complete, tokens that begin a word are candidates, and so are those that continue one.
        inside_NKV = self.tables.complete(self.progress)[:, :, None] & ~self.tables.begins_word_V
        kinds.append(logprob_NKV.masked_fill(inside_NKV, NEVER).topk(most, dim=2))
        if bool(inside_NKV.any()):
            kinds.append(logprob_NKV.masked_fill(~inside_NKV, NEVER).topk(most, dim=2))
        logprob_NKE, token_NKE = (torch.cat(parts, dim=2) for parts in zip(*kinds, strict=True))
        missing = (0, max(0, self.rows - token_NKE[0].numel()))
        logprob_NM = F.pad(logprob_NKE.flatten(1), missing, value=NEVER)
        token_NM = F.pad(token_NKE.flatten(1), missing, value=PAD)
        place_E = torch.arange(token_NKE.shape[2], device=self.device).clamp(max=forced_NKF.shape[2])
        parent_NKE = torch.arange(K, device=self.device)[:, None].expand_as(token_NKE)
        parent_NM = F.pad(parent_NKE.flatten(1), missing)
        forced_NM = F.pad(place_E.expand_as(token_NKE).flatten(1), missing)
        row_NM = parent_NM + torch.arange(0, N * K, K, device=self.device)[:, None]
        return Candidates(logprob_NM, row_NM, token_NM), parent_NM, forced_NM

    def _drop_finished(self, live: Candidates) -> Tensor | None:
        kept = super()._drop_finished(live)
        if kept is not None:
            self.tables.keep_sentences(kept)
            self.ended_N = self.ended_N[kept]
            self.progress = PhraseProgress(self.progress.state_NKP[kept], self.progress.count_NKP[kept])
        return kept


def choose_from_banks(logprob_NM: Tensor, lacks_NM: Tensor, count: int) -> Tensor:
    """Return the places (N, count) of candidates: the best of each bank, fewest lacking tokens first, then the next."""
    M = logprob_NM.shape[1]
    by_logprob_NM = logprob_NM.argsort(dim=1, descending=True, stable=True)
    impossible_NM = logprob_NM == NEVER
    most = int(lacks_NM.max()) + 1
    bank_NM = lacks_NM.masked_fill(impossible_NM, most).gather(1, by_logprob_NM)
    by_bank_NM = bank_NM.argsort(dim=1, stable=True)
    bank_NM, order_NM = bank_NM.gather(1, by_bank_NM), by_logprob_NM.gather(1, by_bank_NM)
    place_M = torch.arange(M, device=logprob_NM.device)
    begins_NM = F.pad(bank_NM[:, 1:] != bank_NM[:, :-1], (1, 0), value=True)
    rank_NM = place_M - torch.where(begins_NM, place_M, 0).cummax(dim=1).values
    key_NM = rank_NM * most + bank_NM + torch.where(bank_NM == most, M * most, 0)
    return order_NM.gather(1, key_NM.argsort(dim=1, stable=True)[:, :count])
