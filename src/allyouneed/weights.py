"""The weights of a model by name: what is saved, and how given tensors become the weights of a new model.

A model for given weights is built without memory for them and without random numbers (`build_for`), then the tensors
are assigned, not copied: loading takes as much memory as the file.

A matrix may be stored in int8: `name` (N, D) in int8, and `name.scale` (N) in float32, which multiplies its rows.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from allyouneed.errors import ConfigError, FolderError

SCALE = ".scale"  # after the name of a matrix in int8
LARGE = 1 << 16  # numbers of a tensor that is not worth initialising
Built = TypeVar("Built", bound=nn.Module)
TINY = 1e-36  # rows whose largest magnitude is not larger become zero
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
    own, scales = model_tensors(model), _take_scales(tensors, where)
    require_same_tensors(own, tensors, where, scales.keys())
    parameters = dict(model.named_parameters())
    chosen: dict[nn.Parameter, nn.Parameter] = {}
    for name in own:
        if (old := parameters.get(name)) is not None:
            given, scale_N = tensors.pop(name), scales.get(name)
            if old not in compact:
                given = given.to(old.dtype, copy=bool(compact))
                given = given if scale_N is None else given.mul_(scale_N[:, None])
            chosen[old] = nn.Parameter(given, old.requires_grad and given.is_floating_point())
            if scale_N is not None and old in compact:
                chosen[old].scale_N = scale_N  # type: ignore[attr-defined]
    for prefix, module in model.named_modules():
        for key, old in module._parameters.items():
            if old is not None:
                module._parameters[key] = chosen[old]
        for key, buffer in module._buffers.items():
            name = f"{prefix}.{key}" if prefix else key
            if buffer is not None and name in own:
                module._buffers[key] = tensors.pop(name).to(buffer.dtype, copy=bool(compact))


def scale_of(parameter: Tensor) -> Tensor | None:
    """Return the scale (N) of each row of a parameter that is stored in int8; None for any other."""
    scale_N: Tensor | None = getattr(parameter, "scale_N", None)
    return scale_N


def _take_scales(tensors: dict[str, Tensor], where: Path) -> dict[str, Tensor]:
    """Take the scales out of tensors, and return them by the names of their matrices."""
    scales = {}
    for name in [name for name, tensor in tensors.items() if tensor.dtype is torch.int8]:
        scale_N = tensors.pop(name + SCALE, None)
        if scale_N is None:
            continue
        if tensors[name].ndim != 2 or scale_N.shape != tensors[name].shape[:1] or scale_N.dtype is not torch.float32:
            raise FolderError(f"{where}: tensor {name}{SCALE} should be a float32 for each row of {name}")
        scales[name] = scale_N
    return scales


class RoundedTensors:
    """Tensors of which some matrices are rounded to int8 when they are written: `LazyTensors` of storage/tensors.py."""

    def __init__(self, tensors: Mapping[str, Tensor], matrices: Set[str]) -> None:
        self._tensors, self._matrices = tensors, matrices

    def specs(self) -> dict[str, tuple[torch.dtype, tuple[int, ...]]]:
        """Return the types and shapes."""
        found = {name: (tensor.dtype, tuple(tensor.shape)) for name, tensor in self._tensors.items()}
        for name in self._matrices:
            shape = found[name][1]
            found |= {name: (torch.int8, shape), name + SCALE: (torch.float32, shape[:1])}
        return found

    def compute(self, name: str) -> Tensor:
        """Return one of the tensors."""
        if name in self._matrices:
            return _rounded(self._tensors[name])[0]
        matrix = name.removesuffix(SCALE)
        return _rounded(self._tensors[matrix])[1] if matrix in self._matrices else self._tensors[name]


def _rounded(weight_ND: Tensor) -> tuple[Tensor, Tensor]:
    """Return a matrix in int8 and the scales of its rows, as `pack_int8` of kernels/int8.c rounds."""
    most_N = weight_ND.abs().amax(dim=1)
    scale_N = torch.where(most_N > TINY, most_N / torch.full_like(most_N, 127), 0)
    steps_ND = weight_ND / torch.where(scale_N > 0, scale_N, 1)[:, None]
    return torch.where(scale_N[:, None] > 0, steps_ND.round(), 0).to(torch.int8), scale_N


def require_same_tensors(
    expected: Mapping[str, Tensor], found: Mapping[str, Tensor], where: Path, rounded: Set[str] = frozenset()
) -> None:
    """Raise FolderError unless names, shapes and dtypes of the tensors are those expected.

    Tensors in half precision, and those that are `rounded` to int8, may stand for float32.
    """
    for name in [*expected, *sorted(found.keys() - expected.keys())]:
        if name not in found:
            raise FolderError(f"{where}: tensor {name} is missing")
        if name not in expected:
            raise FolderError(f"{where}: tensor {name} is not part of this model")
        for what in ("shape", "dtype"):
            right, actual = getattr(expected[name], what), getattr(found[name], what)
            if right != actual and not (right is torch.float32 and (actual in HALVES or name in rounded)):
                raise FolderError(f"{where}: tensor {name} has {what} {_text(actual)}, the model needs {_text(right)}")


def _text(value: Any) -> str:
    return " x ".join(map(str, value)) or "()" if isinstance(value, torch.Size) else str(value)
