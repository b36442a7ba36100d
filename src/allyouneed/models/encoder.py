"""Encoder-only Transformer: one class for a whole text, or one for each position.

    P(class | x) = softmax(W pool(Encoder(x)) + b),   pool = mean over the real positions, or the first one
    P(class_t | x) = softmax(W Encoder(x)_t + b)      without a pool

A `transform` between the pool and W is tanh(U x + c), BERT's pooler, the same with ReLU or the activation f of the
feed-forward layers, or Norm(f(U x + c)), BERT's head for masked words. Without classes (a target of size 0) the model
encodes texts: `pooled` returns a vector for each.

Paper: Devlin et al. 2019, arXiv:1810.04805 (BERT; its pooled head is the first position).
"""

from typing import Literal, final

import torch
from pydantic import NonNegativeInt
from torch import Tensor, nn

from allyouneed.block import FUNCTIONS, GATED
from allyouneed.errors import ConfigError
from allyouneed.mixers import Memory, MixerConfig
from allyouneed.mixers.parts.kv_cache import next_positions
from allyouneed.models.base import Head, Model, ModelConfig
from allyouneed.models.encoder_decoder import Layers
from allyouneed.models.parts.stack import Stack, StackConfig, new_embedding
from allyouneed.sizes import Sizes, Traits


class EncoderConfig(StackConfig, ModelConfig):
    summary = "encoder-only Transformer with a pooled head: a classifier"
    paper = "Devlin et al. 2019, arXiv:1810.04805"
    kind = "encoder"

    type: Literal["encoder"] = "encoder"
    layers: Layers = 6
    pool: Literal["mean", "first", "none"] = "mean"  # none: one class for each position
    transform: Literal["none", "tanh", "relu", "function", "norm"] = "none"  # before the output projection
    tied: bool = False  # embedding = output projection: classes are tokens
    segments: NonNegativeInt = 0  # number of segment vectors
    projection: bool = False  # a linear layer between the embeddings and the first block

    @property
    def has_norms(self) -> bool:
        return super().has_norms or self.transform == "norm"

    def check_task(self, task: Traits) -> None:
        super().check_task(task)
        if (self.pool == "none") != task.per_position:
            raise ValueError(
                f"task {task.type!r} has {'a class for each position' if task.per_position else 'one class'}: "
                f"model.pool={self.pool!r} should be {'none' if task.per_position else 'mean or first'}"
            )

    def source_mixers(self) -> list[MixerConfig]:
        return self.mixers_of(self.layers)

    def layer_counts(self) -> tuple[int, ...]:
        return (self.layers,)

    def build(self, sizes: Sizes) -> "Encoder":
        return Encoder(self, sizes)


@final
class Encoder(Model):
    kind = "encoder"
    config: EncoderConfig

    def __init__(self, config: EncoderConfig, sizes: Sizes) -> None:
        super().__init__()
        config.require_one_stream()
        self.config, self.sizes = config, sizes
        table_ND = new_embedding(sizes.source, config.width)
        self.source = config.embed(table_ND, config.segments, config.projection)
        self.encoder = Stack(config, config.layers, "bidirectional")
        self.transform = _Transform(config) if config.transform != "none" else None
        if config.tied and sizes.target != sizes.source:
            raise ConfigError(
                f"model.tied: {sizes.target:,} answers, but {sizes.source:,} tokens; they should be the same"
            )
        self.head = Head(table_ND if config.tied else new_embedding(sizes.target, config.width), bias=True)

    def encode(self, source_BS: Tensor, mask_BS: Tensor | None = None, segment_BS: Tensor | None = None) -> Memory:
        """Return a vector for each position. `segment_BS`: the segment of each position (None: the first)."""
        x_BSD = self.source(source_BS, next_positions(0, source_BS, mask_BS), segment_BS)
        x_BSD, _ = self.encoder(x_BSD, self.encoder.start(), mask_BS)
        return Memory(x_BSD, mask_BS)

    @property
    def longest_source(self) -> int | None:
        return self.source.longest

    def classify(self, source_BS: Tensor, mask_BS: Tensor | None = None, segment_BS: Tensor | None = None) -> Tensor:
        """Return logits (B, V), or (B, S, V) without a pool."""
        return self.head(self.pooled(source_BS, mask_BS, segment_BS))

    def pooled(self, source_BS: Tensor, mask_BS: Tensor | None = None, segment_BS: Tensor | None = None) -> Tensor:
        """Return the input of the head: a vector (B, D) for each text, or (B, S, D) without a pool."""
        memory = self.encode(source_BS, mask_BS, segment_BS)
        x = memory.x_BSD if self.config.pool == "none" else self._pool(memory)
        return x if self.transform is None else self.transform(x)

    def _pool(self, memory: Memory) -> Tensor:
        x_BSD, mask_BS = memory.x_BSD, memory.mask_BS
        if self.config.pool == "mean":
            if mask_BS is None:
                return x_BSD.mean(dim=1)
            weight_BS = mask_BS.to(x_BSD.dtype)
            total_BD = torch.einsum("bsd,bs->bd", x_BSD, weight_BS)
            return total_BD / weight_BS.sum(dim=1, keepdim=True).clamp(min=1)
        if mask_BS is None:
            return x_BSD[:, 0]
        first_B = mask_BS.long().argmax(dim=1)
        return x_BSD[torch.arange(x_BSD.shape[0], device=x_BSD.device), first_B]

    def flops(self, source: int, target: int) -> int:
        answers = source if self.config.pool == "none" else 1
        width = self.config.width
        projected = 2 * source * width * width if self.config.projection else 0
        transform = width if self.transform is not None else 0
        return self.encoder.flops(source) + projected + 2 * answers * width * (self.sizes.target + transform)


class _Transform(nn.Module):
    """f(U x + c): tanh, ReLU, or the activation of the feed-forward layers, or that and a norm."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.inner = nn.Linear(config.width, config.width)
        nn.init.xavier_uniform_(self.inner.weight)
        nn.init.zeros_(self.inner.bias)
        named = {"tanh": torch.tanh, "relu": FUNCTIONS["relu"]}
        self.function = named.get(config.transform) or FUNCTIONS[GATED.get(config.feedforward, config.feedforward)]
        self.norm = config.make_norm(config.width) if config.transform == "norm" else None

    def forward(self, x: Tensor) -> Tensor:
        """Map (..., D) -> (..., D)."""
        y = self.function(self.inner(x))
        return y if self.norm is None else self.norm(y)
