"""All steps of a Neural Turing Machine over a sequence: controller, addressing, erase, add and read.

    controller   h = LSTM(x + U [h; r], c)   or   h = tanh(x + U r);   parameters of the heads: a h + b
    content      wc = softmax_i(beta cos(k, M_i))                              equations 5 and 6
    gate         wg = g wc + (1 - g) w_(t-1)                                   equation 7
    shift        ws_i = sum_j s_j wg_(i - j mod M),  j = 1, 0, -1              equation 8
    sharpen      w_i = ws_i^gamma / sum_j ws_j^gamma                           equation 9
    erase        M_i <- M_i prod_h (1 - w_hi e_h)                              equation 3
    add          M_i <- M_i + sum_h w_hi a_h                                   equation 4
    read         r_h = sum_i w_hi M_i                                          equation 2

with k, a = tanh, g, e = sigmoid, beta = softplus, gamma = 1 + softplus and s = softmax of the head parameters.

A step is forty operations on small tensors, and the overhead between them (Python, views, autograd) costs more than the
operations. So the gradient of the whole sequence is written by hand, all steps are computed at once where possible, and
all views are made before the first step. The memory is stored as (B, K, M): erase and add vectors are then constant
along the inner loop of each operation.

Cost: O(T (F^2 + H M K)); each step depends on the previous one. All memories are kept for the gradient.
Paper: Graves et al. 2014, arXiv:1410.5401, sections 3.1 to 3.3.
Differs: the paper does not define the order within a step: here all heads address the memory of the previous step, all
write, then all read. Vector norms and sharpened weights have an epsilon against division by zero.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from allyouneed.torch_private import softmax_backward

SMALL = 1e-16  # added to squared norms: that of an empty slot is 0
TINY = 1e-12  # added to weights before their logarithm: 0^gamma has no gradient


@dataclass(frozen=True)
class NTMShape:
    """The sizes that do not follow from tensor shapes."""

    recurrent: bool  # the controller is an LSTM
    reads: int  # number of read heads; they come first
    writes: int
    width: int  # of a slot

    def parameter_sizes(self) -> list[int]:
        """Return the sizes of the head parameters: keys, adds; erases, gates; betas, gammas; shifts.

        Parameters with the same activation are adjacent.
        """
        heads, keys, adds = self.reads + self.writes, (self.reads + self.writes) * self.width, self.writes * self.width
        return [keys, adds, adds, heads, heads, heads, 3 * heads]


def run(
    x_TBG: Tensor,
    hidden_BF: Tensor,
    cell_BF: Tensor,
    memory_BKM: Tensor,
    weight_BHM: Tensor,
    read_BRK: Tensor,
    recurrence_GN: Tensor,
    heads_PF: Tensor,
    heads_P: Tensor,
    shape: NTMShape,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return [h; r] (T, B, D), the cell and the memory after the last step, and weightings (T, B, H, M) of every step.

    Read heads come first. Without recurrence the cell is returned unchanged.
    """
    before_BD = torch.cat([hidden_BF, read_BRK.flatten(1)], dim=1)
    return _Run.apply(x_TBG, before_BD, cell_BF, memory_BKM, weight_BHM, recurrence_GN, heads_PF, heads_P, shape)


class _Steps:
    """Buffers for all steps, and views for each: making views step by step would cost as much as the arithmetic."""

    def __init__(self, x_TBG: Tensor, D: int, M: int, shape: NTMShape) -> None:
        T, B, G = x_TBG.shape
        hidden = G // 4 if shape.recurrent else G
        heads, K = shape.reads + shape.writes, shape.width
        self.outputs = x_TBG.new_empty(T + 1, B, D)  # [h; r]; the first is the one before the first step
        self.h, self.r, self.fed_back = _outputs(self.outputs, hidden, shape)
        self.gates = x_TBG.new_empty(T, B, G)
        self.gate = self.gates.unbind()
        self.params = _HeadParameters(x_TBG.new_empty(T, B, sum(shape.parameter_sizes())), shape)
        self.memories = x_TBG.new_empty(T + 1, B, K, M)
        self.m, self.m_turned = self.memories.unbind(), self.memories.mT.unbind()
        self.weights = x_TBG.new_empty(T + 1, B, heads, M)
        self.w, self.w_read = self.weights.unbind(), self.weights[:, :, : shape.reads].unbind()
        self.w_write = self.weights[:, :, shape.reads :].unbind()
        self.w_writes = [self.weights[:, :, head : head + 1].unbind() for head in range(shape.reads, heads)]
        self.contents = x_TBG.new_empty(T, B, heads, M)
        self.content = self.contents.unbind()
        self.shifts = x_TBG.new_empty(T, B, heads, 3)
        self.shift, self.kernel = self.shifts.unbind(), self.shifts.view(T, -1, 1, 3).unbind()
        self.ring = _Rings(x_TBG.new_empty(T, B * heads, M + 2), heads)
        if shape.recurrent:
            self.cells, self.cell_tanhs = x_TBG.new_empty(T + 1, B, hidden), x_TBG.new_empty(T, B, hidden)
            self.c, self.cell_tanh = self.cells.unbind(), self.cell_tanhs.unbind()
            self.open, self.new = self.gates[:, :, : 3 * hidden].unbind(), self.gates[:, :, 3 * hidden :].unbind()
            self.i, self.f, self.o = (part.unbind() for part in self.gates[:, :, : 3 * hidden].chunk(3, dim=2))
        self.kept: list[list[Tensor]] = []  # 1 - w e of each write head
        self.unit: list[Tensor] = []  # k / |k|
        self.sharp: list[Tensor] = []  # beta k / |k|
        self.key_scale: list[Tensor] = []  # beta / |k|
        self.per_length: list[Tensor] = []  # 1 / |M_i|
        self.score: list[Tensor] = []  # beta cos
        self.shifted: list[Tensor] = []  # and its logarithm
        self.log: list[Tensor] = []


