"""One step of a convolutional gated recurrent unit, with its gradient written by hand.

    (u, r) = f(U * s + b + t),   c = g(V * (r . s) + d + t'),   s' = u . k + (1 - u) . m . c,   k = s, or s shifted

t and t' are optional further inputs; m is a dropout mask. Only u, r and c are kept for the gradient: the derivatives of
f and g follow from their values,

    cutoff:  f' = 1.2 q (1 - q),  q = (f + 0.1) / 1.2;     g' = 1.2 - g^2 / 1.2;      hard:  f' = 1/2,  g' = 1

inside their limits, and 0 at the limits. Channels are last: on a CPU that is the faster layout for a convolution. This
step takes about three quarters of autograd's time (docs/neural-gpu.md).
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from allyouneed.dropout import dropout_mask
from allyouneed.torch_private import convolution_backward

OPEN = (0.7, 0.5)  # initial biases of u and r: mostly keep, mostly read
EDGE = 0.9  # |x| from which hard limits have a loss


@dataclass(frozen=True)
class CGRUShape:
    """The kind of a unit."""

    hard: bool
    costs: bool  # whether its limits have a loss: hard ones only
    diagonal: bool
    around: tuple[int, int]  # padding of the image: above and below, left and right


class CGRU(nn.Module):
    """One unit. Both gates are one convolution."""

    def __init__(self, channels: int, shape: CGRUShape, dropout: float) -> None:
        super().__init__()
        self.channels, self.shape, self.dropout = channels, shape, dropout
        kernel = (2 * shape.around[0] + 1, 2 * shape.around[1] + 1)
        self.gates = nn.Conv2d(channels, 2 * channels, kernel)
        self.candidate = nn.Conv2d(channels, channels, kernel)
        for convolution in (self.gates, self.candidate):
            nn.init.xavier_uniform_(convolution.weight)
            nn.init.zeros_(convolution.bias)  # type: ignore[arg-type]
            convolution.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        with torch.no_grad():
            for bias_D, value in zip(self.gates.bias.chunk(2), OPEN, strict=True):  # type: ignore[union-attr]
                bias_D.fill_(value)

    def forward(
        self, s_BWLD: Tensor, real_BL: Tensor | None = None, added_BRLN: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the next image and the loss of the limits for each row.

        The loss is the sum over columns of means of (|x| - 0.9)_+ for u, r and c, where x is the input of f or g. It is
        zero without hard limits or without gradients. Columns that are padding (`real_BL`; None: no padding) stay zero,
        as beyond the image, and have no loss. `added` is added to the inputs of u, r and c in the first R rows of the
        image: N = 3 D.
        """
        mask = dropout_mask(s_BWLD, self.dropout) if self.training and self.dropout else None
        real = None if real_BL is None else real_BL[:, None, :, None].to(s_BWLD.dtype)
        gates, candidate = self.gates, self.candidate
        shape = self.shape if torch.is_grad_enabled() else replace(self.shape, costs=False)
        new: tuple[Tensor, Tensor] = _Step.apply(
            s_BWLD, gates.weight, gates.bias, candidate.weight, candidate.bias, added_BRLN, mask, real, shape
        )
        return new

    def flops(self, cells: int) -> int:
        """Return the FLOPs of one step over an image of `cells` cells."""
        return 2 * cells * (self.gates.weight.numel() + self.candidate.weight.numel())


def convolved(s_BWLD: Tensor, weight: Tensor, bias_N: Tensor, around: tuple[int, int]) -> Tensor:
    """Return U * s + b: (B, W, L, N)."""
    return F.conv2d(s_BWLD.permute(0, 3, 1, 2), weight, bias_N, padding=around).permute(0, 2, 3, 1)


def shifted(s_BWLD: Tensor, back: bool = False) -> Tensor:
    """Take the last third of the channels from the next column, the third before it from the previous one.

    Values from beyond the image are zero. `back` shifts in the other direction, which is the gradient.
    """
    D, third = s_BWLD.shape[3], s_BWLD.shape[3] // 3
    y_BWLD = torch.zeros_like(s_BWLD)
    y_BWLD[..., : D - 2 * third] = s_BWLD[..., : D - 2 * third]
    right, left = slice(D - 2 * third, D - third), slice(D - third, D)
    if back:
        right, left = left, right
    y_BWLD[:, :, 1:, right] = s_BWLD[:, :, :-1, right]
    y_BWLD[:, :, :-1, left] = s_BWLD[:, :, 1:, left]
    return y_BWLD


