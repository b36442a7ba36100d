"""The Extended Neural GPU: a gated convolution changes an image of the source, as often as the source is long.

    s_0[0, k] = E[source_k], zeros in the other rows            an image of W rows, n columns (tokens) and D channels
    u = f(U_u * s + b_u),   r = f(U_r * s + b_r),   c = g(U_c * (r . s) + b_c)         * : a convolution of 3 x 3
    CGRU(s) = u . s + (1 - u) . c
    s_n = CGRU applied n times (`layers` of them each time);   P(y_t) = softmax(O s_n[0, t] + b),   t = 1, 2, ..

The answer stands in the columns of the source: what is said depends on the source alone, not on what was said before,
and beyond the last column only b speaks. The non-linearities reach their limits, so that a gate can be shut:

    cutoff:  f(x) = 1.2 sigmoid(x) - 0.1 in [0, 1],   g(x) = 1.2 tanh(x) in [-1, 1]
    hard:    f(x) = (1 + x) / 2 in [0, 1],   g(x) = x in [-1, 1],  and for every step and
             column a loss of  saturation . mean(|x| - 0.9)_+

With diagonal gates u . s becomes u . shift(s): a third of the channels comes from the column on the left, a third from
the one on the right. So a gate can carry a symbol along the image unchanged.

Cost: O(n^2 W D^2) time; n layers of n columns that wait for each other, then nothing for a token but the head.
Paper: Kaiser and Sutskever 2015, arXiv:1511.08228; Price, Zaremba and Sutskever 2016, arXiv:1611.00736 ("Extended");
diagonal gates, hard non-linearities and their loss: Freivalds and Liepins 2017, arXiv:1702.08727.
Differs: g has limits too (the first paper keeps tanh); dropout acts on c; no relaxed parameter sharing and no noise on
gradients; no decoder with outputs of its own (the second paper's active tape), as addition needs none.
"""

from dataclasses import dataclass, replace
from typing import Annotated, Literal, Self, final

import torch
from pydantic import Field, NonNegativeFloat, PositiveInt, model_validator
from torch import Tensor, nn

from allyouneed.dropout import dropout_mask
from allyouneed.errors import ConfigError
from allyouneed.mixers import Memory
from allyouneed.mixers.base import loss_sink
from allyouneed.mixers.past import pushed_left
from allyouneed.mixers.state import run_by_length
from allyouneed.models.base import Head, Model, ModelConfig
from allyouneed.models.cgru import Shape, step
from allyouneed.models.convolution import Columns, over_real
from allyouneed.models.stack import new_embedding
from allyouneed.sizes import Sizes

SATURATION = 5e-4
OPEN = (0.7, 0.5)  # biases of u and r at first: mostly keep, mostly read


class NeuralGPUConfig(ModelConfig):
    summary = "Extended Neural GPU: a gated convolution over an image of the source, a step for each token"
    paper = "Kaiser and Sutskever 2015, arXiv:1511.08228; Price et al. 2016, arXiv:1611.00736"
    kind = "encoder-decoder"

    type: Literal["neural-gpu"] = "neural-gpu"
    rows: PositiveInt = 4
    channels: PositiveInt = 24
    layers: PositiveInt = 2  # CGRUs a step
    diagonal: bool = False  # whether a third of the channels is shifted each way
    limits: Literal["cutoff", "hard"] = "cutoff"
    saturation: NonNegativeFloat | None = None  # the weight of the loss of hard limits; None: 5e-4
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.06

    @model_validator(mode="after")
    def _nothing_is_ignored(self) -> Self:
        if self.saturation is not None and self.limits != "hard":
            raise ValueError(
                f'saturation {self.saturation:g} weighs the loss of hard limits; leave it out, or set limits = "hard"'
            )
        if self.diagonal and self.channels < 3:
            raise ValueError(f"diagonal gates shift a third of the channels each way; {self.channels} have no third")
        return self

    @property
    def cost(self) -> float:
        """The weight of the loss of limits."""
        if self.limits != "hard":
            return 0.0
        return SATURATION if self.saturation is None else self.saturation

    def build(self, sizes: Sizes) -> "NeuralGPU":
        return NeuralGPU(self, sizes)


class CGRU(nn.Module):
    """One gated convolution: both gates are one product."""

    def __init__(self, config: NeuralGPUConfig) -> None:
        super().__init__()
        self.config, channels = config, config.channels
        # In an image of one row the other rows of a kernel would only ever meet zeros.
        kernel, self.around = ((3, 3), (1, 1)) if config.rows > 1 else ((1, 3), (0, 1))
        self.gates = nn.Conv2d(channels, 2 * channels, kernel)
        self.candidate = nn.Conv2d(channels, channels, kernel)
        for convolution in (self.gates, self.candidate):
            nn.init.xavier_uniform_(convolution.weight)
            nn.init.zeros_(convolution.bias)  # type: ignore[arg-type]
            convolution.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        with torch.no_grad():
            for bias_D, value in zip(self.gates.bias.chunk(2), OPEN, strict=True):  # type: ignore[union-attr]
                bias_D.fill_(value)

    def forward(self, s_BWLD: Tensor, real_BL: Tensor | None) -> tuple[Tensor, Tensor]:
        """The next image, and the loss of each row's limits."""
        config = self.config
        mask = dropout_mask(s_BWLD, config.dropout) if self.training and config.dropout else None
        shape = Shape(config.limits == "hard", _has_cost(config), config.diagonal, self.around)
        return step(s_BWLD, self.gates, self.candidate, mask, shape, real_BL)

    def flops(self, columns: int) -> int:
        """FLOPs of one step."""
        return 2 * self.config.rows * columns * (self.gates.weight.numel() + self.candidate.weight.numel())


