"""Reformer: a pre-norm decoder with two residual streams, local layers and hashing layers.

Local layers become `mixer = { type = "local", before = ... }`. A hashing layer of theirs sorts positions by bucket and
cuts the sorted list into chunks: what a position reads depends on later positions, and on a new random draw for each
call. Up to `lsh_attn_chunk_length` positions it does not hash and reads everything. The import computes that: the
attention that hashing approximates. All positions are in one bucket (zero rotations), and each reads all before it.
"""

import torch
from torch import Tensor

from allyouneed.config import Tree
from allyouneed.errors import FolderError
from allyouneed.interop.hf.architectures.base import ACTIVATIONS, Architecture
from allyouneed.interop.hf.fields import Fields
from allyouneed.interop.hf.rules import Nothing, Rows, Rule, layer, stacked
from allyouneed.mixers import MixerConfig
from allyouneed.mixers.local import LocalConfig
from allyouneed.mixers.reformer import ReformerConfig
from allyouneed.models.decoder import DecoderConfig
from allyouneed.positions import LearnedConfig

TABLE = "reformer.embeddings.position_embeddings"
LONGEST = 1 << 14  # maximum positions of an expanded axial table


def written_out(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Expand an axial position table: position i n + j is row i of one factor beside row j of the other."""
    names = [f"{TABLE}.weights.{number}" for number in (0, 1)]
    if not set(names) <= tensors.keys():
        return tensors
    left = {name: tensor for name, tensor in tensors.items() if name not in names}
    first, second = (tensors[name].flatten(0, 1) for name in names)
    place = torch.arange(min(LONGEST, len(first) * len(second)))
    return {
        **left,
        f"{TABLE}.embedding.weight": torch.cat([first[place // len(second)], second[place % len(second)]], 1),
    }


def read(fields: Fields, name: str) -> DecoderConfig:
    """Return our settings."""
    width, heads = fields.number("hidden_size"), fields.number("num_attention_heads")
    fields.only("attention_head_size", width // heads)
    fields.only("is_decoder", True)
    fields.only("tie_word_embeddings", False)
    for side in ("local", "lsh"):
        fields.only(f"{side}_num_chunks_after", 0)
    kinds = fields.get("attn_layers")
    if not isinstance(kinds, list) or not set(kinds) <= {"local", "lsh"} or not 0 < len(kinds) <= 4096:
        raise FolderError(f"{fields.where}: attn_layers: should contain local or lsh for each layer")
    fields.only("num_hidden_layers", len(kinds))
    longest = fields.number("max_position_embeddings")
    if fields.flag("axial_pos_embds", True):
        longest = min(longest, LONGEST)
    block, before = fields.number("local_attn_chunk_length", 64), fields.number("local_num_chunks_before", 1, least=0)
    local = LocalConfig(heads=heads, block=block, before=before, bias=False)
    meets = ReformerConfig(heads=heads, buckets=2, rounds=1, chunk=longest, bias=False)
    mixers: list[MixerConfig] = [local if kind == "local" else meets for kind in kinds]
    fields.number("vocab_size")
    # How hashing is done, which is not imported; how the tables of positions are cut; how work is cut into pieces.
    fields.ignore(["num_hashes", "num_buckets", "hash_seed", "lsh_attn_chunk_length", "lsh_num_chunks_before"])
    fields.ignore(["axial_pos_shape", "axial_pos_embds_dim", "axial_norm_std", "chunk_size_lm_head"])
    fields.ignore(["local_attention_probs_dropout_prob", "lsh_attention_probs_dropout_prob"])
    return DecoderConfig(
        width=width,
        layers=len(kinds),
        hidden=fields.number("feed_forward_size"),
        mixer=mixers,
        norm="pre",
        epsilon=fields.real("layer_norm_eps", 1e-12),
        feedforward=fields.one_of("hidden_act", ACTIVATIONS, "relu"),  # type: ignore[arg-type]
        positions=LearnedConfig(max_length=longest),
        embedding_scale=False,
        streams=2,
        tied=False,
        output_bias=True,
        dropout=0.0,
    )


def write(config: DecoderConfig) -> Tree:
    """Return the settings of the table of positions, which is one table here."""
    assert isinstance(config.positions, LearnedConfig)
    return {"axial_pos_embds": False, "max_position_embeddings": config.positions.max_length}


def rules(config: DecoderConfig, rows: Rows) -> list[Rule]:
    """Return the rules for the weights."""
    body = "reformer.encoder"
    found = [
        Rule("target.weight_VD", ("reformer.embeddings.word_embeddings.weight",), rows.table()),
        Rule("target.position.table_ND", (f"{TABLE}.embedding.weight",)),
        *layer("decoder.norm", f"{body}.layer_norm"),
        Rule("head.weight_VD", ("lm_head.decoder.weight",), rows.table()),
        Rule("head.bias_V", ("lm_head.bias",), rows.bias()),
    ]
    width = config.width
    for number in range(config.layers):
        ours, theirs, mixer = f"decoder.blocks.{number}", f"{body}.layers.{number}", config.mixer_of(number)
        attention, feed = f"{theirs}.attention", f"{theirs}.feed_forward"
        inside = f"{attention}.self_attention"
        found += layer(f"{ours}.mixer_norm", f"{attention}.layer_norm")
        found += layer(f"{ours}.feedforward_norm", f"{feed}.layer_norm")
        found += layer(f"{ours}.feedforward.inner", f"{feed}.dense.dense")
        found += layer(f"{ours}.feedforward.outer", f"{feed}.output.dense")
        if isinstance(mixer, LocalConfig):
            parts = [f"{inside}.{part}" for part in ("query", "key", "value")]
            found += stacked(f"{ours}.mixer.project.query_key_value", parts, [width] * 3, bias=False)
            found += layer(f"{ours}.mixer.project.output", f"{attention}.output.dense", bias=False)
        else:
            assert isinstance(mixer, ReformerConfig)
            parts = [f"{inside}.{part}" for part in ("query_key", "value")]
            found += stacked(f"{ours}.mixer.query_value", parts, [width] * 2, bias=False)
            found += layer(f"{ours}.mixer.output", f"{attention}.output.dense", bias=False)
            rotation = (mixer.heads, width // mixer.heads, mixer.rounds * sum(mixer.factors) // 2)
            found += [Rule(f"{ours}.mixer.rotation_HKM", (), Nothing(rotation))]
    return found


REFORMER = Architecture(
    type="reformer",
    classes=("ReformerModelWithLMHead",),
    read=read,
    rules=rules,
    write=write,
    prepare=written_out,
    rewritten=True,
    tied={"lm_head.bias": ("lm_head.decoder.bias",)},
)
