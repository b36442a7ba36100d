"""Output heads for inference: packed weights, and heads for some of the tokens only (shortlists)."""

import copy
from abc import ABC, abstractmethod
from functools import cached_property

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from allyouneed import kernels
from allyouneed.inference.layers import PackedProduct
from allyouneed.models.base import Head, Model
from allyouneed.weights import HALVES


class OptimizedHead(Head):
    """A head that does not run hooks. With `release` its weight is packed now, and takes no other memory.

    Otherwise the weight is stored by columns, and packed once few rows arrive. A weight that is tied to an embedding is
    then copied, because embeddings are read by rows. With gradients enabled the tied weight itself is used, so that it
    receives its full gradient.
    """

    _trained_VD: Tensor

    def __init__(self, head: Head, int8: bool, tied: bool, release: bool, keep: bool) -> None:
        nn.Module.__init__(self)
        trained_VD = head.weight_VD
        if release or keep:
            assert isinstance(trained_VD, nn.Parameter)
            self._parameters["weight_VD"] = trained_VD
        elif tied or not isinstance(trained_VD, nn.Parameter):
            # A buffer: a tied weight counts and is saved once.
            self._buffers["weight_VD"] = trained_VD.detach().T.contiguous().T
            self._non_persistent_buffers_set.add("weight_VD")
        else:
            trained_VD.data = trained_VD.data.T.contiguous().T
            self._parameters["weight_VD"] = trained_VD
        self.bias_V, self.cap = head.bias_V, head.cap
        self.__dict__["_trained_VD"] = trained_VD  # not registered a second time
        computed_VD = self._buffers.get("weight_VD")
        added = None if self.cap is not None else self.bias_V  # a bias is not capped
        self.product = PackedProduct(trained_VD if computed_VD is None else computed_VD, added, int8, release=release)
        self._size, self._width = trained_VD.shape
        stored = trained_VD.dtype in (*HALVES, torch.int8)
        self._like = torch.empty(0, dtype=torch.float32 if stored else trained_VD.dtype, device=trained_VD.device)

    @property
    def weight_VD(self) -> Tensor:  # type: ignore[override]
        """Return the weight in float32; unpacked if it was released."""
        return self.product.weight()

    @property
    def size(self) -> int:
        return self._size

    @property
    def width(self) -> int:
        return self._width

    @property
    def like(self) -> Tensor:
        return self._like

    def forward(self, x: Tensor) -> Tensor:
        y = self.product(x)
        if y is None:
            copied = torch.is_grad_enabled() and "weight_VD" in self._buffers
            weight_VD = self._trained_VD if copied else self.weight_VD
            y = F.linear(x, weight_VD, self.bias_V if self.cap is None else None)
        return y if self.cap is None else self.capped(y)

    __call__ = forward


class ListsHead(nn.Module, ABC):
    """A head with a list of tokens for each of N groups of rows: logits (B, L), minus infinity after a list's end."""

    @abstractmethod
    def keep_groups(self, group_M: Tensor) -> None:
        """Keep some groups of rows."""


class _Int8ListsHead(ListsHead):
    """Lists of tokens in int8. In float32 the weights of each row's list would not fit into the caches."""

    def __init__(self, lines: kernels.LinesInt8, token_NL: Tensor, count_N: Tensor) -> None:
        super().__init__()
        self._lines, self._lists = lines, kernels.OutputLists(token_NL, count_N, lines.outputs)

    def keep_groups(self, group_M: Tensor) -> None:
        self._lists = self._lists.only(group_M)

    def forward(self, x: Tensor) -> Tensor:
        return self._lines.project(x.float(), self._lists)  # under autocast x may be bfloat16

    __call__ = forward


class _SomeTokensHead(nn.Module):
    """Some tokens of an optimized head. The weights are gathered for torch only if no kernel applies."""

    def __init__(self, head: OptimizedHead, token_N: Tensor) -> None:
        super().__init__()
        self._whole, self._product, self._token_N = head.product, head.product.some(token_N), token_N
        self._bias_V = head.bias_V

    def forward(self, x: Tensor) -> Tensor:
        if self._product is not None and (y := self._product(x)) is not None:
            return y
        return F.linear(x, *self._gathered)

    __call__ = forward

    @cached_property
    def _gathered(self) -> tuple[Tensor, Tensor | None]:
        columns_DN = self._whole.weight().detach().T.index_select(1, self._token_N)
        return columns_DN.T, None if self._bias_V is None else self._bias_V.detach()[self._token_N]


def head_of_tokens(head: Head, token_N: Tensor) -> nn.Module | None:
    """Return a head for the logits (..., N) of some tokens, without gradients; None if no faster than the full head."""
    if head.cap is not None:
        return None
    if isinstance(head, OptimizedHead):
        if head.product.int8 and kernels.usable(head.like):
            return None
        return _SomeTokensHead(head, token_N)
    few = Head(head.weight_VD.detach()[token_N])
    if head.bias_V is not None:
        few.bias_V = nn.Parameter(head.bias_V.detach()[token_N], requires_grad=False)
    return few


def head_of_lists(head: Head, token_NL: Tensor, count_N: Tensor) -> ListsHead | None:
    """Return a head with a list of tokens for each of N groups of rows; None if only int8 kernels would be faster."""
    if head.cap is None and isinstance(head, OptimizedHead) and head.product.int8 and kernels.usable(head.like):
        return _Int8ListsHead(head.product.lines(), token_NL, count_N)
    return None


def with_head(model: Model, head: nn.Module) -> Model:
    """Return the same model, with shared weights and states, and another head."""
    other = copy.copy(model)
    other._modules = {**model._modules, "head": head}
    if "head" in model.__dict__:  # optimized models keep their modules there too
        other.__dict__["head"] = head
    return other
