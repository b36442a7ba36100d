"""Luong's decoder: it attends after the recurrence, and feeds the result into the next step.

    h_t = RNN(h_(t-1), [E y_(t-1); h~_(t-1)])          initialised with the encoder's last states
    c_t = sum_s softmax_s(score(h_t, h_s)) h_s
    h~_t = tanh(W_c [c_t; h_t]),   p(y_t) = softmax(W_s h~_t)

Cost: O(T (S + D) D) time, T sequential steps, a path of 1 between any source and target position.
Paper: Luong et al. 2015, arXiv:1508.04025: global attention with the scores dot, general and concat (section 3.1),
input feeding (section 3.3).
Differs: no local attention; no dropout inside the recurrence.
"""

from dataclasses import replace
from typing import final

import torch
from torch import Tensor, nn

from allyouneed.mixers.parts.projections import at_least_float32, full_precision, initialise
from allyouneed.mixers.recurrent import GATES, Cell, CellKind, RecurrentState
from allyouneed.models.parts.alignment import Alignment, Score
from allyouneed.models.parts.sequence import Encoded, SequenceDecoder, SequenceState, Tower


@final
class LuongDecoder(SequenceDecoder):
    def __init__(self, kind: CellKind, inputs: int, width: int, layers: int, score: Score) -> None:
        super().__init__()
        self.tower, self.out_width = Tower(kind, inputs, width, layers), width
        self.feed = nn.Linear(width, GATES[kind] * width, bias=False)
        initialise(self.feed, width)
        self.cross = Alignment(score, width, width, width)
        self.combine = nn.Linear(2 * width, width, bias=False)

    def start(self, memory: Encoded) -> SequenceState:
        nothing_BK = torch.zeros_like(memory.last[-1].h_BK)
        return SequenceState(memory.last, read=self.cross.annotate(memory), fed_BK=nothing_BK)

    def forward(
        self, x_BTE: Tensor, state: SequenceState, mask_BT: Tensor | None = None
    ) -> tuple[Tensor, SequenceState]:
        assert state.read is not None
        assert state.fed_BK is not None
        cells: list[Cell] = list(self.tower.cells)  # type: ignore[arg-type]
        carried, fed_BK, outputs, alphas = list(state.cells), state.fed_BK, [], []
        with full_precision(x_BTE):
            x_TBN = cells[0].input(at_least_float32(x_BTE).transpose(0, 1))
            weight_KN = self.feed.weight.T
            for t, x_BN in enumerate(x_TBN.unbind()):
                after: list[RecurrentState] = []
                for cell, before in zip(cells, carried, strict=True):
                    new_BN = cell.input(after[-1].h_BK) if after else torch.addmm(x_BN, fed_BK, weight_KN)
                    after.append(cell.step(new_BN, before))
                context_BK, alpha_BS = self.cross(after[-1].h_BK, state.read)
                out_BK = self.combine(torch.cat([context_BK, after[-1].h_BK], dim=1)).tanh()
                if mask_BT is not None:
                    now_B = mask_BT[:, t]
                    after = [new.where(now_B, old) for new, old in zip(after, carried, strict=True)]
                    out_BK = torch.where(now_B.unsqueeze(1), out_BK, fed_BK)
                carried, fed_BK = after, out_BK
                outputs.append(out_BK)
                alphas.append(alpha_BS)
            self.cross.report(alphas)
        return torch.stack(outputs, dim=1), replace(state, cells=tuple(carried), fed_BK=fed_BK)

    def flops(self, source: int, target: int) -> int:
        feed, combine = self.feed.weight.numel(), self.combine.weight.numel()
        return self.tower.flops(target) + self.cross.flops(source, target) + 2 * target * (feed + combine)
