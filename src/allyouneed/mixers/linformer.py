"""Linformer: keys and values are projected along the *length*, from n positions to k slots, which queries read.

    head_h = softmax(q_h (E_h K_h)^T / sqrt(K)) (F_h V_h),      E_h, F_h: k x n

E (x W) = (E x) W: if all heads share E, positions are summed into slots first, and only the slots are projected.

Cost: O(T R D) time for R slots (and O(n R) parameters), 1 sequential step, path 1.
Paper: Wang et al. 2020, arXiv:2006.04768.
Differs: shorter sequences use the first columns of E and F, so any length up to `max_length` works. Padding is left
out: columns count real tokens. Every slot contains every position, so the mixer cannot be causal.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, final

import torch
from pydantic import PositiveInt
from torch import Tensor, nn

from allyouneed.errors import DataError
from allyouneed.mixers.base import Cost, Memory, Mixer, Role, Theory, map_sink, zero_padding
from allyouneed.mixers.lookup import lookup, soft_alpha, soft_lookup
from allyouneed.mixers.parts.kv_cache import count_positions
from allyouneed.mixers.parts.projections import HeadsConfig, Projections, refuse_state, require_memory
from allyouneed.mixers.parts.state import join_fields
from allyouneed.positions import ScorePosition


class LinformerConfig(HeadsConfig):
    summary = "keys and values projected from n positions to a few slots; not causal"
    paper = "Wang et al. 2020, arXiv:2006.04768"
    roles = frozenset({"bidirectional", "cross"})
    theory = Theory("n k d + n d²", 1, 1, "1", "1")
    family = "global attention"

    type: Literal["linformer"] = "linformer"
    slots: PositiveInt = 256  # the paper's k
    max_length: PositiveInt = 4096  # the paper's n
    share: Literal["none", "heads", "key-value"] = "heads"  # E and F per head; shared by all heads; shared, and E = F

    @classmethod
    def settings_for(cls, length: int) -> dict[str, object]:
        """Return settings whose matrices have a column for each position."""
        return {"max_length": max(length, 256)}

    def build(self, width: int, *, role: Role = "bidirectional", position: ScorePosition | None = None) -> "Linformer":
        self.require(role, position)
        return Linformer(self, width, role)

    def cost(self, length: int, width: int, *, role: Role = "bidirectional", memory: int | None = None) -> Cost:
        read = length if memory is None or role != "cross" else memory
        sums_first, kinds = self.sums_before_projecting(read), 1 if self.share == "key-value" else 2
        along = 2 * (kinds if sums_first else 2) * read * self.slots * width
        projections = self.projection_flops(length, self.slots if sums_first else read, width)
        attention = 4 * length * self.slots * width
        state = 8 * self.slots * width if role == "cross" else 0
        return Cost(projections + along + attention, state, sequential=1, path=1)

    def sums_before_projecting(self, read: int) -> bool:
        """Return True if this many positions are summed into slots before they become keys and values."""
        return self.share != "none" and read >= self.slots


@dataclass(frozen=True)
class SlotState:
    """The slots of a memory."""

    k_BHRK: Tensor
    v_BHRK: Tensor
    nonempty_B: Tensor | None  # whether a row has any real position (None: all have)

    @staticmethod
    def join(nodes: "Sequence[SlotState]", count_P: Tensor | None) -> "SlotState":
        """Join memories, all of which have the same number of slots."""
        nonempty = [
            torch.ones(len(node.k_BHRK), dtype=torch.bool, device=node.k_BHRK.device)
            if node.nonempty_B is None
            else node.nonempty_B
            for node in nodes
        ]
        return join_fields(nodes, count_P, nonempty_B=torch.cat(nonempty))


@final
class Linformer(Mixer):
    def __init__(self, config: LinformerConfig, width: int, role: Role) -> None:
        super().__init__()
        self.config, self.role, self.project = config, role, Projections(config, width, role)
        kinds = 1 if config.share == "key-value" else 2
        heads = config.heads if config.share == "none" else 1
        # E and F along the length: (E and F, heads, k, n); variance 1 / (3 k), as in the authors' code.
        self.along_NHRS = nn.Parameter(torch.empty(kinds, heads, config.slots, config.max_length))
        nn.init.uniform_(self.along_NHRS, -(config.slots**-0.5), config.slots**-0.5)

    def forward(
        self,
        x_BTD: Tensor,
        *,
        mask_BT: Tensor | None = None,
        state: SlotState | None = None,
        memory: Memory | None = None,
    ) -> tuple[Tensor, SlotState | None]:
        if self.role == "cross":
            if state is None:
                read = require_memory(memory)
                state = self._slots(read.without_padding(), read.mask_BS)
            return self._read(self.project.queries(x_BTD), state), state
        refuse_state(state)
        x_BTD = zero_padding(x_BTD, mask_BT)
        return self._read(self.project.queries(x_BTD), self._slots(x_BTD, mask_BT)), None

    def _slots(self, x_BSD: Tensor, mask_BS: Tensor | None) -> SlotState:
        S = x_BSD.shape[1]
        longest = S if mask_BS is None else int(mask_BS.sum(dim=1).max())
        if longest > self.config.max_length:
            raise DataError(
                f"a sequence of {longest} tokens, but the linformer's projection ends at {self.config.max_length}; "
                "shorten it, or train with a larger mixer.max_length"
            )
        if mask_BS is None:
            along, nonempty_B = self.along_NHRS[:, None, :, :, :S], None
        else:
            column_BS, nonempty_B = count_positions(mask_BS, S, x_BSD.device), mask_BS.any(dim=1)
            along = self.along_NHRS[..., column_BS].movedim(-2, 1) * mask_BS[:, None, None, :]  # (N, B, H, R, S)
        if self.config.sums_before_projecting(S):
            return SlotState(*self._project(along.squeeze(2), x_BSD), nonempty_B)
        k_BHSK, v_BHSK = self.project.split(self.project.keys_and_values(x_BSD), 2)
        return SlotState(along[0] @ k_BHSK, along[-1] @ v_BHSK, nonempty_B)

    def _project(self, along_NBRS: Tensor, x_BSD: Tensor) -> tuple[Tensor, Tensor]:
        """Return keys and values of slots: E (x W + b) = (E x) W + (E 1) b."""
        weight, bias = self.project.key_value_parameters()
        summed_NBRD = along_NBRS @ x_BSD
        found: list[Tensor] = []
        for kind, weight_DD in zip((0, -1), weight.chunk(2), strict=True):
            slots_BRD = nn.functional.linear(summed_NBRD[kind], weight_DD)
            if bias is not None:
                bias_D = bias.chunk(2)[kind]
                slots_BRD = slots_BRD + along_NBRS[kind].sum(dim=-1, keepdim=True) * bias_D
            found += self.project.split(slots_BRD, 1)
        return found[0], found[1]

    def _read(self, q_BHTK: Tensor, slots: SlotState) -> Tensor:
        nonempty = None if slots.nonempty_B is None else slots.nonempty_B[:, None, None, None]
        sink = map_sink()
        if sink is None:
            y_BHTK = soft_lookup(q_BHTK, slots.k_BHRK, slots.v_BHRK, visible=nonempty)
        else:
            alpha_BHTR = soft_alpha(q_BHTK, slots.k_BHRK, visible=nonempty)
            sink(self, alpha_BHTR)
            y_BHTK = lookup(alpha_BHTR, slots.v_BHRK)
        return self.project.merge(y_BHTK)
