"""Models: one file for each architecture, and the table of all."""

from typing import Annotated

from pydantic import SerializeAsAny

from allyouneed.config import choice
from allyouneed.models.base import Kind, Model, ModelConfig
from allyouneed.models.bytenet import ByteNetConfig
from allyouneed.models.convs2s import ConvS2SConfig
from allyouneed.models.decoder import DecoderConfig
from allyouneed.models.encoder import EncoderConfig
from allyouneed.models.encoder_decoder import EncoderDecoderConfig
from allyouneed.models.memn2n import MemN2NConfig
from allyouneed.models.neural_gpu import NeuralGPUConfig
from allyouneed.models.ntm import NTMConfig
from allyouneed.models.seq2seq import Seq2SeqConfig
from allyouneed.models.show_attend_tell import ShowAttendTellConfig
from allyouneed.models.vit import ViTConfig

MODELS: dict[str, type[ModelConfig]] = {
    "encoder-decoder": EncoderDecoderConfig,
    "decoder": DecoderConfig,
    "encoder": EncoderConfig,
    "seq2seq": Seq2SeqConfig,
    "bytenet": ByteNetConfig,
    "convs2s": ConvS2SConfig,
    "memn2n": MemN2NConfig,
    "ntm": NTMConfig,
    "neural-gpu": NeuralGPUConfig,
    "show-attend-tell": ShowAttendTellConfig,
    "vit": ViTConfig,
}

AnyModel = Annotated[SerializeAsAny[ModelConfig], choice(MODELS)]

__all__ = ["MODELS", "AnyModel", "Kind", "Model", "ModelConfig"]
