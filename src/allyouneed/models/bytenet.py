"""ByteNet: dilated convolutions encode the source, masked ones on top of them decode the target, in linear time.

    r = W Encoder(s_1 .. s_|s|, padded to n = a |s| + b)                      n columns, no masks
    x_t = E[y_(t-1)] + r_t    (r_t = 0 beyond n: dynamic unfolding)           t = 1, 2, .. until EOS
    P(y_t | y_<t, s) = softmax(W_2 relu(LN(W_1 Decoder(x_1 .. x_t))))

Both stacks are residual blocks with 2d channels outside and d inside; dilations 1, 2, 4, 8, 16, repeated:

    relu:            x + C_3 relu(LN(C_2 * relu(LN(C_1 relu(LN(x))))))        C_2 of width k, dilated; C_1, C_3 of 1
    multiplicative:  x + C_3 MU_1(LN(MU_k(LN(C_1 relu(LN(x))))))
    MU(h) = g_1 tanh(g_2 h + g_3 u),   g_i = sigmoid(G_i * h),  u = tanh(G_4 * h)

Cost: O(T + S) time, constant state and time per generated token; path O(log n) with dilation. There is no attention.
Paper: Kalchbrenner et al. 2016, arXiv:1610.10099; multiplicative units: Kalchbrenner et al. 2017, arXiv:1610.00527.
Differs: a column is added to the embedding through a matrix (the paper stacks them and does not say how); columns
beyond the source are a trained vector; dropout, for small data; a norm after each stack, as all blocks are pre-norm.
"""

import math
from dataclasses import dataclass
from typing import Annotated, Literal, final

import torch
from pydantic import Field, NonNegativeInt, PositiveInt, field_validator
from torch import Tensor, nn

from allyouneed.dropout import Dropout
from allyouneed.errors import ConfigError
from allyouneed.mixers import Memory
from allyouneed.mixers.parts.conv_window import ConvWindow
from allyouneed.mixers.parts.kv_cache import real_first
from allyouneed.mixers.parts.state import Growable
from allyouneed.models.base import Head, Model, ModelConfig
from allyouneed.models.parts.convolution import Columns, over_real, silence
from allyouneed.models.parts.stack import Embedding, new_embedding
from allyouneed.positions import NoPositionConfig
from allyouneed.sizes import Sizes


class ByteNetConfig(ModelConfig):
    summary = "dilated convolutions, the decoder stacked on the encoder's columns; linear time, no attention"
    paper = "Kalchbrenner et al. 2016, arXiv:1610.10099"
    kind = "encoder-decoder"

    type: Literal["bytenet"] = "bytenet"
    width: Annotated[int, Field(ge=2, multiple_of=2)] = 1600  # the paper's 2d: channels between blocks
    block: Literal["relu", "multiplicative"] = "relu"  # the paper's for translation, and for language modelling
    kernel: PositiveInt = 3
    dilations: tuple[PositiveInt, ...] = (1, 2, 4, 8, 16)
    encoder_sets: NonNegativeInt = 6  # how often the dilations are repeated
    decoder_sets: NonNegativeInt = 6
    unfold: Annotated[float, Field(ge=1)] = 1.2  # a and b: columns for a source of |s| tokens are a |s| + b
    unfold_more: NonNegativeInt = 0
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0

    @field_validator("dilations", mode="after")
    @classmethod
    def _not_empty(cls, value: tuple[int, ...]) -> tuple[int, ...]:
        if not value:
            raise ValueError("an empty list; give at least one dilation, such as [1, 2, 4, 8, 16]")
        return value

    def columns(self, source: int) -> int:
        """Return |t^| = a |s| + b, rounded up: the length of the source's representation."""
        return math.ceil(self.unfold * source + self.unfold_more)

    def build(self, sizes: Sizes) -> "ByteNet":
        return ByteNet(self, sizes)


class ReluBlock(nn.Module):
    """Figure 3, left. `enter` ends before the convolution, `leave` starts with it."""

    def __init__(self, config: ByteNetConfig, window: ConvWindow) -> None:
        super().__init__()
        width, inner = config.width, config.width // 2
        self.window, self.inner, self.dropout = window, inner, Dropout(config.dropout)
        self.norm, self.narrow = nn.LayerNorm(width), nn.Linear(width, inner)
        self.inner_norm, self.convolution = nn.LayerNorm(inner), nn.Linear(window.kernel * inner, inner)
        self.last_norm, self.widen = nn.LayerNorm(inner), nn.Linear(inner, width)

    def enter(self, x: Tensor) -> Tensor:
        """Return the input of the convolution: (.., D) -> (.., F)."""
        inner: Tensor = self.inner_norm(self.narrow(self.norm(x).relu())).relu()
        return inner

    def leave(self, x: Tensor, inner: Tensor, windows: Tensor) -> Tensor:
        """Return the block's output from its input, the output of `enter`, and the windows of that (.., kernel F)."""
        return self.dropout.add(x, self.widen(self.last_norm(self.convolution(windows)).relu()))

    def flops(self, length: int) -> int:
        """Return the FLOPs for `length` positions."""
        return 2 * length * sum(layer.weight.numel() for layer in (self.narrow, self.convolution, self.widen))


