"""GPT-2: a pre-norm decoder with learned positions. Its layers store their weights transposed."""

from allyouneed.config import Tree
from allyouneed.interop.hf.architectures.base import ACTIVATIONS, Architecture, activation_of, epsilon_of, softmax_of
from allyouneed.interop.hf.fields import Fields
from allyouneed.interop.hf.rules import Rows, Rule, Transposed, layer
from allyouneed.mixers.softmax import SoftmaxConfig
from allyouneed.models.decoder import DecoderConfig
from allyouneed.positions import LearnedConfig


def read(fields: Fields, name: str) -> DecoderConfig:
    """Return our settings."""
    width = fields.number("n_embd")
    fields.only("scale_attn_weights", True)
    fields.only("scale_attn_by_inverse_layer_idx", False)
    fields.only("add_cross_attention", False)
    fields.number("vocab_size")
    # The last five configure a head that a language model lacks; the others affect how, not what, it computes.
    fields.ignore(["reorder_and_upcast_attn", "n_ctx", "summary_type", "summary_use_proj", "summary_activation"])
    fields.ignore(["summary_proj_to_labels"])
    return DecoderConfig(
        width=width,
        layers=fields.layers("n_layer"),
        hidden=fields.number("n_inner", 4 * width),
        mixer=SoftmaxConfig(heads=fields.number("n_head")),
        norm="pre",
        epsilon=fields.real("layer_norm_epsilon", 1e-5),
        feedforward=fields.one_of("activation_function", ACTIVATIONS, "gelu_new"),  # type: ignore[arg-type]
        positions=LearnedConfig(max_length=fields.number("n_positions", 1024)),
        embedding_scale=False,
        tied=fields.flag("tie_word_embeddings", True),
        dropout=0.0,
    )


def write(config: DecoderConfig) -> Tree:
    """Return the Hugging Face settings."""
    assert isinstance(config.positions, LearnedConfig)
    return {
        "n_embd": config.width,
        "n_layer": config.layers,
        "n_head": softmax_of(config).heads,
        "n_inner": config.hidden,
        "n_positions": config.positions.max_length,
        "activation_function": activation_of(config),
        "layer_norm_epsilon": epsilon_of(config),
        "tie_word_embeddings": config.tied,
        "resid_pdrop": config.dropout,
        "embd_pdrop": config.dropout,
        "attn_pdrop": 0.0,
    }


def rules(config: DecoderConfig, rows: Rows) -> list[Rule]:
    """Return the rules for the weights."""
    found = [
        Rule("target.weight_VD", ("transformer.wte.weight",), rows.table()),
        Rule("target.position.table_ND", ("transformer.wpe.weight",)),
        *layer("decoder.norm", "transformer.ln_f"),
    ]
    if not config.tied:
        found += [Rule("head.weight_VD", ("lm_head.weight",), rows.table())]
    if config.output_bias:
        found += [Rule("head.bias_V", (), rows.bias())]
    for number in range(config.layers):
        ours, theirs = f"decoder.blocks.{number}", f"transformer.h.{number}"
        found += layer(f"{ours}.mixer_norm", f"{theirs}.ln_1")
        found += layer(f"{ours}.feedforward_norm", f"{theirs}.ln_2")
        for own, other in {
            "mixer.query_key_value": "attn.c_attn",
            "mixer.output": "attn.c_proj",
            "feedforward.inner": "mlp.c_fc",
            "feedforward.outer": "mlp.c_proj",
        }.items():
            found += [
                Rule(f"{ours}.{own}.weight", (f"{theirs}.{other}.weight",), Transposed()),
                Rule(f"{ours}.{own}.bias", (f"{theirs}.{other}.bias",)),
            ]
    return found


GPT2 = Architecture(
    type="gpt2",
    classes=("GPT2LMHeadModel", "GPT2Model"),
    read=read,
    rules=rules,
    write=write,
    prefix="transformer.",
    tied={"transformer.wte.weight": ("lm_head.weight",)},
    unused=(".attn.bias", ".attn.masked_bias"),  # masks
    rewrites=("table", "unscaled"),
)