def _outputs(y_TBD: Tensor, hidden: int, shape: NTMShape) -> tuple[tuple[Tensor, ...], ...]:
    """Return h, r and the controller's recurrent input, each by steps."""
    r_TBN = y_TBD[:, :, hidden:]
    fed_back = y_TBD if shape.recurrent else r_TBN
    return y_TBD[:, :, :hidden].unbind(), r_TBN.unflatten(2, (shape.reads, shape.width)).unbind(), fed_back.unbind()


class _HeadParameters:
    """The head parameters of all steps, or their gradient, and views of them."""

    def __init__(self, all_TBP: Tensor, shape: NTMShape) -> None:
        heads, writes, K = shape.reads + shape.writes, shape.writes, shape.width
        self.all, self.row = all_TBP, all_TBP.unbind()
        keys, adds, erases, gates, betas, gammas, shifts = all_TBP.split(shape.parameter_sizes(), dim=2)
        bounds = [sum(shape.parameter_sizes()[:2]), sum(shape.parameter_sizes()[2:4]), 2 * heads, 3 * heads]
        self.bounded, self.share, self.strength, _ = (part.unbind() for part in all_TBP.split(bounds, dim=2))
        self.key = keys.unflatten(2, (heads, K)).unbind()
        add_TBWK, erase_TBWK = adds.unflatten(2, (writes, K)), erases.unflatten(2, (writes, K))
        self.add, self.add_turned = add_TBWK.unbind(), add_TBWK.mT.unbind()
        self.erases = [erase_TBWK[:, :, head : head + 1].unbind() for head in range(writes)]
        self.erases_turned = [erase_TBWK[:, :, head].unsqueeze(3).unbind() for head in range(writes)]
        self.gate, self.beta, self.gamma = (part.unsqueeze(3).unbind() for part in (gates, betas, gammas))
        self.shift = shifts.unflatten(2, (heads, 3)).unbind()


class _Rings:
    """Weightings padded circularly by one on both sides; their windows are the weighting shifted by 1, 0 and -1."""

    def __init__(self, ring_TNS: Tensor, heads: int) -> None:
        M = ring_TNS.shape[2] - 2
        self.inner = ring_TNS[:, :, 1:-1].unflatten(1, (-1, heads)).unbind()
        self.inner_row = ring_TNS[:, :, 1:-1].unsqueeze(2).unbind()
        self.first, self.last = ring_TNS[:, :, 0].unbind(), ring_TNS[:, :, M + 1].unbind()
        self.inner_first, self.inner_last = ring_TNS[:, :, 1].unbind(), ring_TNS[:, :, M].unbind()
        windows_TN3M = ring_TNS.unfold(2, M, 1)
        self.windows, self.windows_turned = windows_TN3M.unbind(), windows_TN3M.mT.unbind()

    def close(self, t: int) -> Tensor:
        """Fill in the padding after the inner part was written; return the windows (N, 3, M)."""
        self.first[t].copy_(self.inner_last[t])
        self.last[t].copy_(self.inner_first[t])
        return self.windows[t]


