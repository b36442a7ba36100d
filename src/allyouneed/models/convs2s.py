"""ConvS2S: gated convolutions in encoder and decoder, and attention in every layer of the decoder.

    e_j = E_s[s_j] + P_s[j],   g_i = E_t[y_i] + P_t[i]                          embeddings with learned positions
    GLU block:    h <- (A sigmoid(B) + h) sqrt(1/2),   [A; B] = W * h + b        W of width k; masked in the decoder
    attention:    d_i = W_d h_i + b_d + g_i,   a_ij = softmax_j(d_i . z_j)
                  c_i = sqrt(m) sum_j a_ij (z_j + e_j),   h_i <- (W_c c_i + b_c + h_i) sqrt(1/2)

z is the encoder's output for m tokens; e and h are mapped linearly between width and channels. Each factor preserves
the variance of a sum (sections 3.4 and 3.5): sqrt(1/2) for two terms, m sqrt(1/m) for m terms with equal weights. L
attentions send gradients into one encoder, so the gradient of z (not of e) is scaled by 1 / (2 L). Every matrix is
weight-normalised: W = g V / |V| by rows, initialised to W = V.

Cost: O((T + S) k D^2 + T S D) time; k - 1 vectors of state per layer, and the memory; path O(n / k) between
positions of one side, 1 from a target to any source position.
Paper: Gehring et al. 2017, arXiv:1705.03122; weight normalisation: Salimans and Kingma 2016, arXiv:1602.07868.
Differs: the projection to the vocabulary is not weight-normalised; one kernel and one number of channels for all
layers of a side; the residual is added before the attention, as in the paper's equations (the authors' code adds it
after); sums are scaled by sqrt(1/2), including d_i = (W_d h_i + b_d + g_i) sqrt(1/2) and (z_j + e_j) sqrt(1/2).
"""

import math
from dataclasses import dataclass
from typing import Annotated, Any, Literal, final

import torch
from pydantic import Field, NonNegativeInt, PositiveInt, field_validator
from torch import Tensor, nn
from torch.nn import functional as F

from allyouneed.dropout import Dropout
from allyouneed.errors import ConfigError
from allyouneed.mixers import Memory
from allyouneed.mixers.base import map_sink
from allyouneed.mixers.parts.conv_window import ConvWindow
from allyouneed.mixers.parts.kv_cache import CrossState, next_positions, real_first
from allyouneed.mixers.parts.state import Growable
from allyouneed.models.base import Head, Model, ModelConfig
from allyouneed.models.parts.convolution import over_real, silence
from allyouneed.positions import AnyPosition, Learned, LearnedConfig, PositionConfig
from allyouneed.sizes import Sizes
from allyouneed.torch_private import weight_norm

HALF = math.sqrt(0.5)
Probability = Annotated[float, Field(ge=0, lt=1)]


class ConvS2SConfig(ModelConfig):
    summary = "gated convolutions, and attention in every layer of the decoder"
    paper = "Gehring et al. 2017, arXiv:1705.03122"
    kind = "encoder-decoder"

    type: Literal["convs2s"] = "convs2s"
    width: PositiveInt = 512  # of embeddings and of attention
    channels: PositiveInt = 512  # of the convolutions
    kernel: PositiveInt = 3
    encoder_layers: NonNegativeInt = 15
    decoder_layers: PositiveInt = 15
    positions: AnyPosition = LearnedConfig(max_length=1024)  # learned positions have a last one, sinusoidal ones do not
    dropout: Probability = 0.1  # of embeddings, of each convolution's input, of the decoder's output
    tied: bool = False  # target embedding = output projection (= source embedding, if the vocabulary is shared)

    @field_validator("positions", mode="after")
    @classmethod
    def _added(cls, value: PositionConfig) -> PositionConfig:
        if value.type not in ("learned", "sinusoidal", "none"):
            raise ValueError(
                f"{value.type!r} acts inside self-attention, which ConvS2S does not have; use learned or sinusoidal"
            )
        return value

    def layer_counts(self) -> tuple[int, ...]:
        return (self.encoder_layers, self.decoder_layers)

    def build(self, sizes: Sizes) -> "ConvS2S":
        return ConvS2S(self, sizes)


class NormedLinear(nn.Module):
    """y = (g V / |V|) x + b, with each row of V divided by its norm.

    Initialised as N(0, gain (1 - dropout) / inputs): gain 4 before a gated linear unit, which quarters the variance.
    """

    def __init__(self, inputs: int, outputs: int, *, gain: float = 1.0, dropout: float = 0.0) -> None:
        super().__init__()
        self.direction = nn.Parameter(torch.randn(outputs, inputs) * math.sqrt(gain * (1 - dropout) / inputs))
        self.scale = nn.Parameter(self.direction.detach().norm(dim=1))
        self.bias = nn.Parameter(torch.zeros(outputs))

    def forward(self, x: Tensor) -> Tensor:
        """Map (.., inputs) -> (.., outputs)."""
        return F.linear(x, weight_norm(self.direction, self.scale.unsqueeze(1), 0), self.bias)

    def flops(self, length: int) -> int:
        """Return the FLOPs for `length` positions."""
        return 2 * length * self.direction.numel()


