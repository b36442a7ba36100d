"""The mixers: one mechanism per file, and this table.

To add a mechanism, add its file, its line in `MIXERS`, and the line of its oracle in
`tests/contracts/mixer_contracts.py`.
"""

from typing import Annotated

from pydantic import SerializeAsAny

from allyouneed.config import choice
from allyouneed.mixers.base import Cost, Family, Memory, Mixer, MixerConfig, Role, State, Theory, send_losses_to
from allyouneed.mixers.bigbird import BigBirdConfig
from allyouneed.mixers.compressive import CompressiveConfig
from allyouneed.mixers.convolution import ConvolutionConfig
from allyouneed.mixers.fourier import FourierConfig
from allyouneed.mixers.linear import LinearConfig
from allyouneed.mixers.linformer import LinformerConfig
from allyouneed.mixers.local import LocalConfig
from allyouneed.mixers.longformer import LongformerConfig
from allyouneed.mixers.memory_compressed import MemoryCompressedConfig
from allyouneed.mixers.nystrom import NystromConfig
from allyouneed.mixers.parts.state import detach, select_rows
from allyouneed.mixers.performer import PerformerConfig
from allyouneed.mixers.recurrent import GruConfig, LstmConfig, RnnConfig
from allyouneed.mixers.reformer import ReformerConfig
from allyouneed.mixers.softmax import SoftmaxConfig
from allyouneed.mixers.sparse import SparseConfig
from allyouneed.mixers.window import WindowConfig
from allyouneed.mixers.xl import XLConfig

MIXERS: dict[str, type[MixerConfig]] = {
    "softmax": SoftmaxConfig,
    "window": WindowConfig,
    "longformer": LongformerConfig,
    "bigbird": BigBirdConfig,
    "sparse": SparseConfig,
    "linear": LinearConfig,
    "performer": PerformerConfig,
    "linformer": LinformerConfig,
    "nystrom": NystromConfig,
    "fourier": FourierConfig,
    "local": LocalConfig,
    "memory-compressed": MemoryCompressedConfig,
    "reformer": ReformerConfig,
    "xl": XLConfig,
    "compressive": CompressiveConfig,
    "rnn": RnnConfig,
    "lstm": LstmConfig,
    "gru": GruConfig,
    "convolution": ConvolutionConfig,
}

AnyMixer = Annotated[SerializeAsAny[MixerConfig], choice(MIXERS, default="softmax")]

__all__ = [
    "MIXERS",
    "AnyMixer",
    "Cost",
    "Family",
    "Memory",
    "Mixer",
    "MixerConfig",
    "Role",
    "State",
    "Theory",
    "detach",
    "select_rows",
    "send_losses_to",
]
