"""Window attention: each position reads its neighbours only, at any length.

    head_h,t = softmax over s of (q_t . k_s / sqrt(K)) V,     s = t - w d, .., t - d, t (and t + d, .., t + w d)

w is the window and d the dilation; a causal mixer has the earlier half. Distant positions are reached through layers:
a stack of L layers sees L w d positions, like a convolution.

Cost: O(T w D) time, O(w d D) state, 1 sequential step, path n / (w d); with a dilation, positions whose distance it
does not divide never interact: combine such layers with others.
Paper: Beltagy et al. 2020, arXiv:2004.05150, section 3.1.
Differs: padding is not a position: the window counts real tokens only. The kernel is parts/block_sparse.py.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, final

import torch
from pydantic import PositiveInt
from torch import Tensor

from allyouneed.mixers.base import Cost, Memory, Mixer, Role, Theory, map_sink, zero_padding
from allyouneed.mixers.lookup import soft_alpha, soft_lookup
from allyouneed.mixers.parts.block_sparse import Band, Pattern, area, attend_sparsely, bands_of, bias_of, dilated
from allyouneed.mixers.parts.kv_cache import SHORT, compact_right, count_positions, join_kv_caches, next_positions, pack
from allyouneed.mixers.parts.projections import HeadsConfig, Projections, refuse_state
from allyouneed.mixers.parts.state import Growable, join_fields
from allyouneed.positions import ScorePosition


class WindowConfig(HeadsConfig):
    summary = "each position reads its neighbours; layers connect distant positions"
    paper = "Beltagy et al. 2020, arXiv:2004.05150"
    roles = frozenset({"causal", "bidirectional"})
    takes_positions = True
    theory = Theory("n w d + n d²", 1, 1, "1", "n / w")
    family = "local attention"

    type: Literal["window"] = "window"
    window: PositiveInt = 256  # positions read to each side (causal: before it)
    dilation: PositiveInt = 1  # reads every d-th position only, up to window times dilation away

    def bands(self, role: Role, queries: int, keys: int) -> list[Band]:
        """Return which of `keys` positions the last `queries` of them read."""
        pattern = Pattern(self.window, 0 if role == "causal" else self.window)
        bands = []
        for first in range(min(self.dilation, keys)):  # positions that interact have the same remainder
            seen = range(first, keys, self.dilation)
            here = range((first - (keys - queries)) % self.dilation, queries, self.dilation)
            bands += dilated(bands_of(pattern, len(here), len(seen)), pattern, here, first)
        return bands

    def build(self, width: int, *, role: Role = "causal", position: ScorePosition | None = None) -> "Window":
        self.require(role, position)
        return Window(self, width, role, position)

    def cost(self, length: int, width: int, *, role: Role = "causal", memory: int | None = None) -> Cost:
        pairs = area(self.bands(role, length, length))
        reach = self.window * self.dilation
        state = 8 * min(length, reach) * width if role == "causal" else 0
        distance = length - 1
        path = math.ceil(distance / reach) if distance % self.dilation == 0 else None
        return Cost(self.projection_flops(length, length, width) + 4 * pairs * width, state, sequential=1, path=path)


@dataclass(frozen=True)
class WindowState:
    """The last keys and values within reach of the window, and the number of positions so far."""

    kv_cache: Growable  # (B, S, N): keys and values; the newest is last
    real_BS: Tensor | None  # which of them are real: rows may have fewer (None: all)
    seen: int | Tensor  # positions so far: one number, or one per row (B)

    @staticmethod
    def join(nodes: "Sequence[WindowState]", count_P: Tensor | None) -> "WindowState":
        """Join rows that have read different numbers of positions."""
        kv_cache, real_BS = join_kv_caches([(node.kv_cache, node.real_BS) for node in nodes])
        return join_fields(nodes, count_P, kv_cache=kv_cache, real_BS=real_BS)


@final
class Window(Mixer):
    def __init__(self, config: WindowConfig, width: int, role: Role, position: ScorePosition | None) -> None:
        super().__init__()
        self.config, self.role, self.position = config, role, position
        self.project = Projections(config, width, role)
        self.reach = config.window * config.dilation

    def forward(
        self,
        x_BTD: Tensor,
        *,
        mask_BT: Tensor | None = None,
        state: WindowState | None = None,
        memory: Memory | None = None,
    ) -> tuple[Tensor, WindowState | None]:
        if self.role == "bidirectional":
            refuse_state(state)
        x_BTD = zero_padding(x_BTD, mask_BT)
        q_BHTK, k_BHTK, v_BHTK = self._project(x_BTD, mask_BT, state)
        T, real_BS = x_BTD.shape[1], state.real_BS if state is not None else None
        if mask_BT is not None and state is None and T <= SHORT:
            y_BHTK = self._read_together(q_BHTK, k_BHTK, v_BHTK, mask_BT)
            return self.project.merge(y_BHTK), self._padded_state(k_BHTK, v_BHTK, mask_BT)
        if mask_BT is not None or (real_BS is not None and T > 1):
            y_BHTK, state = self._read_row_by_row(q_BHTK, k_BHTK, v_BHTK, mask_BT, state)
            return self.project.merge(y_BHTK), state
        if self.role == "bidirectional":
            return self.project.merge(self._read(q_BHTK, k_BHTK, v_BHTK)), None
        new_BTN = pack(k_BHTK, v_BHTK)
        kv_cache = Growable(new_BTN) if state is None else state.kv_cache.append(new_BTN)
        keys_values = (k_BHTK, v_BHTK) if state is None else self.project.split(kv_cache.tensor, 2)
        if real_BS is not None:
            real_BS = torch.cat([real_BS, torch.ones_like(real_BS[:, :1])], dim=1)
        y_BTD = self.project.merge(self._read(q_BHTK, *keys_values, real_BS=real_BS))
        if real_BS is not None:
            real_BS = None if bool(real_BS[:, -self.reach :].all()) else real_BS[:, -self.reach :]
        seen = T + (state.seen if state else 0)
        return y_BTD, WindowState(kv_cache.keep_last(self.reach), real_BS, seen)

    def _project(self, x_BTD: Tensor, mask_BT: Tensor | None, state: WindowState | None) -> tuple[Tensor, ...]:
        """Return queries, keys and values; the scheme rotates the first two by their positions, if it has rotations."""
        q_BHTK, k_BHTK, v_BHTK = self.project.queries_keys_values(x_BTD)
        if self.position is None:
            return q_BHTK, k_BHTK, v_BHTK
        place = next_positions(state.seen if state is not None else 0, x_BTD, mask_BT)
        return self.position.rotate(q_BHTK, place), self.position.rotate(k_BHTK, place), v_BHTK

    def _read(self, q_BHTK: Tensor, k_BHSK: Tensor, v_BHSK: Tensor, *, real_BS: Tensor | None = None) -> Tensor:
        """Return what the last T of S positions read; for a single position, `real_BS` masks missing slots."""
        T, S = q_BHTK.shape[2], k_BHSK.shape[2]
        sink, step = map_sink(), self.config.dilation
        if sink is not None:
            place_S = torch.arange(S, device=q_BHTK.device)
            sink(self, soft_alpha(q_BHTK, k_BHSK, self._bias(q_BHTK, place_S[S - T :], place_S), self._sees(T, S)))
        if T == 1:  # decoding: all kept slots are within the window
            near = slice(S - 1 - min(self.config.window, (S - 1) // step) * step, None, step)
            place_S = torch.arange(S, device=q_BHTK.device)
            bias = self._bias(q_BHTK, place_S[-1:], place_S[near])
            visible = None if real_BS is None else real_BS[:, None, None, near]
            return soft_lookup(q_BHTK, k_BHSK[:, :, near], v_BHSK[:, :, near], bias=bias, visible=visible)
        return attend_sparsely(q_BHTK, k_BHSK, v_BHSK, self.config.bands(self.role, T, S), bias_of(self.position))

    def _read_together(self, q_BHTK: Tensor, k_BHTK: Tensor, v_BHTK: Tensor, mask_BT: Tensor) -> Tensor:
        """Read short rows with padding in one call, with the window as the mask."""
        place_BT = count_positions(mask_BT, mask_BT.shape[1], mask_BT.device)
        near = self._near(place_BT.unsqueeze(1) - place_BT.unsqueeze(2)) & mask_BT.unsqueeze(1)
        bias = self._bias(q_BHTK, place_BT, place_BT)
        if (sink := map_sink()) is not None:
            sink(self, soft_alpha(q_BHTK, k_BHTK, bias, near.unsqueeze(1)))
        return soft_lookup(q_BHTK, k_BHTK, v_BHTK, bias=bias, visible=near.unsqueeze(1))

    def _padded_state(self, k_BHTK: Tensor, v_BHTK: Tensor, mask_BT: Tensor) -> WindowState | None:
        """Return the state of rows with padding; None if bidirectional."""
        if self.role == "bidirectional":
            return None
        kv_cache = Growable(compact_right(pack(k_BHTK, v_BHTK), mask_BT)).keep_last(self.reach)
        slot_S, seen_B = torch.arange(kv_cache.length, device=mask_BT.device), mask_BT.sum(dim=1)
        real_BS = slot_S >= kv_cache.length - seen_B[:, None]
        return WindowState(kv_cache, None if bool(real_BS.all()) else real_BS, seen_B)

    def _bias(self, q_BHTK: Tensor, query_place: Tensor, key_place: Tensor) -> Tensor | None:
        return None if self.position is None else self.position.bias(q_BHTK, query_place, key_place)

    def _sees(self, T: int, S: int) -> Tensor:
        device = self.project.output.weight.device
        distance = torch.arange(S, device=device) - torch.arange(S - T, S, device=device)[:, None]
        return self._near(distance)

    def _near(self, distance: Tensor) -> Tensor:
        near = (distance.abs() <= self.reach) & (distance % self.config.dilation == 0)
        return near & (distance <= 0) if self.role == "causal" else near

    def _read_row_by_row(
        self, q_BHTK: Tensor, k_BHTK: Tensor, v_BHTK: Tensor, mask_BT: Tensor | None, state: WindowState | None
    ) -> tuple[Tensor, WindowState | None]:
        """Read rows with different real positions one by one, so nothing is computed for padding."""
        B, H, T, K = q_BHTK.shape
        outputs, keys, values, seen = [], [], [], []
        for row in range(B):
            real_N = torch.arange(T, device=q_BHTK.device)
            if mask_BT is not None:
                real_N = mask_BT[row].nonzero()[:, 0]
            q, k, v = (x[row : row + 1].index_select(2, real_N) for x in (q_BHTK, k_BHTK, v_BHTK))
            if state is not None:
                kv_cache = state.kv_cache.tensor[row : row + 1]
                kv_cache = kv_cache if state.real_BS is None else kv_cache[:, state.real_BS[row]]
                old_k, old_v = self.project.split(kv_cache, 2)
                k, v = torch.cat([old_k, k], dim=2), torch.cat([old_v, v], dim=2)
            y = q.new_zeros(1, H, T, K)
            outputs.append(y.index_copy(2, real_N, self._read(q, k, v)) if len(real_N) else y)
            keys.append(k[:, :, max(0, k.shape[2] - self.reach) :])
            values.append(v[:, :, max(0, v.shape[2] - self.reach) :])
            seen.append(len(real_N))
        y_BHTK = torch.cat(outputs)
        if self.role == "bidirectional":
            return y_BHTK, None
        seen_B = torch.tensor(seen, device=q_BHTK.device) + (state.seen if state is not None else 0)
        return y_BHTK, _aligned(keys, values, seen_B)


def _aligned(keys: list[Tensor], values: list[Tensor], seen_B: Tensor) -> WindowState:
    """Return the state of rows of different lengths, aligned at their newest position."""
    longest = max(k.shape[2] for k in keys)
    pad = torch.nn.functional.pad
    rows = [pad(pack(k, v), (0, 0, longest - k.shape[2], 0)) for k, v in zip(keys, values, strict=True)]
    length_B = torch.tensor([k.shape[2] for k in keys], device=seen_B.device)
    real_BS = torch.arange(longest, device=seen_B.device) >= longest - length_B[:, None]
    return WindowState(Growable(torch.cat(rows)), None if bool(real_BS.all()) else real_BS, seen_B)
