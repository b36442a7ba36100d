"""Parts of all Transformers: embeddings with positions, and a stack of blocks with one state."""

import math
from dataclasses import dataclass
from functools import partial

import torch
from pydantic import PositiveInt, field_validator
from torch import Tensor, nn

from allyouneed.block import Block, BlockConfig, BlockState
from allyouneed.dropout import Dropout
from allyouneed.errors import ConfigError
from allyouneed.mixers import AnyMixer, Memory, MixerConfig, Role
from allyouneed.mixers.parts.projections import initialise
from allyouneed.mixers.softmax import SoftmaxConfig
from allyouneed.positions import AnyPosition, PositionConfig, ScorePosition, SinusoidalConfig
from allyouneed.sizes import Traits


class StackConfig(BlockConfig):
    """The settings that every Transformer has: width, blocks, mixer and positions."""

    width: PositiveInt = 512
    mixer: AnyMixer | list[AnyMixer] = SoftmaxConfig()
    positions: AnyPosition = SinusoidalConfig()
    embedding_scale: bool = True  # section 3.4: multiply embeddings by sqrt(width)
    embedding_norm: bool = False  # a norm before the first block, after positions are added

    @property
    def has_norms(self) -> bool:
        return super().has_norms or self.embedding_norm

    @field_validator("mixer", "encoder_mixer", mode="after", check_fields=False)
    @classmethod
    def _not_empty(cls, value: MixerConfig | list[MixerConfig] | None) -> MixerConfig | list[MixerConfig] | None:
        if value == []:
            raise ValueError("an empty list; give at least one mixer")
        return value

    def check_task(self, task: Traits) -> None:
        """Raise ValueError if a mixer does not fit the form of a task's data."""
        for mixer in self.mixer if isinstance(self.mixer, list) else [self.mixer]:
            mixer.check_task(task)

    def embed(self, weight_VD: nn.Parameter, segments: int = 0, projected: bool = False) -> "Embedding":
        """Return an embedding layer with this table."""
        norm = self.make_norm(self.width) if self.embedding_norm else None
        made = partial(Embedding, weight_VD, self.positions, self.dropout, norm=norm)
        return made(scaled=self.embedding_scale, segments=segments, projected=projected)

    def require_one_stream(self) -> None:
        """Raise ConfigError if there are two streams. For models that need outputs of `width` features."""
        if self.streams != 1:
            raise ConfigError(f"model.streams={self.streams}: only a decoder has two streams")

    def mixer_of(self, layer: int) -> MixerConfig:
        """Return the mixer of a layer: a list is repeated from the bottom up."""
        return self.mixer[layer % len(self.mixer)] if isinstance(self.mixer, list) else self.mixer

    def mixers_of(self, layers: int) -> list[MixerConfig]:
        """Return the mixers of `layers` layers, bottom up."""
        return [self.mixer_of(layer) for layer in range(layers)]


class Embedding(nn.Module):
    """Dropout(sqrt(D) E[token] + position)   (sections 3.4 and 5.4); some have a norm before the dropout.

    With `segments`, a vector for each token's segment of the text is added; by default all tokens are in the first one.
    If it is `projected`, a linear layer follows the norm.
    """

    def __init__(
        self,
        weight_VD: nn.Parameter,
        positions: PositionConfig,
        dropout: float,
        *,
        scaled: bool = True,
        norm: nn.Module | None = None,
        segments: int = 0,
        projected: bool = False,
    ) -> None:
        super().__init__()
        width = weight_VD.shape[1]
        self.weight_VD = weight_VD
        # Section 3.4: the tied embedding is scaled by sqrt(D) at the input, not at the output.
        self.scale = math.sqrt(width) if scaled else 1.0
        self.position = positions.build_added(width)
        self.norm = norm
        self.segment_ND = nn.Parameter(torch.randn(segments, width) * width**-0.5) if segments else None
        self.project = nn.Linear(width, width) if projected else None
        if self.project is not None:
            initialise(self.project, width)
        self.dropout = Dropout(dropout)

    @property
    def longest(self) -> int | None:
        """Return the maximum number of positions; None: no limit."""
        return None if self.position is None else self.position.longest

    def look_up(self, tokens: Tensor) -> Tensor:
        """Return the rows of the table for these tokens (...): (..., D)."""
        return torch.embedding(self.weight_VD, tokens)

    def forward(self, tokens_BT: Tensor, position: Tensor, segment_BT: Tensor | None = None) -> Tensor:
        x_BTD = self.look_up(tokens_BT) * self.scale
        if self.segment_ND is not None:
            x_BTD = x_BTD + (self.segment_ND[0] if segment_BT is None else self.segment_ND[segment_BT])
        if self.position is not None:
            x_BTD = x_BTD + self.position(position)
        if self.norm is not None:
            x_BTD = self.norm(x_BTD)
        if self.project is not None:
            x_BTD = self.project(x_BTD)
        out_BTD: Tensor = self.dropout(x_BTD)
        return out_BTD

    def advance(self, token_B: Tensor, seen: int | Tensor) -> Tensor:
        """Return the embedding of one token for each row, after `seen` others."""
        x_BD = self.look_up(token_B)
        if self.scale != 1:
            x_BD = x_BD * self.scale
        if self.segment_ND is not None:
            x_BD = x_BD + self.segment_ND[0]
        if self.position is not None:
            if isinstance(seen, int):
                x_BD = x_BD + self.position.table(seen + 1, token_B.device)[seen]
            else:
                x_BD = x_BD + self.position(seen)
        if self.norm is not None:
            x_BD = self.norm(x_BD)
        if self.project is not None:
            x_BD = self.project(x_BD)
        out_BD: Tensor = self.dropout(x_BD) if self.training else x_BD
        return out_BD