class _Step(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[Tensor, Tensor]:
        s_BWLD, gates, gates_bias, candidate, candidate_bias, added, mask, real, shape = inputs
        D = s_BWLD.shape[3]
        x_BWLN = convolved(s_BWLD, gates, gates_bias, shape.around)
        if added is not None:
            x_BWLN[:, : added.shape[1]] += added[..., : 2 * D]
        cost_B = _beyond(x_BWLN, real, D) if shape.costs else s_BWLD.new_zeros(s_BWLD.shape[0])
        x_BWLN = x_BWLN.mul_(0.5).add_(0.5) if shape.hard else x_BWLN.sigmoid_().mul_(1.2).sub_(0.1)
        gate_BWLN = x_BWLN.clamp_(0, 1)
        y_BWLD = convolved(gate_BWLN[..., D:] * s_BWLD, candidate, candidate_bias, shape.around)
        if added is not None:
            y_BWLD[:, : added.shape[1]] += added[..., 2 * D :]
        if shape.costs:
            cost_B += _beyond(y_BWLD, real, D)
        if not shape.hard:
            y_BWLD = y_BWLD.tanh_().mul_(1.2)
        c_BWLD = y_BWLD.clamp_(-1, 1)
        kept_BWLD = shifted(s_BWLD) if shape.diagonal else s_BWLD
        ctx.save_for_backward(s_BWLD, gates, candidate, mask, real, gate_BWLN, c_BWLD)
        ctx.shape, ctx.added = shape, 0 if added is None else added.shape[1]
        new_BWLD = torch.lerp(c_BWLD if mask is None else c_BWLD * mask, kept_BWLD, gate_BWLN[..., :D])
        return new_BWLD if real is None else new_BWLD.mul_(real), cost_B

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        d_BWLD, d_cost_B = grads
        s_BWLD, gates, candidate, mask, real, gate_BWLN, c_BWLD = ctx.saved_tensors
        shape, D = ctx.shape, s_BWLD.shape[3]
        u_BWLD, r_BWLD = gate_BWLN.split(D, dim=3)
        d_cost = d_cost_B.view(-1, 1, 1, 1) / (s_BWLD.shape[1] * D)
        if real is not None:
            d_BWLD, d_cost = d_BWLD * real, d_cost * real
        kept_BWLD = shifted(s_BWLD) if shape.diagonal else s_BWLD
        d_gate_BWLN = torch.empty_like(gate_BWLN)
        torch.mul(d_BWLD, kept_BWLD - (c_BWLD if mask is None else c_BWLD * mask), out=d_gate_BWLN[..., :D])
        d_kept_BWLD = d_BWLD * u_BWLD
        d_y_BWLD = d_BWLD - d_kept_BWLD
        if mask is not None:
            d_y_BWLD.mul_(mask)
        d_y_BWLD = _through(d_y_BWLD, c_BWLD, 1.0, d_cost, shape)
        d_reset_BWLD, d_candidate, d_candidate_bias = _back(d_y_BWLD, r_BWLD * s_BWLD, candidate, shape)
        torch.mul(d_reset_BWLD, s_BWLD, out=d_gate_BWLN[..., D:])
        # 2 f(x) - 1 is g(x) if hard, else g(x / 2): sigmoid(x) = (1 + tanh(x / 2)) / 2.
        d_x_BWLN = _through(d_gate_BWLN, gate_BWLN.mul(2).sub_(1), 0.5 if shape.hard else 0.25, d_cost, shape)
        d_s_BWLD, d_gates, d_gates_bias = _back(d_x_BWLN, s_BWLD, gates, shape)
        d_s_BWLD = d_s_BWLD.addcmul_(d_reset_BWLD, r_BWLD)
        d_s_BWLD += shifted(d_kept_BWLD, back=True) if shape.diagonal else d_kept_BWLD
        d_added = torch.cat([d_x_BWLN[:, : ctx.added], d_y_BWLD[:, : ctx.added]], dim=3) if ctx.added else None
        return d_s_BWLD, d_gates, d_gates_bias, d_candidate, d_candidate_bias, d_added, None, None, None


def _beyond(x_BWLN: Tensor, real: Tensor | None, channels: int) -> Tensor:
    """Return the sum of (|x| - 0.9)_+ over the real cells and channels of each row, per image row and channel."""
    over_BWLN = F.softshrink(x_BWLN, EDGE).abs_()
    if real is not None:
        over_BWLN.mul_(real)
    return over_BWLN.sum(dim=(1, 2, 3)).div_(x_BWLN.shape[1] * channels)


def _through(d: Tensor, g: Tensor, factor: float, d_cost: Tensor, shape: CGRUShape) -> Tensor:
    """Return the gradient of x from those of factor . g(x) and of the loss of x; both need only g."""
    slope = g.abs().lt_(1).mul_(factor)
    if not shape.hard:
        slope.mul_(g.square().div_(-1.2).add_(1.2))
    d = slope.mul_(d)
    return d.addcmul_(F.softshrink(g, EDGE).sign_(), d_cost) if shape.costs else d


def _back(d_BWLN: Tensor, s_BWLD: Tensor, weight: Tensor, shape: CGRUShape) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of a convolution's input, weight and bias."""
    d_s, d_weight, d_bias = convolution_backward(
        d_BWLN.permute(0, 3, 1, 2),
        s_BWLD.permute(0, 3, 1, 2),
        weight,
        [d_BWLN.shape[3]],
        [1, 1],
        shape.around,
        [1, 1],
        False,
        [0, 0],
        1,
        [True, True, True],
    )
    return d_s.permute(0, 2, 3, 1), d_weight, d_bias
