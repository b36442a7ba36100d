"""The Transformer: an encoder reads the source, a decoder writes the target and reads the encoder at every layer.

    memory = Encoder(source);   P(y_t | y_<t, source) = softmax(Decoder(y_<t, memory) E^T)

Cost: that of its mixers; encoding is one step, decoding one step per token.
Paper: Vaswani et al. 2017, arXiv:1706.03762, figure 1. `recipes/transformer-base.toml` and `-big.toml` are its table 3.
Differs: attention's projections carry biases, as in the authors' code (mixers/softmax.py).
"""

from typing import Annotated, Literal, final

from pydantic import Field
from torch import Tensor

from allyouneed.mixers import AnyMixer, Memory, MixerConfig
from allyouneed.mixers.parts.kv_cache import next_positions
from allyouneed.mixers.softmax import SoftmaxConfig
from allyouneed.models.base import Head, Model, ModelConfig
from allyouneed.models.parts.stack import Stack, StackConfig, StackState, new_embedding
from allyouneed.positions import AnyPosition
from allyouneed.sizes import Sizes

Layers = Annotated[int, Field(ge=0)]


class EncoderDecoderConfig(StackConfig, ModelConfig):
    summary = "the Transformer of 2017: encoder, decoder, cross-attention"
    paper = "Vaswani et al. 2017, arXiv:1706.03762"
    kind = "encoder-decoder"

    type: Literal["encoder-decoder"] = "encoder-decoder"
    encoder_layers: Layers = 6
    decoder_layers: Layers = 6
    encoder_mixer: AnyMixer | list[AnyMixer] | None = (
        None  # default: mixer; for mixers that can encode but cannot be causal
    )
    cross: AnyMixer | None = None  # default: mixer without a window if it is softmax, else softmax with as many heads
    encoder_positions: AnyPosition | None = None  # default: positions
    # Target embedding = output projection (= source embedding, if the vocabulary is shared). "inputs": embeddings of
    # a shared vocabulary are tied, the output projection is separate.
    tied: bool | Literal["inputs"] = True
    output_bias: bool | Literal["fixed"] = False  # fixed: training does not change it

    def cross_mixer(self) -> MixerConfig:
        """Return the mixer that reads the memory."""
        mixer = self.mixer_of(0)
        if not isinstance(mixer, SoftmaxConfig):
            return self.cross or SoftmaxConfig(heads=mixer.position_heads)
        return self.cross or mixer.model_copy(update={"window": None})

    def encoder_stack(self) -> StackConfig:
        """Return the settings of the encoder's blocks."""
        own = {"mixer": self.encoder_mixer, "positions": self.encoder_positions}
        changed = {name: value for name, value in own.items() if value is not None}
        return self.model_copy(update=changed) if changed else self

    def source_mixers(self) -> list[MixerConfig]:
        return self.encoder_stack().mixers_of(self.encoder_layers or 1)

    def layer_counts(self) -> tuple[int, ...]:
        return (self.encoder_layers, self.decoder_layers)

    def build(self, sizes: Sizes) -> "EncoderDecoder":
        return EncoderDecoder(self, sizes)


@final
class EncoderDecoder(Model):
    kind = "encoder-decoder"
    config: EncoderDecoderConfig

    def __init__(self, config: EncoderDecoderConfig, sizes: Sizes) -> None:
        super().__init__()
        config.require_one_stream()
        self.config, self.sizes = config, sizes
        target_VD = new_embedding(sizes.target, config.width)
        one_table = sizes.shared and bool(config.tied)
        source_ND = target_VD if one_table else new_embedding(sizes.source, config.width)
        output_VD = target_VD if config.tied is True else new_embedding(sizes.target, config.width)
        self.source = config.encoder_stack().embed(source_ND)
        self.encoder = Stack(config.encoder_stack(), config.encoder_layers, "bidirectional")
        self.target = config.embed(target_VD)
        self.decoder = Stack(config, config.decoder_layers, "causal", config.cross_mixer())
        self.head = Head(output_VD, bias=config.output_bias)

    @property
    def longest(self) -> int | None:
        return self.target.longest

    @property
    def longest_source(self) -> int | None:
        return self.source.longest

    def encode(self, source_BS: Tensor, mask_BS: Tensor | None = None) -> Memory:
        x_BSD = self.source(source_BS, next_positions(0, source_BS, mask_BS))
        x_BSD, _ = self.encoder(x_BSD, self.encoder.start(), mask_BS)
        return Memory(x_BSD, mask_BS)

    def start(self, memory: Memory | None = None) -> StackState:
        return self.decoder.start(memory)

    def hidden(self, tokens_BT: Tensor, state: StackState, mask_BT: Tensor | None = None) -> tuple[Tensor, StackState]:
        x_BTD = self.target(tokens_BT, next_positions(state.seen, tokens_BT, mask_BT))
        x_BTD, state = self.decoder(x_BTD, state, mask_BT)
        return x_BTD, state

    def advance(self, token_B: Tensor, state: StackState) -> tuple[Tensor, StackState]:
        x_BD, state = self.decoder.advance(self.target.advance(token_B, state.seen), state)
        return self.head(x_BD), state

    def flops(self, source: int, target: int) -> int:
        head = 2 * target * self.config.width * self.sizes.target
        return self.encoder.flops(source) + self.decoder.flops(target, source) + head
