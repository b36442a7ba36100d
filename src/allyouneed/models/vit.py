"""ViT: an image is a sequence of patches, and a Transformer's encoder classifies it.

    x_0 = c,  x_i = W patch_i + b           patch_i = the P x P pixels of cell i, each value (v / 255 - mean) / std
    y = Norm(Encoder(x + positions))        pre-norm
    P(class) = softmax(U pool(y) + d)       pool = the vector of c, or the mean of all

W is the paper's convolution of stride P, as a linear map. A source is the bytes of an image (`text/pictures.py`): the
last 256 ids, row by row. Without classes (a target of size 0), `encode` returns the vector of each patch, c first.
`transform = "tanh"` is tanh(T x + t) between the pool and U, the pooler of transformers' ViTModel.

Cost: that of the encoder, for 1 + (size / P)^2 positions, and the patches' projection.
Paper: Dosovitskiy et al. 2021, arXiv:2010.11929.
Differs: the paper classifies with a hidden layer in pre-training only; here the head is always one layer, as in the
authors' fine-tuning and in transformers.
"""

from typing import Annotated, Literal, final

import torch
from pydantic import Field, PositiveFloat, PositiveInt, model_validator
from torch import Tensor, nn

from allyouneed.block import NormPlace
from allyouneed.dropout import Dropout
from allyouneed.mixers import Memory, MixerConfig
from allyouneed.mixers.parts.projections import initialise
from allyouneed.models.base import Head, Model, ModelConfig
from allyouneed.models.encoder_decoder import Layers
from allyouneed.models.parts.images import check_image_task, image_grid
from allyouneed.models.parts.stack import Stack, StackConfig, new_embedding
from allyouneed.positions import AnyPosition, LearnedConfig
from allyouneed.sizes import Sizes, Traits

BYTES = 256


