"""Generate one hypothesis per row, token by token, until all rows have ended: shared by greedy search and sampling."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from allyouneed.decode.base import Hypothesis, as_float32, top_tokens
from allyouneed.decode.threads import kernel_threads
from allyouneed.mixers import State, select_rows
from allyouneed.models import Model
from allyouneed.text.specials import EOS

# Return a token (B) for each row and its log-probability (B), from logits (B, V) and the rows' numbers (B).
Choose = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


def generation_loop(
    model: Model,
    logits_BV: Tensor,
    state: State,
    limits: Sequence[int],
    choose: Choose,
    on_drop: Callable[[Tensor], None] | None = None,
) -> list[Hypothesis]:
    """Return what each row generates from `logits` on. `limits` are maximum lengths, EOS included, at least 1.

    Whenever some rows have ended, `on_drop` is called with the places (N) of the rows that remain.
    """
    with kernel_threads(model, len(limits)):
        return _generate(model, logits_BV, state, limits, choose, on_drop)


def _generate(
    model: Model,
    logits_BV: Tensor,
    state: State,
    limits: Sequence[int],
    choose: Choose,
    on_drop: Callable[[Tensor], None] | None,
) -> list[Hypothesis]:
    device = logits_BV.device
    row_B = torch.arange(len(limits), device=device)
    limit_B = torch.tensor(limits, device=device)
    logprob_B = torch.zeros(len(limits), dtype=torch.float64, device=device)
    recent: list[Tensor] = []  # the tokens (B) of each step since a row last ended
    ids_BT = torch.empty(len(limits), 0, dtype=torch.long, device=device)
    shortest = min(limits)
    found: dict[int, Hypothesis] = {}
    while True:
        token_B, chosen_B = choose(as_float32(logits_BV), row_B)
        logprob_B += chosen_B
        recent.append(token_B)
        length = ids_BT.shape[1] + len(recent)
        if length >= shortest or EOS in token_B.tolist():  # finished rows leave the batch
            ended_B = token_B == EOS
            ids_BT, recent = torch.cat([ids_BT, torch.stack(recent, dim=1)], dim=1), []
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
            if on_drop is not None:
                on_drop(keep_N)
            token_B, ids_BT, state = token_B[keep_N], ids_BT[keep_N], select_rows(state, keep_N)
        logits_BV, state = model.advance(token_B, state)


def best_token(logits_BV: Tensor) -> tuple[Tensor, Tensor]:
    """Return the most probable token (B) that may be generated, and its log-probability (B) among all tokens."""
    logprob_B1, token_B1 = top_tokens(logits_BV, 1)
    return token_B1[:, 0], logprob_B1[:, 0]
