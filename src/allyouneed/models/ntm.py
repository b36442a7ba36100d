"""The Neural Turing Machine: a controller with a memory reads the source, then generates the target.

    h_t = Controller(x_t, r_(t-1), h_(t-1));   M_t, w_t, r_t = Heads(h_t, M_(t-1), w_(t-1));   y_t = W [h_t; r_t] + b

The source is read first, token by token, including its end token. Then the machine generates with empty input, as in
the paper (`feedback` feeds back the previous token). The controller is an LSTM, or feed-forward: tanh(W [x; r] + b).

With `embedding = "bits"` the ids after the special ones are all vectors of `bits` bits, in numeric order. Their input
is their bits; other ids have one channel each. The output is a number z_b for each bit and z_s for each other id,

    log P(v | a vector) = sum_b v_b z_b - log(1 + exp z_b),      odds of s against any vector = exp z_s,

which is one softmax over all ids with a fixed matrix: a product of independent Bernoulli(sigmoid(z_b)), so that the
cross-entropy of tokens is the paper's cross-entropy of bits, and the best token has every bit with probability > 1/2.

Cost: O(T H^2 + T M K) time; each step depends on the previous one.
Paper: Graves et al. 2014, arXiv:1410.5401.
Differs: a target ends with an end token, which the machine must generate; the state before the first token is not
learned: the memory is constant, every head is at the first slot. Bits have an additional channel that marks a vector.
The paper does not describe initialisation; here the initial head parameters are chosen (below).
"""

from dataclasses import dataclass
from typing import Annotated, Literal, final

import torch
from pydantic import Field, NonNegativeInt, PositiveInt, model_validator
from torch import Tensor, nn
from torch.nn import functional as F

from allyouneed.errors import ConfigError
from allyouneed.mixers import Memory, select_rows
from allyouneed.mixers.base import map_sink
from allyouneed.mixers.parts.kv_cache import real_first
from allyouneed.mixers.parts.projections import full_precision
from allyouneed.mixers.parts.state import run_by_length
from allyouneed.models.base import Head, Model, ModelConfig
from allyouneed.models.parts.ntm_run import NTMShape, run
from allyouneed.models.parts.stack import new_embedding
from allyouneed.sizes import Sizes, Traits

BLANK = 1e-6  # initial value of the memory (Collier and Beel 2018: constants train best)
# The initialisation of an LSTM machine decides whether it learns (copy, over seeds). Input weights are large (BOLD
# times 1 / sqrt(inputs)) and recurrent weights small: otherwise it first learns to store the input in its cells, is
# slow to use the memory, or fails beyond the training lengths. Heads start by moving from their previous place (a gate
# of sigmoid(-2)). Without an LSTM they also start sharp, and more likely to shift forward than to stay or go back: with
# three equal shifts a weighting is blurred after a few steps, and only some seeds recover.
BOLD, KEEPING, SHARP, MOVING = 5.0, -2.0, 2.0, 1.0
SPECIAL = 4  # the first ids of every vocabulary are special tokens


class NTMConfig(ModelConfig):
    summary = "Neural Turing Machine: a controller with a memory that it reads and writes"
    paper = "Graves et al. 2014, arXiv:1410.5401"
    kind = "encoder-decoder"

    type: Literal["ntm"] = "ntm"
    controller: Literal["lstm", "feedforward"] = "lstm"
    hidden: PositiveInt = 100  # of the controller
    slots: Annotated[int, Field(ge=3)] = 128  # shifts of -1, 0 and 1 must reach three different slots
    slot_width: PositiveInt = 20
    read_heads: NonNegativeInt = 1  # 0: the memory is never read, so the controller works alone
    write_heads: PositiveInt = 1
    embedding: Literal["bits", "learned"] = "learned"
    bits: Annotated[int, Field(ge=1, le=16)] = 8  # per vector; for embedding = "bits" only
    feedback: bool = False  # feed back the previous token while generating

    @model_validator(mode="after")
    def _remembers(self) -> "NTMConfig":
        if self.controller == "feedforward" and not self.read_heads:
            raise ValueError("read_heads=0: a feed-forward controller needs a read head to depend on the source")
        return self

    def ineffective_setting(self) -> str | None:
        if self.embedding != "bits" and self.bits != type(self).model_fields["bits"].default:
            return f"bits={self.bits}: has no effect with embedding={self.embedding!r}; remove it"
        return None

    def check_task(self, task: Traits) -> None:
        if self.embedding != "bits":
            return
        if task.bits is None:
            raise ValueError(f"model.embedding='bits': task {task.type!r} has no vectors of bits")
        if task.bits != self.bits:
            raise ValueError(f"model.bits={self.bits} should be task.bits={task.bits}")

    def build(self, sizes: Sizes) -> "NTM":
        return NTM(self, sizes)


