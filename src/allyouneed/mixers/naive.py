"""The oracle: attention as nested loops, straight from the equations, with plain numbers.

Read this file first. It is slow on purpose: every fast path is tested against it, forward and gradient.
Paper: Vaswani et al. 2017, arXiv:1706.03762, sections 3.2.1 and 3.2.2.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

Score = Callable[[int, int], Tensor]
Visible = Callable[[int, int], bool]


def attend_by_loops(score: Score, visible: Visible, v_SK: Tensor, queries: int) -> Tensor:
    """Weigh every visible s of each query t by exp(score(t, s)), normalise, and sum the values.

    out_t = sum_s alpha_ts v_s,    alpha_ts = exp(score_ts) / sum_s' exp(score_ts')
    """
    rows = []
    for t in range(queries):
        seen = [s for s in range(v_SK.shape[0]) if visible(t, s)]
        if not seen:  # nothing visible: the output is zero
            rows.append(torch.zeros_like(v_SK[0]))
            continue
        largest = max(score(t, s).item() for s in seen)  # exp of large numbers would overflow; the shift cancels
        weights = [torch.exp(score(t, s) - largest) for s in seen]
        total = torch.stack(weights).sum()
        row = torch.zeros_like(v_SK[0])
        for s, weight in zip(seen, weights, strict=True):
            row = row + weight / total * v_SK[s]
        rows.append(row)
    return torch.stack(rows)


def scaled_dot_product_by_loops(q_TK: Tensor, k_SK: Tensor, v_SK: Tensor, visible: Visible) -> Tensor:
    """Return the output of one head: score_ts = q_t . k_s / sqrt(K)   (equation 1)."""
    root = math.sqrt(q_TK.shape[-1])

    def score(t: int, s: int) -> Tensor:
        product = q_TK.new_zeros(())
        for i in range(q_TK.shape[-1]):
            product = product + q_TK[t, i] * k_SK[s, i]
        return product / root

    return attend_by_loops(score, visible, v_SK, q_TK.shape[0])


def multi_head_by_loops(
    x_TD: Tensor,
    memory_SD: Tensor,
    query_DD: Tensor,
    key_DD: Tensor,
    value_DD: Tensor,
    output_DD: Tensor,
    heads: int,
    visible: Visible,
) -> Tensor:
    """Return multi-head attention of one sequence, head by head (weights multiply from the right, without biases).

    MultiHead(X, Y) = Concat(head_1 .. head_H) W^O,   head_h = Attention(X W^Q_h, Y W^K_h, Y W^V_h)
    """
    head_width = query_DD.shape[1] // heads
    outputs = []
    for head in range(heads):
        columns = slice(head * head_width, (head + 1) * head_width)
        q_TK, k_SK = x_TD @ query_DD[:, columns], memory_SD @ key_DD[:, columns]
        outputs.append(scaled_dot_product_by_loops(q_TK, k_SK, memory_SD @ value_DD[:, columns], visible))
    return torch.cat(outputs, dim=-1) @ output_DD
