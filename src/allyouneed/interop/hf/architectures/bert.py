"""BERT, Longformer and BigBird: post-norm encoders with segments, learned positions and an embedding norm.

The head depends on the class:

    ...Model                       tanh(U x_first + c): the pooler; no classes
    ...ForMaskedLM                 Norm(f(U x + c)) E^T + b for each position
    ...ForSequenceClassification   W tanh(U x_first + c) + b (BigBird: f instead of tanh)
    ...ForTokenClassification      W x + b for each position

Longformer's first token is global for classification, and no token otherwise, which is the default of transformers.
BigBird's random blocks are drawn from our seed. Transformers draws them anew for each call in training, and uses block
0 instead at inference.
"""

from functools import partial
from typing import Any, Literal

from allyouneed.config import Tree
from allyouneed.errors import ConfigError, FolderError
from allyouneed.interop.hf.architectures.base import ACTIVATIONS, Architecture, activation_of, epsilon_of, softmax_of
from allyouneed.interop.hf.fields import Fields
from allyouneed.interop.hf.rules import After, Nothing, Rows, Rule, Same, layer, stacked
from allyouneed.mixers import MixerConfig
from allyouneed.mixers.bigbird import BigBirdConfig
from allyouneed.mixers.longformer import LongformerConfig
from allyouneed.mixers.softmax import SoftmaxConfig
from allyouneed.models.encoder import EncoderConfig
from allyouneed.positions import LearnedConfig
from allyouneed.text.specials import PAD

Family = Literal["bert", "longformer", "big_bird"]
NAMES: dict[Family, str] = {"bert": "Bert", "longformer": "Longformer", "big_bird": "BigBird"}
PREFIXES: dict[Family, str] = {"bert": "bert.", "longformer": "longformer.", "big_bird": "bert."}
HEADS = ("Model", "ForMaskedLM", "ForSequenceClassification", "ForTokenClassification")


def read(fields: Fields, name: str, family: Family) -> EncoderConfig:
    """Return our settings."""
    head = name.removeprefix(NAMES[family])
    masked, classifies = head == "ForMaskedLM", head == "ForSequenceClassification"
    activation = fields.one_of("hidden_act", ACTIVATIONS, "gelu_new" if family == "big_bird" else "gelu")
    if family == "longformer" and masked and activation != "gelu":
        raise FolderError(
            f"{fields.where}: hidden_act: its head for masked words always uses gelu, so the layers must too"
        )
    fields.only("position_embedding_type", "absolute")
    fields.only("is_decoder", False)
    fields.only("add_cross_attention", False)
    fields.only("problem_type", None, "single_label_classification")
    fields.only("tie_word_embeddings", True, *([] if masked else [False]))
    fields.number("vocab_size")
    layers, longest = fields.layers("num_hidden_layers"), fields.number("max_position_embeddings", 512)
    if family == "longformer":
        longest -= 1 + (fields.token("pad_token_id") or 0)
        fields.ignore(["ignore_attention_mask", "attention_mode", "onnx_export"])
    transforms = {"Model": "tanh", "ForMaskedLM": "norm", "ForTokenClassification": "none"}
    after = transforms.get(head, "function" if family == "big_bird" else "tanh")
    return EncoderConfig(
        width=fields.number("hidden_size"),
        layers=layers,
        hidden=fields.number("intermediate_size"),
        mixer=_mixers(fields, family, layers, everywhere=1 if classifies else 0),
        norm="post",
        epsilon=fields.real("layer_norm_eps", 1e-12),
        feedforward=activation,  # type: ignore[arg-type]
        positions=LearnedConfig(max_length=max(1, longest)),
        embedding_scale=False,
        embedding_norm=True,
        segments=fields.number("type_vocab_size", 2),
        pool="first" if classifies or head == "Model" else "none",
        transform=after,  # type: ignore[arg-type]
        tied=masked,
        dropout=0.0,
    )


