"""One hypothesis for each row, token by token, until all have ended: what greedy search and sampling share."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from allyouneed.decode.base import Hypothesis, as_float32, top_tokens
from allyouneed.mixers import State, select_rows
from allyouneed.models import Model
from allyouneed.text.specials import EOS

# Picks for each row a token (B) and gives its log-probability (B), from logits (B, V) and the rows' numbers (B).
Choose = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


def generation_loop(
    model: Model,
    logits_BV: Tensor,
    state: State,
    limits: Sequence[int],
    choose: Choose,
    stay: Callable[[Tensor], None] | None = None,
) -> list[Hypothesis]:
    """What each row says from `logits` on. `limits` are the longest permitted lengths, EOS included, at least 1.

    `stay` hears which of the rows are left (N) whenever some have ended.
    """
    device = logits_BV.device
    row_B = torch.arange(len(limits), device=device)
    limit_B = torch.tensor(limits, device=device)
    logprob_B = torch.zeros(len(limits), dtype=torch.float64, device=device)
    said: list[Tensor] = []  # the tokens (B) of each step since a row last left
    ids_BT = torch.empty(len(limits), 0, dtype=torch.long, device=device)
    shortest = min(limits)
    found: dict[int, Hypothesis] = {}
    while True:
        token_B, chosen_B = choose(as_float32(logits_BV), row_B)
        logprob_B += chosen_B
        said.append(token_B)
        ended_B = token_B == EOS
        length = ids_BT.shape[1] + len(said)
        if length >= shortest or bool(ended_B.any()):  # finished rows leave the batch
            ids_BT, said = torch.cat([ids_BT, torch.stack(said, dim=1)], dim=1), []
            done_B = ended_B | (limit_B <= length)
            for place in done_B.nonzero()[:, 0].tolist():
                finished, logprob = bool(ended_B[place]), float(logprob_B[place])
                ids = ids_BT[place].tolist()
                ids = ids[:-1] if finished else ids
                found[int(row_B[place])] = Hypothesis(ids, logprob, logprob, finished)
            keep_N = (~done_B).nonzero()[:, 0]
            if not keep_N.numel():
                return [found[row] for row in range(len(limits))]
            row_B, limit_B, logprob_B = row_B[keep_N], limit_B[keep_N], logprob_B[keep_N]
            shortest = int(limit_B.min())
            if stay is not None:
                stay(keep_N)
            token_B, ids_BT, state = token_B[keep_N], ids_BT[keep_N], select_rows(state, keep_N)
        logits_BV, state = model.advance(token_B, state)


def best_token(logits_BV: Tensor) -> tuple[Tensor, Tensor]:
    """The most probable token (B) that may be said, and its log-probability (B) among all tokens."""
    logprob_B1, token_B1 = top_tokens(logits_BV, 1)
    return token_B1[:, 0], logprob_B1[:, 0]
