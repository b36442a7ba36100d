"""Attention along a fixed pattern: the index of a position alone decides what it reads.

    head_h,t = softmax over s in A_h(t) of (q_t . k_s / sqrt(K)) V

Such a mechanism consists of its sets A, given as bands of dense blocks (`block_sparse.py`). Everything else is here:
projections, positions inside the score, padding, and a state that keeps all keys and values, because a later position
may read any of them.
"""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import final

import torch
from torch import Tensor

from allyouneed.mixers.base import Memory, Mixer, Role, map_sink, zero_padding
from allyouneed.mixers.lookup import soft_alpha, soft_lookup
from allyouneed.mixers.parts.block_sparse import (
    Band,
    area,
    attend_sparsely,
    attend_unfused,
    bias_of,
    count_queries,
    fused,
    visible_of,
)
from allyouneed.mixers.parts.kv_cache import SHORT, compact_right, count_positions, next_positions, pack
from allyouneed.mixers.parts.projections import HeadsConfig, Projections, refuse_state
from allyouneed.mixers.parts.state import Growable, join_fields
from allyouneed.positions import ScorePosition


class PatternedConfig(HeadsConfig):
    """The settings of a mechanism with a fixed pattern."""

    roles = frozenset({"causal", "bidirectional"})
    takes_positions = True

    @abstractmethod
    def bands(self, role: Role, queries: int, keys: int) -> tuple[Band, ...]:
        """Return which of `keys` positions the last `queries` read. Causal bands do not depend on later positions."""

    def build(self, width: int, *, role: Role = "causal", position: ScorePosition | None = None) -> "Patterned":
        self.require(role, position)
        return Patterned(self, width, role, position)

    def attention_flops(self, role: Role, length: int, width: int) -> int:
        """Return the FLOPs of a forward pass, projections included."""
        return self.projection_flops(length, length, width) + 4 * area(self.bands(role, length, length)) * width

    def position_queries(self, length: int, role: Role) -> int:
        return count_queries(self.bands(role, length, length))


@dataclass(frozen=True)
class PatternedState:
    """All keys and values; the newest is last."""

    kv_cache: Growable  # (B, S, N)
    # Number of positions: one number, or one per row (B); the slots before them are padding.
    seen: int | Tensor

    @staticmethod
    def join(nodes: "Sequence[PatternedState]", count_P: Tensor | None) -> "PatternedState":
        """Join rows of different lengths, without slots that only removed rows could see."""
        lengths = [node.seen if isinstance(node.seen, int) else int(node.seen.max()) for node in nodes]
        kv_cache = Growable.join([node.kv_cache.keep_last(length) for node, length in zip(nodes, lengths, strict=True)])
        return join_fields(nodes, count_P, kv_cache=kv_cache)


