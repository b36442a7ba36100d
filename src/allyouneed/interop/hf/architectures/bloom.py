"""BLOOM: a pre-norm decoder with ALiBi and an embedding norm. Queries, keys and values are grouped by head."""

from allyouneed.config import Tree
from allyouneed.errors import ConfigError
from allyouneed.interop.hf.architectures.base import Architecture, epsilon_of, softmax_of
from allyouneed.interop.hf.fields import Fields
from allyouneed.interop.hf.rules import Interleaved, Rows, Rule, layer
from allyouneed.mixers.softmax import SoftmaxConfig
from allyouneed.models.decoder import DecoderConfig
from allyouneed.positions import AlibiConfig


def read(fields: Fields, name: str) -> DecoderConfig:
    """Return our settings."""
    # Old files use other names for the same fields.
    width = fields.number("hidden_size", fields.get("n_embed"))
    layers = fields.layers("n_layer", fields.get("num_hidden_layers"))
    heads = fields.number("n_head", fields.get("num_attention_heads"))
    fields.only("apply_residual_connection_post_layernorm", False)
    fields.number("vocab_size")
    # Sharding over devices, and its precision; the weights are the same.
    fields.ignore(["pretraining_tp", "slow_but_exact", "skip_bias_add", "skip_bias_add_qkv", "offset_alibi"])
    fields.ignore(["attention_softmax_in_fp32", "bias_dropout_fusion", "masked_softmax_fusion", "seq_length"])
    return DecoderConfig(
        width=width,
        layers=layers,
        hidden=4 * width,
        mixer=SoftmaxConfig(heads=heads),
        norm="pre",
        epsilon=fields.real("layer_norm_epsilon", 1e-5),
        feedforward="gelu-tanh",
        positions=AlibiConfig(interleaved=True),
        embedding_scale=False,
        embedding_norm=True,
        tied=fields.flag("tie_word_embeddings", True),
        dropout=0.0,
    )


def write(config: DecoderConfig) -> Tree:
    """Return the Hugging Face settings."""
    mixer = softmax_of(config)
    if config.hidden != 4 * config.width:
        raise ConfigError(
            f"model.hidden: {config.hidden}; should be 4 times the width, as in BLOOM: {4 * config.width}"
        )
    return {
        "hidden_size": config.width,
        "n_layer": config.layers,
        "n_head": mixer.heads,
        "layer_norm_epsilon": epsilon_of(config),
        "tie_word_embeddings": config.tied,
        "hidden_dropout": config.dropout,
    }


def rules(config: DecoderConfig, rows: Rows) -> list[Rule]:
    """Return the rules for the weights."""
    found = [
        Rule("target.weight_VD", ("transformer.word_embeddings.weight",), rows.table()),
        *layer("target.norm", "transformer.word_embeddings_layernorm"),
        *layer("decoder.norm", "transformer.ln_f"),
    ]
    if not config.tied:
        found += [Rule("head.weight_VD", ("lm_head.weight",), rows.table())]
    if config.output_bias:
        found += [Rule("head.bias_V", (), rows.bias())]
    heads_first = Interleaved(softmax_of(config).heads)
    for number in range(config.layers):
        ours, theirs = f"decoder.blocks.{number}", f"transformer.h.{number}"
        found += layer(f"{ours}.mixer.query_key_value", f"{theirs}.self_attention.query_key_value", mapping=heads_first)
        found += layer(f"{ours}.mixer.output", f"{theirs}.self_attention.dense")
        found += layer(f"{ours}.mixer_norm", f"{theirs}.input_layernorm")
        found += layer(f"{ours}.feedforward_norm", f"{theirs}.post_attention_layernorm")
        found += layer(f"{ours}.feedforward.inner", f"{theirs}.mlp.dense_h_to_4h")
        found += layer(f"{ours}.feedforward.outer", f"{theirs}.mlp.dense_4h_to_h")
    return found


BLOOM = Architecture(
    type="bloom",
    classes=("BloomForCausalLM", "BloomModel"),
    read=read,
    rules=rules,
    write=write,
    prefix="transformer.",
    tied={"transformer.word_embeddings.weight": ("lm_head.weight",)},
    rewrites=("unscaled", "slopes"),
)