class _Run(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x_TBG: Tensor,
        before_BD: Tensor,
        cell_BF: Tensor,
        memory_BKM: Tensor,
        weight_BHM: Tensor,
        recurrence_GN: Tensor,
        heads_PF: Tensor,
        heads_P: Tensor,
        shape: NTMShape,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        steps = _Steps(x_TBG, before_BD.shape[1], memory_BKM.shape[2], shape)
        steps.outputs[0], steps.memories[0], steps.weights[0] = before_BD, memory_BKM, weight_BHM
        if shape.recurrent:
            steps.cells[0] = cell_BF
        recurrence_NG, heads_FP = recurrence_GN.T, heads_PF.T
        for t, x_BG in enumerate(x_TBG.unbind()):
            torch.addmm(x_BG, steps.fed_back[t], recurrence_NG, out=steps.gate[t])
            _control(steps, t, shape)
            torch.addmm(heads_P, steps.h[t + 1], heads_FP, out=steps.params.row[t])
            _activate(steps, t)
            _address(steps, t)
            _write_and_read(steps, t)
        if any(ctx.needs_input_grad):
            ctx.save_for_backward(recurrence_GN, heads_PF)
            ctx.steps, ctx.shape = steps, shape
        # Copies: a view in a state would keep every memory of the run alive.
        cell_BF = steps.c[-1].clone() if shape.recurrent else cell_BF.clone()
        return steps.outputs[1:].clone(), cell_BF, steps.m[-1].clone(), steps.weights[1:].clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        dy_TBD, dcell_BF, dmemory_BKM, dweight_TBHM = grads
        recurrence_GN, heads_PF = ctx.saved_tensors
        steps, shape = ctx.steps, ctx.shape
        back = _Back(steps, shape, dy_TBD, dcell_BF, dmemory_BKM, dweight_TBHM[-1])
        dweights = dweight_TBHM.unbind()
        for t in reversed(range(len(dweights))):
            if t + 1 < len(dweights):
                back.dweight_BHM += dweights[t]
            _write_and_read_backward(steps, back, t)
            _address_backward(steps, back, t)
            back.dparams.row[t].mul_(back.params_slope[t])
            back.dh[t + 1].addmm_(back.dparams.row[t], heads_PF)
            _control_backward(steps, back, t, shape)
            back.dfed_back[t].addmm_(back.dgate[t], recurrence_GN)
        fed_back_TBN = torch.stack(steps.fed_back[:-1])
        dparams_SP = back.dparams.all.flatten(0, 1)
        return (
            back.dgates,
            back.douts[0],
            back.dcell_BF if shape.recurrent else dcell_BF,
            back.dmemory_BKM,
            back.dweight_BHM,
            back.dgates.flatten(0, 1).T @ fed_back_TBN.flatten(0, 1),
            dparams_SP.T @ torch.stack(steps.h[1:]).flatten(0, 1),
            dparams_SP.sum(dim=0),
            None,
        )


class _Back:
    """Gradients that flow from the last step to the first, and derivatives of activations for all steps at once."""

    def __init__(
        self, steps: _Steps, shape: NTMShape, dy_TBD: Tensor, dcell_BF: Tensor, dmemory_BKM: Tensor, dweight_BHM: Tensor
    ) -> None:
        heads = shape.reads + shape.writes
        self.douts = torch.cat([torch.zeros_like(dy_TBD[:1]), dy_TBD])
        hidden = steps.h[0].shape[1]
        self.dh, self.dr, self.dfed_back = _outputs(self.douts, hidden, shape)
        self.dmemory_BKM, self.dweight_BHM = dmemory_BKM.clone(), dweight_BHM.clone()
        self.dmemory_BMK = self.dmemory_BKM.mT
        self.dweight_BRM = self.dweight_BHM[:, : shape.reads]
        self.dweight_BWM = self.dweight_BHM[:, shape.reads :]
        self.dwrites = [self.dweight_BHM[:, head : head + 1] for head in range(shape.reads, heads)]
        self.dparams = _HeadParameters(torch.empty_like(steps.params.all), shape)
        self.params_slope = _params_slope(steps.params.all, shape).unbind()
        self.power = ((1 + torch.stack(steps.params.gamma)) / torch.stack(steps.shifted)).unbind()
        self.away = (steps.contents - steps.weights[:-1]).unbind()
        self.kernel_turned = steps.shifts.flip(3).view(steps.shifts.shape[0], -1, 1, 3).unbind()
        self.ring = _Rings(
            steps.contents.new_empty(1, steps.ring.first[0].shape[0], steps.contents.shape[3] + 2), heads
        )
        self.dgates = torch.empty_like(steps.gates)
        self.dgate = self.dgates.unbind()
        if not shape.recurrent:
            self.slope = (1 - torch.stack(steps.h[1:]).square()).unbind()
            return
        i_TBF, f_TBF, o_TBF, g_TBF = steps.gates.chunk(4, dim=2)
        tanh_TBF = steps.cell_tanhs
        slopes = [g_TBF * i_TBF * (1 - i_TBF), steps.cells[:-1] * f_TBF * (1 - f_TBF), 1 - g_TBF * g_TBF]
        self.slope = torch.stack([slopes[0], slopes[1], torch.zeros_like(g_TBF), i_TBF * slopes[2]], dim=2).unbind()
        self.slope_out = (tanh_TBF * o_TBF * (1 - o_TBF)).unbind()
        self.slope_cell = (o_TBF * (1 - tanh_TBF * tanh_TBF)).unbind()
        self.dgate_apart = self.dgates.unflatten(2, (4, hidden)).unbind()
        self.dgate_out = self.dgates[:, :, 2 * hidden : 3 * hidden].unbind()
        self.dcell_BF = dcell_BF.clone()
        self.dcell_B1F = self.dcell_BF.unsqueeze(1)


def _params_slope(params_TBP: Tensor, shape: NTMShape) -> Tensor:
    """Return the derivative of each activation from its value; erases have the opposite sign, shifts are separate."""
    keys, adds, erases, gates, betas, gammas, shifts = params_TBP.split(shape.parameter_sizes(), dim=2)
    vectors, strengths = torch.cat([keys, adds], dim=2), torch.cat([betas, gammas], dim=2)
    slopes = [1 - vectors * vectors, erases * (erases - 1), gates * (1 - gates)]
    # The derivative of softplus is sigmoid(x) = 1 - exp(-softplus(x)).
    return torch.cat([*slopes, 1 - strengths.neg().exp_(), torch.ones_like(shifts)], dim=2)


def _control(steps: _Steps, t: int, shape: NTMShape) -> None:
    """Compute h from the gates: c = f c + i g, h = o tanh(c); without recurrence, h = tanh."""
    if not shape.recurrent:
        torch.tanh(steps.gate[t], out=steps.h[t + 1])
        return
    steps.open[t].sigmoid_()
    steps.new[t].tanh_()
    torch.mul(steps.f[t], steps.c[t], out=steps.c[t + 1]).addcmul_(steps.i[t], steps.new[t])
    torch.tanh(steps.c[t + 1], out=steps.cell_tanh[t])
    torch.mul(steps.o[t], steps.cell_tanh[t], out=steps.h[t + 1])


def _control_backward(steps: _Steps, back: _Back, t: int, shape: NTMShape) -> None:
    if not shape.recurrent:
        torch.mul(back.dh[t + 1], back.slope[t], out=back.dgate[t])
        return
    back.dcell_BF.addcmul_(back.dh[t + 1], back.slope_cell[t])
    torch.mul(back.slope[t], back.dcell_B1F, out=back.dgate_apart[t])
    torch.mul(back.slope_out[t], back.dh[t + 1], out=back.dgate_out[t])
    back.dcell_BF.mul_(steps.f[t])


def _activate(steps: _Steps, t: int) -> None:
    """Apply the activations of the head parameters."""
    params = steps.params
    params.bounded[t].tanh_()
    params.share[t].sigmoid_()
    params.strength[t].copy_(F.softplus(params.strength[t]))
    torch.softmax(params.shift[t], dim=2, out=steps.shift[t])


def _address(steps: _Steps, t: int) -> None:
    """Compute the weighting of each head (B, H, M)."""
    params, memory_BKM, key_BHK = steps.params, steps.m[t], steps.params.key[t]
    per_length_BH1 = _dot(key_BHK, key_BHK).add_(SMALL).rsqrt_()
    per_length_B1M = (memory_BKM * memory_BKM).sum(dim=1, keepdim=True).add_(SMALL).rsqrt_()
    unit_BHK = key_BHK * per_length_BH1
    sharp_BHK = unit_BHK * params.beta[t]
    score_BHM = torch.bmm(sharp_BHK, memory_BKM).mul_(per_length_B1M)
    torch.softmax(score_BHM, dim=2, out=steps.content[t])
    torch.lerp(steps.w[t], steps.content[t], params.gate[t], out=steps.ring.inner[t])
    shifted_BHM = torch.bmm(steps.kernel[t], steps.ring.close(t)).view_as(score_BHM).add_(TINY)
    log_BHM = shifted_BHM.log()
    torch.softmax(torch.addcmul(log_BHM, log_BHM, params.gamma[t]), dim=2, out=steps.w[t + 1])
    steps.unit.append(unit_BHK)
    steps.sharp.append(sharp_BHK)
    steps.key_scale.append(per_length_BH1 * params.beta[t])
    steps.per_length.append(per_length_B1M)
    steps.score.append(score_BHM)
    steps.shifted.append(shifted_BHM)
    steps.log.append(log_BHM)


def _address_backward(steps: _Steps, back: _Back, t: int) -> None:
    params, dparams = steps.params, back.dparams
    dpower_BHM = _softmax_backward(back.dweight_BHM, steps.w[t + 1])
    torch.sum(dpower_BHM * steps.log[t], dim=2, keepdim=True, out=dparams.gamma[t])
    torch.mul(dpower_BHM, back.power[t], out=back.ring.inner[0])
    dkernel_N13 = torch.bmm(back.ring.inner_row[0], steps.ring.windows_turned[t])
    dparams.shift[t].copy_(_softmax_backward(dkernel_N13.view_as(steps.shift[t]), steps.shift[t]))
    dgated_BHM = torch.bmm(back.kernel_turned[t], back.ring.close(0)).view_as(dpower_BHM)
    torch.sum(dgated_BHM * back.away[t], dim=2, keepdim=True, out=dparams.gate[t])
    dcontent_BHM = dgated_BHM * params.gate[t]
    torch.sub(dgated_BHM, dcontent_BHM, out=back.dweight_BHM)
    # score = beta (k / |k|) . (M / |M|)
    dscore_BHM = _softmax_backward(dcontent_BHM, steps.content[t])
    ddot_BHM = dscore_BHM * steps.per_length[t]
    dsharp_BHK = torch.bmm(ddot_BHM, steps.m_turned[t])
    torch.sum(dsharp_BHK * steps.unit[t], dim=2, keepdim=True, out=dparams.beta[t])
    dsharp_BHK.addcmul_(steps.unit[t], dparams.beta[t], value=-1)
    torch.mul(dsharp_BHK, steps.key_scale[t], out=dparams.key[t])
    along_B1M = (dscore_BHM * steps.score[t]).sum(dim=1, keepdim=True)
    along_B1M.mul_(steps.per_length[t]).mul_(steps.per_length[t])
    back.dmemory_BKM.addcmul_(steps.m[t], along_B1M, value=-1)
    back.dmemory_BKM.baddbmm_(steps.sharp[t].mT, ddot_BHM)


def _write_and_read(steps: _Steps, t: int) -> None:
    """Compute M prod_h (1 - w_h e_h) + sum_h w_h a_h, and read from it."""
    params, memory_BKM = steps.params, steps.m[t]
    kept = [
        1 - e_turned[t] * w_write[t + 1] for e_turned, w_write in zip(params.erases_turned, steps.w_writes, strict=True)
    ]
    for kept_BKM in kept:
        memory_BKM = memory_BKM * kept_BKM
    torch.baddbmm(memory_BKM, params.add_turned[t], steps.w_write[t + 1], out=steps.m[t + 1])
    steps.r[t + 1].copy_(torch.bmm(steps.w_read[t + 1], steps.m_turned[t + 1]))
    steps.kept.append(kept)


def _write_and_read_backward(steps: _Steps, back: _Back, t: int) -> None:
    params, dparams, dmemory_BKM = steps.params, back.dparams, back.dmemory_BKM
    dmemory_BKM.baddbmm_(back.dr[t + 1].mT, steps.w_read[t + 1])
    back.dweight_BRM.baddbmm_(back.dr[t + 1], steps.m[t + 1])
    dparams.add[t].copy_(torch.bmm(steps.w_write[t + 1], back.dmemory_BMK))
    back.dweight_BWM.baddbmm_(params.add[t], dmemory_BKM)
    after_BKM = dmemory_BKM * steps.m[t]
    for head, kept_BKM in enumerate(steps.kept[t]):
        dkept_BKM = after_BKM
        for other_BKM in steps.kept[t][:head] + steps.kept[t][head + 1 :]:
            dkept_BKM = dkept_BKM * other_BKM
        dparams.erases[head][t].copy_(torch.bmm(steps.w_writes[head][t + 1], dkept_BKM.mT))
        back.dwrites[head].baddbmm_(params.erases[head][t], dkept_BKM, alpha=-1)
        dmemory_BKM.mul_(kept_BKM)


def _dot(one: Tensor, two: Tensor) -> Tensor:
    return (one * two).sum(dim=-1, keepdim=True)


def _softmax_backward(grad: Tensor, out: Tensor) -> Tensor:
    return softmax_backward(grad, out, -1, out.dtype)
