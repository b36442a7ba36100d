"""Llama, and Mistral where it is Llama: pre-norm decoders with RMS norms, rotary positions, SwiGLU."""

from functools import partial

from allyouneed.config import Tree
from allyouneed.errors import ConfigError, FolderError
from allyouneed.interop.hf.architectures.base import Architecture, epsilon_of, softmax_of
from allyouneed.interop.hf.fields import Fields
from allyouneed.interop.hf.rules import Rows, Rule, layer, stacked
from allyouneed.mixers.softmax import SoftmaxConfig
from allyouneed.models.decoder import DecoderConfig
from allyouneed.positions import RotaryConfig


def read(fields: Fields, name: str, biased: bool | None) -> DecoderConfig:
    """Return our settings. `biased`: queries, keys and values have biases (None: read it from a field)."""
    width, heads = fields.number("hidden_size"), fields.number("num_attention_heads")
    key_heads, own = fields.number("num_key_value_heads", heads), fields.number("head_dim", max(1, width // heads))
    fields.one_of("hidden_act", {"silu": None, "swish": None}, "silu")
    fields.only("pretraining_tp", 1)
    if name.startswith("Mistral"):
        fields.only("sliding_window", None)
    for size in ("vocab_size", "max_position_embeddings"):  # rotary positions have no maximum
        fields.number(size)
    return DecoderConfig(
        width=width,
        layers=fields.layers("num_hidden_layers"),
        hidden=fields.number("intermediate_size"),
        feedforward="swiglu",
        feedforward_bias=fields.flag("mlp_bias", False),
        mixer=SoftmaxConfig(
            heads=heads,
            key_heads=None if key_heads == heads else key_heads,
            key_width=None if own * heads == width else own,
            value_width=None if own * heads == width else own,
            bias=fields.flag("attention_bias", False) if biased is None else biased,
        ),
        norm="pre",
        normalisation="rms",
        epsilon=fields.real("rms_norm_eps", 1e-6),
        positions=RotaryConfig(base=_base(fields)),
        embedding_scale=False,
        tied=fields.flag("tie_word_embeddings", False),
        dropout=0.0,
    )


def _base(fields: Fields) -> float:
    """Return the base of the angles. Raise FolderError for scaled or partial angles."""
    old, new = fields.get("rope_scaling"), fields.get("rope_parameters")
    base = fields.real("rope_theta", 10000.0)
    for what, tree in (("rope_scaling", old), ("rope_parameters", new)):
        if tree is None:
            continue
        if not isinstance(tree, dict):
            raise FolderError(f"{fields.where}: {what}: should be an object")
        inner = Fields(tree, f"{fields.where}: {what}")
        inner.only("rope_type", "default")
        inner.only("type", "default")
        inner.only("partial_rotary_factor", 1.0, 1)
        base = inner.real("rope_theta", base)
        inner.finish()
    return base


def write(config: DecoderConfig) -> Tree:
    """Return their settings, as a Llama."""
    mixer = softmax_of(config)
    if config.feedforward != "swiglu":
        raise ConfigError(f"model.feedforward: {config.feedforward}; should be swiglu, as in Llama")
    assert isinstance(config.positions, RotaryConfig)
    return {
        "hidden_size": config.width,
        "num_hidden_layers": config.layers,
        "intermediate_size": config.hidden,
        "num_attention_heads": mixer.heads,
        "num_key_value_heads": mixer.groups,
        "head_dim": mixer.head_widths(config.width)[0],
        "hidden_act": "silu",
        "rms_norm_eps": epsilon_of(config),
        "rope_parameters": {"rope_type": "default", "rope_theta": config.positions.base},
        "rope_theta": config.positions.base,
        "attention_bias": mixer.bias,
        "mlp_bias": config.feedforward_bias,
        "tie_word_embeddings": config.tied,
        "max_position_embeddings": 1 << 15,
    }


def rules(config: DecoderConfig, rows: Rows) -> list[Rule]:
    """Return the rules for the weights."""
    mixer = softmax_of(config)
    own = mixer.head_widths(config.width)[0]
    sizes = [mixer.heads * own, mixer.groups * own, mixer.groups * own]
    found = [
        Rule("target.weight_VD", ("model.embed_tokens.weight",), rows.table()),
        *layer("decoder.norm", "model.norm", bias=False),
    ]
    if not config.tied:
        found += [Rule("head.weight_VD", ("lm_head.weight",), rows.table())]
    if config.output_bias:
        found += [Rule("head.bias_V", (), rows.bias())]
    for number in range(config.layers):
        ours, theirs = f"decoder.blocks.{number}", f"model.layers.{number}"
        parts = [f"{theirs}.self_attn.{part}_proj" for part in "qkv"]
        found += stacked(f"{ours}.mixer.query_key_value", parts, sizes, bias=mixer.bias)
        found += layer(f"{ours}.mixer.output", f"{theirs}.self_attn.o_proj", bias=mixer.bias)
        gates = [f"{theirs}.mlp.{part}_proj" for part in ("gate", "up")]
        found += stacked(f"{ours}.feedforward.inner", gates, [config.hidden] * 2, bias=config.feedforward_bias)
        found += layer(f"{ours}.feedforward.outer", f"{theirs}.mlp.down_proj", bias=config.feedforward_bias)
        found += layer(f"{ours}.mixer_norm", f"{theirs}.input_layernorm", bias=False)
        found += layer(f"{ours}.feedforward_norm", f"{theirs}.post_attention_layernorm", bias=False)
    return found


def _architecture(kind: str, name: str, biased: bool | None) -> Architecture:
    return Architecture(
        type=kind,
        classes=(name,),
        read=partial(read, biased=biased),
        rules=rules,
        write=write,
        tied={"model.embed_tokens.weight": ("lm_head.weight",)},
        unused=(".rotary_emb.inv_freq",),
        rewrites=("unscaled",),
    )


LLAMA = _architecture("llama", "LlamaForCausalLM", biased=None)
MISTRAL = _architecture("mistral", "MistralForCausalLM", biased=False)
