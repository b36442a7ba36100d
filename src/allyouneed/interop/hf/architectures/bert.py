"""BERT and its relatives: post-norm encoders with segments, an embedding norm and a head.

                   attention    positions                  head for masked words    classes of a text
    BERT           softmax      learned                    cls.predictions          W tanh(U x_first + c) + b: a pooler
    RoBERTa        softmax      learned, after padding     lm_head                  the same, without a pooler
    Longformer     longformer   learned, after padding     lm_head                  the same, without a pooler
    BigBird        bigbird      learned                    cls.predictions          f instead of tanh
    RoFormer       softmax      rotary                     cls.predictions          f instead of tanh
    FNet           fourier      learned                    cls.predictions          as BERT
    Nyströmformer  nystrom      learned, from row 2 on     cls.predictions          f instead of tanh

XLM-RoBERTa and CamemBERT are RoBERTa. The head depends on the class:

    ...Model                       tanh(U x_first + c): the pooler, or x_first if there is none; no classes
    ...ForMaskedLM                 Norm(f(U x + c)) E^T + b for each position
    ...ForSequenceClassification   as above
    ...ForTokenClassification      W x + b for each position

Longformer's first token is global for classification, and no token otherwise, which is the default of transformers.
BigBird's random blocks are drawn from our seed. Transformers draws them anew for each call in training, and uses block
0 instead at inference. Nyströmformer there reads texts of exactly `segment_means_seq_len` tokens through landmarks; if
there are as many landmarks as that, texts of any length without them. RoFormer rotates features 2i and 2i + 1, ours i
and i + K/2: a fixed permutation.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor

from allyouneed.config import Tree
from allyouneed.errors import ConfigError, FolderError
from allyouneed.interop.hf.architectures.base import ACTIVATIONS, Architecture, activation_of, epsilon_of, softmax_of
from allyouneed.interop.hf.fields import Fields
from allyouneed.interop.hf.rules import After, Nothing, Reordered, Rows, Rule, Same, Shaped, Stacked, layer, stacked
from allyouneed.mixers import MixerConfig
from allyouneed.mixers.bigbird import BigBirdConfig
from allyouneed.mixers.fourier import FourierConfig
from allyouneed.mixers.longformer import LongformerConfig
from allyouneed.mixers.nystrom import NystromConfig
from allyouneed.mixers.softmax import SoftmaxConfig
from allyouneed.models.encoder import EncoderConfig
from allyouneed.positions import LearnedConfig, RotaryConfig, Sinusoidal
from allyouneed.text.specials import PAD

HEADS = ("Model", "ForMaskedLM", "ForSequenceClassification", "ForTokenClassification")


@dataclass(frozen=True)
class Family:
    """The differences between the relatives."""

    type: str
    name: str  # first part of the class names
    body: str  # prefix of the weights
    like_roberta: bool = False  # the head for masked words, and positions that start after the padding token's number
    pooler: str | None = "pooler.dense"  # of the class without a head
    classifies: Literal["pooler", "tanh", "function"] = "pooler"  # before the classes of a text
    heads: tuple[str, ...] = HEADS
    activation: str = "gelu"
    segments: int = 2  # if no field has their number


def read(fields: Fields, name: str, family: Family) -> EncoderConfig:
    """Return our settings."""
    head = name.removeprefix(family.name)
    masked, classifies = head == "ForMaskedLM", head == "ForSequenceClassification"
    activation = fields.one_of("hidden_act", ACTIVATIONS, family.activation)
    if family.like_roberta and masked and activation != "gelu":
        raise FolderError(
            f"{fields.where}: hidden_act: its head for masked words always uses gelu, so the layers must too"
        )
    fields.only("position_embedding_type", "absolute")
    fields.only("is_decoder", False)
    fields.only("add_cross_attention", False)
    fields.only("problem_type", None, "single_label_classification")
    fields.only("tie_word_embeddings", True, *([] if masked else [False]))
    fields.number("vocab_size")
    width, layers = fields.number("hidden_size"), fields.layers("num_hidden_layers")
    after = {"Model": "tanh" if family.pooler else "none", "ForMaskedLM": "norm", "ForTokenClassification": "none"}
    return EncoderConfig(
        width=width,
        layers=layers,
        hidden=fields.number("intermediate_size"),
        mixer=_mixers(fields, family, layers, everywhere=1 if classifies else 0),
        norm="post",
        epsilon=fields.real("layer_norm_eps", 1e-12),
        feedforward=activation,  # type: ignore[arg-type]
        positions=_positions(fields, family, width),
        embedding_scale=False,
        embedding_norm=True,
        segments=fields.number("type_vocab_size", family.segments),
        projection=family.type == "fnet",
        pool="first" if classifies or head == "Model" else "none",
        transform=after.get(head, "function" if family.classifies == "function" else "tanh"),  # type: ignore[arg-type]
        tied=masked,
        dropout=0.0,
    )


def _positions(fields: Fields, family: Family, width: int) -> LearnedConfig | RotaryConfig:
    longest = fields.number("max_position_embeddings", 512)
    if family.type == "roformer":
        fields.only("rotary_value", False)
        fields.only("embedding_size", width)
        return RotaryConfig()
    if family.like_roberta:
        longest -= 1 + (fields.token("pad_token_id") or 0)
    return LearnedConfig(max_length=max(1, longest))


def _mixers(fields: Fields, family: Family, layers: int, everywhere: int) -> Any:
    """Return one mixer, or a list with one for each layer if they differ."""
    if family.type == "fnet":
        fields.only("use_tpu_fourier_optimizations", False)
        fields.ignore(["tpu_short_seq_length"])
        return FourierConfig()
    heads = fields.number("num_attention_heads")
    if family.type == "nystromformer":
        return _landmarks(fields, heads)
    mixers: list[MixerConfig] = [SoftmaxConfig(heads=heads)]
    if family.type == "longformer":
        fields.ignore(["ignore_attention_mask", "attention_mode", "onnx_export"])
        mixers = windows_of(fields, heads, layers, everywhere)
    elif family.type == "big_bird":
        fields.only("rescale_embeddings", False)
        fields.only("use_bias", True)
        block, random = fields.number("block_size", 64), fields.number("num_random_blocks", 3, least=0)
        if fields.one_of("attention_type", {"block_sparse": True, "original_full": False}, "block_sparse"):
            mixers = [BigBirdConfig(heads=heads, block=block, random=random, seed=n) for n in range(max(1, layers))]
    return mixers[0] if len(set(mixers)) <= 1 else mixers


def _landmarks(fields: Fields, heads: int) -> NystromConfig:
    landmarks, length = fields.number("num_landmarks", 64), fields.number("segment_means_seq_len", 64)
    fields.only("inv_coeff_init_option", False)
    kernel = None if fields.has("conv_kernel_size") and fields.get("conv_kernel_size") is None else 65
    if kernel is not None:
        kernel = fields.number("conv_kernel_size", kernel)
    # As many landmarks as positions: all pairs are read, whatever the length.
    landmarks = fields.number("max_position_embeddings", 510) if landmarks == length else landmarks
    return NystromConfig(heads=heads, landmarks=landmarks, kernel=kernel)


def windows_of(fields: Fields, heads: int, layers: int, everywhere: int) -> list[MixerConfig]:
    """Return the mixers of Longformer's layers."""
    windows = fields.get("attention_window", 512)
    windows = windows if isinstance(windows, list) else [windows] * layers
    if len(windows) != layers or not all(type(w) is int and w > 0 and w % 2 == 0 for w in windows):
        raise FolderError(f"{fields.where}: attention_window: should be an even number for each of {layers} layers")
    return [LongformerConfig(heads=heads, window=w // 2, everywhere=everywhere) for w in windows]


def write(config: EncoderConfig) -> Tree:
    """Return their settings, as a BERT or a RoFormer."""
    positions = config.positions
    if not isinstance(positions, LearnedConfig | RotaryConfig):
        raise ConfigError(f"model.positions: {positions.type}; should be learned, as in BERT, or rotary")
    return {
        "hidden_size": config.width,
        "num_hidden_layers": config.layers,
        "num_attention_heads": softmax_of(config).heads,
        "intermediate_size": config.hidden,
        "hidden_act": activation_of(config),
        "layer_norm_eps": epsilon_of(config),
        "max_position_embeddings": positions.max_length if isinstance(positions, LearnedConfig) else WRITTEN_POSITIONS,
        "type_vocab_size": max(1, config.segments),
        "hidden_dropout_prob": config.dropout,
        "attention_probs_dropout_prob": 0.0,
    }


def class_of(config: EncoderConfig, family: Family) -> str:
    """Return the class with this head."""
    if config.pool == "none":
        return family.name + ("ForMaskedLM" if config.tied else "ForTokenClassification")
    return f"{family.name}ForSequenceClassification"


def rules(config: EncoderConfig, rows: Rows, family: Family) -> list[Rule]:
    """Return the rules for the weights."""
    body = family.body
    found = [
        Rule("source.weight_VD", (f"{body}embeddings.word_embeddings.weight",), rows.table()),
        Rule("source.segment_ND", (f"{body}embeddings.token_type_embeddings.weight",)),
        *layer("source.norm", f"{body}embeddings.LayerNorm"),
        *_head(config, rows, family),
    ]
    if isinstance(config.positions, LearnedConfig):
        unused = 2 if family.type == "nystromformer" else 0
        skipped = After(1 + (rows.theirs[PAD] or 0) if family.like_roberta else unused)
        table = f"{body}embeddings.position_embeddings.weight"
        found += [Rule("source.position.table_ND", (table,), skipped)]
    if config.projection:
        found += layer("source.project", f"{body}embeddings.projection")
    for number in range(config.layers):
        ours, theirs = f"encoder.blocks.{number}", f"{body}encoder.layer.{number}"
        if isinstance(config.mixer_of(number), FourierConfig):
            found += layer(f"{ours}.mixer_norm", f"{theirs}.fourier.output.LayerNorm")
        else:
            found += _attention(config, number, f"{ours}.mixer", f"{theirs}.attention")
            found += layer(f"{ours}.mixer_norm", f"{theirs}.attention.output.LayerNorm")
        found += layer(f"{ours}.feedforward.inner", f"{theirs}.intermediate.dense")
        found += layer(f"{ours}.feedforward.outer", f"{theirs}.output.dense")
        found += layer(f"{ours}.feedforward_norm", f"{theirs}.output.LayerNorm")
    return found


def _attention(config: EncoderConfig, number: int, ours: str, theirs: str) -> list[Rule]:
    mixer, width = config.mixer_of(number), config.width
    inside = ours if isinstance(mixer, SoftmaxConfig) else f"{ours}.project"
    parts = [f"{theirs}.self.{part}" for part in ("query", "key", "value")]
    found = layer(f"{inside}.output", f"{theirs}.output.dense")
    if isinstance(config.positions, RotaryConfig):
        order = _halves_first(width // mixer.position_heads, mixer.position_heads)
        mapping = Reordered(
            Stacked([width] * 3), (*order, *(width + row for row in order), *range(2 * width, 3 * width))
        )
        for name in ("weight", "bias"):
            found += [Rule(f"{inside}.query_key_value.{name}", tuple(f"{part}.{name}" for part in parts), mapping)]
    else:
        found += stacked(f"{inside}.query_key_value", parts, [width] * 3)
    if isinstance(mixer, NystromConfig) and mixer.kernel is not None:
        shapes = Shaped((mixer.heads, mixer.kernel), (mixer.heads, 1, mixer.kernel, 1))
        found += [Rule(f"{ours}.filters_HR", (f"{theirs}.self.conv.weight",), shapes)]
    if isinstance(mixer, LongformerConfig):
        found += global_projections(ours, f"{theirs}.self", width)
    return found


def global_projections(ours: str, theirs: str, width: int) -> list[Rule]:
    """Return the rules for the projections of Longformer's global positions."""
    far = [f"{theirs}.{part}_global" for part in ("key", "value")]
    return [
        *layer(f"{ours}.global_query", f"{theirs}.query_global"),
        *stacked(f"{ours}.global_key_value", far, [width] * 2),
    ]


def _halves_first(head_width: int, heads: int) -> list[int]:
    """Return their row for each of ours, for queries or keys whose features 2i and 2i + 1 are rotated together."""
    within = [*range(0, head_width, 2), *range(1, head_width, 2)]
    return [head * head_width + feature for head in range(heads) for feature in within]


def _head(config: EncoderConfig, rows: Rows, family: Family) -> list[Rule]:
    if config.tied:
        inside = "lm_head" if family.like_roberta else "cls.predictions"
        dense, norm = ("dense", "layer_norm") if family.like_roberta else ("transform.dense", "transform.LayerNorm")
        return [
            *layer("transform.inner", f"{inside}.{dense}"),
            *layer("transform.norm", f"{inside}.{norm}"),
            Rule("head.bias_V", (f"{inside}.bias",), rows.bias()),
        ]
    if config.pool == "none":
        return output("classifier")
    if not rows.classes:
        pooler = layer("transform.inner", f"{family.body}{family.pooler}") if family.pooler else []
        return [*pooler, *no_classes(config.width)]
    if family.classifies == "pooler":
        return [*layer("transform.inner", f"{family.body}{family.pooler}"), *output("classifier")]
    return [*layer("transform.inner", "classifier.dense"), *output("classifier.out_proj")]


def output(theirs: str) -> list[Rule]:
    """Return the rules for a projection to classes."""
    return [
        Rule("head.weight_VD", (f"{theirs}.weight",), Same()),
        Rule("head.bias_V", (f"{theirs}.bias",), Same()),
    ]


def no_classes(width: int) -> list[Rule]:
    """Return the rules for the projection of a model without classes."""
    return [Rule("head.weight_VD", (), Nothing((0, width))), Rule("head.bias_V", (), Nothing((0,)))]


WRITTEN_POSITIONS = 1536  # length of RoFormer's table, which it stores although it follows from the settings


def _angles(config: EncoderConfig, length: int = WRITTEN_POSITIONS) -> dict[str, Tensor]:
    """Return RoFormer's sines and cosines, which files contain as weights."""
    if not isinstance(config.positions, RotaryConfig):
        return {}
    width = config.width // config.mixer_of(0).position_heads
    table_NK = Sinusoidal(width, halves=True).table(length, torch.device("cpu"))[:length]
    return {"roformer.encoder.embed_positions.weight": table_NK.clone()}


def _architecture(family: Family) -> Architecture:
    body, rotary = family.body, family.type == "roformer"
    return Architecture(
        type=family.type,
        classes=tuple(family.name + head for head in family.heads),
        class_of=partial(class_of, family=family),
        read=partial(read, family=family),
        rules=partial(rules, family=family),
        write=write,
        prefix=body,
        tied={
            f"{body}embeddings.word_embeddings.weight": ("cls.predictions.decoder.weight", "lm_head.decoder.weight"),
            "cls.predictions.bias": ("cls.predictions.decoder.bias",),
            "lm_head.bias": ("lm_head.decoder.bias",),
        },
        # Position ids, and heads that this class does not have.
        unused=(
            "embeddings.position_ids",
            "embeddings.token_type_ids",
            "cls.seq_relationship.weight",
            "cls.seq_relationship.bias",
            *(f"{body}pooler{part}.{name}" for part in ("", ".dense") for name in ("weight", "bias")),
        ),
        fixed=_angles,
        needs_fixed=rotary,
        framed=True,
        rewrites=("folded", "segment") if rotary else ("table", "folded", "segment"),
    )


def _like_roberta(kind: str, name: str) -> Architecture:
    return _architecture(Family(kind, name, "roberta.", like_roberta=True, classifies="tanh"))


BERT = _architecture(Family("bert", "Bert", "bert."))
ROBERTA = _like_roberta("roberta", "Roberta")
XLM_ROBERTA = _like_roberta("xlm-roberta", "XLMRoberta")
CAMEMBERT = _like_roberta("camembert", "Camembert")
LONGFORMER = _architecture(Family("longformer", "Longformer", "longformer.", like_roberta=True, classifies="tanh"))
BIG_BIRD = _architecture(
    Family(
        "big_bird", "BigBird", "bert.", pooler="pooler", classifies="function", heads=HEADS[:3], activation="gelu_new"
    )
)
FNET = _architecture(Family("fnet", "FNet", "fnet.", activation="gelu_new", segments=4))
NYSTROMFORMER = _architecture(
    Family(
        "nystromformer", "Nystromformer", "nystromformer.", pooler=None, classifies="function", activation="gelu_new"
    )
)
ROFORMER = _architecture(Family("roformer", "RoFormer", "roformer.", pooler=None, classifies="function"))
