"""Maps a softmax Transformer to CTranslate2: which settings it supports, and where each weight goes.

    encoder_decoder -> TransformerSpec          decoder -> TransformerDecoderModelSpec

CTranslate2 computes the same numbers in another layout. Positions are a table of `TABLE` rows. W^Q, W^K and W^V are one
matrix; a gate (SwiGLU) is a separate matrix. Both scale the embedding by sqrt(D).

    setting              CTranslate2
    positions added      position_encodings/encodings: the table itself; none: a table of zeros
    rotary               halves rotated (rotary_interleave = False); of `pairs`, the rotated features come first there
    shaw                 relative_position_keys; zeros for the values, to which we add no positions
    t5                   relative_attention_bias of the first layer, shared by all
    alibi                decoder only, with the slopes of the authors' code
    key_heads            num_heads_kv
    head_norm            decoder only: qk_norm, with the epsilon of all norms
    parallel             parallel_residual, with layer norms only

Anything else (other mixers, norm "none", layers with different heads, caps) raises ConfigError with its name.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from allyouneed.block import GATED, Block, FeedForward
from allyouneed.errors import ConfigError
from allyouneed.interop.supported_settings import require_supported
from allyouneed.mixers.softmax import Softmax
from allyouneed.models import Model
from allyouneed.models.decoder import Decoder
from allyouneed.models.encoder_decoder import EncoderDecoder
from allyouneed.models.parts.stack import Embedding, Stack, StackConfig
from allyouneed.positions import (
    AlibiConfig,
    LearnedConfig,
    Rotary,
    RotaryConfig,
    Shaw,
    ShawConfig,
    T5Bias,
    T5Config,
    rotated_first,
)

TABLE = 2048  # positions of a sinusoidal table: CTranslate2 refuses longer sequences
ACTIVATIONS = {"relu": "RELU", "gelu": "GELU", "gelu-tanh": "GELUTanh", "silu": "SWISH"}


def build_spec(model: Model) -> Any:
    """Return the model as a CTranslate2 specification, without vocabularies and special tokens."""
    from ctranslate2 import specs
    from ctranslate2.specs.transformer_spec import TransformerDecoderSpec, TransformerEncoderSpec

    model = require_supported(model, "ctranslate2")
    config, cross = model.config, isinstance(model, EncoderDecoder)
    refuse(model)
    decoder = TransformerDecoderSpec(
        **_settings(config, model.decoder),
        alibi=isinstance(config.positions, AlibiConfig),
        parallel_residual=config.parallel,
        with_encoder_attention=cross,
    )
    _set_embedding(decoder, decoder.embeddings, model.target, config)
    _set_stack(decoder, model.decoder)
    decoder.projection.weight = _array(model.head.weight_VD)
    if model.head.bias_V is not None:
        decoder.projection.bias = _array(model.head.bias_V)
    spec: Any
    if isinstance(model, EncoderDecoder):
        encoder = TransformerEncoderSpec(**_settings(config, model.encoder))
        _set_embedding(encoder, encoder.embeddings[0], model.source, config)
        _set_stack(encoder, model.encoder)
        spec = specs.TransformerSpec(encoder, decoder)
    else:
        spec = specs.TransformerDecoderModelSpec(decoder)
    spec.config.layer_norm_epsilon = getattr(config.build_norm(config.width), "eps", None)
    return spec


def refuse(model: EncoderDecoder | Decoder) -> None:
    """Raise ConfigError for the first setting that CTranslate2 does not support."""
    config = model.config
    if config.norm not in ("pre", "post"):
        raise ConfigError(f'ctranslate2: model.norm "{config.norm}" cannot be expressed there; post and pre can')
    if model.head.cap is not None:
        raise ConfigError(f"ctranslate2: model.logit_cap {model.head.cap} cannot be expressed there")
    if isinstance(config.positions, AlibiConfig):
        _refuse_alibi(config.positions, model)
    if config.parallel and config.normalisation == "rms":
        raise ConfigError(
            "ctranslate2: model.parallel with RMS norms cannot be expressed there; with layer norms it can"
        )
    stacks = [("mixer", model.decoder)]
    if isinstance(model, EncoderDecoder):
        stacks.append(("encoder_mixer" if model.config.encoder_mixer is not None else "mixer", model.encoder))
    for name, stack in stacks:
        if not len(stack.blocks):
            raise ConfigError("ctranslate2: a stack of no layers cannot be expressed there; it needs one at least")
        shape = None
        for block in stack.blocks:
            assert isinstance(block, Block)
            shape = _refuse_mixer(f"model.{name}", block.mixer, shape)
            _refuse_scores(f"model.{name}", block.mixer, model)
            if block.cross is not None:
                _refuse_mixer("model.cross", block.cross, shape)
                _refuse_scores("model.cross", block.cross, model)


def _refuse_alibi(positions: AlibiConfig, model: EncoderDecoder | Decoder) -> None:
    if isinstance(model, EncoderDecoder):
        raise ConfigError("ctranslate2: model.positions alibi can be expressed there for a decoder, not for an encoder")
    heads = model.config.mixer_of(0).position_heads
    if heads & (heads - 1) and not positions.interleaved:
        what = f"model.positions alibi with {heads} heads has other slopes there"
        raise ConfigError(f"ctranslate2: {what}; with interleaved = true, or a power of two, they are the same")


def _refuse_mixer(name: str, mixer: nn.Module, shape: tuple[int, int, int] | None) -> tuple[int, int, int]:
    """Return the number of query heads, of key heads, and their width, common to all layers of a stack."""
    assert isinstance(mixer, Softmax)
    if mixer.keys != mixer.values:
        what = f"keys of width {mixer.keys // mixer.groups} and values of width {mixer.values // mixer.groups}"
        raise ConfigError(f"ctranslate2: {name}: {what} cannot be expressed there; they should be equal")
    found = mixer.heads, mixer.groups, mixer.queries // mixer.heads
    if shape is not None and found != shape:
        both = " and ".join(
            f"{heads} heads ({groups} of keys) of width {width}" for heads, groups, width in (shape, found)
        )
        raise ConfigError(f"ctranslate2: {name}: {both} in one stack cannot be expressed there; they should be equal")
    return found


def _refuse_scores(name: str, mixer: nn.Module, model: EncoderDecoder | Decoder) -> None:
    """Raise ConfigError for scores that CTranslate2 does not compute."""
    assert isinstance(mixer, Softmax)
    config = model.config
    if mixer.score_cap is not None:
        raise ConfigError(f"ctranslate2: {name}.score_cap {mixer.score_cap} cannot be expressed there")
    if mixer.window is not None:
        raise ConfigError(f"ctranslate2: {name}.window {mixer.window} cannot be expressed there")
    if mixer.normed and isinstance(model, EncoderDecoder):
        raise ConfigError(f"ctranslate2: {name}.head_norm can be expressed there for a decoder, not with a source")
    right = getattr(config.build_norm(config.width), "eps", None)
    if mixer.normed and mixer.query_norm.eps != right:
        what = f"{name}.head_norm {mixer.query_norm.eps}: there all norms have one epsilon, here model.epsilon {right}"
        raise ConfigError(f"ctranslate2: {what}; they should be equal")


def _settings(config: StackConfig, stack: Stack) -> dict[str, Any]:
    """Return the arguments common to encoders and decoders."""
    from ctranslate2.specs import Activation

    mixer = stack.blocks[0].mixer
    assert isinstance(mixer, Softmax)
    head_width = mixer.queries // mixer.heads
    settings: dict[str, Any] = {
        "num_layers": len(stack.blocks),
        "num_heads": mixer.heads,
        "num_heads_kv": mixer.groups if mixer.groups != mixer.heads else None,
        "head_dim": head_width if head_width * mixer.heads != config.width else None,
        "pre_norm": config.norm == "pre",
        "activation": Activation[ACTIVATIONS[GATED.get(config.feedforward, config.feedforward)]],
        "ffn_glu": config.feedforward in GATED,
        "rms_norm": config.normalisation == "rms",
        "layernorm_embedding": config.embedding_norm,
        "relative_position": isinstance(config.positions, ShawConfig),
        "relative_attention_bias": isinstance(config.positions, T5Config),
    }
    if isinstance(config.positions, RotaryConfig):
        if config.positions.scaling is not None:
            raise ConfigError("ctranslate2: model.positions.scaling is not supported; --to hf and --to onnx support it")
        rotated = 2 * (config.positions.pairs or 0)  # 0: the whole head
        settings |= {"rotary_dim": rotated, "rotary_interleave": False, "rotary_base": config.positions.base}
    return settings | ({"qk_norm": True} if mixer.normed else {})


def _set_embedding(spec: Any, table: Any, embedding: Embedding, config: StackConfig) -> None:
    table.weight = _array(embedding.weight_VD)
    spec.scale_embeddings = embedding.scale
    if embedding.norm is not None:
        _set_norm(spec.layernorm_embedding, embedding.norm)
    if hasattr(spec, "position_encodings"):
        rows = config.positions.max_length if isinstance(config.positions, LearnedConfig) else TABLE
        if embedding.position is None:
            spec.position_encodings.encodings = np.zeros((rows, config.width), dtype=np.float32)
        else:
            spec.position_encodings.encodings = _array(embedding.position.table(rows, torch.device("cpu"))[:rows])


def _set_stack(spec: Any, stack: Stack) -> None:
    if isinstance(stack.norm, nn.LayerNorm | nn.RMSNorm):
        _set_norm(spec.layer_norm, stack.norm)
    for layer, block in zip(spec.layer, stack.blocks, strict=True):
        assert isinstance(block, Block)
        assert isinstance(block.mixer, Softmax)
        attention = layer.self_attention
        _set_linear(attention.linear[0], block.mixer.query_key_value)
        _set_linear(attention.linear[1], block.mixer.output)
        _set_norm(layer.input_layer_norm if block.parallel else attention.layer_norm, block.mixer_norm)
        _set_head_norms(attention, block.mixer)
        _set_position(attention, block.mixer)
        if isinstance(block.cross, Softmax):
            _set_linear(layer.attention.linear[0], block.cross.query)
            _set_linear(layer.attention.linear[1], block.cross.key_value)
            _set_linear(layer.attention.linear[2], block.cross.output)
            _set_norm(layer.attention.layer_norm, block.cross_norm)
        _set_norm(layer.post_attention_layer_norm if block.parallel else layer.ffn.layer_norm, block.feedforward_norm)
        _set_feedforward(layer.ffn, block.feedforward)


def _set_feedforward(spec: Any, layer: FeedForward) -> None:
    _set_linear(spec.linear_1, layer.outer)
    if not layer.gated:
        _set_linear(spec.linear_0, layer.inner)
        return
    parts = (spec.linear_0, spec.linear_0_noact)
    for part, weight in zip(parts, layer.inner.weight.chunk(2), strict=True):
        part.weight = _array(weight)
    if layer.inner.bias is not None:
        for part, bias in zip(parts, layer.inner.bias.chunk(2), strict=True):
            part.bias = _array(bias)


def _set_head_norms(spec: Any, mixer: Softmax) -> None:
    if mixer.normed:
        _set_norm(spec.q_norm, mixer.query_norm)
        _set_norm(spec.k_norm, mixer.key_norm)


def _set_position(spec: Any, mixer: Softmax) -> None:
    if isinstance(mixer.position, Rotary) and bool((mixer.position.frequency_R == 0).any()):
        _bring_rotated_features_first(spec, mixer, mixer.position)
    if isinstance(mixer.position, Shaw):
        spec.relative_position_keys = _array(mixer.position.distance_RK)
        spec.relative_position_values = np.zeros_like(spec.relative_position_keys)
    elif isinstance(mixer.position, T5Bias):
        spec.relative_attention_bias = _array(mixer.position.bias_RH)
        spec.relative_attention_max_distance = np.dtype("int32").type(mixer.position.max_distance)


def _bring_rotated_features_first(spec: Any, mixer: Softmax, position: Rotary) -> None:
    """Reorder the features of queries and keys: there, the first ones of a head are rotated."""
    heads, own = mixer.heads + mixer.groups, mixer.keys // mixer.groups
    within_K = rotated_first(own, int((position.frequency_R != 0).sum())).numpy()
    order = (np.arange(heads)[:, None] * own + within_K).flatten()
    for name in ("weight", "bias")[: 1 + (mixer.query_key_value.bias is not None)]:
        array = getattr(spec.linear[0], name)
        array[: len(order)] = array[order]
    for norm in (spec.q_norm, spec.k_norm) if mixer.normed else ():
        norm.gamma = norm.gamma[within_K]


def _set_linear(spec: Any, layer: nn.Linear) -> None:
    spec.weight = _array(layer.weight)
    if layer.bias is not None:
        spec.bias = _array(layer.bias)


def _set_norm(spec: Any, norm: nn.Module) -> None:
    assert isinstance(norm, nn.LayerNorm | nn.RMSNorm)
    spec.gamma = _array(norm.weight)
    if isinstance(norm, nn.LayerNorm):
        spec.beta = _array(norm.bias)


def _array(tensor: Tensor) -> "np.ndarray[Any, np.dtype[np.float32]]":
    """Return a copy, because CTranslate2 quantizes in place."""
    return np.array(tensor.detach().float().cpu().numpy(), order="C", copy=True)
