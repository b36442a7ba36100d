"""Recurrent networks as mixers: one vector summarises everything read so far and is rewritten at each position.

    rnn    h_t = tanh(W x_t + U h_(t-1) + b)
    lstm   c_t = f c_(t-1) + i g,  h_t = o tanh(c_t);      i, f, o = sigmoid, g = tanh of  W x_t + U h_(t-1) + b
    gru    h_t = (1 - z) n + z h_(t-1);                    r, z = sigmoid of  W x_t + U h_(t-1) + b
                                                           n = tanh(W x_t + b + r (U h_(t-1) + b'))
    y_t = h_t; bidirectional: one recurrence each way, each half as wide, concatenated

Cost: O(T D^2) time, O(D) state whatever T is, T sequential steps, path 1.
Papers: Elman 1990 (rnn); Hochreiter and Schmidhuber 1997, with the forget gate of Gers et al. 2000 (lstm); Cho et al.
2014, arXiv:1406.1078 (gru, in the form of torch.nn, which resets after the product with U); Schuster and Paliwal 1997
(bidirectional).
Differs: torch.nn's two biases are one, except a GRU's. U starts orthogonal (Saxe et al. 2014), the forget gate's
bias at 1 (Gers et al. 2000; Jozefowicz et al. 2015).

Padding changes nothing: real positions are moved to the front, read, and moved back, in either direction.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal, final

import torch
from torch import Tensor, nn

from allyouneed.errors import ConfigError
from allyouneed.mixers.base import Cost, Memory, Mixer, MixerConfig, Role, Theory, zero_padding
from allyouneed.mixers.parts.block_sparse import has_kernel
from allyouneed.mixers.parts.kv_cache import real_first
from allyouneed.mixers.parts.projections import at_least_float32, full_precision, initialise, refuse_state
from allyouneed.mixers.parts.scan import scan_gru, scan_lstm, scan_rnn
from allyouneed.positions import ScorePosition

CellKind = Literal["rnn", "lstm", "gru"]
GATES: dict[CellKind, int] = {"rnn": 1, "lstm": 4, "gru": 3}
FORGET = 1  # the second of an LSTM's parts: i, f, g, o


@dataclass(frozen=True)
class RecurrentState:
    """The state of a recurrence; only an LSTM has c."""

    h_BK: Tensor
    c_BK: Tensor | None = None

    def where(self, now_B: Tensor, other: "RecurrentState") -> "RecurrentState":
        """Return this state in the rows `now_B`, the other state elsewhere."""
        now_B1, c_BK = now_B.unsqueeze(1), None
        if self.c_BK is not None and other.c_BK is not None:
            c_BK = torch.where(now_B1, self.c_BK, other.c_BK)
        return RecurrentState(torch.where(now_B1, self.h_BK, other.h_BK), c_BK)


class Cell(nn.Module):
    """The weights of one recurrence; it runs over many positions or over one."""

    def __init__(self, kind: CellKind, inputs: int, width: int) -> None:
        super().__init__()
        self.kind, self.width = kind, width
        self.input = nn.Linear(inputs, GATES[kind] * width)
        self.past = nn.Linear(width, GATES[kind] * width, bias=kind == "gru")
        initialise(self.input, width)
        initialise(self.past, width)
        for matrix in self.past.weight.split(width):
            nn.init.orthogonal_(matrix)
        if kind == "lstm":
            with torch.no_grad():
                self.input.bias.view(4, width)[FORGET] = 1.0

    def start(self, like: Tensor, rows: int) -> RecurrentState:
        """Return a state of zeros."""
        zeros_BK = at_least_float32(like.new_zeros(rows, self.width))
        return RecurrentState(zeros_BK, zeros_BK if self.kind == "lstm" else None)

    def forward(self, x_BTD: Tensor, state: RecurrentState) -> tuple[Tensor, RecurrentState]:
        """Return h of all positions, none of which is padding, and the last state."""
        with full_precision(x_BTD):
            if x_BTD.shape[1] == 1:
                state = self.step(self.input(at_least_float32(x_BTD[:, 0])), state)
                return state.h_BK.unsqueeze(1), state
            if state.c_BK is not None and has_kernel(x_BTD.device):
                return self._fused(at_least_float32(x_BTD), state.h_BK, state.c_BK)
            h_TBK, c_TBK = self.scan(x_BTD, state)
        # Copies, not views: a state must not keep the vectors of all positions alive.
        return h_TBK.transpose(0, 1), RecurrentState(h_TBK[-1].clone(), None if c_TBK is None else c_TBK[-1].clone())

    def scan(self, x_BTD: Tensor, state: RecurrentState) -> tuple[Tensor, Tensor | None]:
        """Return h and c after each position, time first."""
        with full_precision(x_BTD):
            x_TBN = self.input(at_least_float32(x_BTD).transpose(0, 1))
            if state.c_BK is not None:
                return scan_lstm(x_TBN, state.h_BK, state.c_BK, self.past.weight)
            if self.kind == "gru":
                return scan_gru(x_TBN, state.h_BK, self.past.weight, self.past.bias), None
            return scan_rnn(x_TBN, state.h_BK, self.past.weight), None

    def _fused(self, x_BTD: Tensor, h_BK: Tensor, c_BK: Tensor) -> tuple[Tensor, RecurrentState]:
        """Run torch's own LSTM: on a CPU one call of oneDNN, faster than `scan_lstm`. oneDNN has no other cell."""
        bias_N = self.input.bias
        weights = [self.input.weight, self.past.weight, bias_N, torch.zeros_like(bias_N)]
        start, training = [h_BK.unsqueeze(0), c_BK.unsqueeze(0)], torch.is_grad_enabled()
        y_BTK, h_1BK, c_1BK = torch.lstm(x_BTD, start, weights, True, 1, 0.0, training, False, True)
        return y_BTK, RecurrentState(h_1BK[0], c_1BK[0])

    def step(self, x_BN: Tensor, state: RecurrentState) -> RecurrentState:
        """Return the state after one position, from its W x + b."""
        if self.kind == "gru":
            past_BN, K = self.past(state.h_BK), self.width
            r_BK, z_BK = (x_BN[:, : 2 * K] + past_BN[:, : 2 * K]).sigmoid().chunk(2, dim=1)
            n_BK = torch.addcmul(x_BN[:, 2 * K :], r_BK, past_BN[:, 2 * K :]).tanh()
            return RecurrentState(torch.lerp(n_BK, state.h_BK, z_BK))
        gates_BN = torch.addmm(x_BN, state.h_BK, self.past.weight.T)
        if state.c_BK is None:
            return RecurrentState(gates_BN.tanh())
        i_BK, f_BK, g_BK, o_BK = gates_BN.chunk(4, dim=1)
        c_BK = torch.addcmul(f_BK.sigmoid() * state.c_BK, i_BK.sigmoid(), g_BK.tanh())
        return RecurrentState(o_BK.sigmoid() * c_BK.tanh(), c_BK)


