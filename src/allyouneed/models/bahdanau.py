"""RNNsearch: the first decoder that attends to its source for every word.

    h_j = [forth_j; back_j]                                   a recurrence in each direction over the source
    s_0 = tanh(W_s back_1)
    e_tj = v^T tanh(W s_(t-1) + U h_j),  c_t = sum_j softmax_j(e_tj) h_j
    s_t = GRU(s_(t-1), [E y_(t-1); c_t])
    p(y_t) = softmax(W_o maxout(U_o s_t + V_o E y_(t-1) + C_o c_t))        maxout: the larger of each pair

Cost: O(T (S + D) D) time, T sequential steps, a path of 1 between any source and target position.
Paper: Bahdanau et al. 2014, arXiv:1409.0473, section 3 and appendix A.
Differs: the recurrence is that of torch.nn (the paper's GRU resets before the product with U, and swaps z and 1 - z),
or an LSTM or a tanh network; the output reads s_t, as equation 4 says, where appendix A.2.2 prints s_(t-1); recurrences
are initialised as in mixers/recurrent.py and other layers as in torch, not from N(0, 0.001^2).
"""

from dataclasses import replace
from typing import final

import torch
from torch import Tensor, nn

from allyouneed.mixers.parts.projections import at_least_float32, full_precision, initialise
from allyouneed.mixers.recurrent import GATES, Cell, CellKind, cell_flops, run_bidirectional
from allyouneed.models.parts.alignment import Alignment
from allyouneed.models.parts.sequence import Encoded, SequenceDecoder, SequenceEncoder, SequenceState, attend_and_step


@final
class BothWaysEncoder(SequenceEncoder):
    """One recurrence from the left and one from the right; back_1 initialises the decoder."""

    def __init__(self, kind: CellKind, inputs: int, width: int) -> None:
        super().__init__()
        self.forth, self.back = (Cell(kind, inputs, width) for _ in range(2))

    def forward(self, x_BSE: Tensor, mask_BS: Tensor | None) -> Encoded:
        h_BSD, last = run_bidirectional(self.forth, self.back, x_BSE, mask_BS)
        return Encoded(h_BSD, mask_BS, (last,))

    def flops(self, length: int) -> int:
        return 2 * cell_flops(self.forth.kind, length, self.forth.input.in_features, self.forth.width)


@final
class BahdanauDecoder(SequenceDecoder):
    def __init__(self, kind: CellKind, inputs: int, width: int) -> None:
        super().__init__()
        # The paper's m = 620, n = 1000, l = 500.
        self.inputs, self.width, self.out_width = inputs, width, max(1, width // 2)
        self.begin = nn.Linear(width, width)
        self.cross = Alignment("additive", width, 2 * width, width)
        self.cell = Cell(kind, inputs, width)
        self.context = nn.Linear(2 * width, GATES[kind] * width, bias=False)
        initialise(self.context, width)
        self.maxout = nn.Linear(width + inputs + 2 * width, 2 * self.out_width)

    def start(self, memory: Encoded) -> SequenceState:
        (last,) = memory.last
        with full_precision(last.h_BK):
            state = replace(self.cell.start(last.h_BK, last.h_BK.shape[0]), h_BK=self.begin(last.h_BK).tanh())
        return SequenceState((state,), read=self.cross.annotate(memory))

    def forward(
        self, x_BTE: Tensor, state: SequenceState, mask_BT: Tensor | None = None
    ) -> tuple[Tensor, SequenceState]:
        with full_precision(x_BTE):
            x_BTE = at_least_float32(x_BTE)
            h_BTK, context_BTD, _, carried = attend_and_step(self, x_BTE, state, mask_BT)
            seen_BTM = torch.cat([h_BTK, x_BTE, context_BTD], dim=-1)
            out_BTL = self.maxout(seen_BTM).unflatten(-1, (-1, 2)).amax(dim=-1)
        return out_BTL, replace(state, cells=(carried,))

    def flops(self, source: int, target: int) -> int:
        width, gates = self.width, GATES[self.cell.kind]
        recurrence = cell_flops(self.cell.kind, target, self.inputs, width) + 4 * target * width * gates * width
        readout = 2 * target * (3 * width + self.inputs) * 2 * self.out_width
        return 2 * width * width + self.cross.flops(source, target) + recurrence + readout
