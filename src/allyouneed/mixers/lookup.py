"""Attention is a lookup in a soft hash table.

A hash table finds the one slot whose key matches the query. As algebra, with a one-hot row alpha:

    hard:  out = alpha^T V,   alpha_s = 1 if key_s is the best match, else 0
    soft:  out = alpha^T V,   alpha_s = softmax_s(q . k_s / sqrt(K))

The hard lookup has no gradient for "which slot?". The soft one has, so *where to look* can be learned. As the scores
grow (temperature to zero), soft becomes hard. The multi-head mixer runs `soft_lookup`.

Cost: O(T S K) time; O(T + S) memory with the fused kernel, O(T S) when alpha is inspected.
Paper: Vaswani et al. 2017, arXiv:1706.03762, section 3.2.1.
Keys and values may have fewer heads than queries: each then serves a group of consecutive query heads (Ainslie et al.
2023, arXiv:2305.13245).
Differs: fully masked queries return zeros (the paper does not define them; torch's layers give NaN).
"""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from allyouneed.mixers.parts.projections import in_float32_on_cpu


@in_float32_on_cpu
def lookup(alpha_BHTS: Tensor, v_BGSR: Tensor) -> Tensor:
    """Return alpha^T V: one-hot rows retrieve slots exactly, soft rows blend them."""
    return alpha_BHTS @ for_each_query(v_BGSR, alpha_BHTS.shape[1])


def for_each_query(x_BGSK: Tensor, heads: int) -> Tensor:
    """Repeat keys or values of G heads for the query heads of each group: (B, H, S, K)."""
    groups = x_BGSK.shape[1]
    return x_BGSK if groups == heads else x_BGSK.repeat_interleave(heads // groups, dim=1)


def hard_alpha(q_BHTK: Tensor, k_BHSK: Tensor) -> Tensor:
    """Return one-hot weights on the best matching key: the hash table."""
    best_BHT = (q_BHTK @ k_BHSK.mT).argmax(dim=-1)
    return F.one_hot(best_BHT, k_BHSK.shape[-2]).to(q_BHTK.dtype)


@in_float32_on_cpu
def soft_alpha(
    q_BHTK: Tensor,
    k_BGSK: Tensor,
    bias: Tensor | None = None,
    visible: Tensor | None = None,
    cap: float | None = None,
) -> Tensor:
    """Return softmax(q k^T / sqrt(K) + bias) over the visible slots; fully masked rows are zero.

    With a `cap`, the scaled scores s become cap tanh(s / cap) before the bias is added.
    """
    score_BHTS = q_BHTK @ for_each_query(k_BGSK, q_BHTK.shape[1]).mT / math.sqrt(q_BHTK.shape[-1])
    if cap is not None:
        score_BHTS = cap * torch.tanh(score_BHTS / cap)
    if bias is not None:
        score_BHTS = score_BHTS + bias
    if visible is None:
        return score_BHTS.softmax(dim=-1)
    hidden = ~visible
    alpha_BHTS = score_BHTS.masked_fill(hidden, float("-inf")).softmax(dim=-1)
    return alpha_BHTS.masked_fill(hidden, 0.0)  # fully masked rows are NaN before this


@in_float32_on_cpu
def soft_lookup(
    q_BHTK: Tensor,
    k_BGSK: Tensor,
    v_BGSR: Tensor,
    *,
    bias: Tensor | None = None,
    visible: Tensor | None = None,
    causal: bool = False,
    cap: float | None = None,
) -> Tensor:
    """Return lookup(soft_alpha(q, k), v) by one fused call that never stores alpha.

    `bias` is added to the scaled scores and `visible` is boolean, both broadcastable to (B, H, T, S). `causal` equals a
    lower triangular `visible` (T = S) and saves half of the work. The fused call has no `cap`.
    """
    if cap is not None:
        if causal:
            visible = torch.ones(q_BHTK.shape[-2], k_BGSK.shape[-2], dtype=torch.bool, device=q_BHTK.device).tril()
        return lookup(soft_alpha(q_BHTK, k_BGSK, bias, visible, cap), v_BGSR)
    mask = visible
    if bias is not None:
        mask = bias if visible is None else bias.masked_fill(~visible, float("-inf"))
        if causal:
            T, S = q_BHTK.shape[-2], k_BGSK.shape[-2]
            future_TS = torch.ones(T, S, dtype=torch.bool, device=mask.device).triu(S - T + 1)
            mask = mask.masked_fill(future_TS, float("-inf"))
        causal = False
    grouped = k_BGSK.shape[1] != q_BHTK.shape[1]
    return F.scaled_dot_product_attention(q_BHTK, k_BGSK, v_BGSR, attn_mask=mask, is_causal=causal, enable_gqa=grouped)
