"""Attention is a lookup in a soft hash table.

A hash table finds the one slot whose key matches the query. As algebra, with a one-hot row alpha:

    hard:  out = alpha^T V,   alpha_s = 1 if key_s is the best match, else 0
    soft:  out = alpha^T V,   alpha_s = softmax_s(q . k_s / sqrt(K))

The hard one has no gradient for "which slot?"; the soft one has, so that *where to look* can be learnt. As the scores
grow (temperature to zero), soft becomes hard. `soft_lookup` is what the multi-head mixer runs.

Cost: O(T S K) time; O(T + S) memory with the fused kernel, O(T S) when alpha is inspected.
Paper: Vaswani et al. 2017, arXiv:1706.03762, section 3.2.1.
Keys and values may have fewer heads than queries: then each of theirs serves as many in a row (Ainslie et al. 2023,
arXiv:2305.13245).
Differs: a query that may see nothing reads zero (the paper does not say; torch's layers give NaN).
"""

import math

import torch
from torch import Tensor
from torch.nn import functional as F


def lookup(alpha_BHTS: Tensor, v_BGSR: Tensor) -> Tensor:
    """alpha^T V: with one-hot rows this retrieves slots exactly, with soft rows it blends them."""
    return alpha_BHTS @ for_each_query(v_BGSR, alpha_BHTS.shape[1])


def for_each_query(x_BGSK: Tensor, heads: int) -> Tensor:
    """Keys or values of G heads, each repeated for the queries it serves: (B, H, S, K)."""
    groups = x_BGSK.shape[1]
    return x_BGSK if groups == heads else x_BGSK.repeat_interleave(heads // groups, dim=1)


def hard_alpha(q_BHTK: Tensor, k_BHSK: Tensor) -> Tensor:
    """One-hot weights on the key that matches best: the hash table."""
    best_BHT = (q_BHTK @ k_BHSK.mT).argmax(dim=-1)
    return F.one_hot(best_BHT, k_BHSK.shape[-2]).to(q_BHTK.dtype)


def soft_alpha(q_BHTK: Tensor, k_BGSK: Tensor, bias: Tensor | None = None, visible: Tensor | None = None) -> Tensor:
    """softmax(q k^T / sqrt(K) + bias) over the visible slots; rows that see nothing are all zero."""
    score_BHTS = q_BHTK @ for_each_query(k_BGSK, q_BHTK.shape[1]).mT / math.sqrt(q_BHTK.shape[-1])
    if bias is not None:
        score_BHTS = score_BHTS + bias
    if visible is None:
        return score_BHTS.softmax(dim=-1)
    hidden = ~visible
    alpha_BHTS = score_BHTS.masked_fill(hidden, float("-inf")).softmax(dim=-1)
    return alpha_BHTS.masked_fill(hidden, 0.0)  # a row that sees nothing is NaN up to here


def soft_lookup(
    q_BHTK: Tensor,
    k_BGSK: Tensor,
    v_BGSR: Tensor,
    *,
    bias: Tensor | None = None,
    visible: Tensor | None = None,
    causal: bool = False,
) -> Tensor:
    """lookup(soft_alpha(q, k), v) in one fused call that never holds alpha.

    `bias` is added to the scaled scores and `visible` is boolean, both broadcastable to (B, H, T, S). `causal` says the
    same as a lower triangular `visible` (T = S), and saves half of the work.
    """
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
