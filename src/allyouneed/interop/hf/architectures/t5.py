"""T5: a pre-norm encoder-decoder with RMS norms, a bias for distances in buckets, and no biases otherwise.

Their scores are not divided by sqrt(K), so our queries are scaled by it. Where they multiply the decoder's output by
D^-0.5 before a tied projection, our embedding is smaller by that factor and is multiplied by sqrt(D) on input: the same
two products.
"""

import math

from allyouneed.config import Tree
from allyouneed.errors import ConfigError, FolderError
from allyouneed.interop.hf.architectures.base import Architecture, epsilon_of, softmax_of
from allyouneed.interop.hf.fields import Fields
from allyouneed.interop.hf.rules import Rows, Rule, layer, stacked
from allyouneed.mixers.softmax import SoftmaxConfig
from allyouneed.models.encoder_decoder import EncoderDecoderConfig
from allyouneed.positions import T5Config

FEEDFORWARD = {"relu": "relu", "gelu": "gelu", "gated-gelu": "geglu-tanh", "gated-silu": "swiglu"}
WRITTEN = {ours: theirs for theirs, ours in FEEDFORWARD.items()}


def read(fields: Fields, name: str) -> EncoderDecoderConfig:
    """Return our settings."""
    layers, own = fields.layers("num_layers"), fields.number("d_kv")
    tied = fields.flag("tie_word_embeddings", True)
    scaled = fields.flag("scale_decoder_outputs", tied)
    if scaled and not tied:
        raise FolderError(f"{fields.where}: scale_decoder_outputs: only a tied output projection is scaled")
    mixer = SoftmaxConfig(heads=fields.number("num_heads"), key_width=own, value_width=own, bias=False)
    feedforward = fields.one_of("feed_forward_proj", FEEDFORWARD, "relu")
    fields.only("is_decoder", False)
    fields.number("vocab_size")
    # These two repeat feed_forward_proj.
    theirs = WRITTEN[feedforward]
    fields.only("is_gated_act", theirs.startswith("gated-"))
    fields.only("dense_act_fn", "gelu_new" if theirs == "gated-gelu" else theirs.removeprefix("gated-"))
    fields.ignore(["n_positions"])  # an obsolete name without effect
    return EncoderDecoderConfig(
        width=fields.number("d_model"),
        hidden=fields.number("d_ff"),
        encoder_layers=layers,
        decoder_layers=fields.layers("num_decoder_layers", layers),
        mixer=mixer,
        norm="pre",
        normalisation="rms",
        epsilon=fields.real("layer_norm_epsilon", 1e-6),
        feedforward=feedforward,  # type: ignore[arg-type]
        feedforward_bias=False,
        positions=T5Config(
            buckets=fields.number("relative_attention_num_buckets", 32),
            max_distance=fields.number("relative_attention_max_distance", 128),
        ),
        embedding_scale=tied and scaled,
        tied=True if tied else "inputs",
        dropout=0.0,
    )


def write(config: EncoderDecoderConfig) -> Tree:
    """Return the Hugging Face settings."""
    mixer = softmax_of(config)
    if config.feedforward not in WRITTEN:
        raise ConfigError(f"model.feedforward: {config.feedforward}; should be one of {', '.join(WRITTEN)}, as in T5")
    assert isinstance(config.positions, T5Config)
    return {
        "d_model": config.width,
        "d_ff": config.hidden,
        "d_kv": mixer.head_widths(config.width)[0],
        "num_layers": config.encoder_layers,
        "num_decoder_layers": config.decoder_layers,
        "num_heads": mixer.heads,
        "feed_forward_proj": WRITTEN[config.feedforward],
        "layer_norm_epsilon": epsilon_of(config),
        "relative_attention_num_buckets": config.positions.buckets,
        "relative_attention_max_distance": config.positions.max_distance,
        "tie_word_embeddings": config.tied is True,
        "scale_decoder_outputs": config.embedding_scale,
        "is_encoder_decoder": True,
        "dropout_rate": config.dropout,
    }


def rules(config: EncoderDecoderConfig, rows: Rows) -> list[Rule]:
    """Return the rules for the weights."""
    found = [
        Rule("source.weight_VD", ("shared.weight",), rows.table(config.width**-0.5 if config.embedding_scale else 1.0))
    ]
    if config.tied is not True:
        found += [Rule("head.weight_VD", ("lm_head.weight",), rows.table())]
    if config.output_bias:
        found += [Rule("head.bias_V", (), rows.bias())]
    for side, layers in (("encoder", config.encoder_layers), ("decoder", config.decoder_layers)):
        found += layer(f"{side}.norm", f"{side}.final_layer_norm", bias=False)
        if layers:  # shared by all layers, stored in the first
            bias = f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
            found += [Rule(f"{side}.blocks.0.mixer.position.bias_RH", (bias,))]
        for number in range(layers):
            found += _block(f"{side}.blocks.{number}", f"{side}.block.{number}.layer", config, side == "decoder")
    return found


def _block(ours: str, theirs: str, config: EncoderDecoderConfig, crossing: bool) -> list[Rule]:
    mixer = softmax_of(config)
    own = mixer.head_widths(config.width)[0]
    rows, larger, last = mixer.heads * own, math.sqrt(own), 2 if crossing else 1
    attention, dense = f"{theirs}.0.SelfAttention", f"{theirs}.{last}.DenseReluDense"
    parts = [f"{attention}.{part}" for part in "qkv"]
    found = [
        *stacked(f"{ours}.mixer.query_key_value", parts, [rows] * 3, bias=False, scales=[larger, 1.0, 1.0]),
        *layer(f"{ours}.mixer.output", f"{attention}.o", bias=False),
        *layer(f"{ours}.mixer_norm", f"{theirs}.0.layer_norm", bias=False),
        *layer(f"{ours}.feedforward.outer", f"{dense}.wo", bias=False),
        *layer(f"{ours}.feedforward_norm", f"{theirs}.{last}.layer_norm", bias=False),
    ]
    if WRITTEN[config.feedforward].startswith("gated"):
        gates = [f"{dense}.wi_0", f"{dense}.wi_1"]
        found += stacked(f"{ours}.feedforward.inner", gates, [config.hidden] * 2, bias=False)
    else:
        found += layer(f"{ours}.feedforward.inner", f"{dense}.wi", bias=False)
    if crossing:
        cross = f"{theirs}.1.EncDecAttention"
        found += stacked(f"{ours}.cross.query", [f"{cross}.q"], [rows], bias=False, scales=[larger])
        found += stacked(f"{ours}.cross.key_value", [f"{cross}.{part}" for part in "kv"], [rows] * 2, bias=False)
        found += layer(f"{ours}.cross.output", f"{cross}.o", bias=False)
        found += layer(f"{ours}.cross_norm", f"{theirs}.1.layer_norm", bias=False)
    return found


T5 = Architecture(
    type="t5",
    classes=("T5ForConditionalGeneration", "T5Model"),
    read=read,
    rules=rules,
    write=write,
    tied={"shared.weight": ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight", "lm_head.weight")},
    parting="lm_head.weight",  # transformers writes v1.1 as tied
    unused=(".1.EncDecAttention.relative_attention_bias.weight",),  # in early checkpoints; never used
)
