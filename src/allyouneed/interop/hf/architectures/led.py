"""LED: BART whose encoder is a Longformer.

Its sources may be longer than its targets, so each side has positions of its own length. No token of a source is
global, which is the default of transformers.
"""

from allyouneed.config import Tree
from allyouneed.errors import FolderError
from allyouneed.interop.hf.architectures.bart import EPSILON, block
from allyouneed.interop.hf.architectures.base import ACTIVATIONS, Architecture
from allyouneed.interop.hf.architectures.bert import global_projections, windows_of
from allyouneed.interop.hf.fields import Fields
from allyouneed.interop.hf.rules import Rows, Rule, layer, stacked
from allyouneed.mixers.softmax import SoftmaxConfig
from allyouneed.models.encoder_decoder import EncoderDecoderConfig
from allyouneed.positions import LearnedConfig


def read(fields: Fields, name: str) -> EncoderDecoderConfig:
    """Return our settings."""
    hidden, layers = fields.number("decoder_ffn_dim"), fields.layers("encoder_layers")
    if fields.number("encoder_ffn_dim") != hidden:
        raise FolderError(f"{fields.where}: encoder_ffn_dim and decoder_ffn_dim differ; should be equal")
    mixers = windows_of(fields, fields.number("encoder_attention_heads"), layers, everywhere=0)
    fields.only("tie_word_embeddings", True)
    fields.number("vocab_size")
    fields.ignore(["num_hidden_layers"])
    longest = fields.number("max_encoder_position_embeddings", 16384)
    return EncoderDecoderConfig(
        width=fields.number("d_model"),
        hidden=hidden,
        encoder_layers=layers,
        decoder_layers=fields.layers("decoder_layers"),
        mixer=SoftmaxConfig(heads=fields.number("decoder_attention_heads")),
        encoder_mixer=mixers[0] if len(set(mixers)) == 1 else mixers or None,
        norm="post",
        epsilon=EPSILON,
        feedforward=fields.one_of("activation_function", ACTIVATIONS, "gelu"),  # type: ignore[arg-type]
        positions=LearnedConfig(max_length=fields.number("max_decoder_position_embeddings", 1024)),
        encoder_positions=LearnedConfig(max_length=longest),
        embedding_scale=False,
        embedding_norm=True,
        output_bias=True,
        dropout=0.0,
    )


def write(config: EncoderDecoderConfig) -> Tree:
    """Return no settings: an export has those of the original."""
    return {}


def rules(config: EncoderDecoderConfig, rows: Rows) -> list[Rule]:
    """Return the rules for the weights."""
    found = [
        Rule("source.weight_VD", ("led.shared.weight",), rows.table()),
        Rule("head.bias_V", ("final_logits_bias",), rows.bias(as_row=True)),
    ]
    for side, way_in in (("encoder", "source"), ("decoder", "target")):
        found += [Rule(f"{way_in}.position.table_ND", (f"led.{side}.embed_positions.weight",))]
        found += layer(f"{way_in}.norm", f"led.{side}.layernorm_embedding")
    for number in range(config.encoder_layers):
        found += _encoder_block(f"encoder.blocks.{number}", f"led.encoder.layers.{number}", config.width)
    for number in range(config.decoder_layers):
        found += block(f"decoder.blocks.{number}", f"led.decoder.layers.{number}", config.width, crossing=True)
    return found


def _encoder_block(ours: str, theirs: str, width: int) -> list[Rule]:
    inside = f"{theirs}.self_attn.longformer_self_attn"
    parts = [f"{inside}.{part}" for part in ("query", "key", "value")]
    return [
        *stacked(f"{ours}.mixer.project.query_key_value", parts, [width] * 3),
        *layer(f"{ours}.mixer.project.output", f"{theirs}.self_attn.output"),
        *global_projections(f"{ours}.mixer", inside, width),
        *layer(f"{ours}.mixer_norm", f"{theirs}.self_attn_layer_norm"),
        *layer(f"{ours}.feedforward.inner", f"{theirs}.fc1"),
        *layer(f"{ours}.feedforward.outer", f"{theirs}.fc2"),
        *layer(f"{ours}.feedforward_norm", f"{theirs}.final_layer_norm"),
    ]


LED = Architecture(
    type="led",
    classes=("LEDForConditionalGeneration",),
    read=read,
    rules=rules,
    write=write,
    tied={
        "led.shared.weight": ("lm_head.weight", "led.encoder.embed_tokens.weight", "led.decoder.embed_tokens.weight")
    },
    framed=True,
)
