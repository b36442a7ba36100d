"""DistilBERT: a BERT without segments and pooler.

DistilBertModel                       x_first; no classes
DistilBertForMaskedLM                 Norm(f(U x + c)) E^T + b for each position
DistilBertForSequenceClassification   W ReLU(U x_first + c) + b
DistilBertForTokenClassification      W x + b for each position
"""

from allyouneed.config import Tree
from allyouneed.errors import ConfigError
from allyouneed.interop.hf.architectures.base import ACTIVATIONS, Architecture, activation_of, softmax_of
from allyouneed.interop.hf.architectures.bert import HEADS, no_classes, output
from allyouneed.interop.hf.fields import Fields
from allyouneed.interop.hf.rules import Rows, Rule, layer, stacked
from allyouneed.mixers.softmax import SoftmaxConfig
from allyouneed.models.encoder import EncoderConfig
from allyouneed.positions import LearnedConfig

NAME, BODY = "DistilBert", "distilbert."
EPSILON = 1e-12
TRANSFORMS = {"ForMaskedLM": "norm", "ForSequenceClassification": "relu"}


def read(fields: Fields, name: str) -> EncoderConfig:
    """Return our settings."""
    head = name.removeprefix(NAME)
    masked = head == "ForMaskedLM"
    fields.only("problem_type", None, "single_label_classification")
    fields.only("tie_word_embeddings", True, *([] if masked else [False]))
    fields.number("vocab_size")
    # Sines are stored as a table, too; the others are dropout.
    fields.ignore(["sinusoidal_pos_embds", "qa_dropout", "seq_classif_dropout", "tie_weights_"])
    return EncoderConfig(
        width=fields.number("dim"),
        layers=fields.layers("n_layers"),
        hidden=fields.number("hidden_dim"),
        mixer=SoftmaxConfig(heads=fields.number("n_heads")),
        norm="post",
        epsilon=EPSILON,
        feedforward=fields.one_of("activation", ACTIVATIONS, "gelu"),  # type: ignore[arg-type]
        positions=LearnedConfig(max_length=fields.number("max_position_embeddings", 512)),
        embedding_scale=False,
        embedding_norm=True,
        pool="first" if head in ("Model", "ForSequenceClassification") else "none",
        transform=TRANSFORMS.get(head, "none"),  # type: ignore[arg-type]
        tied=masked,
        dropout=0.0,
    )


def write(config: EncoderConfig) -> Tree:
    """Return their settings."""
    if not isinstance(config.positions, LearnedConfig):
        raise ConfigError(f"model.positions: {config.positions.type}; should be learned, as in DistilBERT")
    return {
        "dim": config.width,
        "n_layers": config.layers,
        "n_heads": softmax_of(config).heads,
        "hidden_dim": config.hidden,
        "activation": activation_of(config),
        "max_position_embeddings": config.positions.max_length,
        "dropout": config.dropout,
        "attention_dropout": 0.0,
    }


def rules(config: EncoderConfig, rows: Rows) -> list[Rule]:
    """Return the rules for the weights."""
    found = [
        Rule("source.weight_VD", (f"{BODY}embeddings.word_embeddings.weight",), rows.table()),
        Rule("source.position.table_ND", (f"{BODY}embeddings.position_embeddings.weight",)),
        *layer("source.norm", f"{BODY}embeddings.LayerNorm"),
        *_head(config, rows),
    ]
    for number in range(config.layers):
        ours, theirs = f"encoder.blocks.{number}", f"{BODY}transformer.layer.{number}"
        parts = [f"{theirs}.attention.{part}_lin" for part in "qkv"]
        found += stacked(f"{ours}.mixer.query_key_value", parts, [config.width] * 3)
        found += layer(f"{ours}.mixer.output", f"{theirs}.attention.out_lin")
        found += layer(f"{ours}.mixer_norm", f"{theirs}.sa_layer_norm")
        found += layer(f"{ours}.feedforward.inner", f"{theirs}.ffn.lin1")
        found += layer(f"{ours}.feedforward.outer", f"{theirs}.ffn.lin2")
        found += layer(f"{ours}.feedforward_norm", f"{theirs}.output_layer_norm")
    return found


def _head(config: EncoderConfig, rows: Rows) -> list[Rule]:
    if config.tied:
        return [
            *layer("transform.inner", "vocab_transform"),
            *layer("transform.norm", "vocab_layer_norm"),
            Rule("head.bias_V", ("vocab_projector.bias",), rows.bias()),
        ]
    if not rows.classes:
        return no_classes(config.width)
    before = layer("transform.inner", "pre_classifier") if config.transform == "relu" else []
    return [*before, *output("classifier")]


DISTILBERT = Architecture(
    type="distilbert",
    classes=tuple(NAME + head for head in HEADS),
    class_of=lambda config: f"{NAME}ForSequenceClassification",
    read=read,
    rules=rules,
    write=write,
    prefix=BODY,
    tied={f"{BODY}embeddings.word_embeddings.weight": ("vocab_projector.weight",)},
    unused=("embeddings.position_ids",),
    framed=True,
    rewrites=("table", "folded"),
)
