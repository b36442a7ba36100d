"""Greedy search: the most probable token at every step. Beam search with a beam of one, without what a beam needs.

y_t = argmax_v P(v | y_<t, source)    until EOS
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from allyouneed.decode.base import FIRST_WORD, Hypothesis, as_float32, device_of, pad_right
from allyouneed.decode.penalty import length_penalty
from allyouneed.mixers import select_rows
from allyouneed.models import Model
from allyouneed.tasks.base import BOS, EOS


def greedy_batch(
    model: Model, sources: Sequence[Sequence[int]], limits: Sequence[int], alpha: float
) -> list[list[Hypothesis]]:
    """One hypothesis for each source. `limits` are the longest permitted lengths, EOS included, at least 1."""
    device = device_of(model)
    found: list[list[Hypothesis]] = [[] for _ in sources]
    state = model.condition(*pad_right(sources, device))
    row_B = torch.arange(len(sources), device=device)
    limit_B = torch.tensor(limits, device=device)
    token_B1 = torch.full((len(sources), 1), BOS, device=device)
    logprob_B = torch.zeros(len(sources), device=device)
    ids_BT = token_B1[:, :0]
    while row_B.numel():
        logits_BTV, state = model.step(token_B1, state)
        token_B1, chosen_B = best_token(as_float32(logits_BTV[:, -1]))
        logprob_B = logprob_B + chosen_B
        ids_BT = torch.cat([ids_BT, token_B1], dim=1)
        ended_B = token_B1[:, 0] == EOS
        done_B = ended_B | (limit_B <= ids_BT.shape[1])
        if not bool(done_B.any()):
            continue
        for place in done_B.nonzero()[:, 0].tolist():
            finished = bool(ended_B[place])
            ids, logprob = ids_BT[place].tolist(), float(logprob_B[place])
            score = logprob / length_penalty(len(ids), alpha)
            found[int(row_B[place])] = [Hypothesis(ids[:-1] if finished else ids, logprob, score, finished)]
        keep_B = (~done_B).nonzero()[:, 0]
        if keep_B.numel():  # finished sentences leave the batch
            state = select_rows(state, keep_B)
        row_B, limit_B, logprob_B = row_B[keep_B], limit_B[keep_B], logprob_B[keep_B]
        token_B1, ids_BT = token_B1[keep_B], ids_BT[keep_B]
    return found


def best_token(logits_BV: Tensor) -> tuple[Tensor, Tensor]:
    """The most probable token (B, 1) that may be said, and its log-probability (B) among all tokens."""
    best_B, token_B = logits_BV[:, FIRST_WORD:].max(dim=1)
    return token_B[:, None] + FIRST_WORD, best_B - logits_BV.logsumexp(dim=1)
