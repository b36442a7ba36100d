"""Linear layers, tables and norms for inference: packed weights, and no `nn.Module.__call__` between the operations."""

import threading

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from allyouneed import kernels
from allyouneed.weights import HALVES, scale_of

_PACKING = threading.Lock()


class PackedProduct:
    """x W^T + b by a kernel on packed weights, where the kernels apply.

    With `release`, the packed weights are the only ones: the parameter keeps its shape, but no memory. Torch's
    operations get a copy that is unpacked for them; with gradients enabled the parameter gets it, and keeps it.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, int8: bool, release: bool = False) -> None:
        self._weight, self._bias, self.int8, self._released = weight, bias, int8, False
        self._scale_N = scale_of(weight)
        self._packed: kernels.Packed | kernels.PackedInt8 | None = None
        self._lines: kernels.LinesInt8 | None = None
        if release:
            self.packed()
            # Not a number: whatever reads the parameter itself by mistake is noticed.
            weight.data = torch.full((), torch.nan).expand(weight.shape)
            self._released = True

    def __call__(self, x: Tensor) -> Tensor | None:
        """Return the product, or None if torch has to compute it."""
        if not kernels.usable(x):
            return None
        if not self.int8 and not kernels.few_rows(x.numel() // x.shape[-1]):
            return None
        return (self._packed or self.packed()).project(x)

    def weight(self) -> Tensor:
        """Return the weights in float32, for torch's operations."""
        if not self._released:
            if self._scale_N is not None and self._weight.dtype is torch.int8:  # not unpacked for gradients
                return self._weight.float() * self._scale_N[:, None]
            return self._weight.float() if self._weight.dtype in HALVES else self._weight
        whole = self.packed().whole()
        if not torch.is_grad_enabled():
            return whole
        with _PACKING:
            if self._released:
                self._weight.data, self._released = whole, False
        return self._weight

    def rows(self, tokens: Tensor) -> Tensor:
        """Return rows of the weights (..., D), as an embedding does."""
        if self._released and not torch.is_grad_enabled():
            return self.packed().rows(tokens.long())
        return torch.embedding(self.weight(), tokens)

    def packed(self) -> kernels.Packed | kernels.PackedInt8:
        """Return the packed weights. They are packed on first use, by one thread."""
        with _PACKING:
            if self._packed is None:
                if self.int8:
                    self._packed = kernels.PackedInt8(self._weight, self._bias, self._scale_N)
                else:
                    self._packed = kernels.Packed(self._weight, self._bias)
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
        if self.int8 or not kernels.usable(self._weight.new_empty(0, dtype=torch.float32)):
            return None
        packed, some = self.packed(), PackedProduct(self._weight, self._bias, int8=False)
        assert isinstance(packed, kernels.Packed)
        some._packed = packed.some(output_N)
        return some


class OptimizedLinear(nn.Module):
    """A linear layer that does not run hooks. With `release` its weight is packed now, and takes no other memory.

    Otherwise the weight is stored by columns, and packed once few rows arrive.
    """

    def __init__(self, layer: nn.Linear, int8: bool, release: bool = False) -> None:
        super().__init__()
        self.in_features, self.out_features, self.bias = layer.in_features, layer.out_features, layer.bias
        if not release:
            layer.weight.data = layer.weight.data.T.contiguous().T
        self._columns = None if release else layer.weight.data.T
        assert isinstance(layer.weight, nn.Parameter)
        self._parameters["weight"] = layer.weight
        self.product = PackedProduct(layer.weight, self.bias, int8, release)

    @property
    def weight(self) -> Tensor:
        """Return the weight in float32; unpacked if it was released."""
        return self.product.weight()

    def forward(self, x: Tensor) -> Tensor:
        if (y := self.product(x)) is not None:
            return y
        if self._columns is not None and x.dim() == 2 and self.bias is not None and not torch.is_grad_enabled():
            return torch.addmm(self.bias, x, self._columns)  # fewer calls than F.linear
        return F.linear(x, self.weight, self.bias)

    __call__ = forward


class StoredTable:
    """The look-up of an embedding whose table stays in half precision or int8."""

    def __init__(self, weight_VD: Tensor) -> None:
        self._weight_VD, self._scale_V = weight_VD, scale_of(weight_VD)

    def __call__(self, tokens: Tensor) -> Tensor:
        if self._scale_V is None:
            return torch.embedding(self._weight_VD, tokens).float()
        # With gradients, the rows are a lookup of their own, which inspection can find.
        rows = self._weight_VD[tokens.flatten()].float() * self._scale_V[tokens.flatten()][:, None]
        return torch.embedding(rows, torch.arange(len(rows)).view(tokens.shape))


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
