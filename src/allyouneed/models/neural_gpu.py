"""The Neural GPU: a gated convolution is applied to an image of the source once per column of the image.

    s_0[0, k] = E[source_k], zeros elsewhere           an image of W rows, n columns (`unfold` per token) and D channels
    u = f(U_u * s + b_u),   r = f(U_r * s + b_r),   c = g(U_c * (r . s) + b_c)         * : a convolution of 3 x 3
    CGRU(s) = u . s + (1 - u) . c
    s_n = CGRU applied n times (`layers` of them each time)

    parallel:  P(y_k) = softmax(O s_n[0, k] + b),   k = 0, 1, ..
    tape:      d_0 = s_n,   P(y_k) = softmax(O d_k[0, k] + b),   d_(k+1) = CGRU^d(d_k, a tape with y_0 .. y_k)

In parallel decoding the output depends on the source alone, not on earlier tokens, and after the last column on b
alone. With a tape (parts/tape.py) this is the Extended Neural GPU: each token depends on the previous ones. The length
of the target is not known in advance: n is the number of source tokens times `unfold`, rounded up.

The non-linearities reach their limits, so that a gate can close completely:

    cutoff:  f(x) = 1.2 sigmoid(x) - 0.1 in [0, 1],   g(x) = 1.2 tanh(x) in [-1, 1]
    hard:    f(x) = (1 + x) / 2 in [0, 1],   g(x) = x in [-1, 1],  and for every step and
             column a loss of  saturation . mean(|x| - 0.9)_+

With diagonal gates u . s becomes u . shift(s): a third of the channels comes from the column on the left, a third from
the one on the right. So a gate can carry a symbol along the image unchanged.

Cost: O(n^2 W D^2) time; n sequential layers of n columns, then only the head for each token, or one more layer with a
tape.
Paper: Kaiser and Sutskever 2015, arXiv:1511.08228; the tape: Kaiser and Bengio 2016, arXiv:1610.08613 ("Extended Neural
GPU"); diagonal gates, hard non-linearities and their loss: Freivalds and Liepins 2017, arXiv:1702.08727.
Differs: g has limits too (the papers keep tanh); dropout acts on c; no relaxed parameter sharing and no noise on
gradients. The papers pad source and target to one length, which is n; here n follows from the source alone, so that
decoding is the same as in training.
"""

import math
from dataclasses import dataclass, replace
from typing import Annotated, Literal, Self, final

import torch
from pydantic import Field, NonNegativeFloat, PositiveInt, model_validator
from torch import Tensor, nn

from allyouneed.errors import ConfigError
from allyouneed.mixers import Memory, select_rows
from allyouneed.mixers.base import loss_sink
from allyouneed.mixers.parts.kv_cache import real_first
from allyouneed.mixers.parts.projections import full_precision
from allyouneed.mixers.parts.state import run_by_length
from allyouneed.models.base import Head, Model, ModelConfig
from allyouneed.models.parts.cgru import CGRU, CGRUShape
from allyouneed.models.parts.convolution import Columns, over_real
from allyouneed.models.parts.stack import new_embedding
from allyouneed.models.parts.tape import Tape, TapeState
from allyouneed.sizes import Sizes

SATURATION = 5e-4


class NeuralGPUConfig(ModelConfig):
    summary = "Neural GPU: a gated convolution over an image of the source; Extended, with an output tape"
    paper = "Kaiser and Sutskever 2015, arXiv:1511.08228; Kaiser and Bengio 2016, arXiv:1610.08613 (tape)"
    kind = "encoder-decoder"

    type: Literal["neural-gpu"] = "neural-gpu"
    decoder: Literal["parallel", "tape"] = "parallel"
    rows: PositiveInt = 4
    channels: PositiveInt = 24
    layers: PositiveInt = 2  # CGRUs per step
    unfold: Annotated[float, Field(ge=1)] = 1.0  # columns, and so steps, for each token of the source
    diagonal: bool = False  # shift a third of the channels in each direction
    limits: Literal["cutoff", "hard"] = "cutoff"
    saturation: NonNegativeFloat | None = None  # the weight of the loss of hard limits; None: 5e-4
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.06

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.saturation is not None and self.limits != "hard":
            raise ValueError(
                f'saturation {self.saturation:g} weighs the loss of hard limits; leave it out, or set limits = "hard"'
            )
        if self.limits == "hard" and self.decoder == "tape":
            raise ValueError('hard limits need their loss, which a tape does not take; set limits = "cutoff"')
        if self.diagonal and self.channels < 3:
            raise ValueError(f"diagonal gates shift a third of the channels each way; {self.channels} have no third")
        return self

    @property
    def cost(self) -> float:
        """Return the weight of the loss of limits."""
        if self.limits != "hard":
            return 0.0
        return SATURATION if self.saturation is None else self.saturation

    def columns(self, tokens: int) -> int:
        """Return the width of the image of `tokens` tokens."""
        return math.ceil(self.unfold * tokens)

    def units(self) -> list[CGRU]:
        """Return the units of one step, with random weights."""
        # In an image of one row the other rows of a kernel would only see zeros.
        shape = CGRUShape(self.limits == "hard", self.cost > 0, self.diagonal, (1 if self.rows > 1 else 0, 1))
        return [CGRU(self.channels, shape, self.dropout) for _ in range(self.layers)]

    def layer_counts(self) -> tuple[int, ...]:
        return (self.layers,)

    def build(self, sizes: Sizes) -> "NeuralGPU":
        return NeuralGPU(self, sizes)


