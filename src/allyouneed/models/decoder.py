"""Decoder-only Transformer: a language model. A source, if any, is the beginning of the text.

    P(y_t | y_<t) = softmax(Decoder(y_<t) E^T)

Paper: Liu et al. 2018, arXiv:1801.10198 (the decoder alone); Radford et al. 2018 (GPT).
"""

from typing import Literal, final

from pydantic import PositiveFloat
from torch import Tensor

from allyouneed.errors import ConfigError
from allyouneed.mixers import Memory, MixerConfig
from allyouneed.mixers.parts.kv_cache import next_positions
from allyouneed.models.base import Head, Model, ModelConfig
from allyouneed.models.encoder_decoder import Layers
from allyouneed.models.parts.stack import Stack, StackConfig, StackState, new_embedding
from allyouneed.sizes import Sizes


class DecoderConfig(StackConfig, ModelConfig):
    summary = "decoder-only Transformer: a language model"
    paper = "Liu et al. 2018, arXiv:1801.10198; Radford et al. 2018"
    kind = "decoder"

    type: Literal["decoder"] = "decoder"
    layers: Layers = 6
    tied: bool = True  # embedding = output projection
    output_bias: bool | Literal["fixed"] = False  # fixed: training does not change it
    logit_cap: PositiveFloat | None = None  # bound of the logits; default: none

    def source_mixers(self) -> list[MixerConfig]:
        return self.mixers_of(self.layers)

    def layer_counts(self) -> tuple[int, ...]:
        return (self.layers,)

    def build(self, sizes: Sizes) -> "Decoder":
        return Decoder(self, sizes)


@final
class Decoder(Model):
    kind = "decoder"
    config: DecoderConfig

    def __init__(self, config: DecoderConfig, sizes: Sizes) -> None:
        super().__init__()
        self.config, self.sizes = config, sizes
        table_VD = new_embedding(sizes.target, config.width)
        self.target = config.embed(table_VD)
        self.decoder = Stack(config, config.layers, "causal")
        if config.tied and config.streams != 1:
            raise ConfigError("model.streams=2: the output is twice as wide as the embedding; set model.tied=false")
        output_VE = table_VD if config.tied else new_embedding(sizes.target, config.stream_width)
        self.head = Head(output_VE, bias=config.output_bias, cap=config.logit_cap)

    @property
    def longest(self) -> int | None:
        return self.target.longest

    def start(self, memory: Memory | None = None) -> StackState:
        return self.decoder.start()

    def hidden(self, tokens_BT: Tensor, state: StackState, mask_BT: Tensor | None = None) -> tuple[Tensor, StackState]:
        x_BTD = self.target(tokens_BT, next_positions(state.seen, tokens_BT, mask_BT))
        x_BTD, state = self.decoder(x_BTD, state, mask_BT)
        return x_BTD, state

    def advance(self, token_B: Tensor, state: StackState) -> tuple[Tensor, StackState]:
        x_BD, state = self.decoder.advance(self.target.advance(token_B, state.seen), state)
        return self.head(x_BD), state

    def flops(self, source: int, target: int) -> int:
        # A source is the beginning of the text; only targets are projected.
        return self.decoder.flops(source + target) + 2 * target * self.config.stream_width * self.sizes.target