class MultiplicativeBlock(nn.Module):
    """Figure 3, right: two multiplicative units, the first of which is a convolution."""

    def __init__(self, config: ByteNetConfig, window: ConvWindow) -> None:
        super().__init__()
        width, inner = config.width, config.width // 2
        self.window, self.inner, self.dropout = window, inner, Dropout(config.dropout)
        self.norm, self.narrow = nn.LayerNorm(width), nn.Linear(width, inner)
        self.inner_norm, self.gates = nn.LayerNorm(inner), nn.Linear(window.kernel * inner, 4 * inner)
        self.last_norm, self.last_gates = nn.LayerNorm(inner), nn.Linear(inner, 4 * inner)
        self.widen = nn.Linear(inner, width)

    def enter(self, x: Tensor) -> Tensor:
        """Return the input of the first unit: (.., D) -> (.., F)."""
        inner: Tensor = self.inner_norm(self.narrow(self.norm(x).relu()))
        return inner

    def leave(self, x: Tensor, inner: Tensor, windows: Tensor) -> Tensor:
        """Return the block's output from its input, the output of `enter`, and the windows of that (.., kernel F)."""
        inner = self.last_norm(multiplicative_unit(inner, self.gates(windows)))
        return self.dropout.add(x, self.widen(multiplicative_unit(inner, self.last_gates(inner))))

    def flops(self, length: int) -> int:
        """Return the FLOPs for `length` positions."""
        layers = (self.narrow, self.gates, self.last_gates, self.widen)
        return 2 * length * sum(layer.weight.numel() for layer in layers)


def multiplicative_unit(inner: Tensor, gates: Tensor) -> Tensor:
    """Return g_1 tanh(g_2 h + g_3 u), from h (.., F) and the convolution for g_1, g_2, g_3 and u (.., 4 F)."""
    width = inner.shape[-1]
    gate_1, gate_2, gate_3 = gates[..., : 3 * width].sigmoid().chunk(3, dim=-1)
    return gate_1 * torch.addcmul(gate_2 * inner, gate_3, gates[..., 3 * width :].tanh()).tanh()


Block = ReluBlock | MultiplicativeBlock


class Sets(nn.Module):
    """Blocks of growing dilation, repeated, and a final norm."""

    def __init__(self, config: ByteNetConfig, sets: int) -> None:
        super().__init__()
        block = ReluBlock if config.block == "relu" else MultiplicativeBlock
        windows = [ConvWindow(config.kernel, dilation) for _ in range(sets) for dilation in config.dilations]
        self.blocks = nn.ModuleList(block(config, window) for window in windows)
        self.norm = nn.LayerNorm(config.width)
        for layer in self.modules():
            if isinstance(layer, nn.Linear):
                nn.init.xavier_uniform_(layer.weight)
                nn.init.zeros_(layer.bias)

    @property
    def all(self) -> list[Block]:
        """Return the blocks with their type, from the bottom up."""
        return list(self.blocks)  # type: ignore[arg-type]

    def read(self, x_BSD: Tensor, mask_BS: Tensor | None) -> Tensor:
        """Encode the source, without causal masks."""
        for block in self.all:
            inner_BSF = silence(block.enter(x_BSD), mask_BS)
            x_BSD = block.leave(x_BSD, inner_BSF, block.window.centred(inner_BSF))
        normed_BSD: Tensor = self.norm(x_BSD)
        return normed_BSD

    def write(
        self, x_BTD: Tensor, caches: tuple[Growable, ...], real_B: Tensor | None
    ) -> tuple[Tensor, tuple[Growable, ...]]:
        """Decode target positions, with causal masks, after the inputs in `caches`."""
        after = []
        for block, cache in zip(self.all, caches, strict=True):
            inner_BTF = block.enter(x_BTD)
            windows_BTN, left = block.window.causal(inner_BTF, cache, real_B)
            x_BTD = block.leave(x_BTD, inner_BTF, windows_BTN)
            after.append(left)
        return self.norm(x_BTD), tuple(after)

    def advance(self, x_BD: Tensor, caches: tuple[Growable, ...]) -> tuple[Tensor, tuple[Growable, ...]]:
        """Run `write` for one position of each row."""
        after = []
        for block, cache in zip(self.all, caches, strict=True):
            inner_BF = block.enter(x_BD)
            windows_BN, left = block.window.advance(inner_BF, cache)
            x_BD = block.leave(x_BD, inner_BF, windows_BN)
            after.append(left)
        return self.norm(x_BD), tuple(after)

    def flops(self, length: int) -> int:
        """Return the FLOPs of all blocks for `length` positions."""
        return sum(block.flops(length) for block in self.all)


