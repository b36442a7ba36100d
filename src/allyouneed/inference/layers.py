"""Linear layers and norms for inference: packed weights, and no `nn.Module.__call__` between the operations."""

import threading

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from allyouneed import kernels

_PACKING = threading.Lock()


class PackedProduct:
    """x W^T + b by a kernel on packed weights, where the kernels apply."""

    def __init__(self, weight: Tensor, bias: Tensor | None, int8: bool) -> None:
        self._weight, self._bias, self.int8 = weight, bias, int8
        self._packed: kernels.Packed | kernels.PackedInt8 | None = None
        self._lines: kernels.LinesInt8 | None = None

    def __call__(self, x: Tensor) -> Tensor | None:
        """Return the product, or None if torch has to compute it."""
        if not kernels.usable(x):
            return None
        if not self.int8 and not kernels.few_rows(x.numel() // x.shape[-1]):
            return None
        return (self._packed or self.packed()).project(x)

    def packed(self) -> kernels.Packed | kernels.PackedInt8:
        """Return the packed weights. They are packed on first use, by one thread."""
        with _PACKING:
            if self._packed is None:
                self._packed = (kernels.PackedInt8 if self.int8 else kernels.Packed)(self._weight, self._bias)
            return self._packed

    def lines(self) -> kernels.LinesInt8:
        """Return the int8 weights in the layout for lists of outputs."""
        packed = self.packed()
        assert isinstance(packed, kernels.PackedInt8)
        with _PACKING:
            if self._lines is None:
                self._lines = kernels.LinesInt8(packed)
            return self._lines

    def some(self, output_N: Tensor) -> "PackedProduct | None":
        """Return the float32 product for some of the outputs, or None if the kernels do not apply."""
        if self.int8 or not kernels.usable(self._weight):
            return None
        packed, some = self.packed(), PackedProduct(self._weight, self._bias, int8=False)
        assert isinstance(packed, kernels.Packed)
        some._packed = packed.some(output_N)
        return some

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_packed": None, "_lines": None}  # a copy packs its own weights


class OptimizedLinear(nn.Module):
    """A linear layer that does not run hooks. Its weight is stored by columns, and packed once few rows arrive."""

    def __init__(self, layer: nn.Linear, int8: bool) -> None:
        super().__init__()
        self.in_features, self.out_features, self.bias = layer.in_features, layer.out_features, layer.bias
        layer.weight.data = layer.weight.data.T.contiguous().T
        self.weight = layer.weight
        self._columns = layer.weight.data.T
        self.product = PackedProduct(self.weight, self.bias, int8)

    def forward(self, x: Tensor) -> Tensor:
        if (y := self.product(x)) is not None:
            return y
        if x.dim() == 2 and self.bias is not None and not torch.is_grad_enabled():  # fewer calls than F.linear
            return torch.addmm(self.bias, x, self._columns)
        return F.linear(x, self.weight, self.bias)

    __call__ = forward


class OptimizedNorm(nn.Module):
    """A layer norm or RMS norm that does not run hooks. A kernel computes it in one pass where it can."""

    def __init__(self, layer: nn.LayerNorm | nn.RMSNorm) -> None:
        super().__init__()
        assert layer.eps is not None
        self.shape, self.eps = layer.normalized_shape, layer.eps
        self.weight, self.bias = layer.weight, getattr(layer, "bias", None)

    def forward(self, x: Tensor) -> Tensor:
        if kernels.usable(x):
            return kernels.add_norm(x, None, self.weight, self.bias, self.eps)
        if self.bias is None:
            return F.rms_norm(x, self.shape, self.weight, self.eps)
        return torch.layer_norm(x, self.shape, self.weight, self.bias, self.eps)

    __call__ = forward


def add_and_norm(x: Tensor, y: Tensor, norm: nn.Module) -> Tensor:
    """Return Norm(x + y): `Block.add_residual` of a post-norm block without dropout."""
    if isinstance(norm, OptimizedNorm) and kernels.usable(x):
        return kernels.add_norm(x, y, norm.weight, norm.bias, norm.eps)
    out: Tensor = norm(x + y)
    return out
