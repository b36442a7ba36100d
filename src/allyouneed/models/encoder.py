"""Encoder-only Transformer: one answer for a whole text, or one for each position of it.

    P(class | x) = softmax(W pool(Encoder(x)) + b),   pool = mean over the real positions, or the first one
    P(class_t | x) = softmax(W Encoder(x)_t + b)      without a pool

Paper: Devlin et al. 2019, arXiv:1810.04805 (BERT; its pooled head is the first position).
"""

from typing import Literal, final

import torch
from torch import Tensor

from allyouneed.mixers import Memory
from allyouneed.mixers.past import next_positions
from allyouneed.models.base import Head, Model, ModelConfig
from allyouneed.models.encoder_decoder import Layers
from allyouneed.models.stack import Embedding, Stack, StackConfig, new_embedding
from allyouneed.sizes import Sizes


class EncoderConfig(StackConfig, ModelConfig):
    summary = "encoder-only Transformer with a pooled head: a classifier"
    paper = "Devlin et al. 2019, arXiv:1810.04805"
    kind = "encoder"

    type: Literal["encoder"] = "encoder"
    layers: Layers = 6
    pool: Literal["mean", "first", "none"] = "mean"  # none: one answer for each position

    def build(self, sizes: Sizes) -> "Encoder":
        return Encoder(self, sizes)


@final
class Encoder(Model):
    kind = "encoder"

    def __init__(self, config: EncoderConfig, sizes: Sizes) -> None:
        super().__init__()
        self.config, self.sizes = config, sizes
        self.source = Embedding(new_embedding(sizes.source, config.width), config.positions, config.dropout)
        self.encoder = Stack(config, config.layers, "bidirectional")
        self.head = Head(new_embedding(sizes.target, config.width), bias=True)

    def encode(self, source_BS: Tensor, valid_BS: Tensor | None = None) -> Memory:
        x_BSD = self.source(source_BS, next_positions(0, source_BS, valid_BS))
        x_BSD, _ = self.encoder(x_BSD, self.encoder.start(), valid_BS)
        return Memory(x_BSD, valid_BS)

    def classify(self, source_BS: Tensor, valid_BS: Tensor | None = None) -> Tensor:
        """Logits (B, V), or (B, S, V) without a pool."""
        memory = self.encode(source_BS, valid_BS)
        if self.config.pool == "none":
            return self.head(memory.x_BSD)
        logits_BV: Tensor = self.head(self._pool(memory))
        return logits_BV

    def _pool(self, memory: Memory) -> Tensor:
        x_BSD, valid_BS = memory.x_BSD, memory.valid_BS
        if self.config.pool == "mean":
            if valid_BS is None:
                return x_BSD.mean(dim=1)
            weight_BS = valid_BS.to(x_BSD.dtype)
            total_BD = torch.einsum("bsd,bs->bd", x_BSD, weight_BS)
            return total_BD / weight_BS.sum(dim=1, keepdim=True).clamp(min=1)
        if valid_BS is None:
            return x_BSD[:, 0]
        first_B = valid_BS.long().argmax(dim=1)
        return x_BSD[torch.arange(x_BSD.shape[0], device=x_BSD.device), first_B]

    def flops(self, source: int, target: int) -> int:
        answers = source if self.config.pool == "none" else 1
        return self.encoder.flops(source) + 2 * answers * self.config.width * self.sizes.target
