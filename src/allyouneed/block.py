"""THE block: mixer, optional cross mixer, feed-forward, each with a residual. It never looks inside a mixer.

    post (the paper):  x = Norm(x + Dropout(Sublayer(x)))
    pre:               x = x + Dropout(Sublayer(Norm(x)))
    both:              x = x + Dropout(Norm'(Sublayer(Norm(x))))
    none:              x = x + Dropout(Sublayer(x))

A `parallel` block computes both sublayers of the same input. It is pre-norm or has no norms, and reads no memory.

    pre:               x = x + Dropout(Mixer(Norm(x))) + Dropout(FeedForward(Norm'(x)))

With two `streams`, attention reads one and is added to the other; the feed-forward layer reads that one and is added to
the first. x holds both (2 D wide). The inputs could be computed from the outputs: reversible.

    pre:               a = a + Dropout(Mixer(Norm(b)));   b = b + Dropout(FeedForward(Norm(a)))

Paper: Vaswani et al. 2017, arXiv:1706.03762, sections 3.1 and 5.4; pre-norm: Xiong et al. 2020, arXiv:2002.04745;
both: Ding et al. 2021, arXiv:2105.13290, section 2.4;
parallel: Black et al. 2022, arXiv:2204.06745;
two streams: Gomez et al. 2017, arXiv:1707.04585; Kitaev et al. 2020, arXiv:2001.04451, section 3.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Literal

import torch
from pydantic import Field, PositiveFloat, PositiveInt
from torch import Tensor, nn
from torch.nn import functional as F

from allyouneed.config import Config
from allyouneed.dropout import Dropout
from allyouneed.errors import ConfigError
from allyouneed.mixers import Memory, Mixer, State

NormPlace = Literal["post", "pre", "both", "none"]
Activation = Literal["relu", "gelu", "gelu-tanh", "silu", "swiglu", "geglu", "geglu-tanh"]
FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu_,
    "gelu": F.gelu,
    "gelu-tanh": partial(F.gelu, approximate="tanh"),  # the approximation of GPT-2, BLOOM and others
    "silu": F.silu,
}
GATED: dict[str, str] = {"swiglu": "silu", "geglu": "gelu", "geglu-tanh": "gelu-tanh"}  # the function of the gate
Fraction = Annotated[float, Field(ge=0, lt=1)]
Mix = Callable[..., tuple[Tensor, State]]  # a mixer, or its `advance`


class BlockConfig(Config):
    """The settings that all blocks of a model share."""

    norm: NormPlace = "post"
    normalisation: Literal["layer", "rms"] = "layer"
    feedforward: Activation = "relu"
    hidden: PositiveInt = 2048
    feedforward_bias: bool = True
    epsilon: PositiveFloat | None = None  # of norms; default: 1e-5 (layer), 1e-6 (rms)
    dropout: Fraction = 0.1
    streams: Literal[1, 2] = 1  # number of residual streams
    parallel: bool = False  # mixer and feed-forward layer read the same input

    @property
    def stream_width(self) -> int:
        """Return the number of features between blocks: `width` for each stream."""
        return self.streams * int(getattr(self, "width", 0))

    @property
    def has_norms(self) -> bool:
        """Return whether the model has any norm."""
        return self.norm != "none"

    def ineffective_setting(self) -> str | None:
        changed = [name for name in ("normalisation", "epsilon") if self._is_changed(name)]
        if changed and not self.has_norms:
            return f"{changed[0]}={getattr(self, changed[0])}: has no effect with norm='none'; remove it"
        return None

    def _is_changed(self, name: str) -> bool:
        return bool(getattr(self, name) != type(self).model_fields[name].default)

    def build_norm(self, width: int) -> nn.Module:
        """Return LayerNorm (gamma, beta) or RMSNorm (gamma), or Identity if blocks have no norms."""
        if self.norm == "none":
            return nn.Identity()
        return self.make_norm(width)

    def make_norm(self, width: int) -> nn.Module:
        """Return LayerNorm or RMSNorm, even if blocks have no norms."""
        if self.normalisation == "layer":
            return nn.LayerNorm(width, eps=self.epsilon or 1e-5)
        return nn.RMSNorm(width, eps=self.epsilon or 1e-6)

    def feedforward_flops(self, width: int) -> int:
        """Return the FLOPs of the feed-forward layer for one position."""
        return 2 * (3 if self.feedforward in GATED else 2) * width * self.hidden


class FeedForward(nn.Module):
    """W2 f(W1 x + b1) + b2 with f = ReLU (equation 2), GELU or SiLU; gated: W2 (f(W1 x) * W3 x) (Shazeer 2020)."""

    def __init__(self, width: int, hidden: int, activation: Activation, bias: bool = True) -> None:
        super().__init__()
        self.gated = activation in GATED
        self.function = FUNCTIONS[GATED.get(activation, activation)]
        self.inner = nn.Linear(width, (2 if self.gated else 1) * hidden, bias=bias)
        self.outer = nn.Linear(hidden, width, bias=bias)
        for part in self.inner.weight.split(hidden):
            nn.init.xavier_uniform_(part)
        nn.init.xavier_uniform_(self.outer.weight)
        if bias:
            nn.init.zeros_(self.inner.bias)
            nn.init.zeros_(self.outer.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Map (..., D) -> (..., D), each position by itself."""
        if self.gated:
            gate, value = self.inner(x).chunk(2, dim=-1)
            return self.outer(self.function(gate) * value)
        return self.outer(self.function(self.inner(x)))