def new_embedding(size: int, width: int) -> nn.Parameter:
    """Return a random table whose rows have unit variance after the factor sqrt(D) of section 3.4."""
    return nn.Parameter(torch.randn(size, width) * width**-0.5)


@dataclass(frozen=True)
class StackState:
    """The state of a stack."""

    blocks: tuple[BlockState | None, ...]
    memory: Memory | None  # until every cross mixer has its own state
    seen: int | Tensor = 0  # real tokens so far: one number, or one for each row (B)


class Stack(nn.Module):
    """A sequence of blocks, each with its mixer in the given role; pre-norm stacks end with one more norm."""

    def __init__(self, config: StackConfig, layers: int, role: Role, cross: MixerConfig | None = None) -> None:
        super().__init__()
        shared: dict[int, ScorePosition | None] = {}
        blocks = []
        for layer in range(layers):
            mixer = config.mixer_of(layer)
            position = self._position(config, mixer, role, shared)
            crossing = cross.build(config.width, role="cross") if cross is not None else None
            built = mixer.build(config.width, role=role, position=position)
            blocks.append(Block(config, config.width, built, crossing))
        self.blocks = nn.ModuleList(blocks)
        self.norm = config.build_norm(config.stream_width) if config.norm in ("pre", "both") else nn.Identity()
        self.streams = config.streams
        self._config, self._role, self._cross = config, role, cross

    @staticmethod
    def _position(
        config: StackConfig, mixer: MixerConfig, role: Role, shared: dict[int, ScorePosition | None]
    ) -> ScorePosition | None:
        position = mixer.build_position(config.positions, config.width, role)
        # Trained numbers per head can be shared only by layers with the same number of heads.
        return shared.setdefault(mixer.position_heads, position) if config.positions.shared else position

    def start(self, memory: Memory | None = None) -> StackState:
        """Return the state before the first position."""
        return StackState((None,) * len(self.blocks), memory)

    def forward(self, x_BTD: Tensor, state: StackState, mask_BT: Tensor | None = None) -> tuple[Tensor, StackState]:
        """Run all blocks. With two streams, both start with the embeddings and both are returned."""
        after = []
        if self.streams == 2:
            x_BTD = torch.cat([x_BTD, x_BTD], dim=-1)
        for block, before in zip(self.blocks, state.blocks, strict=True):
            x_BTD, left = block(x_BTD, mask_BT=mask_BT, memory=state.memory, state=before)
            after.append(left)
        seen = state.seen + (x_BTD.shape[1] if mask_BT is None else mask_BT.sum(dim=1))
        return self.norm(x_BTD), StackState(tuple(after), None, seen)

    def advance(self, x_BD: Tensor, state: StackState) -> tuple[Tensor, StackState]:
        """Run `forward` for one new position of each row."""
        after = []
        if self.streams == 2:
            x_BD = torch.cat([x_BD, x_BD], dim=-1)
        for block, before in zip(self.blocks, state.blocks, strict=True):
            assert isinstance(block, Block)
            x_BD, left = block.advance(x_BD, state.memory, before)
            after.append(left)
        return self.norm(x_BD), StackState(tuple(after), None, state.seen + 1)

    def flops(self, length: int, memory: int = 0) -> int:
        """Return the FLOPs of a forward pass over one sequence."""
        total = 0
        for layer in range(len(self.blocks)):
            mixer, width = self._config.mixer_of(layer), self._config.width
            total += mixer.cost(length, width, role=self._role).flops
            if self._config.positions.rotates:
                total += mixer.rotation_flops(length, width, self._role)
            heads, head_width = mixer.position_heads, mixer.position_width(width)
            total += self._config.positions.flops(mixer.position_queries(length, self._role), length, heads, head_width)
            total += length * self._config.feedforward_flops(width)
            if self._cross is not None:
                total += self._cross.cost(length, width, role="cross", memory=memory).flops
        return total
