"""Attention of recurrent decoders over source positions.

    a_t = softmax_s(score(q_t, h_s)),   c_t = sum_s a_ts h_s

    additive   v^T tanh(W q + U h)      Bahdanau et al. 2014; Luong's "concat" is the same
    general    q^T W h                  Luong et al. 2015
    dot        q^T h                    Luong et al. 2015

Terms that depend only on the source (U h, W h) are computed once per sentence.

Cost: O(S A) time per step for additive scores, O(S D) for the others and for c.
Papers: Bahdanau et al. 2014, arXiv:1409.0473, section 3.1; Luong et al. 2015, arXiv:1508.04025, section 3.1.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn

from allyouneed.errors import ConfigError
from allyouneed.mixers import Memory
from allyouneed.mixers.base import map_sink
from allyouneed.mixers.parts.kv_cache import join_memories, regroup
from allyouneed.mixers.parts.projections import at_least_float32, full_precision

Score = Literal["additive", "general", "dot"]


@dataclass(frozen=True)
class Annotations:
    """Encoded sources with their keys. Consecutive rows may share one: the beams of one sentence."""

    h_NSD: Tensor
    key_NSA: Tensor
    mask_NS: Tensor | None
    sharing: int = 1  # rows of the batch per source

    def select(self, rows_B: Tensor) -> "Annotations":
        """Return the sources of some rows; rows that still share a source are not copied."""
        group_N, sharing = regroup(rows_B, self.h_NSD.shape[0], self.sharing)
        if group_N is None:
            return replace(self, sharing=sharing)
        mask_NS = None if self.mask_NS is None else self.mask_NS.index_select(0, group_N)
        return Annotations(self.h_NSD.index_select(0, group_N), self.key_NSA.index_select(0, group_N), mask_NS, sharing)

    @staticmethod
    def join(nodes: "Sequence[Annotations]", count_P: Tensor | None) -> "Annotations":
        """Return sources of different lengths as one batch, one source for each row."""
        parts = [((node.h_NSD, node.key_NSA), node.mask_NS, node.sharing) for node in nodes]
        (h_NSD, key_NSA), mask_NS = join_memories(parts, dim=1)
        return Annotations(h_NSD, key_NSA, mask_NS)


class Alignment(nn.Module):
    """The score, and the weighted sum of annotations."""

    def __init__(self, score: Score, query: int, width: int, inner: int) -> None:
        super().__init__()
        self.score, self._sizes = score, (query, width, inner)
        if score == "dot" and query != width:
            raise ConfigError(f"a dot product needs vectors of one width, not {query} and {width}")
        if score == "additive":
            self.query = nn.Linear(query, inner, bias=False)
            self.key = nn.Linear(width, inner, bias=False)
            self.sum = nn.Linear(inner, 1, bias=False)
        elif score == "general":
            self.key = nn.Linear(width, query, bias=False)

    def annotate(self, memory: Memory) -> Annotations:
        """Return what is computed once for a source."""
        with full_precision(memory.x_BSD):
            h_BSD = at_least_float32(memory.x_BSD)
            if memory.mask_BS is not None:  # a source that is all padding gives zeros, whatever it holds
                h_BSD = h_BSD.masked_fill(~memory.mask_BS.unsqueeze(-1), 0.0)
            return Annotations(h_BSD, h_BSD if self.score == "dot" else self.key(h_BSD), memory.mask_BS)

    def forward(self, q_BK: Tensor, read: Annotations) -> tuple[Tensor, Tensor]:
        """Return the context (B, D) and the weights (B, S) of one query per row."""
        B, N = q_BK.shape[0], read.h_NSD.shape[0]
        if self.score == "additive":
            inner_NRSA = (self.query(q_BK).view(N, B // N, 1, -1) + read.key_NSA.unsqueeze(1)).tanh()
            score_NRS = self.sum(inner_NRSA).squeeze(-1)
        else:
            score_NRS = q_BK.view(N, B // N, -1) @ read.key_NSA.mT
        if read.mask_NS is not None:  # not minus infinity: a source that is all padding must not give NaN
            score_NRS = score_NRS.masked_fill(~read.mask_NS.unsqueeze(1), torch.finfo(score_NRS.dtype).min)
        alpha_NRS = score_NRS.softmax(dim=-1)
        return (alpha_NRS @ read.h_NSD).view(B, -1), alpha_NRS.view(B, -1)

    def report(self, alphas: list[Tensor]) -> None:
        """Send the weights, one (B, S) for each position, to the map sink, if there is one."""
        if (sink := map_sink()) is not None:
            sink(self, torch.stack(alphas, dim=1).unsqueeze(1))

    def flops(self, source: int, target: int) -> int:
        """Return the FLOPs of attention to one source from `target` positions."""
        query, width, inner = self._sizes
        context = 2 * target * source * width
        if self.score == "additive":
            return context + 2 * source * width * inner + 2 * target * inner * (query + source)
        return context + 2 * target * source * query + (2 * source * width * query if self.score == "general" else 0)