class GatedConvolution(nn.Module):
    """(A sigmoid(B) + h) sqrt(1/2) with [A; B] = W * h + b."""

    def __init__(self, config: ConvS2SConfig) -> None:
        super().__init__()
        self.window = ConvWindow(config.kernel)
        self.dropout = Dropout(config.dropout)
        inputs = config.kernel * config.channels
        self.linear = NormedLinear(inputs, 2 * config.channels, gain=4.0, dropout=config.dropout)

    def leave(self, x: Tensor, windows: Tensor) -> Tensor:
        """Return the block's output from its input (.., F) and the windows of the input (.., kernel F)."""
        return (F.glu(self.linear(windows), dim=-1) + x) * HALF


class MultiStepAttention(nn.Module):
    """A step of multi-step attention: h <- (W_c c + b_c + h) sqrt(1/2)."""

    def __init__(self, config: ConvS2SConfig) -> None:
        super().__init__()
        self.query = NormedLinear(config.channels, config.width)
        self.output = NormedLinear(config.width, config.channels)

    def forward(self, x_BTF: Tensor, embedded_BTD: Tensor, source: CrossState) -> Tensor:
        B, T, _ = x_BTF.shape
        d_BTD = (self.query(x_BTF) + embedded_BTD) * HALF
        z_NSD, value_NSD = source.k_NHSK.squeeze(1), source.v_NHSR.squeeze(1)
        # Beams of one source become more queries of one row.
        score = d_BTD.view(z_NSD.shape[0], -1, d_BTD.shape[2]) @ z_NSD.mT
        if source.mask_NS is not None:
            # Not minus infinity: a source that is all padding must give zeros (as its values are), not NaN.
            score = score.masked_fill(~source.mask_NS.unsqueeze(1), torch.finfo(score.dtype).min)
        alpha = score.softmax(dim=-1)
        if (sink := map_sink()) is not None:
            sink(self, alpha.view(B, 1, T, -1))
        context_BTD = (alpha @ value_NSD).view(B, T, -1)
        return (self.output(context_BTD) + x_BTF) * HALF


class Embedded(nn.Module):
    """Dropout(E[token] + P[position]), both initialised as N(0, 0.1) (section 3.5)."""

    def __init__(self, weight_VD: nn.Parameter, config: ConvS2SConfig) -> None:
        super().__init__()
        self.weight_VD, self.dropout = weight_VD, Dropout(config.dropout)
        self.position = config.positions.build_added(config.width)
        if isinstance(self.position, Learned):
            nn.init.normal_(self.position.table_ND, std=0.1)

    @property
    def longest(self) -> int | None:
        """Return the maximum number of positions; None: no limit."""
        return None if self.position is None else self.position.longest

    def forward(self, tokens_BT: Tensor, position: Tensor) -> Tensor:
        x_BTD = F.embedding(tokens_BT, self.weight_VD)
        if self.position is not None:
            x_BTD = x_BTD + self.position(position)
        dropped_BTD: Tensor = self.dropout(x_BTD)
        return dropped_BTD


class _ScaledGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0] * ctx.factor, None