def _has_cost(config: NeuralGPUConfig) -> bool:
    return config.cost > 0 and torch.is_grad_enabled()


@dataclass(frozen=True)
class Image(Memory):
    """The first row of the last image, and what its limits cost each row of the batch."""

    saturation_B: Tensor | None = None

    def select(self, rows_B: Tensor) -> "Image":
        chosen = super().select(rows_B)
        saturation_B = None if self.saturation_B is None else self.saturation_B.index_select(0, rows_B)
        return Image(chosen.x_BSD, chosen.valid_BS, saturation_B)


@dataclass(frozen=True)
class NeuralGPUState:
    """All that will be said, and how much of it was."""

    columns: Columns
    seen: int | Tensor = 0  # real tokens so far: one number, or one for each row (B)
    saturation_B: Tensor | None = None  # until the first tokens take it to the loss


@final
class NeuralGPU(Model):
    kind = "encoder-decoder"

    def __init__(self, config: NeuralGPUConfig, sizes: Sizes) -> None:
        super().__init__()
        self.config, self.sizes = config, sizes
        self.source_VD = nn.Parameter(torch.empty(sizes.source, config.channels).uniform_(-0.5, 0.5))
        self.layers = nn.ModuleList(CGRU(config) for _ in range(config.layers))
        self.head = Head(new_embedding(sizes.target, config.channels), bias=True)

    def encode(self, source_BS: Tensor, valid_BS: Tensor | None = None) -> Image:
        if valid_BS is None or bool(valid_BS.all()):
            s_BWLD, saturation_B = self._steps(self._drawn(source_BS), source_BS.shape[1])
            return Image(s_BWLD[:, 0], None, saturation_B)
        source_BS, length_B = source_BS.gather(1, pushed_left(valid_BS)), valid_BS.sum(dim=1)
        L = max(1, int(length_B.max()))
        valid_BL = torch.arange(L, device=source_BS.device) < length_B[:, None]
        return self._of_lengths(source_BS[:, :L], valid_BL)

    def _of_lengths(self, source_BL: Tensor, valid_BL: Tensor) -> Image:
        """Each row runs its own number of steps on its own columns."""
        s_BWLD = self._drawn(source_BL).masked_fill(~valid_BL[:, None, :, None], 0.0)
        cost_B = s_BWLD.new_zeros(s_BWLD.shape[0])

        def run_some(state: tuple[Tensor, Tensor], row_P: Tensor, steps: slice) -> tuple[Tensor, Tensor]:
            s_PWLD, more_P = self._steps(state[0], steps.stop - steps.start, valid_BL[row_P])
            return s_PWLD, state[1] + more_P

        s_BWLD, cost_B = run_by_length(valid_BL.sum(dim=1), (s_BWLD, cost_B), run_some)
        return Image(s_BWLD[:, 0], valid_BL, cost_B)

    def _drawn(self, source_BL: Tensor) -> Tensor:
        """The first image: tokens in its first row."""
        x_BLD = nn.functional.embedding(source_BL, self.source_VD)
        return nn.functional.pad(x_BLD.unsqueeze(1), (0, 0, 0, 0, 0, self.config.rows - 1))

    def _steps(self, s_BWLD: Tensor, steps: int, real_BL: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The image after so many steps, and the loss of the limits on the way."""
        total_B = s_BWLD.new_zeros(s_BWLD.shape[0])
        with torch.autocast(s_BWLD.device.type, enabled=False):  # many steps add up their rounding
            for _ in range(steps):
                for layer in self._layers():
                    s_BWLD, cost_B = layer(s_BWLD, real_BL)
                    total_B = total_B + cost_B
        return s_BWLD, total_B

    def start(self, memory: Memory | None = None) -> NeuralGPUState:
        if not isinstance(memory, Image):
            raise ConfigError("a neural-gpu answers in the image of its source; no source was given")
        return NeuralGPUState(Columns(memory.x_BSD), 0, memory.saturation_B)

    def hidden(
        self, tokens_BT: Tensor, state: NeuralGPUState, valid_BT: Tensor | None = None
    ) -> tuple[Tensor, NeuralGPUState]:
        if (sink := loss_sink()) is not None and self.config.cost and state.saturation_B is not None:
            sink(self.config.cost * state.saturation_B.sum())
        state = replace(state, saturation_B=None)
        if valid_BT is None:
            return self._said(tokens_BT, state, None)
        return over_real(lambda tokens, real_B: self._said(tokens, state, real_B), tokens_BT, valid_BT)

    def _said(self, tokens_BT: Tensor, state: NeuralGPUState, real_B: Tensor | None) -> tuple[Tensor, NeuralGPUState]:
        T = tokens_BT.shape[1]
        return state.columns.at(state.seen, T), replace(state, seen=state.seen + (T if real_B is None else real_B))

    def flops(self, source: int, target: int) -> int:
        step = sum(layer.flops(source) for layer in self._layers())
        return source * step + 2 * target * self.config.channels * self.sizes.target

    def _layers(self) -> list[CGRU]:
        return list(self.layers)  # type: ignore[arg-type]
