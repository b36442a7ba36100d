"""Label-smoothed cross-entropy of a batch: the projection onto the vocabulary, the loss and its gradient, in chunks
that fit the CPU cache.

    loss_n = logsumexp(z_n) - (1 - eps) z_n[target_n] - eps mean(z_n),      z_n = x_n W^T + b
    d loss_n / d z_n = softmax(z_n) - (1 - eps) onehot(target_n) - eps / V

N x V logits would be the largest tensor of the whole model. Here they exist for a few hundred rows at a time. Each
chunk is projected and turned into its loss and its gradient while it is in the cache, then overwritten. The smoothing
terms are constant over the vocabulary, so they act on the mean row of W and the summed x instead of on N x V numbers.

Under autocast on a CPU the three products of a chunk are computed in half precision, everything else in float32.

Paper: Szegedy et al. 2016, arXiv:1512.00567 (label smoothing); Vaswani et al. 2017, section 5.4 (eps = 0.1).
"""

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from allyouneed.mixers import detach, send_losses_to
from allyouneed.mixers.parts.projections import at_least_float32, full_precision, is_autocast
from allyouneed.tasks.base import NO_CLASS, Batch, Learner, Loss
from allyouneed.text.specials import PAD

CHUNK_BYTES = 8 << 20  # of logits: measured best at 4 to 8 MiB (V 4k-8k, D 128-256); 0.5 MiB is 1.7 times slower


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x_ND: Tensor,
        weight_VD: Tensor,
        bias_V: Tensor | None,
        target_N: Tensor,
        smoothing: float,
        products: torch.dtype,
    ) -> Tensor:
        N, V = x_ND.shape[0], weight_VD.shape[0]
        rows = max(1, CHUNK_BYTES // (V * x_ND.element_size()))
        mean_D = weight_VD.mean(dim=0)
        grad_x_ND, grad_weight_VD = torch.empty_like(x_ND), torch.zeros_like(weight_VD)
        grad_bias_V = None if bias_V is None else torch.zeros_like(bias_V)
        total = x_ND.new_zeros(())
        read_ND, matrix_VD = x_ND.to(products), weight_VD.to(products)
        logits_RV, p_RV = x_ND.new_empty(min(rows, N), V), x_ND.new_empty(min(rows, N), V)
        for begin in range(0, N, rows):
            x_PD, target_P1 = read_ND[begin : begin + rows], target_N[begin : begin + rows].unsqueeze(1)
            logits_PV, p_PV = logits_RV[: x_PD.shape[0]], p_RV[: x_PD.shape[0]]
            _multiply(x_PD, matrix_VD.T, logits_PV)
            if bias_V is not None:
                logits_PV += bias_V
            torch.softmax(logits_PV, dim=1, out=p_PV)
            # The largest probability is at least 1 / V, so its logarithm is finite; that of the target may not be.
            lse_P = logits_PV.amax(dim=1) - p_PV.amax(dim=1).log()
            total += lse_P.sum() - (1 - smoothing) * logits_PV.gather(1, target_P1).sum()
            p_PV.scatter_add_(1, target_P1, p_PV.new_full(target_P1.shape, smoothing - 1))
            if grad_bias_V is not None:
                grad_bias_V += p_PV.sum(dim=0)
            narrow_PV = p_PV.to(products)
            _multiply(narrow_PV, matrix_VD, grad_x_ND[begin : begin + rows])
            _add_product(narrow_PV.T, x_PD, grad_weight_VD)
        if smoothing:
            sum_D = x_ND.sum(dim=0)
            total -= smoothing * (sum_D @ mean_D)
            grad_x_ND.sub_(mean_D, alpha=smoothing)
            grad_weight_VD.sub_(sum_D, alpha=smoothing / V)
            if bias_V is not None and grad_bias_V is not None:
                total -= smoothing * N * bias_V.mean()
                grad_bias_V -= smoothing * N / V
        ctx.save_for_backward(grad_x_ND, grad_weight_VD, grad_bias_V)
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (grad,) = grads
        return (*(None if saved is None else saved.mul_(grad) for saved in ctx.saved_tensors), None, None, None)


def _multiply(a: Tensor, b: Tensor, out: Tensor) -> None:
    """Write a b, computed in the type of `a`, to `out`."""
    if a.dtype == out.dtype:
        torch.mm(a, b, out=out)
    else:
        out.copy_(a @ b)


def _add_product(a: Tensor, b: Tensor, total: Tensor) -> None:
    """Add a b, computed in the type of `a`, to `total`."""
    if a.dtype == total.dtype:
        total.addmm_(a, b)
    else:
        total.add_(a @ b)


def linear_cross_entropy(
    x_ND: Tensor, weight_VD: Tensor, bias_V: Tensor | None, target_N: Tensor, smoothing: float = 0.0
) -> Tensor:
    """Return the summed loss of `target_N` under the logits x W^T + b, without storing all logits."""
    autocast = is_autocast(x_ND)
    if not torch.is_grad_enabled() or (autocast and x_ND.device.type != "cpu"):
        pieces = [
            F.cross_entropy(
                _widened(F.linear(x, weight_VD, bias_V)), target, reduction="sum", label_smoothing=smoothing
            )
            for x, target in zip(x_ND.split(512), target_N.split(512), strict=True)
        ]
        return torch.stack(pieces).sum() if pieces else x_ND.sum()
    if not autocast:
        return _LinearCrossEntropy.apply(x_ND, weight_VD, bias_V, target_N, smoothing, x_ND.dtype)
    products = torch.get_autocast_dtype("cpu")
    with full_precision(x_ND):
        x_ND = at_least_float32(x_ND)
        return _LinearCrossEntropy.apply(x_ND, weight_VD, bias_V, target_N, smoothing, products)


def _widened(logits: Tensor) -> Tensor:
    """At least float32: half precision cannot sum over a vocabulary."""
    return logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits


def batch_loss(model: Learner, batch: Batch, smoothing: float = 0.0) -> Loss:
    """Return the summed loss over every prediction of a batch that counts."""
    parts = list(losses(model, batch, smoothing))
    total, count = torch.stack([part.total for part in parts]).sum(), sum(part.count for part in parts)
    return Loss(total, count, sum(part.beside for part in parts))


def losses(model: Learner, batch: Batch, smoothing: float = 0.0) -> Iterator[Loss]:
    """Yield the loss of each segment of a batch in turn; most batches are one segment.

    A segment starts with the state after the one before it, but its gradient stops there (SG(h) of Dai et al. 2019;
    truncated backpropagation through time). Calling backward on each loss as it comes keeps one segment in memory.
    """
    if batch.class_B is not None:
        assert batch.source_BS is not None
        logits_BV = model.classify(batch.source_BS, batch.source_mask_BS)
        total = F.cross_entropy(_widened(logits_BV), batch.class_B, reduction="sum", label_smoothing=smoothing)
        yield Loss(total, batch.class_B.shape[0])
        return
    if batch.class_BS is not None:
        assert batch.source_BS is not None
        logits_BSV = model.classify(batch.source_BS, batch.source_mask_BS)
        logits_NV, class_N = _widened(logits_BSV.flatten(0, 1)), batch.class_BS.flatten()
        total = F.cross_entropy(logits_NV, class_N, reduction="sum", ignore_index=NO_CLASS, label_smoothing=smoothing)
        yield Loss(total, batch.tokens)
        return
    assert batch.input_BT is not None
    assert batch.output_BT is not None
    source_BS, mask_BS = batch.source_BS, batch.source_mask_BS
    state = model.start() if source_BS is None else model.condition(source_BS, mask_BS)
    size = batch.segment or batch.input_BT.shape[1]
    for input_BT, output_BT in zip(batch.input_BT.split(size, 1), batch.output_BT.split(size, 1), strict=True):
        # The padding of the target is on its right, where no real position reads it.
        beside: list[Tensor] = []
        with send_losses_to(beside.append) if torch.is_grad_enabled() else nullcontext():
            x_BTD, after = model.hidden(input_BT, state)
        counts_N = (output_BT != PAD).flatten().nonzero().squeeze(1)
        x_ND = x_BTD.flatten(0, 1).index_select(0, counts_N)
        target_N = output_BT.flatten().index_select(0, counts_N)
        head = model.head
        if head.cap is None:
            total = linear_cross_entropy(x_ND, head.weight_VD, head.bias_V, target_N, smoothing)
        else:  # whose gradient needs the logits
            total = F.cross_entropy(_widened(head(x_ND)), target_N, reduction="sum", label_smoothing=smoothing)
        yield Loss(total, target_N.shape[0], torch.stack(beside).sum() if beside else 0.0)
        state = detach(after)
