"""OPT: a pre-norm decoder with ReLU and learned positions from row 2 on. Exported as GPT-2, which computes the same."""

from allyouneed.interop.hf.architectures.base import ACTIVATIONS, Architecture
from allyouneed.interop.hf.architectures.gpt2 import write
from allyouneed.interop.hf.fields import Fields
from allyouneed.interop.hf.rules import After, Rows, Rule, layer, stacked
from allyouneed.mixers.softmax import SoftmaxConfig
from allyouneed.models.decoder import DecoderConfig
from allyouneed.positions import LearnedConfig

OFFSET = 2  # unused rows at the start of the table of positions


def read(fields: Fields, name: str) -> DecoderConfig:
    """Return our settings."""
    width = fields.number("hidden_size")
    fields.only("do_layer_norm_before", True)
    fields.only("_remove_final_layer_norm", False)
    fields.only("layer_norm_elementwise_affine", True)
    fields.only("word_embed_proj_dim", width)
    fields.number("vocab_size")
    biased = fields.flag("enable_bias", True)
    return DecoderConfig(
        width=width,
        layers=fields.layers("num_hidden_layers"),
        hidden=fields.number("ffn_dim"),
        mixer=SoftmaxConfig(heads=fields.number("num_attention_heads"), bias=biased),
        norm="pre",
        epsilon=1e-5,
        feedforward=fields.one_of("activation_function", ACTIVATIONS, "relu"),  # type: ignore[arg-type]
        feedforward_bias=biased,
        positions=LearnedConfig(max_length=fields.number("max_position_embeddings", 2048)),
        embedding_scale=False,
        tied=fields.flag("tie_word_embeddings", True),
        dropout=0.0,
    )


def rules(config: DecoderConfig, rows: Rows) -> list[Rule]:
    """Return the rules for the weights."""
    body, biased = "model.decoder", config.feedforward_bias
    found = [
        Rule("target.weight_VD", (f"{body}.embed_tokens.weight",), rows.table()),
        Rule("target.position.table_ND", (f"{body}.embed_positions.weight",), After(OFFSET)),
        *layer("decoder.norm", f"{body}.final_layer_norm"),
    ]
    if not config.tied:
        found += [Rule("head.weight_VD", ("lm_head.weight",), rows.table())]
    if config.output_bias:
        found += [Rule("head.bias_V", (), rows.bias())]
    for number in range(config.layers):
        ours, theirs = f"decoder.blocks.{number}", f"{body}.layers.{number}"
        parts = [f"{theirs}.self_attn.{part}_proj" for part in "qkv"]
        found += stacked(f"{ours}.mixer.query_key_value", parts, [config.width] * 3, bias=biased)
        found += layer(f"{ours}.mixer.output", f"{theirs}.self_attn.out_proj", bias=biased)
        found += layer(f"{ours}.mixer_norm", f"{theirs}.self_attn_layer_norm")
        found += layer(f"{ours}.feedforward.inner", f"{theirs}.fc1", bias=biased)
        found += layer(f"{ours}.feedforward.outer", f"{theirs}.fc2", bias=biased)
        found += layer(f"{ours}.feedforward_norm", f"{theirs}.final_layer_norm")
    return found


OPT = Architecture(
    type="opt",
    classes=("OPTForCausalLM",),
    read=read,
    rules=rules,
    write=write,
    prefix="model.",
    tied={"model.decoder.embed_tokens.weight": ("lm_head.weight",)},
)