def _mixers(fields: Fields, family: Family, layers: int, everywhere: int) -> Any:
    """Return one mixer, or a list with one for each layer if they differ."""
    heads = fields.number("num_attention_heads")
    mixers: list[MixerConfig] = [SoftmaxConfig(heads=heads)]
    if family == "longformer":
        windows = fields.get("attention_window", 512)
        windows = windows if isinstance(windows, list) else [windows] * layers
        if len(windows) != layers or not all(type(w) is int and w > 0 and w % 2 == 0 for w in windows):
            raise FolderError(f"{fields.where}: attention_window: should be an even number for each of {layers} layers")
        mixers = [LongformerConfig(heads=heads, window=w // 2, everywhere=everywhere) for w in windows]
    elif family == "big_bird":
        fields.only("rescale_embeddings", False)
        fields.only("use_bias", True)
        block, random = fields.number("block_size", 64), fields.number("num_random_blocks", 3, least=0)
        if fields.one_of("attention_type", {"block_sparse": True, "original_full": False}, "block_sparse"):
            mixers = [BigBirdConfig(heads=heads, block=block, random=random, seed=n) for n in range(layers)]
    return mixers[0] if len(set(mixers)) <= 1 else mixers


def write(config: EncoderConfig) -> Tree:
    """Return their settings, as a BERT."""
    if not isinstance(config.positions, LearnedConfig):
        raise ConfigError(f"model.positions: {config.positions.type}; should be learned, as in BERT")
    return {
        "hidden_size": config.width,
        "num_hidden_layers": config.layers,
        "num_attention_heads": softmax_of(config).heads,
        "intermediate_size": config.hidden,
        "hidden_act": activation_of(config),
        "layer_norm_eps": epsilon_of(config),
        "max_position_embeddings": config.positions.max_length,
        "type_vocab_size": max(1, config.segments),
        "hidden_dropout_prob": config.dropout,
        "attention_probs_dropout_prob": 0.0,
    }


def class_of(config: EncoderConfig) -> str:
    """Return the class of BERT with this head."""
    if config.pool == "none":
        return "BertForMaskedLM" if config.tied else "BertForTokenClassification"
    return "BertForSequenceClassification"


def rules(config: EncoderConfig, rows: Rows, family: Family) -> list[Rule]:
    """Return the rules for the weights."""
    body = PREFIXES[family]
    offset = 1 + (rows.theirs[PAD] or 0) if family == "longformer" else 0
    found = [
        Rule("source.weight_VD", (f"{body}embeddings.word_embeddings.weight",), rows.table()),
        Rule("source.position.table_ND", (f"{body}embeddings.position_embeddings.weight",), After(offset)),
        Rule("source.segment_ND", (f"{body}embeddings.token_type_embeddings.weight",)),
        *layer("source.norm", f"{body}embeddings.LayerNorm"),
        *_head(config, rows, family),
    ]
    for number in range(config.layers):
        ours, theirs = f"encoder.blocks.{number}", f"{body}encoder.layer.{number}"
        found += _attention(config.mixer_of(number), config.width, f"{ours}.mixer", f"{theirs}.attention")
        found += layer(f"{ours}.mixer_norm", f"{theirs}.attention.output.LayerNorm")
        found += layer(f"{ours}.feedforward.inner", f"{theirs}.intermediate.dense")
        found += layer(f"{ours}.feedforward.outer", f"{theirs}.output.dense")
        found += layer(f"{ours}.feedforward_norm", f"{theirs}.output.LayerNorm")
    return found


def _attention(mixer: MixerConfig, width: int, ours: str, theirs: str) -> list[Rule]:
    inside = ours if isinstance(mixer, SoftmaxConfig) else f"{ours}.project"
    parts = [f"{theirs}.self.{part}" for part in ("query", "key", "value")]
    found = [
        *stacked(f"{inside}.query_key_value", parts, [width] * 3),
        *layer(f"{inside}.output", f"{theirs}.output.dense"),
    ]
    if isinstance(mixer, LongformerConfig):
        found += layer(f"{ours}.global_query", f"{theirs}.self.query_global")
        far = [f"{theirs}.self.{part}_global" for part in ("key", "value")]
        found += stacked(f"{ours}.global_key_value", far, [width] * 2)
    return found


def _head(config: EncoderConfig, rows: Rows, family: Family) -> list[Rule]:
    if config.tied:
        inside = "lm_head" if family == "longformer" else "cls.predictions"
        dense, norm = ("dense", "layer_norm") if family == "longformer" else ("transform.dense", "transform.LayerNorm")
        return [
            *layer("transform.inner", f"{inside}.{dense}"),
            *layer("transform.norm", f"{inside}.{norm}"),
            Rule("head.bias_V", (f"{inside}.bias",), rows.bias()),
        ]
    if config.transform == "none":
        return _output("classifier")
    if not rows.classes:
        pooler = f"{PREFIXES[family]}pooler" + ("" if family == "big_bird" else ".dense")
        empty = [Rule("head.weight_VD", (), Nothing((0, config.width))), Rule("head.bias_V", (), Nothing((0,)))]
        return [*layer("transform.inner", pooler), *empty]
    if family == "bert":
        return [*layer("transform.inner", "bert.pooler.dense"), *_output("classifier")]
    return [*layer("transform.inner", "classifier.dense"), *_output("classifier.out_proj")]


def _output(theirs: str) -> list[Rule]:
    return [
        Rule("head.weight_VD", (f"{theirs}.weight",), Same()),
        Rule("head.bias_V", (f"{theirs}.bias",), Same()),
    ]


def _architecture(family: Family) -> Architecture:
    body = PREFIXES[family]
    return Architecture(
        type=family,
        classes=tuple(
            NAMES[family] + head for head in HEADS if (family, head) != ("big_bird", "ForTokenClassification")
        ),
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
        framed=True,
        rewrites=("table", "folded", "segment"),
    )


BERT, LONGFORMER, BIG_BIRD = _architecture("bert"), _architecture("longformer"), _architecture("big_bird")
