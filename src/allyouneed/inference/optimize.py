"""The same model, laid out for predicting a few positions at a time.

A step of decoding is bound by two things, and neither is arithmetic:

- how fast the weights stream from memory. Where there is a compiler, projections of a few rows run on packed weights
  (kernels/products.c), in float32 or in int8. Elsewhere: a projection y = x W^T reads W (out, in) by rows; with one to
  a few rows of x torch's kernels stream it faster when the *inputs* are the slow dimension (32 rows, 256 to 768: 109 ->
  84 microseconds);
- what Python does between the operations: `nn.Module.__call__` looks for hooks, and attributes that are modules or
  parameters are found only after the usual search has failed. That was a sixth of a step. A stack of ordinary
  blocks is one call (inference/fused_stack.py).

Shapes and names stay the same, and so does every line of code that uses them; so do numbers, but for int8.
"""

import threading
from functools import cached_property

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from allyouneed import kernels
from allyouneed.errors import ConfigError
from allyouneed.inference.fused_stack import fits, fuse
from allyouneed.models.base import Head, Model, WordLists
from allyouneed.models.parts.stack import Stack

_PACKING = threading.Lock()


class _Projection(nn.Module):
    """A linear layer without the way to its hooks, with its weights by columns, and packed as soon as few rows come."""

    def __init__(self, layer: nn.Linear, int8: bool) -> None:
        super().__init__()
        self.in_features, self.out_features, self.bias = layer.in_features, layer.out_features, layer.bias
        layer.weight.data = layer.weight.data.T.contiguous().T
        self.weight = layer.weight
        self._columns = layer.weight.data.T
        self.quick = _Quick(self.weight, self.bias, int8)

    def forward(self, x: Tensor) -> Tensor:
        if (y := self.quick(x)) is not None:
            return y
        if x.dim() == 2 and self.bias is not None:  # what F.linear comes to, after a few more turns
            return torch.addmm(self.bias, x, self._columns)
        return F.linear(x, self.weight, self.bias)

    __call__ = forward


class _QuickHead(Head):
    """A head like that."""

    def __init__(self, head: Head, int8: bool) -> None:
        super().__init__(nn.Parameter(head.weight_VD.detach().T.contiguous().T, requires_grad=False))
        self.bias_V = head.bias_V
        self._quick = _Quick(self.weight_VD, self.bias_V, int8)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) if (y := self._quick(x)) is None else y

    __call__ = forward

    def of_words(self, word_N: Tensor) -> nn.Module | None:
        if self._quick.int8 and kernels.usable(self.weight_VD):
            return None
        return _WordsOfHead(self.weight_VD, self.bias_V, self._quick.some(word_N), word_N)

    def of_lists(self, word_NL: Tensor, count_N: Tensor) -> WordLists | None:
        if self._quick.int8 and kernels.usable(self.weight_VD):
            return _WordLists(self._quick.lines(), word_NL, count_N)
        return None


class _WordLists(WordLists):
    """Lists of words of such a head, in bytes. In float32 a row's own weights would be more than the caches hold."""

    def __init__(self, lines: kernels.LinesInt8, word_NL: Tensor, count_N: Tensor) -> None:
        super().__init__()
        self._lines, self._lists = lines, kernels.OutputLists(word_NL, count_N, lines.outputs)

    def only(self, group_M: Tensor) -> None:
        self._lists = self._lists.only(group_M)

    def forward(self, x: Tensor) -> Tensor:
        return self._lines.project(x.float(), self._lists)  # under autocast x may be bfloat16

    __call__ = forward


class _WordsOfHead(nn.Module):
    """Some words of such a head; what torch would need of its weights is gathered only if torch has to do it."""

    def __init__(self, weight_VD: Tensor, bias_V: Tensor | None, quick: "_Quick | None", word_N: Tensor) -> None:
        super().__init__()
        self._whole, self._quick, self._word_N = (weight_VD.detach(), bias_V), quick, word_N

    def forward(self, x: Tensor) -> Tensor:
        if self._quick is not None and (y := self._quick(x)) is not None:
            return y
        return F.linear(x, *self._gathered)

    __call__ = forward

    @cached_property
    def _gathered(self) -> tuple[Tensor, Tensor | None]:
        weight_VD, bias_V = self._whole
        columns_DN = weight_VD.T.index_select(1, self._word_N)
        return columns_DN.T, None if bias_V is None else bias_V.detach()[self._word_N]


class _Quick:
    """x W^T + b by kernels, where they apply."""

    def __init__(self, weight: Tensor, bias: Tensor | None, int8: bool) -> None:
        self._weight, self._bias, self.int8 = weight, bias, int8
        self._packed: kernels.Packed | kernels.PackedInt8 | None = None
        self._lines: kernels.LinesInt8 | None = None

    def __call__(self, x: Tensor) -> Tensor | None:
        """None: torch has to do it."""
        if not kernels.usable(x):
            return None
        if not self.int8 and not kernels.few(x.numel() // x.shape[-1]):
            return None
        return (self._packed or self.packed()).project(x)

    def packed(self) -> kernels.Packed | kernels.PackedInt8:
        """The weights, packed when they are first asked for; several threads may ask at once."""
        with _PACKING:
            if self._packed is None:
                self._packed = (kernels.PackedInt8 if self.int8 else kernels.Packed)(self._weight, self._bias)
            return self._packed

    def lines(self) -> kernels.LinesInt8:
        """The same bytes for lists of outputs."""
        packed = self.packed()
        assert isinstance(packed, kernels.PackedInt8)
        with _PACKING:
            if self._lines is None:
                self._lines = kernels.LinesInt8(packed)
            return self._lines

    def some(self, output_N: Tensor) -> "_Quick | None":
        """The same in float32 for some of the outputs; None where kernels do not apply."""
        if self.int8 or not kernels.usable(self._weight):
            return None
        packed, some = self.packed(), _Quick(self._weight, self._bias, int8=False)
        assert isinstance(packed, kernels.Packed)
        some._packed = packed.some(output_N)
        return some

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_packed": None, "_lines": None}  # a copy packs its own


class _Norm(nn.Module):
    """A norm without the way to its hooks, in one pass where a kernel can do it."""

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

    def added(self, x: Tensor, y: Tensor) -> Tensor:
        """Norm(x + y)."""
        if kernels.usable(x):
            return kernels.add_norm(x, y, self.weight, self.bias, self.eps)
        return self.forward(x + y)


@torch.no_grad()
def optimize_for_inference(model: Model, int8: bool = False) -> None:
    """Rearranges a model that will only predict: it is not to be trained or saved.

    The head parts from the embedding it may be tied to, as embeddings are read by rows. With `int8`, projections and
    head compute in bytes.
    """
    # Asked also where the answer does not matter: kernels are compiled now, and not while somebody waits for a step.
    if not kernels.usable(torch.empty(0, device=model.head.weight_VD.device)) and int8:
        raise ConfigError("int8 needs a CPU and a C compiler (cc, gcc or clang) that can be found")
    for module in list(model.modules()):
        for name, child in module.named_children():
            if type(child) is nn.Linear:
                setattr(module, name, _Projection(child, int8))
            elif isinstance(child, nn.LayerNorm | nn.RMSNorm):
                setattr(module, name, _Norm(child))
    model.head = _QuickHead(model.head, int8)
    for module in list(model.modules()):
        if isinstance(module, Stack) and fits(module):
            fuse(module)
    model.eval()
    model.only_predicts = True
    for module in model.modules():  # found at once, and still registered
        module.__dict__.update(module._modules | module._parameters)
