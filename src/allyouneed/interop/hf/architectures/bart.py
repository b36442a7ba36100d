"""Marian, Pegasus, M2M-100, BART and mBART: the Transformer of 2017 with small differences.

              norm    positions                                        embedding norm    output bias
    Marian    post    sinusoidal, sines first                          no                yes
    Pegasus   pre     sinusoidal, sines first                          no                yes
    M2M-100   pre     sinusoidal, sines first, inclusive               no                no
    BART      post    learned, from row 2 on                           yes               yes
    mBART     pre     learned, from row 2 on                           yes               yes

All tie embeddings and output. The bias of the logits is `final_logits_bias`. NLLB is M2M-100 with other tokens.
Positions of M2M-100 start after the number of its padding token, which is 1.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from allyouneed.config import Tree
from allyouneed.errors import FolderError
from allyouneed.interop.hf.architectures.base import ACTIVATIONS, Architecture, activation_of, softmax_of
from allyouneed.interop.hf.fields import Fields
from allyouneed.interop.hf.rules import After, Rows, Rule, layer, stacked
from allyouneed.mixers.softmax import SoftmaxConfig
from allyouneed.models.encoder_decoder import EncoderDecoderConfig
from allyouneed.positions import LearnedConfig, Sinusoidal, SinusoidalConfig

OFFSET = 2  # unused rows at the start of a learned table
EPSILON = 1e-5
WRITTEN_POSITIONS = 1024  # length of a written sinusoidal table


@dataclass(frozen=True)
class BartStyle:
    """The differences between the five."""

    pre: bool
    learned: bool  # learned positions and an embedding norm
    m2m: bool = False  # other sines, no output bias

    def positions(self, fields: Fields) -> LearnedConfig | SinusoidalConfig:
        """Return the positions."""
        longest = fields.number("max_position_embeddings", 1024)
        if self.learned:
            return LearnedConfig(max_length=longest)
        padding = fields.token("pad_token_id")
        return SinusoidalConfig(halves=True, inclusive=self.m2m, first=1 + (padding or 0) if self.m2m else 0)


def read(fields: Fields, name: str, style: BartStyle) -> EncoderDecoderConfig:
    """Return our settings."""
    width, heads = fields.number("d_model"), fields.number("decoder_attention_heads")
    hidden = fields.number("decoder_ffn_dim")
    if fields.number("encoder_ffn_dim") != hidden:
        raise FolderError(f"{fields.where}: encoder_ffn_dim and decoder_ffn_dim differ; should be equal")
    for flag, only in {
        "normalize_before": style.pre,
        "normalize_embedding": style.learned,
        "add_final_layer_norm": style.pre,
        "static_position_embeddings": not style.learned,
        "add_bias_logits": False,
        "tie_word_embeddings": True,
        "share_encoder_decoder_embeddings": True,
        "is_decoder": False,
    }.items():
        fields.only(flag, only)
    fields.only("decoder_vocab_size", fields.number("vocab_size"))
    fields.ignore(["num_hidden_layers", "extra_pos_embeddings", "force_bos_token_to_be_generated"])
    encoder_heads = fields.number("encoder_attention_heads")
    return EncoderDecoderConfig(
        width=width,
        hidden=hidden,
        encoder_layers=fields.layers("encoder_layers"),
        decoder_layers=fields.layers("decoder_layers"),
        mixer=SoftmaxConfig(heads=heads),
        encoder_mixer=SoftmaxConfig(heads=encoder_heads) if encoder_heads != heads else None,
        norm="pre" if style.pre else "post",
        epsilon=EPSILON,
        feedforward=fields.one_of("activation_function", ACTIVATIONS, "relu" if style.m2m else "gelu"),  # type: ignore[arg-type]
        positions=style.positions(fields),
        embedding_scale=fields.flag("scale_embedding", False),
        embedding_norm=style.learned,
        output_bias=not style.m2m,
        dropout=0.0,
    )


def write(config: EncoderDecoderConfig, style: BartStyle) -> Tree:
    """Return the Hugging Face settings."""
    positions = config.positions
    encoder = softmax_of(config.encoder_stack())
    return {
        "d_model": config.width,
        "encoder_layers": config.encoder_layers,
        "decoder_layers": config.decoder_layers,
        "encoder_attention_heads": encoder.heads,
        "decoder_attention_heads": softmax_of(config).heads,
        "encoder_ffn_dim": config.hidden,
        "decoder_ffn_dim": config.hidden,
        "activation_function": activation_of(config),
        "scale_embedding": config.embedding_scale,
        "max_position_embeddings": positions.max_length if isinstance(positions, LearnedConfig) else WRITTEN_POSITIONS,
        "is_encoder_decoder": True,
        "tie_word_embeddings": True,
        "dropout": config.dropout,
        "forced_eos_token_id": None,
        **({"pad_token_id": positions.first - 1} if style.m2m and isinstance(positions, SinusoidalConfig) else {}),
    }


def rules(config: EncoderDecoderConfig, rows: Rows, style: BartStyle) -> list[Rule]:
    """Return the rules for the weights."""
    found = [Rule("source.weight_VD", ("model.shared.weight",), rows.table())]
    if not style.m2m:
        found += [Rule("head.bias_V", ("final_logits_bias",), rows.bias(as_row=True))]
    elif config.output_bias:  # for ids that are never generated
        found += [Rule("head.bias_V", (), rows.bias())]
    for ours, theirs, way_in in (("encoder", "model.encoder", "source"), ("decoder", "model.decoder", "target")):
        if isinstance(config.positions, LearnedConfig):
            found += [Rule(f"{way_in}.position.table_ND", (f"{theirs}.embed_positions.weight",), After(OFFSET))]
        if config.embedding_norm:
            found += layer(f"{way_in}.norm", f"{theirs}.layernorm_embedding")
        if config.norm == "pre":
            found += layer(f"{ours}.norm", f"{theirs}.layer_norm")
        layers = config.encoder_layers if ours == "encoder" else config.decoder_layers
        for number in range(layers):
            found += block(f"{ours}.blocks.{number}", f"{theirs}.layers.{number}", config.width, ours == "decoder")
    return found


def block(ours: str, theirs: str, width: int, crossing: bool) -> list[Rule]:
    """Return the rules for one block; `crossing`: it reads the source."""
    attention, cross = f"{theirs}.self_attn", f"{theirs}.encoder_attn"
    parts = [f"{attention}.{part}_proj" for part in "qkv"]
    found = [
        *stacked(f"{ours}.mixer.query_key_value", parts, [width] * 3),
        *layer(f"{ours}.mixer.output", f"{attention}.out_proj"),
        *layer(f"{ours}.mixer_norm", f"{attention}_layer_norm"),
        *layer(f"{ours}.feedforward.inner", f"{theirs}.fc1"),
        *layer(f"{ours}.feedforward.outer", f"{theirs}.fc2"),
        *layer(f"{ours}.feedforward_norm", f"{theirs}.final_layer_norm"),
    ]
    if crossing:
        found += layer(f"{ours}.cross.query", f"{cross}.q_proj")
        found += stacked(f"{ours}.cross.key_value", [f"{cross}.{part}_proj" for part in "kv"], [width] * 2)
        found += layer(f"{ours}.cross.output", f"{cross}.out_proj")
        found += layer(f"{ours}.cross_norm", f"{cross}_layer_norm")
    return found


def sines(config: EncoderDecoderConfig, length: int = WRITTEN_POSITIONS) -> dict[str, Tensor]:
    """Return the sinusoidal tables, which some files contain as weights."""
    table_ND = Sinusoidal(config.width, halves=True).table(length, torch.device("cpu"))[:length]
    return {f"model.{side}.embed_positions.weight": table_ND.clone() for side in ("encoder", "decoder")}


def with_bias(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights with an output bias: without one it is zero, also where a class has no output projection."""
    table = tensors.get("shared.weight", tensors.get("model.shared.weight"))
    if table is None or "final_logits_bias" in tensors:
        return tensors
    return {**tensors, "final_logits_bias": torch.zeros(1, table.shape[0])}


