"""Longformer: a window for every position, and a few global positions that read all and that all read.

    t global:  out_t = softmax over all s of (q'_t . k'_s / sqrt(K)) V'          with its own projections
    else:      out_t = softmax over |s - t| <= w and s global of (q_t . k_s / sqrt(K)) V

Distant positions are connected through a global one in two layers. A few global queries do not need keys and values
of all positions: q' . (W^K x_s) = (q' W^K) . x_s, and likewise for values (`_read_globally`).

Cost: O(n (w + g) D) time for g global positions, 1 sequential step, path 2 (1 from a global position, n / w without).
Paper: Beltagy et al. 2020, arXiv:2004.05150, section 3.1.
Differs: the global positions are the first g real tokens (the paper chooses them by task: [CLS], or the question, both
of which come first). `mark_global` chooses others for a call, which then computes all pairs. Like the paper's, it is
not causal: a global position sees the future.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Literal, final

import torch
from pydantic import NonNegativeInt, PositiveInt
from torch import Tensor, nn

from allyouneed.errors import DataError
from allyouneed.mixers.base import Cost, Memory, Mixer, Role, State, Theory, map_sink, zero_padding
from allyouneed.mixers.lookup import soft_alpha, soft_lookup
from allyouneed.mixers.parts.block_sparse import Pattern, area, attend_sparsely, bands_of, bias_of, count_queries
from allyouneed.mixers.parts.kv_cache import SHORT, count_positions, real_first
from allyouneed.mixers.parts.projections import HeadsConfig, Projections, initialise, refuse_state
from allyouneed.positions import ScorePosition

_marked: ContextVar[Tensor | None] = ContextVar("global positions", default=None)


@contextmanager
def mark_global(marked_BT: Tensor) -> Iterator[None]:
    """While open, the positions that are marked are global in every longformer, instead of the first ones.

    A mark at padding changes nothing.
    """
    token = _marked.set(marked_BT)
    try:
        yield
    finally:
        _marked.reset(token)


class LongformerConfig(HeadsConfig):
    summary = "a window for every position, and a few global positions that see and are seen by all; not causal"
    paper = "Beltagy et al. 2020, arXiv:2004.05150"
    roles = frozenset({"bidirectional"})
    takes_positions = True
    theory = Theory("n (w + g) d + n d²", 1, 1, "1", "1")
    family = "local attention"

    type: Literal["longformer"] = "longformer"
    window: PositiveInt = 256  # positions read to each side (the paper's w / 2)
    everywhere: NonNegativeInt = 1  # number of first tokens that are global

    @property
    def pattern(self) -> Pattern:
        """Return the pattern of positions that are not global."""
        return Pattern(self.window, self.window, self.everywhere)

    def build(self, width: int, *, role: Role = "bidirectional", position: ScorePosition | None = None) -> "Longformer":
        self.require(role, position)
        return Longformer(self, width, position)

    def cost(self, length: int, width: int, *, role: Role = "bidirectional", memory: int | None = None) -> Cost:
        everywhere = min(self.everywhere, length)
        pairs = area(bands_of(self.pattern, length, length))
        projections = self.projection_flops(length, length, width) + 2 * everywhere * width * width
        read = min(self._by_vectors(everywhere, length, width), self._by_keys(everywhere, length, width))
        # The first position is global, so it reaches the last in one layer; two others far apart need two.
        path = 1 if self.everywhere else max(1, -(-(length - 1) // self.window))
        return Cost(projections + 4 * pairs * width + read, 0, sequential=1, path=path)

    def rotation_flops(self, length: int, width: int, role: Role) -> int:
        everywhere = min(self.everywhere, length)
        by_keys = self._by_keys(everywhere, length, width)
        return by_keys - min(self._by_vectors(everywhere, length, width), by_keys)

    def by_vectors(self, length: int, width: int) -> bool:
        """Return True if global queries read the input vectors directly, which is cheaper for a few of them."""
        everywhere = min(self.everywhere, length)
        return self._by_vectors(everywhere, length, width) <= self._by_keys(everywhere, length, width)

    def _by_vectors(self, everywhere: int, length: int, width: int) -> int:
        return 4 * everywhere * (width + self.heads * length) * width

    def _by_keys(self, everywhere: int, length: int, width: int) -> int:
        return 4 * length * (width + everywhere) * width

    def position_queries(self, length: int, role: Role) -> int:
        return count_queries(bands_of(self.pattern, length, length)) + min(self.everywhere, length)


@final
class Longformer(Mixer):
    def __init__(self, config: LongformerConfig, width: int, position: ScorePosition | None) -> None:
        super().__init__()
        self.config, self.position = config, position
        self.project = Projections(config, width, "bidirectional")
        self.rotates_keys = position is not None and position.rotates  # keys then depend on positions
        self.global_query = nn.Linear(width, width, bias=config.bias)
        self.global_key_value = nn.Linear(width, 2 * width, bias=config.bias)
        for layer in (self.global_query, self.global_key_value):
            initialise(layer, width)

    def forward(
        self,
        x_BTD: Tensor,
        *,
        mask_BT: Tensor | None = None,
        state: State | None = None,
        memory: Memory | None = None,
    ) -> tuple[Tensor, None]:
        refuse_state(state)
        marked_BT = _marked.get()
        if marked_BT is not None:
            return self._read_marked(x_BTD, mask_BT, marked_BT), None
        if mask_BT is None:
            return self._read(x_BTD), None
        x_BTD = zero_padding(x_BTD, mask_BT)
        if x_BTD.shape[1] <= SHORT:
            global_BT = mask_BT & (count_positions(mask_BT, x_BTD.shape[1], mask_BT.device) < self.config.everywhere)
            return self._read_together(x_BTD, mask_BT, global_BT), None
        rows = []
        for x_TD, mask_T in zip(x_BTD, mask_BT, strict=True):
            real_N = mask_T.nonzero()[:, 0]
            if len(real_N):
                read_ND = self._read(x_TD.index_select(0, real_N)[None])[0]
                rows.append(read_ND.new_zeros(x_TD.shape).index_copy(0, real_N, read_ND))
            else:
                rows.append(torch.zeros_like(x_TD))
        return torch.stack(rows), None

    def _read(self, x_BTD: Tensor) -> Tensor:
        T, G = x_BTD.shape[1], min(self.config.everywhere, x_BTD.shape[1])
        q_BHTK, k_BHTK, v_BHTK = self.project.queries_keys_values(x_BTD)
        place_T = count_positions(None, T, x_BTD.device)
        if self.position is not None:
            q_BHTK, k_BHTK = self.position.rotate(q_BHTK, place_T), self.position.rotate(k_BHTK, place_T)
        scheme, pattern, sink = bias_of(self.position), self.config.pattern, map_sink()
        y_BHTK = attend_sparsely(q_BHTK, k_BHTK, v_BHTK, bands_of(pattern, T, T), scheme)
        (far_BHGK,) = self.project.split(self.global_query(x_BTD[:, :G]), 1)
        if not self.rotates_keys and sink is None and self.config.by_vectors(T, x_BTD.shape[2]):
            bias = None if scheme is None else scheme(far_BHGK, place_T[:G], place_T)
            global_BHGK = self._read_globally(far_BHGK, x_BTD, bias)
        else:
            keys, values = self.project.split(self.global_key_value(x_BTD), 2)
            if self.position is not None:
                far_BHGK, keys = self.position.rotate(far_BHGK, place_T[:G]), self.position.rotate(keys, place_T)
            bias = None if scheme is None else scheme(far_BHGK, place_T[:G], place_T)
            global_BHGK = soft_lookup(far_BHGK, keys, values, bias=bias)
            if sink is not None:
                near_bias = None if scheme is None else scheme(q_BHTK, place_T, place_T)
                alpha = soft_alpha(q_BHTK, k_BHTK, near_bias, pattern.sees(place_T[:, None], place_T))
                sink(self, torch.cat([soft_alpha(far_BHGK, keys, bias), alpha[:, :, G:]], dim=2))
        # Concatenated in the layout that `merge` needs.
        y_BTHK = torch.cat([global_BHGK.transpose(1, 2), y_BHTK.transpose(1, 2)[:, G:]], dim=1)
        return self.project.merge(y_BTHK.transpose(1, 2))

    def _read_marked(self, x_BTD: Tensor, mask_BT: Tensor | None, marked_BT: Tensor) -> Tensor:
        if marked_BT.shape != x_BTD.shape[:2] or marked_BT.dtype != torch.bool:
            what = f"{tuple(marked_BT.shape)} of {marked_BT.dtype}"
            raise DataError(f"marks of global positions: {what}; should be bool for each of {tuple(x_BTD.shape[:2])}")
        real_BT = torch.ones_like(marked_BT) if mask_BT is None else mask_BT
        return self._read_together(zero_padding(x_BTD, mask_BT), real_BT, marked_BT & real_BT)

    def _read_together(self, x_BTD: Tensor, mask_BT: Tensor, global_BT: Tensor) -> Tensor:
        """Read rows with padding by one masked call for all positions and one for the global positions."""
        (_, T, D), scheme = x_BTD.shape, bias_of(self.position)
        place_BT = count_positions(mask_BT, T, mask_BT.device)
        # The global slots of each row; rows with fewer include others, whose results are not used.
        slot_BG = real_first(global_BT)[:, : int(global_BT.sum(dim=1).max())]
        place_BG = place_BT.gather(1, slot_BG)
        q_BHTK, k_BHTK, v_BHTK = self.project.queries_keys_values(x_BTD)
        chosen_BGD = x_BTD.gather(1, slot_BG.unsqueeze(-1).expand(-1, -1, D))
        (far_BHGK,) = self.project.split(self.global_query(chosen_BGD), 1)
        keys, values = self.project.split(self.global_key_value(x_BTD), 2)
        if self.position is not None:
            q_BHTK, k_BHTK = self.position.rotate(q_BHTK, place_BT), self.position.rotate(k_BHTK, place_BT)
            far_BHGK, keys = self.position.rotate(far_BHGK, place_BG), self.position.rotate(keys, place_BT)
        bias, far_bias = None, None
        if scheme is not None:
            bias, far_bias = scheme(q_BHTK, place_BT, place_BT), scheme(far_BHGK, place_BG, place_BT)
        real_B11T = mask_BT[:, None, None]
        near = (place_BT[:, None, :, None] - place_BT[:, None, None]).abs() <= self.config.window
        visible = (near | global_BT[:, None, None]) & real_B11T
        y_BHTK = soft_lookup(q_BHTK, k_BHTK, v_BHTK, bias=bias, visible=visible)
        global_BHGK = soft_lookup(far_BHGK, keys, values, bias=far_bias, visible=real_B11T)
        if (sink := map_sink()) is not None:
            alpha = soft_alpha(q_BHTK, k_BHTK, bias, visible)
            far = soft_alpha(far_BHGK, keys, far_bias, real_B11T)
            sink(self, _replace_slots(alpha, slot_BG, far, global_BT))
        return self.project.merge(_replace_slots(y_BHTK, slot_BG, global_BHGK, global_BT))

    def _read_globally(self, far_BHGK: Tensor, x_BTD: Tensor, bias: Tensor | None) -> Tensor:
        """Return the outputs of global queries without computing keys and values of all positions.

        The bias of the keys adds the same to all scores of a query, so the softmax cancels it.
        """
        (B, H, _, K), D = far_BHGK.shape, x_BTD.shape[2]
        key_HKD, value_HKD = self.global_key_value.weight.view(2 * H, K, D).chunk(2)
        query_BND = (far_BHGK @ key_HKD).flatten(1, 2)  # the queries of all heads
        added = None if bias is None else bias.expand(B, H, -1, -1).flatten(1, 2)
        score_BNT = query_BND @ x_BTD.mT / math.sqrt(K)
        alpha_BNT = (score_BNT if added is None else score_BNT + added).softmax(dim=-1)
        y_BHGK = (alpha_BNT @ x_BTD).unflatten(1, (H, -1)) @ value_HKD.mT
        if self.global_key_value.bias is not None:
            y_BHGK = y_BHGK + self.global_key_value.bias.view(2 * H, 1, K)[H:]
        return y_BHGK


def _replace_slots(x_BHTN: Tensor, slot_BG: Tensor, new_BHGN: Tensor, global_BT: Tensor) -> Tensor:
    """Return x with new vectors in the global slots, which are among `slot_BG`."""
    filled_BHTN = x_BHTN.scatter(2, slot_BG[:, None, :, None].expand(new_BHGN.shape), new_BHGN)
    return torch.where(global_BT[:, None, :, None], filled_BHTN, x_BHTN)
