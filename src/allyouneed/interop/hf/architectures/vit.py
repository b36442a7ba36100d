"""ViT: patches of images, pre-norm. The convolution over patches is a linear map here."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from allyouneed.config import Tree
from allyouneed.errors import ConfigError, FolderError
from allyouneed.interop.hf.architectures.base import ACTIVATIONS, Architecture, activation_of, epsilon_of, softmax_of
from allyouneed.interop.hf.architectures.bert import no_classes, output
from allyouneed.interop.hf.fields import Fields
from allyouneed.interop.hf.rules import Rows, Rule, Shaped, TensorMap, layer, stacked
from allyouneed.mixers.softmax import SoftmaxConfig
from allyouneed.models.vit import ViTConfig
from allyouneed.positions import LearnedConfig

MODEL, CLASSIFIER = "ViTModel", "ViTForImageClassification"


@dataclass(frozen=True)
class Patches(TensorMap):
    """Their filters (D, channels, rows, columns); ours has the channels last, as one row for each feature."""

    shape: tuple[int, int, int]  # channels, rows, columns

    def keeps(self, half: Any) -> bool:
        return True

    def join(self, theirs: Sequence[Tensor]) -> Tensor:
        return theirs[0].reshape(-1, *self.shape).permute(0, 2, 3, 1).flatten(1)

    def split(self, ours: Tensor, count: int) -> list[Tensor]:
        channels, rows, columns = self.shape
        return [ours.reshape(-1, rows, columns, channels).permute(0, 3, 1, 2)]


def read(fields: Fields, name: str) -> ViTConfig:
    """Return our settings. The numbers that pixels are scaled by are in another file (`vision.py`)."""
    width = fields.number("hidden_size", 768)
    size, patch = _side(fields, "image_size", 224), _side(fields, "patch_size", 16)
    if size % patch:
        raise FolderError(f"{fields.where}: patch_size: {patch} does not divide image_size: {size}")
    fields.only("qkv_bias", True)
    fields.only("pooler_act", "tanh")
    fields.only("pooler_output_size", width)
    fields.only("problem_type", None, "single_label_classification")
    fields.ignore(["encoder_stride"])  # of its head for masked images
    return ViTConfig(
        width=width,
        layers=fields.layers("num_hidden_layers", 12),
        hidden=fields.number("intermediate_size", 3072),
        mixer=SoftmaxConfig(heads=fields.number("num_attention_heads", 12)),
        epsilon=fields.real("layer_norm_eps", 1e-12),
        feedforward=fields.one_of("hidden_act", ACTIVATIONS, "gelu"),  # type: ignore[arg-type]
        size=size,
        channels=fields.number("num_channels", 3),
        patch=patch,
        positions=LearnedConfig(max_length=(size // patch) ** 2 + 1),
        transform="tanh" if name == MODEL else "none",
        dropout=0.0,
    )


def _side(fields: Fields, name: str, default: int) -> int:
    """Return the side of a square, given as one number or as two."""
    value = fields.get(name, default)
    if isinstance(value, list) and len(value) == 2 and value[0] == value[1]:
        value = value[0]
    if type(value) is not int or not 0 < value <= 4096:
        raise FolderError(f"{fields.where}: {name}: {value!r}; should be the side of a square, at most 4,096 pixels")
    return value


def write(config: ViTConfig) -> Tree:
    """Return their settings."""
    if not isinstance(config.positions, LearnedConfig):
        raise ConfigError(f"model.positions: {config.positions.type}; should be learned, as in ViT")
    return {
        "hidden_size": config.width,
        "num_hidden_layers": config.layers,
        "num_attention_heads": softmax_of(config).heads,
        "intermediate_size": config.hidden,
        "hidden_act": activation_of(config),
        "layer_norm_eps": epsilon_of(config),
        "image_size": config.size,
        "patch_size": config.patch,
        "num_channels": config.channels,
        "qkv_bias": True,
        "hidden_dropout_prob": config.dropout,
        "attention_probs_dropout_prob": 0.0,
    }


def rules(config: ViTConfig, rows: Rows) -> list[Rule]:
    """Return the rules for the weights."""
    width, places = config.width, config.cells() + 1
    embeddings = "vit.embeddings"
    filters = Patches((config.channels, config.patch, config.patch))
    found = [
        Rule("source.project.weight", (f"{embeddings}.patch_embeddings.projection.weight",), filters),
        Rule("source.project.bias", (f"{embeddings}.patch_embeddings.projection.bias",)),
        Rule("source.begin_D", (f"{embeddings}.cls_token",), Shaped((width,), (1, 1, width))),
        Rule(
            "source.position.table_ND",
            (f"{embeddings}.position_embeddings",),
            Shaped((places, width), (1, places, width)),
        ),
        *layer("encoder.norm", "vit.layernorm"),
    ]
    for number in range(config.layers):
        ours, theirs = f"encoder.blocks.{number}", f"vit.encoder.layer.{number}"
        parts = [f"{theirs}.attention.attention.{part}" for part in ("query", "key", "value")]
        found += stacked(f"{ours}.mixer.query_key_value", parts, [width] * 3)
        found += layer(f"{ours}.mixer.output", f"{theirs}.attention.output.dense")
        found += layer(f"{ours}.mixer_norm", f"{theirs}.layernorm_before")
        found += layer(f"{ours}.feedforward.inner", f"{theirs}.intermediate.dense")
        found += layer(f"{ours}.feedforward.outer", f"{theirs}.output.dense")
        found += layer(f"{ours}.feedforward_norm", f"{theirs}.layernorm_after")
    if config.transform == "tanh":
        found += layer("transform", "vit.pooler.dense")
    return [*found, *(output("classifier") if rows.classes else no_classes(config.width))]


VIT = Architecture(
    type="vit",
    classes=(CLASSIFIER, MODEL),
    read=read,
    rules=rules,
    write=write,
    prefix="vit.",
    unused=("vit.embeddings.mask_token", *(f"vit.pooler.dense.{name}" for name in ("weight", "bias"))),
    pictures=True,
)
