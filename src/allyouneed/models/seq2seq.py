"""Recurrent sequence-to-sequence models: the predecessors of the Transformer.

    none        a deep recurrence encodes the source, another starts from its last states and generates the target:
                P(y_t | y_<t, x) = softmax(W_s h_t),  h_0 = the encoder's last state        Sutskever et al. 2014
    bahdanau    the decoder attends to the source before each step                          models/bahdanau.py
    luong-*     it attends after each step, and feeds the result into the next              models/luong.py

Cost: O((S + T) D^2) time (with attention O(S T D) more), S + T sequential steps. The path from a source position to the
target is S - s + 1 steps without attention, which is why `reverse` helped: it moves the first words close.
Papers: Sutskever et al. 2014, arXiv:1409.3215; Bahdanau et al. 2014, arXiv:1409.0473; Luong et al. 2015,
arXiv:1508.04025.
Differs: `reverse` also moves the source's EOS to the front. Recurrences are initialised as in mixers/recurrent.py,
embeddings with unit variance as in the Transformer, and the last projection has a bias; a shared vocabulary has one
table.
"""

from typing import Annotated, Literal, final

from pydantic import Field, PositiveInt, model_validator
from torch import Tensor

from allyouneed.block import Fraction
from allyouneed.dropout import Dropout
from allyouneed.errors import ConfigError
from allyouneed.mixers import MIXERS, Memory, MixerConfig
from allyouneed.mixers.recurrent import CellKind
from allyouneed.models.bahdanau import BahdanauDecoder, BothWaysEncoder
from allyouneed.models.base import Head, Model, ModelConfig
from allyouneed.models.luong import LuongDecoder
from allyouneed.models.parts.alignment import Score
from allyouneed.models.parts.sequence import (
    Encoded,
    PlainDecoder,
    SequenceDecoder,
    SequenceEncoder,
    SequenceState,
    Tower,
    TowerEncoder,
)
from allyouneed.models.parts.stack import Embedding, new_embedding
from allyouneed.positions import NoPositionConfig
from allyouneed.sizes import Sizes

Attention = Literal["none", "bahdanau", "luong-dot", "luong-general", "luong-concat"]
LUONG: dict[str, Score] = {"luong-dot": "dot", "luong-general": "general", "luong-concat": "additive"}


class Seq2SeqConfig(ModelConfig):
    summary = "recurrent encoder and decoder, without attention or with Bahdanau's or Luong's"
    paper = "Sutskever et al. 2014, arXiv:1409.3215; Bahdanau et al. 2014, arXiv:1409.0473; Luong et al. 2015"
    kind = "encoder-decoder"

    type: Literal["seq2seq"] = "seq2seq"
    cell: CellKind = "lstm"
    attention: Attention = "none"
    width: PositiveInt = 512  # of a recurrence; Bahdanau's encoder has one in each direction
    embedding: PositiveInt | None = None  # width of a token's vector; default: the width
    layers: Annotated[int, Field(ge=1)] = 1  # of the encoder, and of the decoder
    reverse: bool = False  # read the source from its end
    dropout: Fraction = 0.0  # of embeddings and of the head's input

    @model_validator(mode="after")
    def _as_published(self) -> "Seq2SeqConfig":
        if self.attention == "bahdanau" and (self.layers > 1 or self.reverse):
            raise ValueError("bahdanau attention has one layer in both directions; leave out layers and reverse")
        return self

    def source_mixers(self) -> list[MixerConfig]:
        return [MIXERS[self.cell](type=self.cell)]

    def layer_counts(self) -> tuple[int, ...]:
        return (self.layers,)

    def remarks(self) -> list[str]:
        return ["no attention" if self.attention == "none" else f"{self.attention} attention"]

    def build(self, sizes: Sizes) -> "Seq2Seq":
        return Seq2Seq(self, sizes)

    def build_parts(self, inputs: int) -> tuple[SequenceEncoder, SequenceDecoder]:
        """Return the encoder and the decoder for this attention."""
        if self.attention == "bahdanau":
            return BothWaysEncoder(self.cell, inputs, self.width), BahdanauDecoder(self.cell, inputs, self.width)
        encoder = TowerEncoder(Tower(self.cell, inputs, self.width, self.layers), self.reverse)
        if self.attention == "none":
            return encoder, PlainDecoder(Tower(self.cell, inputs, self.width, self.layers))
        return encoder, LuongDecoder(self.cell, inputs, self.width, self.layers, LUONG[self.attention])


@final
class Seq2Seq(Model):
    kind = "encoder-decoder"
    config: Seq2SeqConfig

    def __init__(self, config: Seq2SeqConfig, sizes: Sizes) -> None:
        super().__init__()
        self.config, self.sizes = config, sizes
        inputs = config.embedding or config.width
        target_VE = new_embedding(sizes.target, inputs)
        source_NE = target_VE if sizes.shared else new_embedding(sizes.source, inputs)
        self.source = Embedding(source_NE, NoPositionConfig(), config.dropout)
        self.target = Embedding(target_VE, NoPositionConfig(), config.dropout)
        self.encoder, self.decoder = config.build_parts(inputs)
        self.dropout = Dropout(config.dropout)
        self.head = Head(new_embedding(sizes.target, self.decoder.out_width), bias=True)

    def encode(self, source_BS: Tensor, mask_BS: Tensor | None = None) -> Encoded:
        return self.encoder(self.source(source_BS, source_BS), mask_BS)  # it has no positions

    def start(self, memory: Memory | None = None) -> SequenceState:
        if not isinstance(memory, Encoded):
            raise ConfigError("a seq2seq model needs a source: it starts from the output of its own `encode`")
        return self.decoder.start(memory)

    def hidden(
        self, tokens_BT: Tensor, state: SequenceState, mask_BT: Tensor | None = None
    ) -> tuple[Tensor, SequenceState]:
        out_BTL, state = self.decoder(self.target(tokens_BT, tokens_BT), state, mask_BT)
        return self.dropout(out_BTL), state

    def flops(self, source: int, target: int) -> int:
        head = 2 * target * self.decoder.out_width * self.sizes.target
        return self.encoder.flops(source) + self.decoder.flops(source, target) + head