class ViTConfig(StackConfig, ModelConfig):
    summary = "classes of images: a Transformer's encoder over patches of pixels"
    paper = "Dosovitskiy et al. 2021, arXiv:2010.11929"
    kind = "encoder"

    type: Literal["vit"] = "vit"
    layers: Layers = 6
    size: PositiveInt = 28  # pixels a side
    channels: PositiveInt = 1  # values a pixel
    patch: PositiveInt = 4  # pixels a side of a patch
    mean: Annotated[tuple[float, ...], Field(min_length=1)] = (0.5,)  # subtracted from a value: one, or one a channel
    std: Annotated[tuple[PositiveFloat, ...], Field(min_length=1)] = (0.5,)  # that it is divided by
    norm: NormPlace = "pre"
    positions: AnyPosition = LearnedConfig(max_length=50)
    embedding_scale: Literal[False] = False  # a patch is no row of a table
    pool: Literal["first", "mean"] = "first"
    transform: Literal["none", "tanh"] = "none"  # before the output projection

    @model_validator(mode="after")
    def _fitting(self) -> "ViTConfig":
        if self.size % self.patch:
            raise ValueError(f"patch={self.patch} does not divide size={self.size}")
        for name, values in (("mean", self.mean), ("std", self.std)):
            if len(values) not in (1, self.channels):
                raise ValueError(f"{name}={list(values)}: should be one number, or one for each of {self.channels}")
        if isinstance(self.positions, LearnedConfig) and self.positions.max_length < self.cells() + 1:
            raise ValueError(
                f"positions.max_length={self.positions.max_length}: an image has {self.cells()} patches and a token "
                f"for the class; should be {self.cells() + 1}"
            )
        return self

    def check_task(self, task: Traits) -> None:
        super().check_task(task)
        check_image_task(self.type, self.size, self.channels, task)

    def cells(self) -> int:
        """Return the number of patches of an image."""
        return (self.size // self.patch) ** 2

    def source_mixers(self) -> list[MixerConfig]:
        return self.mixers_of(self.layers)

    def layer_counts(self) -> tuple[int, ...]:
        return (self.layers,)

    def build(self, sizes: Sizes) -> "ViT":
        return ViT(self, sizes)


@final
class ViT(Model):
    kind = "encoder"
    config: ViTConfig

    def __init__(self, config: ViTConfig, sizes: Sizes) -> None:
        super().__init__()
        config.require_one_stream()
        self.config, self.sizes = config, sizes
        self.source = _Patches(config, sizes.source)
        self.encoder = Stack(config, config.layers, "bidirectional")
        self.transform = _linear(config.width, config.width) if config.transform == "tanh" else None
        self.head = Head(new_embedding(sizes.target, config.width), bias=True)

    @property
    def longest_source(self) -> int:
        return self.config.size**2 * self.config.channels

    def encode(self, source_BS: Tensor, mask_BS: Tensor | None = None) -> Memory:
        """Return a vector for the class token and for each patch."""
        x_BND, _ = self.encoder(self.source(source_BS, mask_BS), self.encoder.start())
        return Memory(x_BND)

    def classify(self, source_BS: Tensor, mask_BS: Tensor | None = None) -> Tensor:
        return self.head(self.pooled(source_BS, mask_BS))

    def pooled(self, source_BS: Tensor, mask_BS: Tensor | None = None) -> Tensor:
        """Return the input of the head: a vector (B, D) for each image."""
        x_BND = self.encode(source_BS, mask_BS).x_BSD
        x_BD = x_BND[:, 0] if self.config.pool == "first" else x_BND.mean(dim=1)
        return x_BD if self.transform is None else torch.tanh(self.transform(x_BD))

    def flops(self, source: int, target: int) -> int:
        config, transform = self.config, self.config.width if self.transform is not None else 0
        patches = 2 * config.cells() * config.patch**2 * config.channels * config.width
        return patches + self.encoder.flops(config.cells() + 1) + 2 * config.width * (self.sizes.target + transform)


class _Patches(nn.Module):
    """The ids of pixels as the first vectors of the encoder (B, N, D)."""

    def __init__(self, config: ViTConfig, ids: int) -> None:
        super().__init__()
        self.config, self.first = config, ids - BYTES
        self.project = _linear(config.patch**2 * config.channels, config.width)
        self.begin_D = nn.Parameter(torch.randn(config.width) * config.width**-0.5)
        self.position = config.positions.build_added(config.width)
        self.norm = config.make_norm(config.width) if config.embedding_norm else None
        self.dropout = Dropout(config.dropout)

    def forward(self, source_BS: Tensor, mask_BS: Tensor | None = None) -> Tensor:
        config, weight = self.config, self.project.weight
        mean_C, std_C = (
            torch.tensor(one, dtype=weight.dtype, device=weight.device) for one in (config.mean, config.std)
        )
        grid_BYXC = image_grid(source_BS, mask_BS, config.size, config.channels, white=self.first + BYTES - 1)
        value_BYXC = ((grid_BYXC - self.first).to(weight.dtype) / (BYTES - 1) - mean_C) / std_C
        side = config.size // config.patch
        patch_BMP = (
            value_BYXC.unflatten(2, (side, config.patch))
            .unflatten(1, (side, config.patch))
            .transpose(2, 3)
            .flatten(3)
            .flatten(1, 2)
        )
        x_BMD = self.project(patch_BMP)
        x_BND = torch.cat([self.begin_D.to(x_BMD.dtype).expand(len(x_BMD), 1, -1), x_BMD], dim=1)
        if self.position is not None:
            x_BND = x_BND + self.position.table(x_BND.shape[1], x_BND.device)[: x_BND.shape[1]]
        if self.norm is not None:
            x_BND = self.norm(x_BND)
        out_BND: Tensor = self.dropout(x_BND)
        return out_BND


def _linear(inputs: int, outputs: int) -> nn.Linear:
    made = nn.Linear(inputs, outputs)
    initialise(made, outputs)
    return made
