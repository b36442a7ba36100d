"""Llama and its relatives: pre-norm decoders with RMS norms, rotary positions and gated feed-forward layers.

           biases of attention        norms            more
Llama      as attention_bias says     gamma            biases of the feed-forward layer as mlp_bias says
Mistral    none                       gamma
Qwen2      queries, keys, values      gamma
Qwen3      as attention_bias says     gamma            norms of queries and keys
Gemma      as attention_bias says     1 + gamma        GELU gates, scaled embeddings
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from allyouneed.config import Tree
from allyouneed.errors import ConfigError, FolderError
from allyouneed.interop.hf.architectures.base import Architecture, epsilon_of, softmax_of
from allyouneed.interop.hf.fields import Fields
from allyouneed.interop.hf.rules import Plus, Rows, Rule, TensorMap, layer, stacked
from allyouneed.mixers.softmax import SoftmaxConfig
from allyouneed.models.decoder import DecoderConfig
from allyouneed.positions import RotaryConfig
from allyouneed.rotary_scaling import RotaryScaling


@dataclass(frozen=True)
class LlamaStyle:
    """The differences between the relatives."""

    bias: bool | Literal["inputs"] | None = None  # of attention; None: a field has it
    feedforward_bias: bool = False  # whether a field has it
    head_norms: bool = False
    gemma: Literal[0, 1, 2] = 0  # its version

    @property
    def feedforward(self) -> Literal["swiglu", "geglu-tanh"]:
        """Return the gate."""
        return "geglu-tanh" if self.gemma else "swiglu"


def read(fields: Fields, name: str, style: LlamaStyle) -> DecoderConfig:
    """Return our settings."""
    width, heads = fields.number("hidden_size"), fields.number("num_attention_heads")
    wide = 128 if style.head_norms else 256 if style.gemma else max(1, width // heads)
    key_heads, own = fields.number("num_key_value_heads", heads), fields.number("head_dim", wide)
    layers, epsilon = fields.layers("num_hidden_layers"), fields.real("rms_norm_eps", 1e-6)
    _read_gate(fields, style)
    fields.only("pretraining_tp", 1)
    fields.only("use_mrope", False)
    if style.gemma == 2:
        fields.only("query_pre_attn_scalar", own)
    for size in ("vocab_size", "max_position_embeddings"):  # rotary positions have no maximum
        fields.number(size)
    mixer = SoftmaxConfig(
        heads=heads,
        key_heads=None if key_heads == heads else key_heads,
        key_width=None if own * heads == width else own,
        value_width=None if own * heads == width else own,
        bias=fields.flag("attention_bias", False) if style.bias is None else style.bias,
        head_norm=epsilon if style.head_norms else None,
        score_cap=_cap(fields, "attn_logit_softcapping", 50.0) if style.gemma == 2 else None,
    )
    return DecoderConfig(
        width=width,
        layers=layers,
        hidden=fields.number("intermediate_size"),
        feedforward=style.feedforward,
        feedforward_bias=style.feedforward_bias and fields.flag("mlp_bias", False),
        mixer=_mixers(fields, name, layers, mixer),
        norm="both" if style.gemma == 2 else "pre",
        normalisation="rms",
        epsilon=epsilon,
        positions=rotary_of(fields, own),
        embedding_scale=style.gemma > 0,
        tied=fields.flag("tie_word_embeddings", style.gemma > 0),
        logit_cap=_cap(fields, "final_logit_softcapping", 30.0) if style.gemma == 2 else None,
        dropout=0.0,
    )


def _read_gate(fields: Fields, style: LlamaStyle) -> None:
    if not style.gemma:
        fields.one_of("hidden_act", {"silu": None, "swish": None}, "silu")
        return
    # "gelu" is the name of the approximation in early configs of Gemma, and `hidden_activation` overrides it.
    gates = dict.fromkeys(("gelu_pytorch_tanh", "gelu_new"))
    fields.one_of("hidden_act", {**gates, "gelu": None}, "gelu_pytorch_tanh")
    fields.one_of("hidden_activation", gates, "gelu_pytorch_tanh")
    fields.only("use_bidirectional_attention", False)


def _cap(fields: Fields, name: str, default: float) -> float | None:
    """Return a cap; null is none."""
    return fields.real(name, default) if fields.get(name) is not None or not fields.has(name) else None


def _mixers(fields: Fields, name: str, layers: int, mixer: SoftmaxConfig) -> Any:
    """Return the mixer, or a list with one for each layer if some of them read a window only."""
    size, kinds = _windows(fields, name, layers)
    if not isinstance(kinds, list) or len(kinds) != layers or not set(kinds) <= {"full_attention", "sliding_attention"}:
        what = "full_attention or sliding_attention for each layer"
        raise FolderError(f"{fields.where}: layer_types: {kinds!r}; should be {what}")
    if "sliding_attention" not in kinds:
        return mixer
    if size is None or size < 2:
        raise FolderError(f"{fields.where}: sliding_window: {size}; should be at least 2")
    # Theirs counts the position itself.
    narrow = mixer.model_copy(update={"window": size - 1})
    mixers = [narrow if kind == "sliding_attention" else mixer for kind in kinds]
    if len(set(kinds)) == 1:
        return narrow
    return mixers[:2] if mixers == (mixers[:2] * layers)[:layers] else mixers


def _windows(fields: Fields, name: str, layers: int) -> tuple[int | None, Any]:
    """Return the size of the window, and which layers have it."""
    full, sliding = "full_attention", "sliding_attention"
    kinds = fields.get("layer_types")
    if name.startswith("Qwen"):
        used, since = fields.flag("use_sliding_window", False), fields.number("max_window_layers", 28, least=0)
        size = fields.number("sliding_window", 4096) if used else None
        fields.ignore(["sliding_window"])
        return size, kinds or [sliding if used and layer >= since else full for layer in range(layers)]
    if name.startswith("Mistral"):
        size = None if fields.get("sliding_window") is None else fields.number("sliding_window")
        return size, kinds or [full if size is None else sliding] * layers
    if name.startswith("Gemma2"):
        size = fields.number("sliding_window", 4096)
        return size, kinds or [full if layer % 2 else sliding for layer in range(layers)]
    return None, kinds or [full] * layers


def rotary_of(fields: Fields, head_width: int, share: float | None = None) -> RotaryConfig:
    """Return the positions; `share` of the features is rotated by default (None: all must be).

    Raise FolderError for angles that are scaled in another way than all alike, or as in Llama 3.1.
    """
    old, new = fields.get("rope_scaling"), fields.get("rope_parameters")
    base, whole, scaling = fields.real("rope_theta", 10000.0), share is None, None
    share = fields.real("partial_rotary_factor", share or 1.0)
    for what, tree in (("rope_scaling", old), ("rope_parameters", new)):
        if tree is None:
            continue
        if not isinstance(tree, dict):
            raise FolderError(f"{fields.where}: {what}: should be an object")
        inner = Fields(tree, f"{fields.where}: {what}")
        scaling = _scaling(inner) or scaling
        share = inner.real("partial_rotary_factor", share)
        base = inner.real("rope_theta", base)
        inner.finish()
    rotated = int(head_width * share)
    if whole and rotated != head_width:
        raise FolderError(f"{fields.where}: partial_rotary_factor: {share}; only 1.0 is supported")
    if not 2 <= rotated <= head_width or rotated % 2:
        what = f"{rotated} of {head_width} features of a head"
        raise FolderError(f"{fields.where}: partial_rotary_factor: {share}: rotates {what}; should be an even number")
    return RotaryConfig(base=base, pairs=None if rotated == head_width else rotated // 2, scaling=scaling)


def _scaling(fields: Fields) -> RotaryScaling | None:
    """Return the scaling of the frequencies, if there is one."""
    known = {"default": "default", "linear": "linear", "llama3": "llama3"}
    kind = fields.one_of("rope_type", known, fields.one_of("type", known, "default"))
    if kind == "default":
        return None
    factor = fields.real("factor", 1.0)
    if kind == "linear":
        return RotaryScaling(factor=factor)
    turns = fields.real("low_freq_factor", 1.0), fields.real("high_freq_factor", 4.0)
    return RotaryScaling(factor=factor, turns=turns, trained=fields.number("original_max_position_embeddings", 8192))


def rotary_fields(positions: RotaryConfig, head_width: int) -> Tree:
    """Return `rope_parameters`."""
    scaling, more = positions.scaling, Tree()
    if scaling is not None:
        more = {"factor": scaling.factor}
    if scaling is not None and scaling.turns is not None:
        more |= {"low_freq_factor": scaling.turns[0], "high_freq_factor": scaling.turns[1]}
        more |= {"original_max_position_embeddings": scaling.trained}
    return {
        "rope_type": "default" if scaling is None else "linear" if scaling.turns is None else "llama3",
        "rope_theta": positions.base,
        "partial_rotary_factor": rotary_share(positions, head_width),
        **more,
    }


def rotary_share(positions: RotaryConfig, head_width: int) -> float:
    """Return the share of rotated features: a little more, as transformers rounds their number down."""
    return 1.0 if positions.pairs is None else (2 * positions.pairs + 0.5) / head_width


def write(config: DecoderConfig, style: LlamaStyle) -> Tree:
    """Return their settings."""
    mixer = softmax_of(config)
    if config.feedforward != style.feedforward:
        name = "Gemma" if style.gemma else "Llama"
        raise ConfigError(f"model.feedforward: {config.feedforward}; should be {style.feedforward}, as in {name}")
    assert isinstance(config.positions, RotaryConfig)
    own = mixer.head_widths(config.width)[0]
    return {
        "hidden_size": config.width,
        "num_hidden_layers": config.layers,
        "intermediate_size": config.hidden,
        "num_attention_heads": mixer.heads,
        "num_key_value_heads": mixer.groups,
        "head_dim": own,
        "hidden_act": "gelu_pytorch_tanh" if style.gemma else "silu",
        **(_fields_of_gemma2(config, mixer, own) if style.gemma == 2 else {}),
        **({"sliding_window": mixer.window and mixer.window + 1} if style.bias is False else {}),
        "rms_norm_eps": epsilon_of(config),
        "rope_parameters": rotary_fields(config.positions, own),
        "rope_theta": config.positions.base,
        **({"attention_bias": mixer.bias is True} if style.bias is None else {}),
        **({"mlp_bias": config.feedforward_bias} if style.feedforward_bias else {}),
        "tie_word_embeddings": config.tied,
        "max_position_embeddings": 1 << 15,
    }


def _fields_of_gemma2(config: DecoderConfig, mixer: SoftmaxConfig, own: int) -> Tree:
    windows = [one.window for one in config.mixers_of(config.layers) if isinstance(one, SoftmaxConfig)]
    narrow = next((window for window in windows if window is not None), None)
    return {
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": own,
        "attn_logit_softcapping": mixer.score_cap,
        "final_logit_softcapping": config.logit_cap,
        "sliding_window": 4096 if narrow is None else narrow + 1,
        "layer_types": ["full_attention" if window is None else "sliding_attention" for window in windows],
    }


def rules(config: DecoderConfig, rows: Rows, style: LlamaStyle) -> list[Rule]:
    """Return the rules for the weights."""
    mixer = softmax_of(config)
    own = mixer.head_widths(config.width)[0]
    sizes = [mixer.heads * own, mixer.groups * own, mixer.groups * own]
    gamma: TensorMap | None = Plus(1.0) if style.gemma else None
    norm: Callable[[str, str], list[Rule]] = partial(layer, bias=False, mapping=gamma)
    found = [
        Rule("target.weight_VD", ("model.embed_tokens.weight",), rows.table()),
        *norm("decoder.norm", "model.norm"),
    ]
    if not config.tied:
        found += [Rule("head.weight_VD", ("lm_head.weight",), rows.table())]
    if config.output_bias:
        found += [Rule("head.bias_V", (), rows.bias())]
    for number in range(config.layers):
        ours, theirs = f"decoder.blocks.{number}", f"model.layers.{number}"
        parts = [f"{theirs}.self_attn.{part}_proj" for part in "qkv"]
        found += stacked(f"{ours}.mixer.query_key_value", parts, sizes, bias=bool(mixer.bias))
        found += layer(f"{ours}.mixer.output", f"{theirs}.self_attn.o_proj", bias=mixer.bias is True)
        if mixer.head_norm is not None:
            found += norm(f"{ours}.mixer.query_norm", f"{theirs}.self_attn.q_norm")
            found += norm(f"{ours}.mixer.key_norm", f"{theirs}.self_attn.k_norm")
        gates = [f"{theirs}.mlp.{part}_proj" for part in ("gate", "up")]
        found += stacked(f"{ours}.feedforward.inner", gates, [config.hidden] * 2, bias=config.feedforward_bias)
        found += layer(f"{ours}.feedforward.outer", f"{theirs}.mlp.down_proj", bias=config.feedforward_bias)
        found += norm(f"{ours}.mixer_norm", f"{theirs}.input_layernorm")
        if style.gemma == 2:
            found += norm(f"{ours}.mixed_norm", f"{theirs}.post_attention_layernorm")
            found += norm(f"{ours}.feedforward_norm", f"{theirs}.pre_feedforward_layernorm")
            found += norm(f"{ours}.fed_norm", f"{theirs}.post_feedforward_layernorm")
        else:
            found += norm(f"{ours}.feedforward_norm", f"{theirs}.post_attention_layernorm")
    return found


def _architecture(kind: str, name: str, style: LlamaStyle) -> Architecture:
    return Architecture(
        type=kind,
        classes=(name,),
        read=partial(read, style=style),
        rules=partial(rules, style=style),
        write=partial(write, style=style),
        tied={"model.embed_tokens.weight": ("lm_head.weight",)},
        unused=(".rotary_emb.inv_freq",),
        rewrites=() if style.gemma else ("unscaled",),
    )


LLAMA = _architecture("llama", "LlamaForCausalLM", LlamaStyle(feedforward_bias=True))
MISTRAL = _architecture("mistral", "MistralForCausalLM", LlamaStyle(bias=False))
QWEN2 = _architecture("qwen2", "Qwen2ForCausalLM", LlamaStyle(bias="inputs"))
QWEN3 = _architecture("qwen3", "Qwen3ForCausalLM", LlamaStyle(head_norms=True))
GEMMA = _architecture("gemma", "GemmaForCausalLM", LlamaStyle(gemma=1))
GEMMA2 = _architecture("gemma2", "Gemma2ForCausalLM", LlamaStyle(gemma=2))
