"""LoRA: the matrices of a model stay as they are, and a product of two thin ones is learnt beside each.

    h = W x + (alpha / r) B A x        A (r, D) is random, B (N, r) is zero: the first step begins with h = W x

The model holds W' = W + (alpha / r) B A, and the gradients of A and B follow from that of W':

    dA = (alpha / r) B^T dW';     dB = (alpha / r) dW' A^T

So every mixer and every path of inference is unchanged, and the merged model is the model itself.

Cost: r (N + D) numbers for each matrix, in the adapter and in each tensor of the optimizer's state, instead of N D. A
step takes as long as one that trains all weights, because dW' is computed, and W is held beside W'.
Paper: Hu et al. 2021, arXiv:2106.09685.
Differs: computed in the space of weights, as above; no dropout before A; all matrices of blocks by default, not only
those of queries and values.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import final

import torch
from pydantic import PositiveFloat, PositiveInt
from torch import Tensor, nn

from allyouneed.adapter import A, B
from allyouneed.config import Config
from allyouneed.errors import ConfigError
from allyouneed.models import Model
from allyouneed.weights import require_same_tensors


class LoraConfig(Config):
    """The thin matrices of an adapter."""

    rank: PositiveInt = 8
    alpha: PositiveFloat = 16.0  # the product is scaled by alpha / rank
    targets: tuple[str, ...] = ("*.blocks.*",)  # patterns of the names of matrices


@dataclass(frozen=True)
class _Thin:
    """A matrix of the model, its base W and the thin matrices."""

    weight_ND: nn.Parameter
    base_ND: Tensor
    a_RD: nn.Parameter
    b_NR: nn.Parameter


@final
class Lora:
    """The thin matrices of all targets of a model, whose weights follow them. All other weights are frozen."""

    def __init__(self, model: Model, config: LoraConfig) -> None:
        self._scale = config.alpha / config.rank
        names = matching(model, config.targets, "train.lora.targets", matrices=True)
        self._thin: dict[str, _Thin] = {}
        for name, weight in model.named_parameters():
            weight.requires_grad_(name in names)
            if name in names:
                rows, columns = weight.shape
                a_RD = torch.randn(config.rank, columns, dtype=weight.dtype, device=weight.device) / columns**0.5
                b_NR = weight.new_zeros(rows, config.rank)
                base_ND = weight.detach().clone()
                self._thin[name] = _Thin(weight, base_ND, nn.Parameter(a_RD), nn.Parameter(b_NR))

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield A and B of each matrix."""
        for name, thin in self._thin.items():
            yield name + A, thin.a_RD
            yield name + B, thin.b_NR

    @torch.no_grad()
    def take_gradients(self) -> None:
        """Move the gradients of the matrices to A and B."""
        for thin in self._thin.values():
            gradient_ND = thin.weight_ND.grad
            if gradient_ND is not None:
                thin.a_RD.grad = self._scale * (thin.b_NR.T @ gradient_ND)
                thin.b_NR.grad = self._scale * (gradient_ND @ thin.a_RD.T)
                thin.weight_ND.grad = None

    @torch.no_grad()
    def merge(self) -> None:
        """Set the weights of the model to W + (alpha / r) B A."""
        for thin in self._thin.values():
            thin.weight_ND.copy_(merged(thin.base_ND, thin.a_RD, thin.b_NR, self._scale))

    def tensors(self) -> dict[str, Tensor]:
        """Return A and B by name."""
        return {name: parameter.data for name, parameter in self.named_parameters()}

    def fill(self, tensors: Mapping[str, Tensor], where: Path) -> None:
        """Restore A and B, and the weights that follow from them."""
        own = self.tensors()
        require_same_tensors(own, tensors, where)
        for name, tensor in own.items():
            tensor.copy_(tensors[name])
        self.merge()


def merged(base_ND: Tensor, a_RD: Tensor, b_NR: Tensor, scale: float) -> Tensor:
    """Return W + (alpha / r) B A."""
    return torch.addmm(base_ND, b_NR, a_RD, alpha=scale)


def matching(model: nn.Module, patterns: Sequence[str], setting: str, *, matrices: bool = False) -> set[str]:
    """Return the names of parameters that a pattern matches. Raise ConfigError if a pattern matches none."""
    known = [name for name, weight in model.named_parameters() if weight.ndim == 2 or not matrices]
    found: set[str] = set()
    for pattern in patterns:
        some = {name for name in known if fnmatchcase(name, pattern)}
        if not some:
            kind = "matrix" if matrices else "weight"
            raise ConfigError(
                f"{setting}: no {kind} is named {pattern!r}; the model has {', '.join(known[:3])}, ... "
                f"{known[-1] if known else ''}"
            )
        found |= some
    return found