@dataclass(frozen=True)
class ByteNetState:
    """The state: the last inputs of every convolution, the source's columns, and the place on them."""

    caches: tuple[Growable, ...]
    source: Columns
    seen: int | Tensor = 0  # real tokens so far: one number, or one for each row (B)


@final
class ByteNet(Model):
    kind = "encoder-decoder"
    config: ByteNetConfig

    def __init__(self, config: ByteNetConfig, sizes: Sizes) -> None:
        super().__init__()
        self.config, self.sizes = config, sizes
        width = config.width
        self.source = Embedding(new_embedding(sizes.source, width), NoPositionConfig(), config.dropout)
        self.beyond_D = nn.Parameter(torch.randn(width))  # the columns after the source, up to a |s| + b
        self.encoder = Sets(config, config.encoder_sets)
        self.bridge = nn.Linear(width, width, bias=False)
        self.target = Embedding(new_embedding(sizes.target, width), NoPositionConfig(), config.dropout)
        self.decoder = Sets(config, config.decoder_sets)
        self.last, self.last_norm = nn.Linear(width, width), nn.LayerNorm(width)
        self.head = Head(new_embedding(sizes.target, width), bias=True)

    def encode(self, source_BS: Tensor, mask_BS: Tensor | None = None) -> Memory:
        B, S = source_BS.shape
        if mask_BS is not None:
            source_BS = source_BS.gather(1, real_first(mask_BS))
        length_B = source_BS.new_full((B,), S) if mask_BS is None else mask_BS.sum(dim=1)
        L = self.config.columns(S)
        place_L = torch.arange(L, device=source_BS.device)
        x_BLD = nn.functional.pad(self.source(source_BS, place_L[:S]), (0, 0, 0, L - S))
        x_BLD = torch.where((place_L < length_B[:, None]).unsqueeze(-1), x_BLD, self.beyond_D)
        columns_B = (self.config.unfold * length_B.double() + self.config.unfold_more).ceil()
        mask_BL = None if mask_BS is None else place_L < columns_B[:, None]
        return Memory(self.encoder.read(x_BLD, mask_BL), mask_BL)

    def start(self, memory: Memory | None = None) -> ByteNetState:
        if memory is None:
            raise ConfigError("ByteNet needs a source; no source was given")
        columns_BLD = silence(self.bridge(memory.x_BSD), memory.mask_BS)
        caches = tuple(block.window.start(columns_BLD, block.inner) for block in self.decoder.all)
        return ByteNetState(caches, Columns(columns_BLD))

    def hidden(
        self, tokens_BT: Tensor, state: ByteNetState, mask_BT: Tensor | None = None
    ) -> tuple[Tensor, ByteNetState]:
        if mask_BT is None:
            return self._write(tokens_BT, state, None)
        return over_real(lambda tokens, real_B: self._write(tokens, state, real_B), tokens_BT, mask_BT)

    def _write(self, tokens_BT: Tensor, state: ByteNetState, real_B: Tensor | None) -> tuple[Tensor, ByteNetState]:
        T = tokens_BT.shape[1]
        x_BTD = self.target(tokens_BT, tokens_BT) + state.source.at(state.seen, T)
        x_BTD, caches = self.decoder.write(x_BTD, state.caches, real_B)
        seen = state.seen + (T if real_B is None else real_B)
        return self._finish(x_BTD), ByteNetState(caches, state.source, seen)

    def advance(self, token_B: Tensor, state: ByteNetState) -> tuple[Tensor, ByteNetState]:
        x_BD = self.target.advance(token_B, state.seen) + state.source.at(state.seen, 1).squeeze(1)
        x_BD, caches = self.decoder.advance(x_BD, state.caches)
        return self.head(self._finish(x_BD)), ByteNetState(caches, state.source, state.seen + 1)

    def _finish(self, x: Tensor) -> Tensor:
        """Apply one more layer and its activation before the output projection (section 3.6)."""
        finished: Tensor = self.last_norm(self.last(x)).relu()
        return finished

    def flops(self, source: int, target: int) -> int:
        columns, width = self.config.columns(source), self.config.width
        around = 2 * width * width * (columns + target) + 2 * target * width * self.sizes.target
        return self.encoder.flops(columns) + self.decoder.flops(target) + around
