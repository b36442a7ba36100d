"""Writes the files of CTranslate2: model.bin, config.json and the vocabularies."""

import copy
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn

from allyouneed.block import FeedForward
from allyouneed.errors import ConfigError
from allyouneed.interop.ctranslate2.spec import build_spec
from allyouneed.mixers.softmax import Softmax
from allyouneed.models import Model
from allyouneed.models.base import Head
from allyouneed.models.decoder import Decoder
from allyouneed.models.encoder_decoder import EncoderDecoder
from allyouneed.models.parts.stack import Embedding
from allyouneed.text.codec import Codec
from allyouneed.text.specials import BOS, EOS, PAD, SPECIALS, UNK
from allyouneed.text.tokenizer import Tokenizer

Quantization = Literal["float32", "int16", "int8"]
QUANTIZATIONS: tuple[Quantization, ...] = ("float32", "int16", "int8")
SUPPRESSED = [
    [SPECIALS[PAD]],
    [SPECIALS[BOS]],
]  # never generated, as in our search; for CTranslate2's `suppress_sequences`


def require_package() -> None:
    """Raise ConfigError if CTranslate2 is not installed."""
    if find_spec("ctranslate2") is None:
        raise ConfigError("this needs ctranslate2: pip install 'allyouneed[ct2]'")


def write_model(model: Model, codec: Codec, folder: Path, quantization: Quantization) -> None:
    """Write the files that `ctranslate2.Translator` (or `Generator`, for a decoder) opens."""
    require_package()
    if codec.classes is not None or codec.target is None:
        raise ConfigError("ctranslate2: a model that outputs classes is not supported; one that outputs text is")
    spec = build_spec(model)
    spec.config.unk_token, spec.config.bos_token, spec.config.eos_token = (SPECIALS[i] for i in (UNK, BOS, EOS))
    if isinstance(model, EncoderDecoder):
        assert codec.source is not None
        spec.config.decoder_start_token = SPECIALS[BOS]
        spec.register_source_vocabulary(names_of(codec.source, model.sizes.source))
        spec.register_target_vocabulary(names_of(codec.target, model.sizes.target))
    else:
        assert isinstance(model, Decoder)
        spec.register_vocabulary(names_of(codec.target, model.sizes.target))
    spec.validate()
    spec.optimize(quantization)
    spec.save(str(folder))


def names_of(tokenizer: Tokenizer, size: int) -> list[str]:
    """Return the name of each id. Unused ids get names with spaces, which no text can spell."""
    names = [f"< {number} >" for number in range(size)]
    for name, number in tokenizer.vocabulary.items():
        names[number] = name
    return names


def rounded(model: Model, quantization: Quantization) -> Model:
    """Return the model with the weights of a quantized file, in float32.

    int8 multiplies each row of a matrix by 127 / its largest value, int16 each matrix by 1024 / its largest value. Both
    then round.
    """
    copied = copy.deepcopy(model)
    if quantization != "float32":
        for weight in {id(weight): weight for weight in _matrices(copied)}.values():  # tied weights once
            _round(weight, quantization)
    return copied


def _matrices(model: Model) -> Iterator[Tensor]:
    """Yield the matrices that are quantized in files, each as it is stored there."""
    for module in model.modules():
        if isinstance(module, FeedForward):
            yield from module.inner.weight.data.chunk(2 if module.gated else 1)
            yield module.outer.weight.data
        elif isinstance(module, Softmax):
            yield from (layer.weight.data for layer in module.children() if isinstance(layer, nn.Linear))
        elif isinstance(module, Embedding | Head):
            yield module.weight_VD


def _round(weight: Tensor, quantization: Quantization) -> None:
    largest = weight.abs().amax(dim=1, keepdim=True) if quantization == "int8" else weight.abs().max()
    # A true division, as in numpy: a number divided by a tensor is multiplied by a reciprocal, which is rounded. The
    # scale would differ in its last bit, and a weight half way between two steps would go the other way.
    steps = torch.full_like(largest, 127.0 if quantization == "int8" else 1024.0)
    scale = steps / torch.where(largest == 0, 1.0, largest)
    with torch.no_grad():
        weight.copy_((weight * scale).round() / scale)