@final
class Patterned(Mixer):
    def __init__(self, config: PatternedConfig, width: int, role: Role, position: ScorePosition | None) -> None:
        super().__init__()
        self.config, self.role, self.position = config, role, position
        self.project = Projections(config, width, role)

    def forward(
        self,
        x_BTD: Tensor,
        *,
        mask_BT: Tensor | None = None,
        state: PatternedState | None = None,
        memory: Memory | None = None,
    ) -> tuple[Tensor, PatternedState | None]:
        if self.role == "bidirectional":
            refuse_state(state)
        x_BTD = zero_padding(x_BTD, mask_BT)
        q_BHTK, k_BHTK, v_BHTK = self.project.queries_keys_values(x_BTD)
        if self.position is not None:
            place = next_positions(state.seen if state is not None else 0, x_BTD, mask_BT)
            q_BHTK, k_BHTK = self.position.rotate(q_BHTK, place), self.position.rotate(k_BHTK, place)
        if mask_BT is not None and state is None and x_BTD.shape[1] <= SHORT:
            y_BHTK = self._read_together(q_BHTK, k_BHTK, v_BHTK, mask_BT)
            if self.role == "causal":
                kept_BSN = compact_right(pack(k_BHTK, v_BHTK), mask_BT)
                state = PatternedState(Growable(kept_BSN), mask_BT.sum(dim=1))
        elif mask_BT is not None:
            y_BHTK, state = self._read_padded(q_BHTK, k_BHTK, v_BHTK, mask_BT, state)
        elif state is None:
            y_BHTK = self._read(q_BHTK, k_BHTK, v_BHTK)
            if self.role == "causal":
                state = PatternedState(Growable(pack(k_BHTK, v_BHTK)), x_BTD.shape[1])
        else:
            kv_cache, seen = state.kv_cache.append(pack(k_BHTK, v_BHTK)), state.seen + x_BTD.shape[1]
            y_BHTK, state = self._read_cache(q_BHTK, kv_cache, seen), PatternedState(kv_cache, seen)
        return self.project.merge(y_BHTK), state

    def _read(self, q_BHTK: Tensor, k_BHSK: Tensor, v_BHSK: Tensor) -> Tensor:
        """Return what the last T of S positions read."""
        T, S = q_BHTK.shape[2], k_BHSK.shape[2]
        bias, sink = bias_of(self.position), map_sink()
        if sink is not None or (T > 1 and S <= SHORT and fused()):
            place_S = torch.arange(S, device=q_BHTK.device)
            added = None if bias is None else bias(q_BHTK, place_S[S - T :], place_S)
            visible = _visible(self.config, self.role, T, S).to(q_BHTK.device)
            if sink is None:
                return soft_lookup(q_BHTK, k_BHSK, v_BHSK, bias=added, visible=visible[None])
            sink(self, soft_alpha(q_BHTK, k_BHSK, added, visible))
        # For a single position, copying all keys into the kernel's layout would cost more than it saves.
        attend = attend_unfused if T == 1 else attend_sparsely
        return attend(q_BHTK, k_BHSK, v_BHSK, self.config.bands(self.role, T, S), bias)

    def _read_together(self, q_BHTK: Tensor, k_BHTK: Tensor, v_BHTK: Tensor, mask_BT: Tensor) -> Tensor:
        """Read short rows with padding in one call, with the pattern of each row as its mask."""
        rows, scheme = torch.broadcast_tensors(*(self._sees(mask_T) for mask_T in mask_BT)), bias_of(self.position)
        visible_BHTS = torch.stack(rows)
        place_BT = count_positions(mask_BT, mask_BT.shape[1], mask_BT.device)
        bias = None if scheme is None else scheme(q_BHTK, place_BT, place_BT)
        if (sink := map_sink()) is not None:
            sink(self, soft_alpha(q_BHTK, k_BHTK, bias, visible_BHTS))
        return soft_lookup(q_BHTK, k_BHTK, v_BHTK, bias=bias, visible=visible_BHTS)

    def _sees(self, mask_T: Tensor) -> Tensor:
        """Return which position sees which in a row with padding: (H or 1, T, T)."""
        real_N = mask_T.nonzero()[:, 0]
        pattern_HNN = _visible(self.config, self.role, max(1, len(real_N)), max(1, len(real_N))).to(mask_T.device)
        visible_HTT = pattern_HNN.new_zeros(pattern_HNN.shape[0], *2 * mask_T.shape)
        if len(real_N):
            visible_HTT[:, real_N[:, None], real_N] = pattern_HNN
        return visible_HTT

    def _read_cache(self, q_BHTK: Tensor, kv_cache: Growable, seen: int | Tensor) -> Tensor:
        keys, values = self.project.split(kv_cache.tensor, 2)
        if isinstance(seen, int):
            return self._read(q_BHTK, keys, values)
        rows = []
        for row, count in enumerate(seen.tolist()):
            here, there = slice(row, row + 1), slice(kv_cache.length - count, None)
            rows.append(self._read(q_BHTK[here], keys[here, :, there], values[here, :, there]))
        return torch.cat(rows)

    def _read_padded(
        self, q_BHTK: Tensor, k_BHTK: Tensor, v_BHTK: Tensor, mask_BT: Tensor, state: PatternedState | None
    ) -> tuple[Tensor, PatternedState | None]:
        """Read rows with different real positions one by one, so nothing is computed for padding."""
        B = q_BHTK.shape[0]
        new_BTN = pack(k_BHTK, v_BHTK)
        outputs, kv_caches = [], []
        for row in range(B):
            real_R = mask_BT[row].nonzero()[:, 0]
            kv_cache = new_BTN[row].index_select(0, real_R)
            if state is not None:
                count = state.seen if isinstance(state.seen, int) else int(state.seen[row])
                kv_cache = torch.cat([state.kv_cache.tensor[row, state.kv_cache.length - count :], kv_cache])
            q, y = q_BHTK[row : row + 1], q_BHTK.new_zeros(1, *q_BHTK.shape[1:])
            if len(real_R):
                read = self._read(q.index_select(2, real_R), *self.project.split(kv_cache[None], 2))
                y = y.index_copy(2, real_R, read)
            outputs.append(y)
            kv_caches.append(kv_cache)
        y_BHTK = torch.cat(outputs)
        if self.role == "bidirectional":
            return y_BHTK, None
        longest = max(len(kv_cache) for kv_cache in kv_caches)
        aligned = [torch.nn.functional.pad(kv_cache, (0, 0, longest - len(kv_cache), 0)) for kv_cache in kv_caches]
        seen_B = torch.tensor([len(kv_cache) for kv_cache in kv_caches], device=q_BHTK.device)
        return y_BHTK, PatternedState(Growable(torch.stack(aligned)), seen_B)


@lru_cache(maxsize=256)  # masks of at most 256 KiB per head
def _visible(config: PatternedConfig, role: Role, queries: int, keys: int) -> Tensor:
    return visible_of(config.bands(role, queries, keys), queries, keys)
