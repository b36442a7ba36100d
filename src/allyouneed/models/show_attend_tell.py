"""Show, Attend and Tell: attend to another part of an image for each word of its caption.

    a_1 .. a_L = the annotations of a convolutional network                                       models/parts/images.py
    h_0 = tanh(W_h mean_i a_i),  c_0 = tanh(W_c mean_i a_i)
    e_ti = v^T tanh(W h_(t-1) + U a_i),  alpha_t = softmax(e_t)
    z_t = beta_t sum_i alpha_ti a_i,  beta_t = sigmoid(w_b h_(t-1) + b_b)
    h_t, c_t = LSTM([E y_(t-1); z_t], h_(t-1), c_(t-1))
    P(y_t) = softmax(L_o (E y_(t-1) + L_h h_t + L_z z_t))
    loss = -log P(y) + penalty sum_i (1 - sum_t alpha_ti)^2

`decoder = "transformer"` is the successor: the cross-attention of a Transformer's decoder reads the same annotations
(with a trained vector for each cell, since attention has no order of its own). `blind` is the control: all annotations
are zero, so its output depends on captions alone.

Cost: O(T (L + D) D) time, T sequential steps, a path of 1 between any cell and any word.
Paper: Xu et al. 2015, arXiv:1502.03044, sections 3.1 and 4.2: deterministic "soft" attention, doubly stochastic.
Differs: the convolutional network is small and trained too; one layer each for h_0 and c_0, as in the authors' code;
the penalty includes the attention of padding after captions, so a batch should have captions of one length, as in the
paper and in tasks/captioning.py.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Any, Literal, final

import torch
from pydantic import Field, NonNegativeFloat, PositiveInt, SerializeAsAny
from torch import Tensor, nn

from allyouneed.block import Fraction
from allyouneed.config import Config, choice
from allyouneed.dropout import Dropout
from allyouneed.errors import ConfigError
from allyouneed.mixers import Memory, State
from allyouneed.mixers.base import loss_sink
from allyouneed.mixers.parts.kv_cache import next_positions
from allyouneed.mixers.parts.projections import at_least_float32, full_precision, initialise
from allyouneed.mixers.recurrent import GATES, Cell, RecurrentState, cell_flops
from allyouneed.mixers.softmax import SoftmaxConfig
from allyouneed.models.base import Head, Model, ModelConfig
from allyouneed.models.parts.alignment import Alignment
from allyouneed.models.parts.images import ImageEncoder, check_image_task, grid_side
from allyouneed.models.parts.sequence import SequenceState, attend_and_step
from allyouneed.models.parts.stack import Embedding, Stack, StackConfig, StackState, new_embedding
from allyouneed.positions import NoPositionConfig
from allyouneed.sizes import Sizes, Traits


class WriterConfig(Config, ABC):
    """The settings of a caption decoder."""

    type: str

    @abstractmethod
    def build(self, tokens: int, annotation: int, cells: int) -> "Writer":
        """Return the writer with random weights, for `tokens` ids and `cells` annotations of width `annotation`."""


class LSTMConfig(WriterConfig):
    type: Literal["lstm"] = "lstm"
    width: PositiveInt = 256  # of h and c; the attention's inner width is that of an annotation
    embedding: PositiveInt = 128
    penalty: NonNegativeFloat = 1.0  # for cells whose attention does not sum to 1 (the paper's lambda)
    dropout: Fraction = 0.1  # of embeddings and of the head's input

    def build(self, tokens: int, annotation: int, cells: int) -> "LSTMWriter":
        return LSTMWriter(self, tokens, annotation)


class TransformerConfig(StackConfig, WriterConfig):
    type: Literal["transformer"] = "transformer"
    layers: PositiveInt = 2

    def build(self, tokens: int, annotation: int, cells: int) -> "TransformerWriter":
        return TransformerWriter(self, tokens, annotation, cells)


WRITERS: dict[str, type[WriterConfig]] = {"lstm": LSTMConfig, "transformer": TransformerConfig}


class ShowAttendTellConfig(ModelConfig):
    summary = "captions of images: a convolutional grid, read by soft attention for each word"
    paper = "Xu et al. 2015, arXiv:1502.03044"
    kind = "encoder-decoder"

    type: Literal["show-attend-tell"] = "show-attend-tell"
    size: PositiveInt = 32  # pixels per side
    channels: PositiveInt = 3  # values per pixel
    filters: Annotated[tuple[PositiveInt, ...], Field(min_length=1)] = (
        32,
        64,
    )  # of each stage; a stage halves the grid
    decoder: Annotated[SerializeAsAny[WriterConfig], choice(WRITERS, "lstm")] = LSTMConfig()
    blind: bool = False  # the control: no image

    def check_task(self, task: Traits) -> None:
        check_image_task(self.type, self.size, self.channels, task)

    def cells(self) -> int:
        """Return the number of annotations of an image."""
        return grid_side(self.size, len(self.filters)) ** 2

    def build(self, sizes: Sizes) -> "ShowAttendTell":
        return ShowAttendTell(self, sizes)


class Writer(nn.Module, ABC):
    """A caption decoder: from ids to the vectors that the head projects with `output_VD`."""

    output_VD: nn.Parameter

    @property
    def longest(self) -> int | None:
        """Return the maximum number of tokens; None: no limit."""
        return None

    @abstractmethod
    def start(self, memory: Memory) -> State:
        """Return the state before the first token."""

    @abstractmethod
    def forward(self, tokens_BT: Tensor, state: Any, mask_BT: Tensor | None = None) -> tuple[Tensor, State]:
        """Return the vectors, and the state after the tokens."""

    __call__: Callable[..., tuple[Tensor, State]]

    @abstractmethod
    def flops(self, cells: int, target: int) -> int:
        """Return the FLOPs for one caption, its start state included."""


@final
class LSTMWriter(Writer):
    def __init__(self, config: LSTMConfig, tokens: int, annotation: int) -> None:
        super().__init__()
        self.config, self.annotation = config, annotation
        inputs, width = config.embedding, config.width
        self.target = Embedding(new_embedding(tokens, inputs), NoPositionConfig(), config.dropout)
        self.begin = nn.Linear(annotation, 2 * width)  # h_0 and c_0
        self.cross = Alignment("additive", width, annotation, annotation)
        self.gate = nn.Linear(width, 1)
        self.cell = Cell("lstm", inputs, width)
        self.context = nn.Linear(annotation, GATES["lstm"] * width, bias=False)
        initialise(self.context, width)
        self.deep = nn.Linear(width + annotation, inputs, bias=False)  # L_h and L_z
        self.dropout = Dropout(config.dropout)
        self.output_VD = new_embedding(tokens, inputs)

    def start(self, memory: Memory) -> SequenceState:
        with full_precision(memory.x_BSD):
            h_BK, c_BK = self.begin(at_least_float32(memory.x_BSD).mean(dim=1)).tanh().chunk(2, dim=1)
        return SequenceState((RecurrentState(h_BK, c_BK),), read=self.cross.annotate(memory))

    def forward(
        self, tokens_BT: Tensor, state: SequenceState, mask_BT: Tensor | None = None
    ) -> tuple[Tensor, SequenceState]:
        x_BTE = self.target(tokens_BT, tokens_BT)  # it has no positions
        with full_precision(x_BTE):
            x_BTE = at_least_float32(x_BTE)
            h_BTK, z_BTD, alphas, carried = attend_and_step(self, x_BTE, state, mask_BT, self.gate)
            self._penalise_uneven_attention(alphas)
            out_BTE = self.dropout(x_BTE + self.deep(torch.cat([h_BTK, z_BTD], dim=-1)))
        return out_BTE, replace(state, cells=(carried,))

    def _penalise_uneven_attention(self, alphas: list[Tensor]) -> None:
        """Send the penalty of equation 14: the attention of each cell should sum to 1 over the caption."""
        if (sink := loss_sink()) is not None and self.config.penalty:
            seen_BS = torch.stack(alphas).sum(dim=0)
            sink(self.config.penalty * (1 - seen_BS).square().sum())

    def flops(self, cells: int, target: int) -> int:
        inputs, width, annotation = self.config.embedding, self.config.width, self.annotation
        begin = 2 * annotation * 2 * width
        recurrence = cell_flops("lstm", target, inputs + annotation, width) + 2 * target * width
        readout = 2 * target * (width + annotation) * inputs
        return begin + self.cross.flops(cells, target) + recurrence + readout


@final
class TransformerWriter(Writer):
    def __init__(self, config: TransformerConfig, tokens: int, annotation: int, cells: int) -> None:
        super().__init__()
        self.annotation, self.width = annotation, config.width
        self.output_VD = new_embedding(tokens, config.width)  # tied
        self.target = config.embed(self.output_VD)
        self.read = nn.Linear(annotation, config.width)
        self.place_SD = nn.Parameter(torch.randn(cells, config.width) * config.width**-0.5)
        mixer = config.mixer_of(0)
        cross = mixer if isinstance(mixer, SoftmaxConfig) else SoftmaxConfig(heads=mixer.position_heads)
        self.stack = Stack(config, config.layers, "causal", cross)

    @property
    def longest(self) -> int | None:
        return self.target.longest

    def start(self, memory: Memory) -> StackState:
        return self.stack.start(Memory(self.read(memory.x_BSD) + self.place_SD))

    def forward(self, tokens_BT: Tensor, state: StackState, mask_BT: Tensor | None = None) -> tuple[Tensor, StackState]:
        x_BTD = self.target(tokens_BT, next_positions(state.seen, tokens_BT, mask_BT))
        x_BTD, state = self.stack(x_BTD, state, mask_BT)
        return x_BTD, state

    def flops(self, cells: int, target: int) -> int:
        return 2 * cells * self.annotation * self.width + self.stack.flops(target, cells)


@final
class ShowAttendTell(Model):
    kind = "encoder-decoder"
    config: ShowAttendTellConfig

    def __init__(self, config: ShowAttendTellConfig, sizes: Sizes) -> None:
        super().__init__()
        self.config, self.sizes = config, sizes
        self.encoder = None
        if not config.blind:
            self.encoder = ImageEncoder(sizes.source, config.size, config.channels, config.filters)
        self.decoder = config.decoder.build(sizes.target, config.filters[-1], config.cells())
        self.head = Head(self.decoder.output_VD, bias=True)

    @property
    def longest(self) -> int | None:
        return self.decoder.longest

    def encode(self, source_BS: Tensor, mask_BS: Tensor | None = None) -> Memory:
        if self.encoder is None:
            zeros = (source_BS.shape[0], self.config.cells(), self.config.filters[-1])
            return Memory(self.head.weight_VD.new_zeros(zeros))
        return Memory(self.encoder(source_BS, mask_BS))

    def start(self, memory: Memory | None = None) -> State:
        if memory is None:
            raise ConfigError("a show-attend-tell model describes an image; no source was given")
        return self.decoder.start(memory)

    def hidden(self, tokens_BT: Tensor, state: State, mask_BT: Tensor | None = None) -> tuple[Tensor, State]:
        return self.decoder(tokens_BT, state, mask_BT)

    def flops(self, source: int, target: int) -> int:
        head = 2 * target * self.head.weight_VD.shape[1] * self.sizes.target
        image = 0 if self.encoder is None else self.encoder.flops()
        return image + self.decoder.flops(self.config.cells(), target) + head