@dataclass(frozen=True)
class BlockState:
    """The state of one block."""

    mixer: State
    cross: State | None = None


class Block(nn.Module):
    def __init__(self, config: BlockConfig, width: int, mixer: Mixer, cross: Mixer | None = None) -> None:
        super().__init__()
        if config.streams == 2 and (config.norm != "pre" or cross is not None):
            raise ConfigError("model.streams=2 needs model.norm='pre' and a stack without cross-attention")
        if config.parallel and (config.norm in ("post", "both") or config.streams != 1 or cross is not None):
            raise ConfigError(
                "model.parallel=true needs model.norm='pre' or 'none', one stream and a stack without cross-attention"
            )
        self.norm_place, self.streams, self.parallel = config.norm, config.streams, config.parallel
        self.mixer, self.cross = mixer, cross
        self.feedforward = FeedForward(width, config.hidden, config.feedforward, config.feedforward_bias)
        self.dropout = Dropout(config.dropout)
        self.mixer_norm = config.build_norm(width)
        self.cross_norm = config.build_norm(width) if cross is not None else nn.Identity()
        self.feedforward_norm = config.build_norm(width)
        if config.norm == "both":
            self.mixed_norm, self.fed_norm = config.build_norm(width), config.build_norm(width)
            self.crossed_norm = config.build_norm(width) if cross is not None else nn.Identity()

    def forward(
        self,
        x_BTD: Tensor,
        *,
        mask_BT: Tensor | None = None,
        memory: Memory | None = None,
        state: BlockState | None = None,
    ) -> tuple[Tensor, BlockState]:
        """Return the output for the new positions, and the state for the next ones."""
        return self._run(x_BTD, partial(self.mixer, mask_BT=mask_BT), self.cross, memory, state, self.feedforward)

    def advance(self, x_BD: Tensor, memory: Memory | None, state: BlockState | None) -> tuple[Tensor, BlockState]:
        """Run `forward` for one new position of each row."""
        cross = self.cross.advance if self.cross is not None else None
        return self._run(x_BD, self.mixer.advance, cross, memory, state, self.feedforward.forward)

    def _run(
        self,
        x: Tensor,
        mix: Mix,
        cross: Mix | None,
        memory: Memory | None,
        state: BlockState | None,
        feed: Callable[[Tensor], Tensor],
    ) -> tuple[Tensor, BlockState]:
        if self.streams == 2:
            return self._run_two(x, mix, state, feed)
        if self.parallel:
            return self._run_parallel(x, mix, state, feed)
        pre, both = self.norm_place in ("pre", "both"), self.norm_place == "both"
        y, mixed = mix(self.mixer_norm(x) if pre else x, state=state.mixer if state else None)
        x = self.add_residual(x, self.mixed_norm(y) if both else y, self.mixer_norm)
        crossed: State = None
        if cross is not None:
            y, crossed = cross(self.cross_norm(x) if pre else x, memory=memory, state=state.cross if state else None)
            x = self.add_residual(x, self.crossed_norm(y) if both else y, self.cross_norm)
        y = feed(self.feedforward_norm(x) if pre else x)
        x = self.add_residual(x, self.fed_norm(y) if both else y, self.feedforward_norm)
        return x, BlockState(mixed, crossed)

    def _run_two(
        self, x: Tensor, mix: Mix, state: BlockState | None, feed: Callable[[Tensor], Tensor]
    ) -> tuple[Tensor, BlockState]:
        a, b = x.chunk(2, dim=-1)
        y, mixed = mix(self.mixer_norm(b), state=state.mixer if state else None)
        a = self.add_residual(a, y, self.mixer_norm)
        b = self.add_residual(b, feed(self.feedforward_norm(a)), self.feedforward_norm)
        return torch.cat([a, b], dim=-1), BlockState(mixed)

    def _run_parallel(
        self, x: Tensor, mix: Mix, state: BlockState | None, feed: Callable[[Tensor], Tensor]
    ) -> tuple[Tensor, BlockState]:
        y, mixed = mix(self.mixer_norm(x), state=state.mixer if state else None)
        fed = feed(self.feedforward_norm(x))
        return self.add_residual(self.add_residual(x, y, self.mixer_norm), fed, self.feedforward_norm), BlockState(
            mixed
        )

    def add_residual(self, x: Tensor, y: Tensor, norm: nn.Module) -> Tensor:
        """Return x + Dropout(y), normalised if norms come after the residual."""
        x = self.dropout.add(x, y) if self.training else x + y
        return norm(x) if self.norm_place == "post" else x
