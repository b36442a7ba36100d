"""Tokens from logits: the best ones, or one drawn at random, in one pass where a kernel applies."""

import torch
from torch import Tensor

from allyouneed import kernels

GROUP = 16  # columns that compete for one maximum


def best_tokens(logits_BV: Tensor, first: int, count: int) -> tuple[Tensor, Tensor]:
    """Return the `count` best of the tokens from id `first` on, best first.

    Log-probabilities (B, C) are those among all tokens; ids are (B, C).
    """
    if kernels.usable(logits_BV):
        return kernels.top_tokens(logits_BV, first, count)
    logprob_BC, token_BC = largest(logits_BV.log_softmax(dim=1)[:, first:], count)
    return logprob_BC, token_BC + first


def draw_tokens(logits_BV: Tensor, first: int, temperature: float, uniform_B: Tensor) -> tuple[Tensor, Tensor] | None:
    """Draw a token from id `first` on for each row, by a number in [0, 1). Return None if no kernel applies.

    Returns ids (B) and their log-probabilities (B) among all tokens at temperature 1.
    """
    return kernels.sample_tokens(logits_BV, first, temperature, uniform_B) if kernels.usable(logits_BV) else None


def largest(x_BV: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the `count` largest values of each row, and their columns: `topk` in a third of the time for wide rows.

    `topk` compares elements one by one. Here vector instructions find the maxima of V / 16 groups (a column's
    group is its number modulo V / 16). The `count` largest elements are in the `count` groups with the largest maxima.
    """
    B, V = x_BV.shape
    N = V // GROUP
    if count >= N or x_BV.numel() < 1 << 14:
        return x_BV.topk(min(count, V), dim=1) if count > 1 else x_BV.max(dim=1, keepdim=True)
    groups_BRN = x_BV[:, : GROUP * N].unflatten(1, (GROUP, N))
    column_BC = groups_BRN.amax(dim=1).topk(count, dim=1).indices
    chosen_BRC = column_BC[:, None].expand(B, GROUP, count)
    offset_R1 = torch.arange(0, GROUP * N, N, device=x_BV.device)[:, None]
    rest_L = torch.arange(GROUP * N, V, device=x_BV.device)
    found_BM = torch.cat([groups_BRN.gather(2, chosen_BRC).flatten(1), x_BV[:, GROUP * N :]], dim=1)
    column_BM = torch.cat([(chosen_BRC + offset_R1).flatten(1), rest_L.expand(B, -1)], dim=1)
    value_BC, place_BC = found_BM.topk(count, dim=1)
    return value_BC, column_BM.gather(1, place_BC)
