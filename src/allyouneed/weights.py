"""The weights of a model by name: what is saved, and how given tensors become the weights of a new model.

A model for given weights is built without memory for them and without random numbers (`build_for`), then the tensors
are assigned, not copied: loading takes as much memory as the file.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from allyouneed.errors import ConfigError, FolderError

LARGE = 1 << 16  # numbers of a tensor that is not worth initialising
Built = TypeVar("Built", bound=nn.Module)
HALVES = (torch.bfloat16, torch.float16)
_INITIALISERS = {Tensor.mul, Tensor.__mul__, Tensor.__rmul__, torch.mul, Tensor.__truediv__, Tensor.normal_}
_FACTORIES = {torch.empty, torch.zeros, torch.ones, torch.full, torch.rand, torch.randn}


def model_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return the tensors to save by name: parameters (a tied one under its first name) and persistent buffers."""
    kept = model.state_dict().keys()
    buffers = {name: buffer for name, buffer in model.named_buffers() if name in kept}
    return {**{name: parameter.data for name, parameter in model.named_parameters()}, **buffers}


def fill_model(model: nn.Module, tensors: Mapping[str, Tensor], where: Path) -> None:
    """Copy tensors into a model; names, shapes and dtypes must be exactly the model's own."""
    own = model_tensors(model)
    require_same_tensors(own, tensors, where)
    for name, tensor in own.items():
        tensor.copy_(tensors[name])


class SizeGuard(TorchFunctionMode):
    """Stop building a model that is too large: a small config can request terabytes, or a billion layers.

    With `empty`, large tensors get no memory: their device is "meta".
    """

    def __init__(self, tensors: int, numbers: int, than: str, empty: bool = False) -> None:
        super().__init__()
        self.tensors, self.numbers, self.than, self.empty = tensors, numbers, than, empty

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _FACTORIES and args:
            count = math.prod(args[0] if isinstance(args[0], Sequence) else (n for n in args if isinstance(n, int)))
            self.tensors -= 1
            self.numbers -= count
            if self.tensors < 0 or self.numbers < 0:
                raise ConfigError(f"the model is far larger than {self.than}")
            if self.empty and count >= LARGE and not (kwargs.get("device") or kwargs.get("generator")):
                # On this device most functions import 70 MB of code, which takes a second. `empty` does not.
                size = args[:1] if isinstance(args[0], Sequence) else tuple(n for n in args if isinstance(n, int))
                return torch.empty(*size, device="meta", dtype=kwargs.get("dtype"))
        if func in _INITIALISERS and isinstance(args[0], Tensor) and args[0].is_meta:
            return args[0]
        return func(*args, **kwargs)


def size_guard(weights: Mapping[str, Tensor], than: str, empty: bool = False) -> SizeGuard:
    """Return a size guard for a model with these weights."""
    # A model may have masks and tables beside its weights, and initialisation may need a second tensor.
    numbers = 4 * sum(tensor.numel() for tensor in weights.values()) + (1 << 26)
    return SizeGuard(4 * len(weights) + 256, numbers, than, empty)


def build_for(build: Callable[[], Built], weights: Mapping[str, Tensor], than: str) -> Built:
    """Build a model for these weights; large parameters get no memory before `assign_weights`.

    The caller's random generator does not advance. Raise ConfigError for a model that is far larger than its weights.
    """
    with torch.random.fork_rng(devices=[]):
        with size_guard(weights, than, empty=True):
            model = build()
        if any(buffer.is_meta for _, buffer in _unsaved_buffers(model)):  # its numbers are nowhere else
            with size_guard(weights, than):
                model = build()
    return model


def _unsaved_buffers(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    saved = model.state_dict().keys()
    yield from ((name, buffer) for name, buffer in model.named_buffers() if name not in saved)


def assign_weights(
    model: nn.Module, tensors: dict[str, Tensor], where: Path, compact: Set[Tensor] = frozenset()
) -> None:
    """Make tensors the weights of a model. Names and shapes must be the model's own; halves become float32.

    The tensors are taken out of the dictionary, so that those that were converted are freed.
    `compact`: parameters that take their tensors as they are: in half precision, or mapped.
    """
    own = model_tensors(model)
    require_same_tensors(own, tensors, where)
    parameters = dict(model.named_parameters())
    chosen: dict[nn.Parameter, nn.Parameter] = {}
    for name in own:
        if (old := parameters.get(name)) is not None:
            given = tensors.pop(name)
            given = given if old in compact else given.to(old.dtype, copy=bool(compact))
            chosen[old] = nn.Parameter(given, old.requires_grad)
    for prefix, module in model.named_modules():
        for key, old in module._parameters.items():
            if old is not None:
                module._parameters[key] = chosen[old]
        for key, buffer in module._buffers.items():
            name = f"{prefix}.{key}" if prefix else key
            if buffer is not None and name in own:
                module._buffers[key] = tensors.pop(name).to(buffer.dtype, copy=bool(compact))


def require_same_tensors(expected: Mapping[str, Tensor], found: Mapping[str, Tensor], where: Path) -> None:
    """Raise FolderError unless names, shapes and dtypes of the tensors are those expected.

    Tensors in half precision may stand for float32.
    """
    for name in [*expected, *sorted(found.keys() - expected.keys())]:
        if name not in found:
            raise FolderError(f"{where}: tensor {name} is missing")
        if name not in expected:
            raise FolderError(f"{where}: tensor {name} is not part of this model")
        for what in ("shape", "dtype"):
            right, actual = getattr(expected[name], what), getattr(found[name], what)
            if right != actual and not (right is torch.float32 and actual in HALVES):
                raise FolderError(f"{where}: tensor {name} has {what} {_text(actual)}, the model needs {_text(right)}")


def _text(value: Any) -> str:
    return " x ".join(map(str, value)) or "()" if isinstance(value, torch.Size) else str(value)