def cell_flops(kind: CellKind, length: int, inputs: int, width: int) -> int:
    """Return the FLOPs of one recurrence over a sequence."""
    return 2 * length * GATES[kind] * width * (inputs + width)


class RecurrentConfig(MixerConfig):
    """The settings that the three share."""

    roles = frozenset({"causal", "bidirectional"})
    theory = Theory("n d²", 1, 2, "n", "1 (n steps)")
    family = "recurrence and convolution"
    cell: ClassVar[CellKind]

    def build(self, width: int, *, role: Role = "causal", position: ScorePosition | None = None) -> "Recurrent":
        self.require(role, position)
        if role == "bidirectional" and width % 2:
            raise ConfigError(f"model.width {width} is odd; a bidirectional {self.type} needs half of it each way")
        return Recurrent(self, width, role)

    def cost(self, length: int, width: int, *, role: Role = "causal", memory: int | None = None) -> Cost:
        if role == "bidirectional":
            return Cost(2 * cell_flops(self.cell, length, width, width // 2), 0, sequential=length, path=1)
        state = 4 * width * (2 if self.cell == "lstm" else 1)
        return Cost(cell_flops(self.cell, length, width, width), state, sequential=length, path=1)


class RnnConfig(RecurrentConfig):
    summary = "recurrent network (tanh): one vector summarises all earlier positions"
    paper = "Elman 1990, Cognitive Science 14(2)"
    cell = "rnn"

    type: Literal["rnn"] = "rnn"


class LstmConfig(RecurrentConfig):
    summary = "long short-term memory: gates decide what the cell forgets, stores and outputs"
    paper = "Hochreiter and Schmidhuber 1997, Neural Computation 9(8); Gers et al. 2000"
    cell = "lstm"

    type: Literal["lstm"] = "lstm"


class GruConfig(RecurrentConfig):
    summary = "gated recurrent unit: one vector, each number of it kept or replaced"
    paper = "Cho et al. 2014, arXiv:1406.1078"
    cell = "gru"

    type: Literal["gru"] = "gru"


@final
class Recurrent(Mixer):
    def __init__(self, config: RecurrentConfig, width: int, role: Role) -> None:
        super().__init__()
        self.role = role
        if role == "causal":
            self.forth = Cell(config.cell, width, width)
        else:
            self.forth, self.back = (Cell(config.cell, width, width // 2) for _ in range(2))

    def forward(
        self,
        x_BTD: Tensor,
        *,
        mask_BT: Tensor | None = None,
        state: RecurrentState | None = None,
        memory: Memory | None = None,
    ) -> tuple[Tensor, RecurrentState | None]:
        if self.role == "causal":
            return run(self.forth, x_BTD, mask_BT, state)
        refuse_state(state)
        return run_bidirectional(self.forth, self.back, x_BTD, mask_BT)[0], None

    def advance(
        self, x_BD: Tensor, *, state: RecurrentState | None = None, memory: Memory | None = None
    ) -> tuple[Tensor, RecurrentState]:
        with full_precision(x_BD):
            x_BN = self.forth.input(at_least_float32(x_BD))
            state = self.forth.step(x_BN, state or self.forth.start(x_BD, x_BD.shape[0]))
        return state.h_BK, state


def run(
    cell: Cell, x_BTD: Tensor, mask_BT: Tensor | None, state: RecurrentState | None = None
) -> tuple[Tensor, RecurrentState]:
    """Return h of every position, and the last state; padding does not change the state."""
    state = state or cell.start(x_BTD, x_BTD.shape[0])
    if mask_BT is None:
        y_BTK, state = cell(x_BTD, state)
        return y_BTK, state
    # Real positions first, in order. Padding after them is computed too, but not used.
    order_BT = real_first(mask_BT)
    x_BTD = zero_padding(x_BTD, mask_BT).gather(1, order_BT.unsqueeze(-1).expand_as(x_BTD))
    h_TBK, c_TBK = cell.scan(x_BTD, state)
    place_BT = order_BT.argsort(dim=1)
    y_BTK = h_TBK.transpose(0, 1).gather(1, place_BT.unsqueeze(-1).expand(-1, -1, cell.width))
    length_B = mask_BT.sum(dim=1)
    h_BK = _state_at(h_TBK, length_B, state.h_BK)
    return y_BTK, RecurrentState(h_BK, None if c_TBK is None else _state_at(c_TBK, length_B, state.c_BK))


def run_bidirectional(forth: Cell, back: Cell, x_BTD: Tensor, mask_BT: Tensor | None) -> tuple[Tensor, RecurrentState]:
    """Return [h from the left; h from the right] of every position, and the last state of the backward cell."""
    left_BTK, _ = run(forth, x_BTD, mask_BT)
    right_BTK, last = run(back, x_BTD.flip(1), None if mask_BT is None else mask_BT.flip(1))
    return torch.cat([left_BTK, right_BTK.flip(1)], dim=-1), last


def _state_at(h_TBK: Tensor, length_B: Tensor, before_BK: Tensor | None) -> Tensor:
    """Return the vector after `length_B` positions of each row."""
    assert before_BK is not None
    last_1BK = (length_B - 1).clamp(min=0)[None, :, None].expand(1, -1, h_TBK.shape[2])
    return torch.where((length_B > 0).unsqueeze(1), h_TBK.gather(0, last_1BK)[0], before_BK)
