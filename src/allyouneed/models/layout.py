"""The same model, laid out for predicting a few positions at a time.

A step of decoding is bound by two things, and neither is arithmetic:

- how fast the weights stream from memory. A projection y = x W^T reads W (out, in) by rows; with one to a few rows of x
  the kernels stream it faster when the *inputs* are the slow dimension. Measured on a CPU, one thread, in 256: rows
  1 / 5 / 32, out 768: 25 -> 18, 44 -> 30, 109 -> 84 microseconds; out 8,000 (a head): 382 -> 344, 676 -> 351,
  2,460 -> 2,254;
- what Python does between the operations: `nn.Module.__call__` looks for hooks, and attributes that are modules or
  parameters are found only after the usual search has failed. That was a sixth of a step.

Shapes, names and numbers stay the same, and so does every line of code that uses them.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from allyouneed.models.base import Model


class _Projection(nn.Module):
    """A linear layer without the way to its hooks, and with its weights by columns."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features, self.bias = layer.in_features, layer.out_features, layer.bias
        layer.weight.data = layer.weight.data.T.contiguous().T
        self.weight = layer.weight
        self._columns = layer.weight.data.T

    def forward(self, x: Tensor) -> Tensor:
        if x.dim() == 2 and self.bias is not None:  # what F.linear comes to, after a few more turns
            return torch.addmm(self.bias, x, self._columns)
        return F.linear(x, self.weight, self.bias)

    __call__ = forward


class _Norm(nn.Module):
    """A layer norm without the way to its hooks."""

    def __init__(self, layer: nn.LayerNorm) -> None:
        super().__init__()
        self.shape, self.eps = layer.normalized_shape, layer.eps
        self.weight, self.bias = layer.weight, layer.bias

    def forward(self, x: Tensor) -> Tensor:
        return torch.layer_norm(x, self.shape, self.weight, self.bias, self.eps)

    __call__ = forward


def lay_out_for_prediction(model: Model) -> None:
    """Rearranges a model that will only predict: it is not to be trained or saved.

    The head parts from the embedding it may be tied to, as embeddings are read by rows.
    """
    for module in list(model.modules()):
        for name, child in module.named_children():
            if type(child) is nn.Linear:
                setattr(module, name, _Projection(child))
            elif type(child) is nn.LayerNorm:
                setattr(module, name, _Norm(child))
    head = model.head.weight_VD
    model.head.weight_VD = nn.Parameter(head.detach().T.contiguous().T, requires_grad=head.requires_grad)
    for module in model.modules():  # found at once, and still registered
        module.__dict__.update(module._modules | module._parameters)
