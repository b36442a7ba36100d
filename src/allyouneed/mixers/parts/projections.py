"""The projections that most mechanisms share: queries, keys and values of several heads, and the output.

q_h = x W^Q_h,   k_h = y W^K_h,   v_h = y W^V_h;      out = Concat(head_1 .. head_H) W^O
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import wraps
from typing import ParamSpec, TypeVar

import torch
from pydantic import PositiveInt
from torch import Tensor, nn

from allyouneed.errors import ConfigError
from allyouneed.mixers.base import Memory, MixerConfig, Role

Given = ParamSpec("Given")
Found = TypeVar("Found")


class HeadsConfig(MixerConfig):
    """The settings of a mechanism with heads of equal width."""

    heads: PositiveInt = 8
    bias: bool = True  # of the four projections

    @property
    def position_heads(self) -> int:
        return self.heads

    def head_width(self, width: int) -> int:
        """Return K = D / H."""
        if width % self.heads:
            raise ConfigError(f"model.width {width} is not divisible by mixer.heads {self.heads}")
        return width // self.heads

    def projection_flops(self, length: int, read: int, width: int) -> int:
        """Return the FLOPs of the four projections."""
        return 4 * (length + read) * width * width


class Projections(nn.Module):
    """W^Q, W^K and W^V (one matrix for a self mixer) and W^O."""

    def __init__(self, config: HeadsConfig, width: int, role: Role) -> None:
        super().__init__()
        config.head_width(width)  # raises ConfigError if heads do not divide the width
        self.heads, self.width, self.role = config.heads, width, role
        if role == "cross":
            self.query = nn.Linear(width, width, bias=config.bias)
            self.key_value = nn.Linear(width, 2 * width, bias=config.bias)
        else:
            self.query_key_value = nn.Linear(width, 3 * width, bias=config.bias)
        self.output = nn.Linear(width, width, bias=config.bias)
        for layer in self.children():
            assert isinstance(layer, nn.Linear)
            initialise(layer, width)

    def split(self, x_BTN: Tensor, parts: int) -> tuple[Tensor, ...]:
        """Split (B, T, parts D) into `parts` tensors (B, H, T, K)."""
        B, T, _ = x_BTN.shape
        heads_BTHK = wide_on_cpu(x_BTN).view(B, T, parts * self.heads, self.width // self.heads)
        return heads_BTHK.transpose(1, 2).chunk(parts, dim=1)

    def queries_keys_values(self, x_BTD: Tensor) -> tuple[Tensor, ...]:
        """Return queries, keys and values of a sequence that reads itself."""
        return self.split(self.query_key_value(x_BTD), 3)

    def keys_and_values(self, x_BSD: Tensor) -> Tensor:
        """Return keys, then values, without computing queries: (B, S, 2 D)."""
        return nn.functional.linear(x_BSD, *self.key_value_parameters())

    def key_value_parameters(self) -> tuple[Tensor, Tensor | None]:
        """Return the weight (2 D, D) and the bias of keys, then values."""
        if self.role == "cross":
            return self.key_value.weight, self.key_value.bias
        weight, bias = self.query_key_value.weight, self.query_key_value.bias
        return weight[self.width :], None if bias is None else bias[self.width :]

    def queries(self, x_BTD: Tensor) -> Tensor:
        """Return queries alone."""
        if self.role == "cross":
            return self.split(self.query(x_BTD), 1)[0]
        weight, bias = self.query_key_value.weight[: self.width], self.query_key_value.bias
        return self.split(nn.functional.linear(x_BTD, weight, None if bias is None else bias[: self.width]), 1)[0]

    def memory_keys_values(self, memory: Memory | None) -> tuple[Tensor, ...]:
        """Return keys and values of a memory."""
        return self.split(self.key_value(require_memory(memory).without_padding()), 2)

    def merge(self, y_BHTK: Tensor) -> Tensor:
        """Return Concat(heads) W^O."""
        B, _, T, _ = y_BHTK.shape
        if not is_autocast(y_BHTK):
            y_BHTK = y_BHTK.to(self.output.weight.dtype)
        out_BTD: Tensor = self.output(y_BHTK.transpose(1, 2).reshape(B, T, self.width))
        return out_BTD


def initialise(layer: nn.Linear, width: int) -> None:
    """Initialise each matrix of `width` outputs by Glorot, also where several are stored as one; set biases to zero."""
    for matrix in layer.weight.split(width):
        nn.init.xavier_uniform_(matrix)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)


def is_autocast(x: Tensor) -> bool:
    """Return True if operations on the device of `x` run under autocast; some devices do not have it."""
    kind = x.device.type
    return torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)


def full_precision(like: Tensor) -> AbstractContextManager[object]:
    """Return a context without autocast: sums over whole sequences need float32 at least."""
    return torch.autocast(like.device.type, enabled=False) if is_autocast(like) else nullcontext()


def at_least_float32(x: Tensor) -> Tensor:
    """Return `x` in float32, or in float64 if it is that already."""
    return x if x.dtype == torch.float64 else x.float()


def wide_on_cpu(x: Tensor) -> Tensor:
    """Return `x` in float32 at least, if it comes out of a product under autocast on a CPU.

    There products are twice as fast in bfloat16, but torch's attention is two to four times slower than in float32.
    """
    return at_least_float32(x) if torch.is_autocast_enabled("cpu") and x.device.type == "cpu" else x


def in_float32_on_cpu(function: Callable[Given, Found]) -> Callable[Given, Found]:
    """Decorate a function whose first argument is a tensor: on a CPU it is computed in float32, without autocast."""

    @wraps(function)
    def widened(*args: Given.args, **kwargs: Given.kwargs) -> Found:
        first = args[0]
        if not torch.is_autocast_enabled("cpu") or not isinstance(first, Tensor) or first.device.type != "cpu":
            return function(*args, **kwargs)
        with full_precision(first):
            wide = {name: _widen(value) for name, value in kwargs.items()}
            return function(*(_widen(value) for value in args), **wide)  # type: ignore[arg-type]

    return widened


def _widen(value: object) -> object:
    return at_least_float32(value) if isinstance(value, Tensor) and value.is_floating_point() else value


def require_memory(memory: Memory | None) -> Memory:
    """Return the memory of a cross mixer; raise ConfigError if there is none."""
    if memory is None:
        raise ConfigError("a cross mixer needs a memory to read, or a state that has read one")
    return memory


def refuse_state(state: object) -> None:
    """Raise ConfigError if a bidirectional mixer receives a state."""
    if state is not None:
        raise ConfigError("a bidirectional mixer sees the future, so it cannot continue from a state")