@dataclass(frozen=True)
class Image(Memory):
    """The first row of the last image; the full image, for a tape; and the loss of the limits for each row."""

    image_BWLD: Tensor | None = None
    cost_B: Tensor | None = None

    def select(self, rows_B: Tensor) -> "Image":
        chosen = super().select(rows_B)
        return Image(chosen.x_BSD, chosen.mask_BS, *select_rows((self.image_BWLD, self.cost_B), rows_B))


@dataclass(frozen=True)
class NeuralGPUState:
    """The columns that predict all tokens, and the number of tokens so far."""

    columns: Columns
    seen: int | Tensor = 0  # real tokens so far: one number, or one for each row (B)
    cost_B: Tensor | None = None  # until it is sent to the loss with the first tokens


@final
class NeuralGPU(Model):
    kind = "encoder-decoder"
    config: NeuralGPUConfig

    def __init__(self, config: NeuralGPUConfig, sizes: Sizes) -> None:
        super().__init__()
        self.config, self.sizes = config, sizes
        self.source_VD = nn.Parameter(torch.empty(sizes.source, config.channels).uniform_(-0.5, 0.5))
        self.layers = nn.ModuleList(config.units())
        self.tape = Tape(sizes.target, config.units()) if config.decoder == "tape" else None
        self.head = Head(new_embedding(sizes.target, config.channels), bias=True)

    def encode(self, source_BS: Tensor, mask_BS: Tensor | None = None) -> Image:
        if mask_BS is None or bool(mask_BS.all()):
            L = self.config.columns(source_BS.shape[1])
            s_BWLD, cost_B = self._steps(self._image(source_BS, L), L)
            return Image(s_BWLD[:, 0], None, s_BWLD, cost_B)
        source_BS, length_B = source_BS.gather(1, real_first(mask_BS)), mask_BS.sum(dim=1)
        columns_B = (self.config.unfold * length_B.double()).ceil().long()
        L = max(1, int(columns_B.max()))
        place_L = torch.arange(L, device=source_BS.device)
        drawn_BL, real_BL = place_L < length_B[:, None], place_L < columns_B[:, None]
        s_BWLD = self._image(source_BS[:, :L], L).masked_fill(~drawn_BL[:, None, :, None], 0.0)

        def run_some(state: tuple[Tensor, Tensor], row_P: Tensor, steps: slice) -> tuple[Tensor, Tensor]:
            s_PWLD, cost_P = self._steps(state[0], steps.stop - steps.start, real_BL[row_P])
            return s_PWLD, state[1] + cost_P

        # Each row runs its own number of steps on its own columns.
        s_BWLD, cost_B = run_by_length(columns_B, (s_BWLD, s_BWLD.new_zeros(len(columns_B))), run_some)
        return Image(s_BWLD[:, 0], real_BL, s_BWLD, cost_B)

    def _image(self, source_BS: Tensor, columns: int) -> Tensor:
        """Return the first image: tokens in its first row, from the left."""
        x_BSD = nn.functional.embedding(source_BS, self.source_VD)
        more = columns - source_BS.shape[1]
        return nn.functional.pad(x_BSD.unsqueeze(1), (0, 0, 0, more, 0, self.config.rows - 1))

    def _steps(self, s_BWLD: Tensor, steps: int, real_BL: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return the image after `steps` steps, and the total loss of the limits."""
        total_B = s_BWLD.new_zeros(s_BWLD.shape[0])
        with full_precision(s_BWLD):  # rounding errors accumulate over many steps
            for _ in range(steps):
                for layer in self.layers:
                    s_BWLD, cost_B = layer(s_BWLD, real_BL)
                    total_B = total_B + cost_B
        return s_BWLD, total_B

    def start(self, memory: Memory | None = None) -> NeuralGPUState | TapeState:
        if not isinstance(memory, Image) or memory.image_BWLD is None:
            raise ConfigError("a neural-gpu needs a source; no source was given")
        if self.tape is not None:
            return self.tape.start(memory.image_BWLD, memory.mask_BS)
        return NeuralGPUState(Columns(memory.x_BSD), 0, memory.cost_B)

    def hidden(
        self, tokens_BT: Tensor, state: NeuralGPUState | TapeState, mask_BT: Tensor | None = None
    ) -> tuple[Tensor, NeuralGPUState | TapeState]:
        if isinstance(state, NeuralGPUState):
            if (sink := loss_sink()) is not None and self.config.cost and state.cost_B is not None:
                sink(self.config.cost * state.cost_B.sum())
            state = replace(state, cost_B=None)
        if mask_BT is None:
            return self._predict(tokens_BT, state, None)
        return over_real(lambda tokens, real_B: self._predict(tokens, state, real_B), tokens_BT, mask_BT)

    def _predict(
        self, tokens_BT: Tensor, state: NeuralGPUState | TapeState, real_B: Tensor | None
    ) -> tuple[Tensor, NeuralGPUState | TapeState]:
        if isinstance(state, TapeState):
            assert self.tape is not None
            return self.tape.run(tokens_BT, state, real_B)
        T = tokens_BT.shape[1]
        return state.columns.at(state.seen, T), replace(state, seen=state.seen + (T if real_B is None else real_B))

    def flops(self, source: int, target: int) -> int:
        rows, columns = self.config.rows, self.config.columns(source)
        step = sum(layer.flops(rows * columns) for layer in self.layers)  # type: ignore[operator]
        tape = 0 if self.tape is None else self.tape.flops(rows, columns, target)
        return columns * step + tape + 2 * target * self.config.channels * self.sizes.target
