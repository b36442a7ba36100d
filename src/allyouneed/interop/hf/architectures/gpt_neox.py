"""GPT-NeoX (Pythia): a pre-norm decoder with rotary positions, whose blocks compute both sublayers of one input.

Their weights of attention are grouped by head. They rotate the first features of a head; ours pairs features i and
i + K/2, of which the first pairs are rotated: a fixed permutation.
"""

from allyouneed.config import Tree
from allyouneed.interop.hf.architectures.base import ACTIVATIONS, Architecture, activation_of, epsilon_of, softmax_of
from allyouneed.interop.hf.architectures.llama import rotary_fields, rotary_of, rotary_share
from allyouneed.interop.hf.fields import Fields
from allyouneed.interop.hf.rules import Interleaved, Reordered, Rows, Rule, TensorMap, layer
from allyouneed.mixers.softmax import SoftmaxConfig
from allyouneed.models.decoder import DecoderConfig
from allyouneed.positions import RotaryConfig, rotated_first


def read(fields: Fields, name: str) -> DecoderConfig:
    """Return our settings."""
    width, heads = fields.number("hidden_size"), fields.number("num_attention_heads")
    fields.only("is_decoder", False, True)
    for size in ("vocab_size", "max_position_embeddings"):  # rotary positions have no maximum
        fields.number(size)
    positions = rotary_of(fields, max(1, width // heads), fields.real("rotary_pct", 0.25))
    if fields.get("rope_parameters") is None and fields.get("rope_theta") is None:
        positions = positions.model_copy(update={"base": fields.real("rotary_emb_base", 10000.0)})
    fields.ignore(["rotary_emb_base"])
    return DecoderConfig(
        width=width,
        layers=fields.layers("num_hidden_layers"),
        hidden=fields.number("intermediate_size"),
        feedforward=fields.one_of("hidden_act", ACTIVATIONS, "gelu"),  # type: ignore[arg-type]
        mixer=SoftmaxConfig(heads=heads, bias=fields.flag("attention_bias", True)),
        norm="pre",
        epsilon=fields.real("layer_norm_eps", 1e-5),
        parallel=fields.flag("use_parallel_residual", True),
        positions=positions,
        embedding_scale=False,
        tied=fields.flag("tie_word_embeddings", False),
        dropout=0.0,
    )


def write(config: DecoderConfig) -> Tree:
    """Return their settings."""
    mixer = softmax_of(config)
    assert isinstance(config.positions, RotaryConfig)
    base, share = config.positions.base, rotary_share(config.positions, mixer.head_widths(config.width)[0])
    return {
        "hidden_size": config.width,
        "num_hidden_layers": config.layers,
        "num_attention_heads": mixer.heads,
        "intermediate_size": config.hidden,
        "hidden_act": activation_of(config),
        "layer_norm_eps": epsilon_of(config),
        "use_parallel_residual": config.parallel,
        "attention_bias": bool(mixer.bias),
        "rope_parameters": rotary_fields(config.positions, mixer.head_widths(config.width)[0]),
        "rotary_pct": share,
        "rotary_emb_base": base,
        "tie_word_embeddings": config.tied,
        "max_position_embeddings": 1 << 15,
        "hidden_dropout": config.dropout,
        "attention_dropout": 0.0,
    }


def rules(config: DecoderConfig, rows: Rows) -> list[Rule]:
    """Return the rules for the weights."""
    mixer = softmax_of(config)
    found = [
        Rule("target.weight_VD", ("gpt_neox.embed_in.weight",), rows.table()),
        *layer("decoder.norm", "gpt_neox.final_layer_norm"),
    ]
    if not config.tied:
        found += [Rule("head.weight_VD", ("embed_out.weight",), rows.table())]
    if config.output_bias:
        found += [Rule("head.bias_V", (), rows.bias())]
    together = _grouped(config, mixer)
    for number in range(config.layers):
        ours, theirs = f"decoder.blocks.{number}", f"gpt_neox.layers.{number}"
        inside = f"{theirs}.attention"
        biased = bool(mixer.bias)
        found += layer(f"{ours}.mixer.query_key_value", f"{inside}.query_key_value", bias=biased, mapping=together)
        found += layer(f"{ours}.mixer.output", f"{inside}.dense", bias=biased)
        found += layer(f"{ours}.mixer_norm", f"{theirs}.input_layernorm")
        found += layer(f"{ours}.feedforward_norm", f"{theirs}.post_attention_layernorm")
        found += layer(f"{ours}.feedforward.inner", f"{theirs}.mlp.dense_h_to_4h")
        found += layer(f"{ours}.feedforward.outer", f"{theirs}.mlp.dense_4h_to_h")
    return found


def _grouped(config: DecoderConfig, mixer: SoftmaxConfig) -> TensorMap:
    """Return the map of queries, keys and values: by head there; rotated features first there."""
    by_head = Interleaved(mixer.heads)
    assert isinstance(config.positions, RotaryConfig)
    if config.positions.pairs is None:
        return by_head
    own = mixer.head_widths(config.width)[0]
    within = rotated_first(own, config.positions.pairs).argsort().tolist()
    turned = [head * own + feature for head in range(2 * mixer.heads) for feature in within]
    return Reordered(by_head, (*turned, *range(len(turned), 3 * mixer.heads * own)))


GPT_NEOX = Architecture(
    type="gpt_neox",
    classes=("GPTNeoXForCausalLM",),
    read=read,
    rules=rules,
    write=write,
    tied={"gpt_neox.embed_in.weight": ("embed_out.weight", "lm_head.weight")},
    unused=(".rotary_emb.inv_freq", ".attention.bias", ".attention.masked_bias"),  # angles, masks
    rewrites=("unscaled",),
)
