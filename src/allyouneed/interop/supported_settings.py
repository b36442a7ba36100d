"""The settings of Transformers that exporters support; a setting that is not listed is refused.

A setting that is added to our models later changes what they compute. Until an exporter supports it, it must have its
default value, with which the model computes what it did before.
"""

from typing import Any

from allyouneed.config import Config
from allyouneed.errors import ConfigError
from allyouneed.models import Model
from allyouneed.models.decoder import Decoder
from allyouneed.models.encoder import Encoder
from allyouneed.models.encoder_decoder import EncoderDecoder

BLOCKS = {"type", "width", "hidden", "norm", "normalisation", "feedforward", "feedforward_bias", "epsilon", "dropout"}
MODEL = BLOCKS | {"mixer", "positions", "embedding_scale", "embedding_norm", "output_bias", "tied", "layers"}
MODEL |= {"encoder_layers", "decoder_layers", "encoder_mixer", "cross", "parallel", "logit_cap"}
MIXERS: dict[str, set[str]] = {
    "softmax": {"type", "heads", "key_heads", "key_width", "value_width", "bias", "head_norm", "score_cap", "window"}
}
POSITIONS = {
    "none": {"type"},
    "sinusoidal": {"type", "halves", "inclusive", "first"},
    "learned": {"type", "max_length"},
    "shaw": {"type", "clip"},
    "t5": {"type", "buckets", "max_distance"},
    "alibi": {"type", "interleaved"},
    "rotary": {"type", "base", "pairs", "scaling"},
}


def require_supported(model: Model, engine: str, mechanisms: dict[str, set[str]] = MIXERS) -> EncoderDecoder | Decoder:
    """Return the model. Raise ConfigError if a type or setting is neither listed here nor in `mechanisms`."""
    if not isinstance(model, EncoderDecoder | Decoder):
        raise ConfigError(f"{engine}: model.type {model.config.type} is not supported; use encoder-decoder or decoder")
    config = model.config
    mixers: dict[str, Any] = {"mixer": config.mixer}
    if isinstance(model, EncoderDecoder):
        mixers |= {"encoder_mixer": model.config.encoder_mixer, "cross": model.config.cross}
    for name, given in mixers.items():
        for mixer in given if isinstance(given, list) else [given]:
            if mixer is not None:
                _require_kind(mixer, mechanisms, f"{engine}: model.{name}")
    _require_kind(config.positions, POSITIONS, f"{engine}: model.positions")
    _require_fields(config, MODEL, f"{engine}: model")
    return model


def require_supported_encoder(model: Model, engine: str, mechanisms: dict[str, set[str]]) -> Encoder:
    """Return the model. Raise ConfigError if a type or setting is neither listed here nor in `mechanisms`."""
    if not isinstance(model, Encoder):
        raise ConfigError(f"{engine}: model.type {model.config.type} is not supported; use encoder")
    config = model.config
    for mixer in config.mixer if isinstance(config.mixer, list) else [config.mixer]:
        _require_kind(mixer, mechanisms, f"{engine}: model.mixer")
    _require_kind(config.positions, POSITIONS, f"{engine}: model.positions")
    _require_fields(config, MODEL | {"pool", "transform", "segments", "projection"}, f"{engine}: model")
    return model


def _require_kind(config: Config, known: dict[str, set[str]], where: str) -> None:
    kind = str(getattr(config, "type", ""))
    if kind not in known:
        raise ConfigError(f"{where} {kind} is not supported; supported: {', '.join(known)}")
    _require_fields(config, known[kind], where)


def _require_fields(config: Config, known: set[str], where: str) -> None:
    for name, field in type(config).model_fields.items():
        if name not in known and getattr(config, name) != field.default:
            value = getattr(config, name)
            raise ConfigError(f"{where}.{name} {value} is not supported; only its default {field.default} is")