@dataclass(frozen=True)
class NTMState:
    """The state of a machine."""

    hidden_BF: Tensor
    cell_BF: Tensor  # of an LSTM; else zeros
    memory_BKM: Tensor  # K numbers in each of M slots
    weight_BHM: Tensor  # weighting of each head: read heads, then write heads
    read_BRK: Tensor


@dataclass(frozen=True)
class Written(Memory):
    """An encoded source: the slots of the memory, and the state of the machine."""

    state: NTMState | None = None

    def select(self, rows_B: Tensor) -> "Written":
        chosen = super().select(rows_B)
        return Written(chosen.x_BSD, chosen.mask_BS, select_rows(self.state, rows_B))


@final
class NTM(Model):
    kind = "encoder-decoder"
    config: NTMConfig

    def __init__(self, config: NTMConfig, sizes: Sizes) -> None:
        super().__init__()
        self.config, self.sizes = config, sizes
        self.shape = NTMShape(config.controller == "lstm", config.read_heads, config.write_heads, config.slot_width)
        hidden, reads = config.hidden, config.read_heads * config.slot_width
        gates = 4 * hidden if self.shape.recurrent else hidden
        self.source = Input(config, sizes.source, gates)
        self.target = Input(config, sizes.target, gates) if config.feedback else None
        self.controller = nn.Linear(hidden + reads if self.shape.recurrent else reads, gates)
        nn.init.zeros_(self.controller.bias)
        if self.shape.recurrent:
            nn.init.ones_(self.controller.bias[hidden : 2 * hidden])  # the forget gate: remember at first
            bound = BOLD / (self.source.weight.shape[1] + hidden + reads) ** 0.5
            for weight in (self.controller.weight[:, hidden:], self.source.weight):
                nn.init.uniform_(weight, -bound, bound)
        self.heads = nn.Linear(hidden, sum(self.shape.parameter_sizes()))
        nn.init.xavier_uniform_(self.heads.weight, gain=1.4)
        nn.init.zeros_(self.heads.bias)
        *_, gates_H, _, gammas_H, shifts_3 = self.heads.bias.detach().split(self.shape.parameter_sizes())
        nn.init.constant_(gates_H, KEEPING)
        if not self.shape.recurrent:
            nn.init.constant_(gammas_H, SHARP)
            nn.init.constant_(shifts_3[::3], MOVING)
        self.output_width = hidden + reads
        if config.embedding == "bits":
            table_VN = bit_table(sizes.target, config.bits)
            self.output: nn.Linear | None = nn.Linear(hidden + reads, table_VN.shape[1] - 1)
            self.head = Head(table_VN)
        else:
            self.output = None
            self.head = Head(new_embedding(sizes.target, hidden + reads), bias=True)

    def encode(self, source_BS: Tensor, mask_BS: Tensor | None = None) -> Written:
        _, state = self._run(self.source(source_BS), self._blank(source_BS.shape[0]), mask_BS)
        return Written(state.memory_BKM.mT, None, state)

    def _blank(self, rows: int) -> NTMState:
        """Return the state before the first token: a constant memory, every head at the first slot."""
        config, new = self.config, self.heads.weight.new_full
        heads = config.read_heads + config.write_heads
        weight_BHM = new((rows, heads, config.slots), 0)
        weight_BHM[:, :, 0] = 1  # a learned or uniform initial weighting is far harder to train
        return NTMState(
            new((rows, config.hidden), 0),
            new((rows, config.hidden), 0),
            new((rows, config.slot_width, config.slots), BLANK),
            weight_BHM,
            new((rows, config.read_heads, config.slot_width), BLANK),
        )

    def start(self, memory: Memory | None = None) -> NTMState:
        if not isinstance(memory, Written) or memory.state is None:
            raise ConfigError("an ntm needs a source: it starts from the output of its own `encode`")
        return memory.state

    def hidden(self, tokens_BT: Tensor, state: NTMState, mask_BT: Tensor | None = None) -> tuple[Tensor, NTMState]:
        if self.target is None:
            x_BTG = self.controller.bias.new_zeros(()).expand(*tokens_BT.shape, self.controller.out_features)
        else:
            x_BTG = self.target(tokens_BT)
        y_BTD, state = self._run(x_BTG, state, mask_BT)
        return self._answer(y_BTD), state

    def _answer(self, y_BTD: Tensor) -> Tensor:
        """Return the head's input: h and the reads, or logits of bits and other ids, and the normaliser of the bits."""
        if self.output is None:
            return y_BTD
        z_BTN = self.output(y_BTD)
        total_BT1 = F.softplus(z_BTN[..., : self.config.bits]).sum(dim=-1, keepdim=True)
        return torch.cat([z_BTN, -total_BT1], dim=-1)

    def _run(self, x_BTG: Tensor, state: NTMState, mask_BT: Tensor | None) -> tuple[Tensor, NTMState]:
        """Return [h; r] of every position (zeros for padding), and the state after the last real one."""
        x_BTG = x_BTG + self.controller.bias
        if mask_BT is not None and not bool(mask_BT.all()):
            return self._run_padded(x_BTG, state, mask_BT)
        y_TBD, weight_TBHM, state = self._steps(x_BTG.transpose(0, 1), state)
        if (sink := map_sink()) is not None:
            sink(self.heads, weight_TBHM.permute(1, 2, 0, 3))
        return y_TBD.transpose(0, 1), state

    def _run_padded(self, x_BTG: Tensor, state: NTMState, mask_BT: Tensor) -> tuple[Tensor, NTMState]:
        """Run rows of different lengths: real positions are moved left, and finished rows are not computed."""
        B, T = mask_BT.shape
        place_BT = real_first(mask_BT)
        all_B1 = torch.arange(B, device=mask_BT.device)[:, None]
        x_BTG = x_BTG[all_B1, place_BT]
        y_BTD = x_BTG.new_zeros(B, T, self.output_width)
        weight_BTHM = x_BTG.new_zeros(B, T, state.weight_BHM.shape[1], self.config.slots)

        def run_some(state: NTMState, row_P: Tensor, piece: slice) -> NTMState:
            y_LPD, weight_LPHM, state = self._steps(x_BTG[row_P, piece].transpose(0, 1), state)
            y_BTD[row_P, piece], weight_BTHM[row_P, piece] = y_LPD.transpose(0, 1), weight_LPHM.transpose(0, 1)
            return state

        state = run_by_length(mask_BT.sum(dim=1), state, run_some)
        back_BT = place_BT.argsort(dim=1)
        if (sink := map_sink()) is not None:
            sink(self.heads, weight_BTHM[all_B1, back_BT].transpose(1, 2))
        return y_BTD[all_B1, back_BT], state

    def _steps(self, x_TBG: Tensor, state: NTMState) -> tuple[Tensor, Tensor, NTMState]:
        """Return [h; r] and weightings of every step, and the state after the last."""
        with full_precision(x_TBG):  # the gradient is written for one precision
            y_TBD, cell_BF, memory_BKM, weight_TBHM = run(
                x_TBG.to(self.heads.weight.dtype),
                state.hidden_BF,
                state.cell_BF,
                state.memory_BKM,
                state.weight_BHM,
                state.read_BRK,
                self.controller.weight,
                self.heads.weight,
                self.heads.bias,
                self.shape,
            )
        # Copies: a view would keep every step alive.
        hidden_BF, read_BN = y_TBD[-1].clone().split([self.config.hidden, y_TBD.shape[2] - self.config.hidden], dim=1)
        read_BRK = read_BN.unflatten(1, (self.config.read_heads, self.config.slot_width))
        return y_TBD, weight_TBHM, NTMState(hidden_BF, cell_BF, memory_BKM, weight_TBHM[-1].clone(), read_BRK)

    def head_names(self, module: str, count: int) -> list[str]:
        if module != "heads":
            return super().head_names(module, count)
        reads = self.config.read_heads
        return [f"read {n + 1}" if n < reads else f"write {n - reads + 1}" for n in range(count)]

    def flops(self, source: int, target: int) -> int:
        config, heads = self.config, self.config.read_heads + self.config.write_heads
        control = 2 * (self.controller.weight.numel() + self.heads.weight.numel())
        look, shift = 2 * heads * config.slots * config.slot_width, 2 * 3 * heads * config.slots
        step = control + look + shift + 2 * heads * config.slots * config.slot_width  # adds and reads
        read = source * self.source.flops() + (target * self.target.flops() if self.target is not None else 0)
        output = 0 if self.output is None else 2 * self.output.in_features * self.output.out_features
        head = 2 * self.head.weight_VD.shape[0] * self.head.weight_VD.shape[1]
        return (source + target) * step + read + target * (output + head)


