"""A device for tests: its tensors report the device `meta`, but hold values, so that control flow can depend on them.

Inside `with OtherDevice():` a tensor is there if it was made with `device="meta"`, moved there, or computed from such
tensors. As on CUDA, an operation on tensors of both devices raises `WrongDevice`; only single numbers (tensors without
axes) may come from the CPU. So a tensor that is made on the CPU by mistake fails as soon as it is used.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_leaves, tree_map

DEVICE = torch.device("meta")
CPU = torch.device("cpu")
COPIES = (torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default)


class WrongDevice(AssertionError):
    """An operation on tensors of two devices."""


class OtherTensor(Tensor):
    """A tensor of the other device, with its values on the CPU."""

    values: Tensor

    @staticmethod
    def __new__(cls, values: Tensor) -> "OtherTensor":
        return Tensor._make_wrapper_subclass(  # type: ignore[attr-defined,no-any-return]
            cls,
            values.shape,
            strides=values.stride(),
            storage_offset=values.storage_offset(),
            dtype=values.dtype,
            device=DEVICE,
        )

    def __init__(self, values: Tensor) -> None:
        self.values = values

    def __repr__(self, **_: Any) -> str:
        return f"OtherTensor({self.values})"

    def tolist(self) -> Any:
        """Torch refuses it for subclasses."""
        return self.values.tolist()

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


class _Data(TorchFunctionMode):
    """Makes tensors from data on the CPU first: torch forgets the data if the device is `meta`."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.as_tensor and isinstance(args[0], OtherTensor):
            return args[0].to(**kwargs) if kwargs else args[0]
        if func in (torch.tensor, torch.as_tensor, torch.asarray) and kwargs.get("device") is not None:
            return func(*args, **{**kwargs, "device": None}).to(kwargs["device"])
        return func(*args, **kwargs)


class OtherDevice(TorchDispatchMode):
    """While active, tensors may be made on the other device."""

    def __init__(self) -> None:
        super().__init__()
        self._data = _Data()

    def __enter__(self) -> "OtherDevice":
        self._data.__enter__()
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._data.__exit__(*error)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


def _run(func: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
    if torch.is_inference_mode_enabled():  # torch cannot wrap a view of a parameter as an inference tensor
        with torch.inference_mode(False), torch.no_grad():
            return _run(func, args, kwargs)
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
    there = any(isinstance(tensor, OtherTensor) for tensor in tensors)
    if there and func not in COPIES:
        strays = [tensor for tensor in tensors if not isinstance(tensor, OtherTensor) and tensor.dim() > 0]
        if strays:
            raise WrongDevice(f"{func}: a tensor of shape {tuple(strays[0].shape)} is on the CPU")
    device = kwargs.get("device")
    target = DEVICE if there else CPU
    if func is torch.ops.aten.copy_.default:
        target = args[0].device
    if device is not None:
        target, kwargs = torch.device(device), {**kwargs, "device": CPU}
    generator = kwargs.get("generator")
    if target == DEVICE and generator is not None and generator.device.type == "cpu":
        raise WrongDevice(f"{func}: a generator is on the CPU")
    out = func(*tree_map(_values, args), **tree_map(_values, kwargs))
    if target != DEVICE:
        return out if func is not torch.ops.aten.copy_.default else args[0]
    out = tree_map(lambda leaf: OtherTensor(leaf) if isinstance(leaf, Tensor) else leaf, out)
    return return_and_correct_aliasing(func, args, kwargs, out) if there else out


def _values(leaf: Any) -> Any:
    return leaf.values if isinstance(leaf, OtherTensor) else leaf


def move(module: nn.Module) -> nn.Module:
    """Move all parameters and buffers to the other device; those that modules share stay shared."""
    moved: dict[int, nn.Parameter] = {}
    for part in module.modules():
        for name, parameter in part._parameters.items():
            if parameter is not None:
                if id(parameter) not in moved:
                    moved[id(parameter)] = nn.Parameter(OtherTensor(parameter.detach()), parameter.requires_grad)
                part._parameters[name] = moved[id(parameter)]
        for name, buffer in part._buffers.items():
            if buffer is not None:
                part._buffers[name] = OtherTensor(buffer)
    return module
