"""Longformer: a window for everybody, and a few global positions that read everything and are read by all.

    t global:  out_t = softmax over all s of (q'_t . k'_s / sqrt(K)) V'          with projections of its own
    else:      out_t = softmax over |s - t| <= w and s global of (q_t . k_s / sqrt(K)) V

Two positions that are far apart meet through a global one in two layers.

Cost: O(n (w + g) D) time for g global positions, 1 sequential step, path 2 (1 from a global position).
Paper: Beltagy et al. 2020, arXiv:2004.05150, section 3.1.
Differs: the global positions are the first g real tokens (the paper chooses them by task: [CLS], or the question, both
of which stand first). Like the paper's, it is not causal: a global position sees the future.
"""

from typing import Literal, final

import torch
from pydantic import PositiveInt
from torch import Tensor, nn

from allyouneed.mixers.base import Cost, Memory, Mixer, Role, State, map_sink
from allyouneed.mixers.lookup import soft_alpha, soft_lookup
from allyouneed.mixers.past import count_positions
from allyouneed.mixers.projections import HeadsConfig, Projections, initialise, refuse_state
from allyouneed.mixers.rectangles import Pattern, area, attend_sparsely, bands_of, bias_of, meetings
from allyouneed.positions import ScorePosition


class LongformerConfig(HeadsConfig):
    summary = "a window for everybody, and a few global positions that see and are seen by all; not causal"
    paper = "Beltagy et al. 2020, arXiv:2004.05150"
    roles = frozenset({"bidirectional"})
    takes_positions = True

    type: Literal["longformer"] = "longformer"
    window: PositiveInt = 256  # how many positions it sees to each side (the paper's w / 2)
    everywhere: PositiveInt = 1  # how many first tokens are global

    @property
    def pattern(self) -> Pattern:
        """Who is read by a position that is not global."""
        return Pattern(self.window, self.window, self.everywhere)

    def build(self, width: int, *, role: Role = "bidirectional", position: ScorePosition | None = None) -> "Longformer":
        self.require(role, position)
        return Longformer(self, width, position)

    def cost(self, length: int, width: int, *, role: Role = "bidirectional", memory: int | None = None) -> Cost:
        everywhere = min(self.everywhere, length)
        pairs = area(bands_of(self.pattern, length, length)) + everywhere * length
        # The global queries are projected for themselves, the global keys and values for everybody.
        projections = self.projection_flops(length, length, width) + (2 * everywhere + 4 * length) * width * width
        # The first position is global, so it reaches the last at once; two others far apart need two layers.
        return Cost(projections + 4 * pairs * width, 0, sequential=1, path=1)

    def position_queries(self, length: int, role: Role) -> int:
        return meetings(bands_of(self.pattern, length, length)) + min(self.everywhere, length)


@final
class Longformer(Mixer):
    def __init__(self, config: LongformerConfig, width: int, position: ScorePosition | None) -> None:
        super().__init__()
        self.config, self.position = config, position
        self.project = Projections(config, width, "bidirectional")
        self.global_query = nn.Linear(width, width, bias=config.bias)
        self.global_key_value = nn.Linear(width, 2 * width, bias=config.bias)
        for layer in (self.global_query, self.global_key_value):
            initialise(layer, width)

    def forward(
        self,
        x_BTD: Tensor,
        *,
        valid_BT: Tensor | None = None,
        state: State | None = None,
        memory: Memory | None = None,
    ) -> tuple[Tensor, None]:
        refuse_state(state)
        if valid_BT is None:
            return self._read(x_BTD), None
        rows = []
        for x_TD, valid_T in zip(x_BTD, valid_BT, strict=True):  # each row without its padding
            real_N = valid_T.nonzero()[:, 0]
            if len(real_N):
                read_ND = self._read(x_TD.index_select(0, real_N)[None])[0]
                rows.append(read_ND.new_zeros(x_TD.shape).index_copy(0, real_N, read_ND))
            else:
                rows.append(torch.zeros_like(x_TD))
        return torch.stack(rows), None

    def _read(self, x_BTD: Tensor) -> Tensor:
        T, G = x_BTD.shape[1], min(self.config.everywhere, x_BTD.shape[1])
        q_BHTK, k_BHTK, v_BHTK = self.project.itself(x_BTD)
        (far_BHGK,) = self.project.split(self.global_query(x_BTD[:, :G]), 1)
        keys, values = self.project.split(self.global_key_value(x_BTD), 2)
        place_T = count_positions(None, T, x_BTD.device)
        bias = None
        if self.position is not None:
            q_BHTK, k_BHTK = self.position.rotate(q_BHTK, place_T), self.position.rotate(k_BHTK, place_T)
            far_BHGK, keys = self.position.rotate(far_BHGK, place_T[:G]), self.position.rotate(keys, place_T)
            bias = self.position.bias(far_BHGK, place_T[:G], place_T)
        scheme = bias_of(self.position)
        y_BHTK = attend_sparsely(q_BHTK, k_BHTK, v_BHTK, bands_of(self.config.pattern, T, T), scheme)
        global_BHGK = soft_lookup(far_BHGK, keys, values, bias=bias)
        if (sink := map_sink()) is not None:
            visible = self.config.pattern.sees(place_T[:, None], place_T)
            near_bias = None if scheme is None else scheme(q_BHTK, place_T, place_T)
            alpha = soft_alpha(q_BHTK, k_BHTK, near_bias, visible)
            sink(self, torch.cat([soft_alpha(far_BHGK, keys, bias), alpha[:, :, G:]], dim=2))
        return self.project.merge(torch.cat([global_BHGK, y_BHTK[:, :, G:]], dim=2))