class ConvEncoder(nn.Module):
    def __init__(self, config: ConvS2SConfig, weight_VD: nn.Parameter) -> None:
        super().__init__()
        self.embedding = Embedded(weight_VD, config)
        self.input = NormedLinear(config.width, config.channels, dropout=config.dropout)
        self.blocks = nn.ModuleList(GatedConvolution(config) for _ in range(config.encoder_layers))
        self.output = NormedLinear(config.channels, config.width)
        self.attentions = config.decoder_layers

    def forward(self, source_BS: Tensor, mask_BS: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return z and e, both (B, S, D)."""
        embedded_BSD = self.embedding(source_BS, torch.arange(source_BS.shape[1], device=source_BS.device))
        x_BSF = self.input(embedded_BSD)
        for block in self.blocks:
            assert isinstance(block, GatedConvolution)
            read_BSF = silence(block.dropout(x_BSF), mask_BS)
            x_BSF = block.leave(x_BSF, block.window.centred(read_BSF))
        z_BSD: Tensor = _ScaledGradient.apply(self.output(x_BSF), 1 / (2 * self.attentions))
        return z_BSD, embedded_BSD

    def flops(self, length: int) -> int:
        """Return the FLOPs for `length` source tokens."""
        return sum(layer.flops(length) for layer in self.modules() if isinstance(layer, NormedLinear))


class ConvS2SLayer(nn.Module):
    """A layer of the decoder: convolution and attention."""

    def __init__(self, config: ConvS2SConfig) -> None:
        super().__init__()
        self.convolution, self.cross = GatedConvolution(config), MultiStepAttention(config)


class ConvDecoder(nn.Module):
    def __init__(self, config: ConvS2SConfig, weight_VD: nn.Parameter) -> None:
        super().__init__()
        self.embedding = Embedded(weight_VD, config)
        self.input = NormedLinear(config.width, config.channels, dropout=config.dropout)
        self.blocks = nn.ModuleList(ConvS2SLayer(config) for _ in range(config.decoder_layers))
        self.output = NormedLinear(config.channels, config.width)
        self.dropout = Dropout(config.dropout)

    def forward(
        self,
        tokens_BT: Tensor,
        position: Tensor,
        caches: tuple[Growable, ...],
        source: CrossState,
        real_B: Tensor | None,
    ) -> tuple[Tensor, tuple[Growable, ...]]:
        """Return the input of the head (B, T, D), and the inputs that the next convolutions need."""
        embedded_BTD = self.embedding(tokens_BT, position)
        x_BTF, after = self.input(embedded_BTD), []
        for layer, cache in zip(self.blocks, caches, strict=True):
            assert isinstance(layer, ConvS2SLayer)
            convolution = layer.convolution
            windows_BTN, left = convolution.window.causal(convolution.dropout(x_BTF), cache, real_B)
            x_BTF = layer.cross(convolution.leave(x_BTF, windows_BTN), embedded_BTD, source)
            after.append(left)
        return self.dropout(self.output(x_BTF)), tuple(after)

    def flops(self, length: int, source: int) -> int:
        """Return the FLOPs for `length` target tokens that attend to `source` source tokens in every layer."""
        attended = 4 * length * source * self.embedding.weight_VD.shape[1] * len(self.blocks)
        return attended + sum(layer.flops(length) for layer in self.modules() if isinstance(layer, NormedLinear))


@dataclass(frozen=True)
class ConvS2SState:
    """The state: the last k - 1 inputs of every convolution, and the source, once for all layers."""

    caches: tuple[Growable, ...]
    source: CrossState  # keys z; values sqrt(m) (z + e); one head
    seen: int | Tensor = 0  # real tokens so far: one number, or one for each row (B)


@final
class ConvS2S(Model):
    kind = "encoder-decoder"
    config: ConvS2SConfig

    def __init__(self, config: ConvS2SConfig, sizes: Sizes) -> None:
        super().__init__()
        self.config, self.sizes = config, sizes
        target_VD = _table(sizes.target, config.width, 0.1)
        source_ND = target_VD if sizes.shared and config.tied else _table(sizes.source, config.width, 0.1)
        self.encoder = ConvEncoder(config, source_ND)
        self.decoder = ConvDecoder(config, target_VD)
        spread = math.sqrt((1 - config.dropout) / config.width)
        self.head = Head(target_VD if config.tied else _table(sizes.target, config.width, spread), bias=True)

    @property
    def longest(self) -> int | None:
        return self.decoder.embedding.longest

    @property
    def longest_source(self) -> int | None:
        return self.encoder.embedding.longest

    def encode(self, source_BS: Tensor, mask_BS: Tensor | None = None) -> Memory:
        if mask_BS is not None:
            order_BS = real_first(mask_BS)
            source_BS, mask_BS = source_BS.gather(1, order_BS), mask_BS.gather(1, order_BS)
        z_BSD, embedded_BSD = self.encoder(source_BS, mask_BS)
        return Memory(torch.cat([z_BSD, embedded_BSD], dim=-1), mask_BS)

    def start(self, memory: Memory | None = None) -> ConvS2SState:
        if memory is None:
            raise ConfigError("ConvS2S translates a source; no source was given")
        mask_BS = memory.mask_BS
        z_BSD, embedded_BSD = memory.x_BSD.chunk(2, dim=-1)
        value_BSD = silence((z_BSD + embedded_BSD) * HALF, mask_BS)
        if mask_BS is None:
            value_BSD = value_BSD * math.sqrt(z_BSD.shape[1])
        else:
            value_BSD = value_BSD * mask_BS.sum(dim=1).to(value_BSD.dtype).sqrt()[:, None, None]
        window, channels = ConvWindow(self.config.kernel), self.config.channels
        caches = tuple(window.start(z_BSD, channels) for _ in self.decoder.blocks)
        return ConvS2SState(caches, CrossState(z_BSD.unsqueeze(1), value_BSD.unsqueeze(1), mask_BS))

    def hidden(
        self, tokens_BT: Tensor, state: ConvS2SState, mask_BT: Tensor | None = None
    ) -> tuple[Tensor, ConvS2SState]:
        if mask_BT is None:
            return self._write(tokens_BT, state, None)
        return over_real(lambda tokens, real_B: self._write(tokens, state, real_B), tokens_BT, mask_BT)

    def _write(self, tokens_BT: Tensor, state: ConvS2SState, real_B: Tensor | None) -> tuple[Tensor, ConvS2SState]:
        T = tokens_BT.shape[1]
        position = next_positions(state.seen, tokens_BT, None)
        x_BTD, caches = self.decoder(tokens_BT, position, state.caches, state.source, real_B)
        return x_BTD, ConvS2SState(caches, state.source, state.seen + (T if real_B is None else real_B))

    def flops(self, source: int, target: int) -> int:
        head = 2 * target * self.config.width * self.sizes.target
        return self.encoder.flops(source) + self.decoder.flops(target, source) + head


def _table(size: int, width: int, spread: float) -> nn.Parameter:
    return nn.Parameter(torch.randn(size, width) * spread)
