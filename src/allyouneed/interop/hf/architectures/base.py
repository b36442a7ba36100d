"""What an architecture of theirs is to us: its settings and its weights, each in both directions."""

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
    classes: tuple[str, ...]  # what `architectures` may name; the first is written where there is a choice
    read: Callable[[Fields, str], ModelConfig]  # settings of a class: theirs -> ours
    rules: Callable[[Any, Rows], list[Rule]]  # weights, by our settings
    write: Callable[[Any], Tree]  # settings: ours -> theirs; what they cannot say shows when they are read back
    prepare: Callable[[dict[str, Tensor]], dict[str, Tensor]] = dict  # their weights in a form that rules can take
    prefix: str = ""  # that weights may do without
    tied: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # one tensor under several names
    # A tied projection that is its own all the same where it is there and differs, whatever the config says.
    parting: str | None = None
    unused: tuple[str, ...] = ()  # ends of names of weights that its classes do not read
    fixed: Callable[[Any], dict[str, Tensor]] = (
        lambda config: {}
    )  # weights that are no weights: they follow from settings
    needs_fixed: bool = False  # whether theirs wants to find them in its file
    framed: bool = False  # whether texts stand between special tokens of the tokeniser's template
    rewrites: tuple[
        str, ...
    ] = ()  # changes of form (interop/hf/rewrites.py) that bring ours nearer before it is written


def softmax_of(config: StackConfig) -> SoftmaxConfig:
    """The one mixer of a stack; refuses others."""
    mixer = config.mixer_of(0)
    if not isinstance(mixer, SoftmaxConfig):
        raise ConfigError(f"model.mixer: {mixer.type}; softmax is needed")
    return mixer


def activation_of(config: StackConfig) -> str:
    """Their name of a feed-forward function that is not gated."""
    if config.feedforward not in THEIR_ACTIVATIONS:
        raise ConfigError(f"model.feedforward: {config.feedforward}; one of {', '.join(THEIR_ACTIVATIONS)} is needed")
    return THEIR_ACTIVATIONS[config.feedforward]


def epsilon_of(config: StackConfig) -> float:
    """Of the norms."""
    return config.epsilon or (1e-5 if config.normalisation == "layer" else 1e-6)