def _architecture(kind: str, name: str, style: BartStyle, **more: Any) -> Architecture:
    tied = {
        "model.shared.weight": (
            "lm_head.weight",
            "model.encoder.embed_tokens.weight",
            "model.decoder.embed_tokens.weight",
        )
    }
    if not style.learned and not style.m2m:
        more |= {"fixed": sines}
    return Architecture(
        type=kind,
        # A model without its output projection is the same model: the projection is the embedding.
        classes=(name, f"{name.removesuffix('ForConditionalGeneration').removesuffix('MTModel')}Model"),
        read=partial(read, style=style),
        rules=partial(rules, style=style),
        write=partial(write, style=style),
        prepare=dict if style.m2m else with_bias,
        prefix="model.",
        tied=tied,
        rewrites=("halves",) if not style.learned else ("table",),
        **more,
    )


MARIAN = _architecture("marian", "MarianMTModel", BartStyle(pre=False, learned=False))
PEGASUS = _architecture(
    "pegasus", "PegasusForConditionalGeneration", BartStyle(pre=True, learned=False), needs_fixed=True
)
BART = _architecture("bart", "BartForConditionalGeneration", BartStyle(pre=False, learned=True), framed=True)
M2M_100 = _architecture(
    "m2m_100",
    "M2M100ForConditionalGeneration",
    BartStyle(pre=True, learned=False, m2m=True),
    framed=True,
    unused=(".embed_positions.weights",),  # in early checkpoints; they follow from the settings
)
MBART = _architecture("mbart", "MBartForConditionalGeneration", BartStyle(pre=True, learned=True), framed=True)