class Input(nn.Module):
    """W x for ids, where x is their bits, or one-hot (learned): then W x is a row of a table."""

    def __init__(self, config: NTMConfig, ids: int, gates: int) -> None:
        super().__init__()
        self.table_VN: Tensor | None
        if config.embedding == "bits":
            self.register_buffer("table_VN", bit_table(ids, config.bits), persistent=False)
            assert self.table_VN is not None
            self.weight = nn.Parameter(torch.empty(gates, self.table_VN.shape[1]))
        else:
            self.table_VN = None
            self.weight = nn.Parameter(torch.empty(gates, ids))
        nn.init.xavier_uniform_(self.weight)

    def forward(self, tokens_BT: Tensor) -> Tensor:
        if self.table_VN is None:
            return F.embedding(tokens_BT, self.weight.T)
        return F.linear(F.embedding(tokens_BT, self.table_VN), self.weight)

    def flops(self) -> int:
        """Return the FLOPs for one token."""
        return 0 if self.table_VN is None else 2 * self.weight.numel()


def bit_table(ids: int, bits: int) -> Tensor:
    """Return a row for each id: its bits, highest first; a channel for each id that is not a vector; one for vectors.

    The first ids are special, then come the 2^bits vectors, then others. The last channel distinguishes a vector of
    zeros from no input: otherwise a controller without a recurrent state could not know whether to generate.
    """
    id_V = torch.arange(ids)
    vector_V = id_V - SPECIAL
    is_vector_V = (vector_V >= 0) & (vector_V < 2**bits)
    bits_VW = (vector_V[:, None] >> torch.arange(bits - 1, -1, -1)) & 1 & is_vector_V[:, None]
    others = min(ids, SPECIAL) + max(0, ids - SPECIAL - 2**bits)
    channel_V = torch.where(id_V < SPECIAL, id_V, id_V - 2**bits)
    other_VC = (channel_V[:, None] == torch.arange(others)) & ~is_vector_V[:, None]
    return torch.cat([bits_VW.float(), other_VC.float(), is_vector_V[:, None].float()], dim=1)
