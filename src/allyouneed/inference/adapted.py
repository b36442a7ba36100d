"""Several adapters on one optimized model: each is a model with weights shared, and thin matrices beside them.

    y = x W^T + b + (x A^T) B^T        W is packed once; A and B (with their scale) belong to one adapter

The copy shares every module without an adapted layer below it, and every tensor. So N adapters take the memory of one
model and N small ones. A fused stack computes the thin products in the same call (kernels/stack.c).
"""

import copy
import threading
from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from allyouneed import kernels
from allyouneed.block import FeedForward
from allyouneed.errors import ConfigError
from allyouneed.inference.attention import SoftmaxStep
from allyouneed.inference.fused_stack import FusedStack, fuse
from allyouneed.inference.layers import OptimizedLinear, PackedProduct
from allyouneed.inference.optimize import is_optimized, refuse_changes
from allyouneed.mixers.softmax import Softmax
from allyouneed.models.base import Model
from allyouneed.models.parts.stack import Stack

Thin = Mapping[str, tuple[Tensor, Tensor]]  # A (R, D) and B (N, R), with its scale, by the name of the matrix
_PACKING = threading.Lock()


class AdaptedProduct(PackedProduct):
    """A packed product with an adapter."""

    def __init__(self, base: PackedProduct, a_RD: Tensor, b_NR: Tensor) -> None:
        self._base, self.int8, self.a_RD, self.b_NR = base, base.int8, a_RD, b_NR
        self._adapted: kernels.AdaptedMatrix | None = None

    def __call__(self, x: Tensor) -> Tensor | None:
        if not kernels.usable(x) or not (self.int8 or kernels.few_rows(x.numel() // x.shape[-1])):
            return None
        return self.packed().project(x)

    def weight(self) -> Tensor:
        return torch.addmm(self._base.weight(), self.b_NR, self.a_RD)

    def packed(self) -> kernels.AdaptedMatrix:  # type: ignore[override]
        base = self._base.packed()
        with _PACKING:
            if self._adapted is None:
                self._adapted = kernels.AdaptedMatrix(base, self.a_RD, self.b_NR)
            return self._adapted


class AdaptedLinear(OptimizedLinear):
    """An optimized linear layer with an adapter. Its weight is the one of the base."""

    product: AdaptedProduct

    def __init__(self, base: OptimizedLinear, a_RD: Tensor, b_NR: Tensor) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features, self.bias = base.in_features, base.out_features, base.bias
        self._parameters["weight"] = base._parameters["weight"]
        self.__dict__["_base"] = base  # not registered: its parameters are those above
        self.product = AdaptedProduct(base.product, a_RD, b_NR)

    def forward(self, x: Tensor) -> Tensor:
        if (y := self.product(x)) is not None:
            return y
        base: OptimizedLinear = self.__dict__["_base"]
        return base(x) + F.linear(F.linear(x, self.product.a_RD), self.product.b_NR)

    __call__ = forward


def unshared(model: Model, names: Mapping[str, object]) -> list[str]:
    """Return the matrices whose adapters need a copy of their own: not those of attention or feed-forward layers."""
    layers = _layers(model)
    return [name for name in names if name not in layers]


def with_adapter(model: Model, thin: Thin) -> Model:
    """Return a model that shares its weights with an optimized one and has an adapter. `unshared` must be empty."""
    if not is_optimized(model) or unshared(model, thin):
        raise ConfigError("an adapter shares the weights of a model that is optimized, in attention and feed-forward")
    layers, device = _layers(model), model.head.like.device
    copies: dict[nn.Module, nn.Module] = {}
    for name, (a_RD, b_NR) in thin.items():
        layer = layers[name]
        copies[layer] = AdaptedLinear(layer, a_RD.to(device, torch.float32), b_NR.to(device, torch.float32))
        refuse_changes(copies[layer])
    _copy_above(model, copies)
    adapted = copies.get(model, model)
    assert isinstance(adapted, Model)
    return adapted


def _layers(model: Model) -> dict[str, OptimizedLinear]:
    """Return the layers of attention and feed-forward, by the names of their weights."""
    return {
        f"{prefix}.{name}.weight": layer
        for prefix, module in model.named_modules()
        if isinstance(module, Softmax | FeedForward)
        for name, layer in module.named_children()
        if type(layer) is OptimizedLinear
    }


def _copy_above(module: nn.Module, copies: dict[nn.Module, nn.Module]) -> None:
    """Copy each module that has a copied one below it, and bind what refers to its owner to the copy."""
    for child in module.children():
        if child not in copies:
            _copy_above(child, copies)
    if not any(child in copies for child in module.children()):
        return
    made = copy.copy(module)
    made.__dict__ = {name: copies[one] if _is_in(one, copies) else one for name, one in module.__dict__.items()}
    made._modules = {
        name: None if child is None else copies.get(child, child) for name, child in module._modules.items()
    }
    copies[module] = made
    if isinstance(made, Softmax):
        made.__dict__["advance"] = SoftmaxStep(made)
    elif isinstance(made, Stack) and isinstance(getattr(module.__dict__.get("advance"), "__self__", None), FusedStack):
        fuse(made)
    refuse_changes(made)


def _is_in(value: object, copies: Mapping[nn.Module, nn.Module]) -> bool:
    return isinstance(value, nn.Module) and value in copies
