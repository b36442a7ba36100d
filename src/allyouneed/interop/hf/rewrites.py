"""Equivalent rewrites that bring a model closer to what a Hugging Face architecture can express.

Each rewrite takes settings and weights and returns others that compute the same:

    halves     sinusoidal positions with the sines first: permutes the features of the whole model
    table      sinusoidal positions as a learned table, which has a maximum length
    unscaled   multiplies an embedding by its scale sqrt(D); unties a tied output projection
    folded     the same where nothing is tied
    slopes     ALiBi's slopes by the other of two rules, where both agree
    segment    adds a zero vector for the only segment of a text
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from allyouneed.errors import ConfigError
from allyouneed.models.parts.stack import StackConfig
from allyouneed.positions import AlibiConfig, LearnedConfig, SinusoidalConfig

Weights = dict[str, Tensor]
Rewrite = Callable[[StackConfig, Weights, int], tuple[StackConfig, Weights]]
LONGEST = 1024  # positions of a sinusoidal table
# The axis of a weight that indexes the features of the residual stream.
FEATURES = {
    **dict.fromkeys(("weight_VD", "query_key_value.weight", "query.weight", "key_value.weight", "inner.weight"), 1),
    **dict.fromkeys(("output.weight", "output.bias", "outer.weight", "outer.bias"), 0),
    **dict.fromkeys(("norm.weight", "norm.bias"), 0),
}


def halves(config: StackConfig, weights: Weights, heads: int) -> tuple[StackConfig, Weights]:
    """Reorder sinusoidal features: (sin, cos, sin, cos, ...) -> (sin, sin, ..., cos, cos, ...)."""
    if not isinstance(config.positions, SinusoidalConfig) or config.positions.halves:
        return config, weights
    width = config.width
    order_D = torch.cat([torch.arange(0, width, 2), torch.arange(1, width, 2)])
    changed = {}
    for name, tensor in weights.items():
        axis = next((axis for end, axis in FEATURES.items() if name.endswith(end)), None)
        changed[name] = tensor if axis is None else tensor.index_select(axis, order_D)
    return config.model_copy(update={"positions": config.positions.model_copy(update={"halves": True})}), changed


def table(config: StackConfig, weights: Weights, heads: int) -> tuple[StackConfig, Weights]:
    """Replace sinusoidal positions by a learned table."""
    if not isinstance(config.positions, SinusoidalConfig):
        return config, weights
    sines = config.positions.build_added(config.width).table(LONGEST, torch.device("cpu"))[:LONGEST]
    tables = {
        f"{side}.position.table_ND": sines.clone() for side in ("source", "target") if _embeds(config, side, weights)
    }
    return config.model_copy(update={"positions": LearnedConfig(max_length=LONGEST)}), {**weights, **tables}


def _embeds(config: StackConfig, side: str, weights: Weights) -> bool:
    """Return True if the model embeds this side; of a tied table only the first name is among the weights."""
    return f"{side}.weight_VD" in weights or getattr(config, "type", "") == "encoder-decoder"


def unscaled(config: StackConfig, weights: Weights, heads: int) -> tuple[StackConfig, Weights]:
    """Remove the embedding scale of a decoder."""
    if not config.embedding_scale:
        return config, weights
    small_VD = weights["target.weight_VD"]
    changed = {"head.weight_VD": small_VD, **weights, "target.weight_VD": small_VD * math.sqrt(config.width)}
    return config.model_copy(update={"embedding_scale": False, "tied": False}), changed


def folded(config: StackConfig, weights: Weights, heads: int) -> tuple[StackConfig, Weights]:
    """Remove the embedding scale of an encoder."""
    if not config.embedding_scale:
        return config, weights
    if getattr(config, "tied", False):
        raise ConfigError("model.embedding_scale: the scaled embedding is tied to the output; set model.tied = false")
    changed = {**weights, "source.weight_VD": weights["source.weight_VD"] * math.sqrt(config.width)}
    return config.model_copy(update={"embedding_scale": False}), changed


def slopes(config: StackConfig, weights: Weights, heads: int) -> tuple[StackConfig, Weights]:
    """Use the other rule for ALiBi slopes. Both rules agree if the number of heads is a power of two."""
    if isinstance(config.positions, AlibiConfig) and heads & (heads - 1) == 0:
        config = config.model_copy(update={"positions": AlibiConfig(interleaved=True)})
    return config, weights


def segment(config: StackConfig, weights: Weights, heads: int) -> tuple[StackConfig, Weights]:
    """Add an all-zero segment embedding."""
    if getattr(config, "segments", 1):
        return config, weights
    return config.model_copy(update={"segments": 1}), {**weights, "source.segment_ND": torch.zeros(1, config.width)}


REWRITES: dict[str, Rewrite] = {
    "halves": halves,
    "table": table,
    "unscaled": unscaled,
    "folded": folded,
    "slopes": slopes,
    "segment": segment,
}
