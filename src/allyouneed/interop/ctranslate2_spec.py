"""A softmax Transformer in the words of CTranslate2: which of our settings it can express, and where each weight goes.

    encoder_decoder -> TransformerSpec          decoder -> TransformerDecoderModelSpec

CTranslate2 computes the same numbers in another layout: positions come as a table of so many rows (`TABLE`), the
embedding is scaled by sqrt(D) there too, W^Q, W^K, W^V are one matrix, a gate (SwiGLU) is a matrix of its own.

    setting              there
    positions added      position_encodings/encodings: the table itself; none: a table of zeros
    rotary               rotary_dim = all of a head, halves turned (rotary_interleave = False)
    shaw                 relative_position_keys; its values' term gets zeros, as ours has none
    t5                   relative_attention_bias of the first layer, read by all
    alibi                decoder only, heads a power of two (others have other slopes there)

Everything else (mechanisms other than softmax, norm "none", heads of differing widths, ...) is refused by name.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from allyouneed.block import Block
from allyouneed.errors import ConfigError
from allyouneed.mixers.softmax import Softmax
from allyouneed.models import Model
from allyouneed.models.decoder import Decoder
from allyouneed.models.encoder_decoder import EncoderDecoder
from allyouneed.models.stack import Embedding, Stack, StackConfig
from allyouneed.positions import AlibiConfig, LearnedConfig, RotaryConfig, Shaw, ShawConfig, T5Bias, T5Config

TABLE = 1024  # positions of a sinusoidal table: CTranslate2 refuses longer sequences
ACTIVATIONS = {"relu": "RELU", "gelu": "GELU", "swiglu": "SWISH"}


def build_spec(model: Model) -> Any:
    """The model as a specification of CTranslate2, without vocabularies and names of special tokens."""
    from ctranslate2 import specs

    if isinstance(model, EncoderDecoder):
        refuse(model)
        encoder, decoder = _encoder_spec(model), _decoder_spec(model, model.config.decoder_layers, cross=True)
        spec: Any = specs.TransformerSpec(encoder, decoder)
    elif isinstance(model, Decoder):
        refuse(model)
        spec = specs.TransformerDecoderModelSpec(_decoder_spec(model, model.config.layers, cross=False))
    else:
        raise ConfigError(f"ctranslate2: {_type(model)} has no home there; encoder-decoder and decoder have")
    spec.config.layer_norm_epsilon = _epsilon(model.config)
    return spec


def refuse(model: EncoderDecoder | Decoder) -> None:
    """Names the first setting that CTranslate2 cannot express."""
    config = model.config
    if config.norm == "none":
        raise ConfigError('ctranslate2: model.norm "none" cannot be expressed there; post and pre can')
    if isinstance(config, StackConfig) and isinstance(config.positions, AlibiConfig):
        _refuse_alibi(model)
    stacks = [("mixer", model.decoder)]
    if isinstance(model, EncoderDecoder):
        stacks.append(("encoder_mixer" if model.config.encoder_mixer is not None else "mixer", model.encoder))
    for name, stack in stacks:
        if not len(stack.blocks):
            raise ConfigError("ctranslate2: a stack of no layers cannot be expressed there; it needs one at least")
        heads = config.mixer_of(0).position_heads if stack is model.decoder else _encoder_heads(model)
        for block in stack.blocks:
            assert isinstance(block, Block)
            _refuse_mixer(f"model.{name}", block.mixer, heads, config.width)
            if block.cross is not None:
                _refuse_mixer("model.cross", block.cross, heads, config.width)


def _encoder_heads(model: EncoderDecoder | Decoder) -> int:
    assert isinstance(model, EncoderDecoder)
    return model.config.encoder_stack().mixer_of(0).position_heads


def _refuse_alibi(model: EncoderDecoder | Decoder) -> None:
    if isinstance(model, EncoderDecoder):
        raise ConfigError(
            "ctranslate2: model.positions alibi can be expressed there for a decoder only, not an encoder"
        )
    heads = model.config.mixer_of(0).position_heads
    if heads & (heads - 1):
        raise ConfigError(f"ctranslate2: alibi with {heads} heads has other slopes there; a power of two has the same")


def _refuse_mixer(name: str, mixer: nn.Module, heads: int, width: int) -> None:
    if not isinstance(mixer, Softmax):
        kind = type(mixer).__name__.lower()
        raise ConfigError(f"ctranslate2: {name} {kind} cannot be expressed there; softmax can")
    if mixer.heads != heads:
        what = f"{mixer.heads} heads beside layers of {heads}"
        raise ConfigError(f"ctranslate2: {name}: {what} cannot be expressed there; all layers of a stack have as many")
    if not mixer.keys == mixer.values == width:
        what = f"heads of widths {mixer.keys // mixer.heads} and {mixer.values // mixer.heads}"
        raise ConfigError(f"ctranslate2: {name}: {what}; there they are model.width / heads = {width / mixer.heads:g}")


def _type(model: Model) -> str:
    return f"model.type {getattr(getattr(model, 'config', None), 'type', model.kind)}"


def _epsilon(config: StackConfig) -> float:
    norm = config.build_norm(config.width)
    assert isinstance(norm, nn.LayerNorm | nn.RMSNorm)
    assert norm.eps is not None
    return norm.eps


def _shared_settings(config: StackConfig) -> dict[str, Any]:
    """What encoders and decoders are told alike."""
    from ctranslate2.specs import Activation

    settings: dict[str, Any] = {
        "pre_norm": config.norm == "pre",
        "activation": Activation[ACTIVATIONS[config.feedforward]],
        "ffn_glu": config.feedforward == "swiglu",
        "rms_norm": config.normalisation == "rms",
        "relative_position": isinstance(config.positions, ShawConfig),
        "relative_attention_bias": isinstance(config.positions, T5Config),
    }
    if isinstance(config.positions, RotaryConfig):
        settings |= {"rotary_dim": 0, "rotary_interleave": False, "rotary_base": config.positions.base}
    return settings


def _encoder_spec(model: EncoderDecoder) -> Any:
    from ctranslate2.specs.transformer_spec import TransformerEncoderSpec

    config = model.config.encoder_stack()
    heads = config.mixer_of(0).position_heads
    spec = TransformerEncoderSpec(model.config.encoder_layers, heads, **_shared_settings(config))
    _set_embedding(spec, spec.embeddings[0], model.source, config)
    _set_stack(spec, model.encoder)
    return spec


def _decoder_spec(model: EncoderDecoder | Decoder, layers: int, cross: bool) -> Any:
    from ctranslate2.specs.transformer_spec import TransformerDecoderSpec

    config = model.config
    settings = _shared_settings(config) | {"alibi": isinstance(config.positions, AlibiConfig)}
    heads = config.mixer_of(0).position_heads
    spec = TransformerDecoderSpec(layers, heads, with_encoder_attention=cross, **settings)
    _set_embedding(spec, spec.embeddings, model.target, config)
    _set_stack(spec, model.decoder)
    spec.projection.weight = _array(model.head.weight_VD)
    if model.head.bias_V is not None:
        spec.projection.bias = _array(model.head.bias_V)
    return spec


def _set_embedding(spec: Any, table: Any, embedding: Embedding, config: StackConfig) -> None:
    table.weight = _array(embedding.weight_VD)
    spec.scale_embeddings = embedding.scale
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
        _set_norm(attention.layer_norm, block.mixer_norm)
        _set_position(attention, block.mixer)
        if isinstance(block.cross, Softmax):
            _set_linear(layer.attention.linear[0], block.cross.query)
            _set_linear(layer.attention.linear[1], block.cross.key_value)
            _set_linear(layer.attention.linear[2], block.cross.output)
            _set_norm(layer.attention.layer_norm, block.cross_norm)
        _set_feedforward(layer.ffn, block)


def _set_feedforward(spec: Any, block: Block) -> None:
    layer = block.feedforward
    _set_norm(spec.layer_norm, block.feedforward_norm)
    _set_linear(spec.linear_1, layer.outer)
    if layer.activation != "swiglu":
        _set_linear(spec.linear_0, layer.inner)
        return
    for part, weight, bias in zip(
        (spec.linear_0, spec.linear_0_noact), layer.inner.weight.chunk(2), layer.inner.bias.chunk(2), strict=True
    ):
        part.weight, part.bias = _array(weight), _array(bias)


def _set_position(spec: Any, mixer: Softmax) -> None:
    if isinstance(mixer.position, Shaw):
        spec.relative_position_keys = _array(mixer.position.distance_RK)
        spec.relative_position_values = np.zeros_like(spec.relative_position_keys)
    elif isinstance(mixer.position, T5Bias):
        spec.relative_attention_bias = _array(mixer.position.bias_RH)
        spec.relative_attention_max_distance = np.dtype("int32").type(mixer.position.max_distance)


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
    array: np.ndarray[Any, np.dtype[np.float32]] = tensor.detach().float().cpu().contiguous().numpy()
    return array
