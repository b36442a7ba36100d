"""A Hugging Face architecture: maps of its settings and weights, each in both directions."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from allyouneed.config import Tree
from allyouneed.errors import ConfigError
from allyouneed.interop.hf.fields import Fields
from allyouneed.interop.hf.rules import Rows, Rule
from allyouneed.mixers.softmax import SoftmaxConfig
from allyouneed.models import ModelConfig
from allyouneed.models.parts.stack import StackConfig

ACTIVATIONS = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_new": "gelu-tanh",
    "gelu_fast": "gelu-tanh",
    "gelu_pytorch_tanh": "gelu-tanh",
    "silu": "silu",
    "swish": "silu",
}
THEIR_ACTIVATIONS = {"relu": "relu", "gelu": "gelu", "gelu-tanh": "gelu_new", "silu": "silu"}


@dataclass(frozen=True)
class Architecture:
    """One `model_type`."""

    type: str
    classes: tuple[str, ...]  # allowed in `architectures`
    read: Callable[[Fields, str], ModelConfig]  # settings of a class: theirs -> ours
    rules: Callable[[Any, Rows], list[Rule]]  # weights, for our settings
    write: Callable[[Any], Tree]  # settings: ours -> theirs; checked by reading them back
    class_of: Callable[[Any], str] | None = None  # the class that an export uses; default: the first
    prepare: Callable[[dict[str, Tensor]], dict[str, Tensor]] = dict  # converts their weights for the rules
    prefix: str = ""  # optional prefix of weight names
    tied: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # one tensor under several names
    # A projection that counts as untied if the file has it with other values, whatever the config says.
    parting: str | None = None
    unused: tuple[str, ...] = ()  # suffixes of weights that its classes do not use
    # Tensors in the file that follow from the settings, with this many positions.
    fixed: Callable[..., dict[str, Tensor]] = lambda config, length=0: {}
    needs_fixed: bool = False  # exports must contain the fixed tensors
    pictures: bool = False  # it reads images, and has no vocabulary
    framed: bool = False  # the tokenizer's template adds special tokens around a text
    rewrites: tuple[str, ...] = ()  # rewrites to apply before an export (interop/hf/rewrites.py)
    rewritten: bool = False  # the config of an imported model does not fit its exported weights without `write`


def softmax_of(config: StackConfig) -> SoftmaxConfig:
    """Return the mixer of a stack. Raise ConfigError if it is not softmax."""
    mixer = config.mixer_of(0)
    if not isinstance(mixer, SoftmaxConfig):
        raise ConfigError(f"model.mixer: {mixer.type}; should be softmax")
    return mixer


def activation_of(config: StackConfig) -> str:
    """Return their name of an ungated activation."""
    if config.feedforward not in THEIR_ACTIVATIONS:
        raise ConfigError(f"model.feedforward: {config.feedforward}; should be one of {', '.join(THEIR_ACTIVATIONS)}")
    return THEIR_ACTIVATIONS[config.feedforward]


def epsilon_of(config: StackConfig) -> float:
    """Return the epsilon of the norms."""
    return config.epsilon or (1e-5 if config.normalisation == "layer" else 1e-6)
