"""The three classical recurrences, computed from the first position to the last.

    rnn    h_t = tanh(x_t + U h_(t-1))
    lstm   c_t = f c_(t-1) + i g,   h_t = o tanh(c_t)        i, f, o = sigmoid, g = tanh of  x_t + U h_(t-1)
    gru    h_t = (1 - z) n + z h_(t-1)                       r, z = sigmoid of  x_t + U h_(t-1) + b
                                                             n = tanh(x_t + r (U h_(t-1) + b))
    x_t abbreviates W x_t + b, which depends on no earlier step and is projected for all positions at once. Gates are
    in torch's order: i, f, g, o and r, z, n.

A step is a product and a few small operations, so its cost is their number. The forward pass writes into buffers that
are allocated once. The backward pass computes whatever does not depend on the next step's gradient (the slopes of all
gates) for all positions beforehand, and the gradient of U afterwards as one product. That leaves a product and three
to six operations per step, where autograd would need some thirty and would accumulate a matrix.
Measured against a loop of torch.nn cells: `benchmarks/recurrent_speed.py`.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


class _Rnn(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_TBN: Tensor, h_BK: Tensor, u_NK: Tensor) -> Tensor:
        T, B, N = x_TBN.shape
        h_RBK = x_TBN.new_empty(T + 1, B, N)
        h_RBK[0] = h_BK
        h, x, u_KN = h_RBK.unbind(), x_TBN.unbind(), u_NK.T
        for t in range(T):
            torch.addmm(x[t], h[t], u_KN, out=h[t + 1])
            h[t + 1].tanh_()
        ctx.save_for_backward(h_RBK, u_NK)
        return h_RBK[1:]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, ...]:
        (grad_TBK,) = grads
        h_RBK, u_NK = ctx.saved_tensors
        slope_TBK = 1 - h_RBK[1:].square()
        dx_TBK, dh_BK = torch.empty_like(slope_TBK), torch.zeros_like(h_RBK[0])
        grad, slope, dx = grad_TBK.unbind(), slope_TBK.unbind(), dx_TBK.unbind()
        for t in reversed(range(len(grad))):
            dh_BK += grad[t]
            torch.mul(dh_BK, slope[t], out=dx[t])
            torch.mm(dx[t], u_NK, out=dh_BK)
        return dx_TBK, dh_BK, _weight_gradient(dx_TBK, h_RBK)


class _Lstm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_TBN: Tensor, h_BK: Tensor, c_BK: Tensor, u_NK: Tensor) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        T, B, K = *x_TBN.shape[:2], u_NK.shape[1]
        gates_TBN, tanh_TBK = torch.empty_like(x_TBN), x_TBN.new_empty(T, B, K)
        h_RBK, c_RBK = x_TBN.new_empty(T + 1, B, K), x_TBN.new_empty(T + 1, B, K)
        h_RBK[0], c_RBK[0] = h_BK, c_BK
        x, h, c, squashed, u_KN = x_TBN.unbind(), h_RBK.unbind(), c_RBK.unbind(), tanh_TBK.unbind(), u_NK.T
        gates, both = gates_TBN.unbind(), gates_TBN[..., : 2 * K].unbind()
        i, f, g, o = (part.unbind() for part in gates_TBN.split(K, dim=2))
        for t in range(T):
            torch.addmm(x[t], h[t], u_KN, out=gates[t])
            both[t].sigmoid_()  # i and f
            g[t].tanh_()
            o[t].sigmoid_()
            torch.mul(f[t], c[t], out=c[t + 1]).addcmul_(i[t], g[t])
            torch.tanh(c[t + 1], out=squashed[t])
            torch.mul(o[t], squashed[t], out=h[t + 1])
        ctx.save_for_backward(gates_TBN, tanh_TBK, h_RBK, c_RBK, u_NK)
        return h_RBK[1:], c_RBK[1:]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor, ...]:
        gates_TBN, tanh_TBK, h_RBK, c_RBK, u_NK = ctx.saved_tensors
        T, B, K = tanh_TBK.shape
        grad_h, grad_c = (None if grad is None else grad.unbind() for grad in grads)
        i_TBK, f_TBK, g_TBK, o_TBK = gates_TBN.split(K, dim=2)
        slope_TB4K = gates_TBN.new_empty(T, B, 4, K)  # of i, f and g per gradient of c; of o per gradient of h
        torch.mul(g_TBK * i_TBK, 1 - i_TBK, out=slope_TB4K[:, :, 0])
        torch.mul(c_RBK[:-1] * f_TBK, 1 - f_TBK, out=slope_TB4K[:, :, 1])
        torch.mul(i_TBK, 1 - g_TBK.square(), out=slope_TB4K[:, :, 2])
        torch.mul(tanh_TBK * o_TBK, 1 - o_TBK, out=slope_TB4K[:, :, 3])
        through = ((1 - tanh_TBK.square()) * o_TBK).unbind()  # slope of c per gradient of h
        inner, outer, keep = slope_TB4K[:, :, :3].unbind(), slope_TB4K[:, :, 3].unbind(), f_TBK.unbind()
        dx_TB4K = torch.empty_like(slope_TB4K)
        dx_inner, dx_outer = dx_TB4K[:, :, :3].unbind(), dx_TB4K[:, :, 3].unbind()
        dx_TBN = dx_TB4K.view(T, B, 4 * K)
        dx, dh_BK, dc_BK = dx_TBN.unbind(), torch.zeros_like(h_RBK[0]), torch.zeros_like(c_RBK[0])
        dc_B1K = dc_BK.unsqueeze(1)
        for t in reversed(range(T)):
            if grad_h is not None:
                dh_BK += grad_h[t]
            if grad_c is not None:
                dc_BK += grad_c[t]
            dc_BK.addcmul_(dh_BK, through[t])
            torch.mul(dc_B1K, inner[t], out=dx_inner[t])
            torch.mul(dh_BK, outer[t], out=dx_outer[t])
            dc_BK *= keep[t]
            torch.mm(dx[t], u_NK, out=dh_BK)
        return dx_TBN, dh_BK, dc_BK, _weight_gradient(dx_TBN, h_RBK)


class _Gru(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_TBN: Tensor, h_BK: Tensor, u_NK: Tensor, bias_N: Tensor) -> Tensor:
        T, B, K = *x_TBN.shape[:2], u_NK.shape[1]
        gates_TBN, recurrent_TBN = torch.empty_like(x_TBN), torch.empty_like(x_TBN)  # recurrent: U h + b
        h_RBK = x_TBN.new_empty(T + 1, B, K)
        h_RBK[0] = h_BK
        h, recurrent, u_KN = h_RBK.unbind(), recurrent_TBN.unbind(), u_NK.T
        x_both, x_new = x_TBN[..., : 2 * K].unbind(), x_TBN[..., 2 * K :].unbind()
        recurrent_both, recurrent_new = recurrent_TBN[..., : 2 * K].unbind(), recurrent_TBN[..., 2 * K :].unbind()
        both, (r, z, n) = gates_TBN[..., : 2 * K].unbind(), (part.unbind() for part in gates_TBN.split(K, dim=2))
        for t in range(T):
            torch.addmm(bias_N, h[t], u_KN, out=recurrent[t])
            torch.add(x_both[t], recurrent_both[t], out=both[t])
            both[t].sigmoid_()
            torch.addcmul(x_new[t], r[t], recurrent_new[t], out=n[t])
            n[t].tanh_()
            torch.lerp(n[t], h[t], z[t], out=h[t + 1])
        ctx.save_for_backward(gates_TBN, recurrent_TBN, h_RBK, u_NK)
        return h_RBK[1:]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, ...]:
        gates_TBN, recurrent_TBN, h_RBK, u_NK = ctx.saved_tensors
        T, B, K = grads[0].shape
        r_TBK, z_TBK, n_TBK = gates_TBN.split(K, dim=2)
        slope_TB3K = gates_TBN.new_empty(T, B, 3, K)  # of r, z and n per gradient of h
        torch.mul(1 - z_TBK, 1 - n_TBK.square(), out=slope_TB3K[:, :, 2])
        torch.mul((h_RBK[:-1] - n_TBK) * z_TBK, 1 - z_TBK, out=slope_TB3K[:, :, 1])
        torch.mul(recurrent_TBN[..., 2 * K :] * r_TBK, 1 - r_TBK, out=slope_TB3K[:, :, 0])
        slope_TB3K[:, :, 0] *= slope_TB3K[:, :, 2]
        dnew_TBK = slope_TB3K[:, :, 2].clone()  # slope of n by W x; by U h + b it is r times that
        slope_TB3K[:, :, 2] *= r_TBK
        drecurrent_TB3K, every_TBK = torch.empty_like(slope_TB3K), torch.empty_like(dnew_TBK)
        drecurrent_TBN = drecurrent_TB3K.view(T, B, 3 * K)
        grad, slope, drecurrent, keep = grads[0].unbind(), slope_TB3K.unbind(), drecurrent_TB3K.unbind(), z_TBK.unbind()
        dh, flat, dh_BK, kept_BK = (
            every_TBK.unbind(),
            drecurrent_TBN.unbind(),
            torch.zeros_like(grad[0]),
            grad[0].clone(),
        )
        for t in reversed(range(T)):
            torch.add(dh_BK, grad[t], out=dh[t])
            torch.mul(dh[t].unsqueeze(1), slope[t], out=drecurrent[t])
            torch.mul(dh[t], keep[t], out=kept_BK)
            torch.addmm(kept_BK, flat[t], u_NK, out=dh_BK)
        dx_TBN = drecurrent_TBN.clone()
        torch.mul(every_TBK, dnew_TBK, out=dx_TBN[..., 2 * K :])
        return dx_TBN, dh_BK, _weight_gradient(drecurrent_TBN, h_RBK), drecurrent_TBN.sum(dim=(0, 1))


def _weight_gradient(d_TBN: Tensor, h_RBK: Tensor) -> Tensor:
    """Return the gradient of U, summed over all steps by one product."""
    return d_TBN.flatten(0, 1).T @ h_RBK[:-1].flatten(0, 1)


def scan_rnn(x_TBN: Tensor, h_BK: Tensor, u_NK: Tensor) -> Tensor:
    """Return h of every step (T, B, K)."""
    out_TBK: Tensor = _Rnn.apply(x_TBN, h_BK, u_NK)
    return out_TBK


def scan_lstm(x_TBN: Tensor, h_BK: Tensor, c_BK: Tensor, u_NK: Tensor) -> tuple[Tensor, Tensor]:
    """Return h and c of every step (T, B, K)."""
    h_TBK, c_TBK = _Lstm.apply(x_TBN, h_BK, c_BK, u_NK)
    return h_TBK, c_TBK


def scan_gru(x_TBN: Tensor, h_BK: Tensor, u_NK: Tensor, bias_N: Tensor) -> Tensor:
    """Return h of every step (T, B, K); the bias is that of U h."""
    out_TBK: Tensor = _Gru.apply(x_TBN, h_BK, u_NK, bias_N)
    return out_TBK
