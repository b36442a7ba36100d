"""Linformer: keys and values are projected along the *length*, from n positions to k slots, before anybody reads them.

    head_h = softmax(q_h (E_h K_h)^T / sqrt(K)) (F_h V_h),      E_h, F_h: k x n

Cost: O(T R D) time for R slots (and O(n R) parameters), 1 sequential step, path 1.
Paper: Wang et al. 2020, arXiv:2006.04768.
Differs: shorter sequences use the first columns of E and F, so any length up to `max_length` works; padding takes no
part: columns are counted by real tokens. Every slot holds a bit of every position, so it cannot be causal.
"""

from dataclasses import dataclass
from typing import Literal, final

import torch
from pydantic import PositiveInt
from torch import Tensor, nn

from allyouneed.errors import DataError
from allyouneed.mixers.base import Cost, Memory, Mixer, Role, map_sink
from allyouneed.mixers.lookup import lookup, soft_alpha, soft_lookup
from allyouneed.mixers.past import count_positions
from allyouneed.mixers.projections import HeadsConfig, Projections, refuse_state
from allyouneed.positions import ScorePosition


class LinformerConfig(HeadsConfig):
    summary = "keys and values projected from n positions to a few slots; not causal"
    paper = "Wang et al. 2020, arXiv:2006.04768"
    roles = frozenset({"bidirectional", "cross"})

    type: Literal["linformer"] = "linformer"
    slots: PositiveInt = 256  # the paper's k
    max_length: PositiveInt = 4096  # the paper's n
    share: Literal["none", "heads", "key-value"] = "heads"  # one E and F for each head; for all; and E = F

    def build(self, width: int, *, role: Role = "bidirectional", position: ScorePosition | None = None) -> "Linformer":
        self.require(role, position)
        return Linformer(self, width, role)

    def cost(self, length: int, width: int, *, role: Role = "bidirectional", memory: int | None = None) -> Cost:
        read = length if memory is None or role != "cross" else memory
        along = 4 * read * self.slots * width
        attention = 4 * length * self.slots * width
        state = 8 * self.slots * width if role == "cross" else 0
        return Cost(self.projection_flops(length, read, width) + along + attention, state, sequential=1, path=1)


@dataclass(frozen=True)
class SlotState:
    """The slots of a memory."""

    k_BHRK: Tensor
    v_BHRK: Tensor
    something_B: Tensor | None  # whether a row has anything to read (None: all have)


@final
class Linformer(Mixer):
    def __init__(self, config: LinformerConfig, width: int, role: Role) -> None:
        super().__init__()
        self.config, self.role, self.project = config, role, Projections(config, width, role)
        kinds = 1 if config.share == "key-value" else 2
        heads = config.heads if config.share == "none" else 1
        # Along the length: (E and F, heads, k, n); the variance of a mean over the slots, as in the authors' code.
        self.along_NHRS = nn.Parameter(torch.empty(kinds, heads, config.slots, config.max_length))
        nn.init.uniform_(self.along_NHRS, -(config.slots**-0.5), config.slots**-0.5)

    def forward(
        self,
        x_BTD: Tensor,
        *,
        valid_BT: Tensor | None = None,
        state: SlotState | None = None,
        memory: Memory | None = None,
    ) -> tuple[Tensor, SlotState | None]:
        if self.role == "cross":
            if state is None:
                k_BHSK, v_BHSK = self.project.remembered(memory)
                state = self._slots(k_BHSK, v_BHSK, memory.valid_BS if memory else None)
            return self._read(self.project.queries(x_BTD), state), state
        refuse_state(state)
        q_BHTK, k_BHTK, v_BHTK = self.project.itself(x_BTD)
        return self._read(q_BHTK, self._slots(k_BHTK, v_BHTK, valid_BT)), None

    def _slots(self, k_BHSK: Tensor, v_BHSK: Tensor, valid_BS: Tensor | None) -> SlotState:
        S = k_BHSK.shape[2]
        longest = S if valid_BS is None else int(valid_BS.sum(dim=1).max())
        if longest > self.config.max_length:
            raise DataError(
                f"a sequence of {longest} tokens, but the linformer's projection ends at {self.config.max_length}; "
                "shorten it, or train with a larger mixer.max_length"
            )
        if valid_BS is None:
            along = self.along_NHRS[:, None, :, :, :S]
            return SlotState(along[0] @ k_BHSK, along[-1] @ v_BHSK, None)
        column_BS = count_positions(valid_BS, S, k_BHSK.device)
        along = self.along_NHRS[..., column_BS].movedim(-2, 1) * valid_BS[:, None, None, :]  # (N, B, H, R, S)
        # Padding may hold anything, and zero times infinity is no number.
        k_BHSK, v_BHSK = (x.masked_fill(~valid_BS[:, None, :, None], 0.0) for x in (k_BHSK, v_BHSK))
        return SlotState(along[0] @ k_BHSK, along[-1] @ v_BHSK, valid_BS.any(dim=1))

    def _read(self, q_BHTK: Tensor, slots: SlotState) -> Tensor:
        something = None if slots.something_B is None else slots.something_B[:, None, None, None]
        sink = map_sink()
        if sink is None:
            y_BHTK = soft_lookup(q_BHTK, slots.k_BHRK, slots.v_BHRK, visible=something)
        else:
            alpha_BHTR = soft_alpha(q_BHTK, slots.k_BHRK, visible=something)
            sink(self, alpha_BHTR)
            y_BHTK = lookup(alpha_BHTR, slots.v_BHRK)
        return self.project.merge(y_BHTK)
