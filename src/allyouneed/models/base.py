"""The contract of a model: from token ids to logits.

    memory = model.encode(source_BS, mask_BS)       # models with a source
    state = model.start(memory)                      # or model.start(None)
    logits_BTV, state = model.step(tokens_BT, state)
    logits_BV, state = model.advance(token_B, state) # the same for one token per row

`step` takes any number of new tokens: one in decoding, all of them in training or scoring. Decoding, scoring, serving
and attention maps use this contract only. `hidden` is `step` without the last projection, so that a loss can project
only the positions that count, in cache-sized pieces. An encoder has no `step`; its `classify` classifies the whole
source.

A model does not know which ids are padding or the end of a sentence: masks come with the ids.
"""

from abc import ABC, abstractmethod
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from allyouneed.config import Config
from allyouneed.errors import ConfigError
from allyouneed.mixers import Memory, MixerConfig, State
from allyouneed.sizes import Sizes, Traits

Kind = Literal["encoder-decoder", "decoder", "encoder"]


class ModelConfig(Config, ABC):
    """The settings of one architecture."""

    summary: ClassVar[str]
    paper: ClassVar[str]
    kind: ClassVar[Kind]

    type: str

    @abstractmethod
    def build(self, sizes: Sizes) -> "Model":
        """Return the model with random weights (from torch's global generator)."""

    def check_task(self, task: Traits) -> None:
        """Raise ValueError if the model does not fit the form of a task's data."""

    def check_steps(self, steps: int) -> None:
        """Raise ValueError if the settings need more than `steps` training steps."""

    def source_mixers(self) -> list[MixerConfig]:
        """Return the mixers that read the text (the source of an encoder-decoder), bottom up; empty if none does."""
        return []

    def layer_counts(self) -> tuple[int, ...]:
        """Return the number of layers of each stack: encoder and decoder, one stack, or none."""
        return ()

    def remarks(self) -> list[str]:
        """Return further words for `describe`."""
        return []

    def describe(self) -> str:
        """Return a short description: "encoder-decoder, softmax, 4+4 layers"."""
        mixers = dict.fromkeys(mixer.type for mixer in self.source_mixers() if mixer.type != self.type)
        counts = self.layer_counts()
        layers = [f"{'+'.join(map(str, counts))} layer{'s' * (counts != (1,))}"] if counts else []
        return ", ".join([self.type, *mixers, *self.remarks(), *layers])


class Head(nn.Module):
    """logits = x E^T (+ b). The weight may be the embedding's own (Press and Wolf 2017; section 3.4 of the paper).

    With a `cap` they are cap tanh(x E^T / cap) (+ b) (Gemma Team 2024, arXiv:2408.00118). A weight that is not a
    parameter is fixed: it follows from the settings and is neither trained nor saved. A fixed bias is only saved.
    """

    weight_VD: Tensor

    bias_V: Tensor | None

    def __init__(self, weight_VD: Tensor, bias: bool | Literal["fixed"] = False, cap: float | None = None) -> None:
        super().__init__()
        self.cap = cap
        if isinstance(weight_VD, nn.Parameter):
            self.weight_VD = weight_VD
        else:
            self.register_buffer("weight_VD", weight_VD, persistent=False)
        zero_V = torch.zeros(weight_VD.shape[0])
        if bias == "fixed":
            self.register_buffer("bias_V", zero_V)
        else:
            self.bias_V = nn.Parameter(zero_V) if bias else None

    @property
    def size(self) -> int:
        """Return the number of logits."""
        return self.weight_VD.shape[0]

    @property
    def width(self) -> int:
        """Return the width of its input."""
        return self.weight_VD.shape[1]

    @property
    def like(self) -> Tensor:
        """Return an empty tensor of the type of the logits, on their device."""
        return self.weight_VD.new_empty(0)

    def forward(self, x: Tensor) -> Tensor:
        """Map (..., D) -> (..., V): positions of sequences, or one pooled vector for each."""
        if self.cap is not None:
            return self.capped(nn.functional.linear(x, self.weight_VD))
        return nn.functional.linear(x, self.weight_VD, self.bias_V)

    def capped(self, logits: Tensor) -> Tensor:
        """Return cap tanh(x E^T / cap) + b, given x E^T."""
        assert self.cap is not None
        logits = self.cap * torch.tanh(logits / self.cap)
        return logits if self.bias_V is None else logits + self.bias_V


class Model(nn.Module, ABC):
    """A model. Every architecture is a final subclass."""

    kind: Kind
    config: ModelConfig
    head: Head

    @property
    def longest(self) -> int | None:
        """Return the maximum number of target tokens, BOS (and a decoder's source) included; None: no limit."""
        return None

    @property
    def longest_source(self) -> int | None:
        """Return the maximum number of source tokens; None: no limit, or unknown."""
        return self.longest if self.kind == "decoder" else None

    def encode(self, source_BS: Tensor, mask_BS: Tensor | None = None) -> Memory:
        """Return the encoded source."""
        raise ConfigError(f"a {self.kind} model has no source to encode")

    def start(self, memory: Memory | None = None) -> State:
        """Return the state before the first token."""
        raise ConfigError(f"a {self.kind} model does not generate")

    def condition(self, source_BS: Tensor, mask_BS: Tensor | None = None) -> State:
        """Return the state before a target for this source. A decoder reads the source as the beginning of its text."""
        if self.kind == "decoder":
            return self.hidden(source_BS, self.start(), mask_BS)[1]
        return self.start(self.encode(source_BS, mask_BS))

    def hidden(self, tokens_BT: Tensor, state: State, mask_BT: Tensor | None = None) -> tuple[Tensor, State]:
        """Return the vectors (B, T, D) that `head` projects to logits, and the state after the tokens."""
        raise ConfigError(f"a {self.kind} model does not generate")

    def step(self, tokens_BT: Tensor, state: State, mask_BT: Tensor | None = None) -> tuple[Tensor, State]:
        """Return the logits (B, T, V) of the next token at each position, and the state after the tokens."""
        x_BTD, state = self.hidden(tokens_BT, state, mask_BT)
        return self.head(x_BTD), state

    def advance(self, token_B: Tensor, state: State) -> tuple[Tensor, State]:
        """Run `step` for one token of each row; return logits (B, V). Decoding calls this; a model may override it."""
        logits_BTV, state = self.step(token_B.unsqueeze(1), state)
        return logits_BTV.squeeze(1), state

    def classify(self, source_BS: Tensor, mask_BS: Tensor | None = None) -> Tensor:
        """Return logits (B, V) over classes for whole sources."""
        raise ConfigError(f"a {self.kind} model does not classify")

    def after_step(self, step: int) -> None:
        """Update what depends on the training step but is not trained. Called after every step."""

    def head_names(self, module: str, count: int) -> list[str]:
        """Return names for the `count` heads of an attention map that `module` (its dotted name) sends."""
        return [str(number + 1) for number in range(count)]

    @abstractmethod
    def flops(self, source: int, target: int) -> int:
        """Return the FLOPs of a forward pass over one sequence of `source` and `target` tokens."""

    def parameter_count(self) -> int:
        """Return the number of parameters; a tied matrix counts once."""
        return sum(parameter.numel() for parameter in self.parameters())

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Raise NotImplementedError: call encode, start, step or classify."""
        raise NotImplementedError("call encode/start/step or classify")
