"""The memory of a Neural Turing Machine: where its heads look, what they erase, add and read.

    content    wc = softmax_i(beta cos(k, M_i))                              equations 5 and 6
    gate       wg = g wc + (1 - g) w_(t-1)                                   equation 7
    shift      ws_i = sum_j s_j wg_(i - j mod M),  j = -1, 0, 1              equation 8
    sharpen    w_i = ws_i^gamma / sum_j ws_j^gamma                           equation 9
    erase      M_i <- M_i prod_h (1 - w_hi e_h)                              equation 3
    add        M_i <- M_i + sum_h w_hi a_h                                   equation 4
    read       r_h = sum_i w_hi M_i                                          equation 2

with k, a = tanh, g, e = sigmoid, beta = softplus, gamma = 1 + softplus and s = softmax of what the controller says.

A step is some forty operations on small tensors, and what lies between them costs more than they do. So its gradient is
written out by hand: automatic differentiation of the same forward pass takes three times as long. The memory is kept as
(B, K, M): what is constant along slots, as erase and add vectors are, then stays so within a row of the inner loop.

Cost: O(M K) for each head and step; a step needs the one before it.
Paper: Graves et al. 2014, arXiv:1410.5401, sections 3.1 to 3.3.
Differs: the paper leaves open the order within a step: here all heads look at the memory of the step before, all write,
then all read. Lengths of vectors and weights that are sharpened have an epsilon against division by zero.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

SMALL = 1e-16  # added to squared lengths: an empty slot has none
TINY = 1e-12  # added to weights before their logarithm: 0^gamma has no gradient
BLANK = 1e-6  # what every number of a memory is at first (Collier and Beel 2018: constants train best)


@dataclass(frozen=True)
class MemoryState:
    """What heads leave behind."""

    memory_BKM: Tensor  # K numbers in each of M slots
    weight_BHM: Tensor  # where each head looked: those that read first, then those that write
    read_BRK: Tensor


class Heads(nn.Module):
    """Heads that read and heads that write: one projection says what all of them do, and all of them look at once."""

    def __init__(self, inputs: int, slots: int, width: int, read_heads: int, write_heads: int) -> None:
        super().__init__()
        self.slots, self.width, self.reads, self.writes = slots, width, read_heads, write_heads
        heads = read_heads + write_heads
        # In the order of `_pass`: keys, adds, erases, gates, betas, gammas, shifts.
        self.projection = nn.Linear(inputs, heads * width + 2 * write_heads * width + 6 * heads)
        nn.init.xavier_uniform_(self.projection.weight)
        nn.init.zeros_(self.projection.bias)

    def start(self, rows: int) -> MemoryState:
        """Nothing is written, and every head looks at the first slot."""
        like = self.projection.weight
        weight_BHM = like.new_zeros(rows, self.reads + self.writes, self.slots)
        weight_BHM[:, :, 0] = 1  # a weighting that is learnt instead, or uniform, is far harder to train
        return MemoryState(
            like.new_full((rows, self.width, self.slots), BLANK),
            weight_BHM,
            like.new_full((rows, self.reads, self.width), BLANK),
        )

    def forward(self, x_BD: Tensor, state: MemoryState) -> MemoryState:
        """The heads do what the controller's output says."""
        return MemoryState(*use_memory(state.memory_BKM, state.weight_BHM, self.projection(x_BD), self.reads))

    def flops(self) -> int:
        """Of one step."""
        heads = self.reads + self.writes
        project = 2 * self.projection.in_features * self.projection.out_features
        return project + 2 * (heads + self.writes + self.reads) * self.slots * self.width + 2 * 3 * heads * self.slots


def use_memory(memory_BKM: Tensor, before_BHM: Tensor, said_BN: Tensor, reads: int) -> tuple[Tensor, Tensor, Tensor]:
    """One step of all heads: the memory after it, where they looked, and what the first `reads` of them read."""
    return _Step.apply(memory_BKM, before_BHM, said_BN, reads)


class _Step(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, memory_BKM: Tensor, before_BHM: Tensor, said_BN: Tensor, reads: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        said = _pass(said_BN, before_BHM.shape[1], before_BHM.shape[1] - reads, memory_BKM.shape[1])
        weight_BHM, between = _look(memory_BKM, before_BHM, said)
        weight_BWM, after_BKM = weight_BHM[:, reads:], memory_BKM
        kept = [1 - erase_BK1 * weight_B1M for erase_BK1, weight_B1M in _heads(said.erase_BWK, weight_BWM)]
        for kept_BKM in kept:
            after_BKM = after_BKM * kept_BKM
        after_BKM = torch.baddbmm(after_BKM, said.add_BWK.mT, weight_BWM)
        read_BRK = torch.bmm(weight_BHM[:, :reads], after_BKM.mT)
        if any(ctx.needs_input_grad):
            ctx.save_for_backward(memory_BKM, before_BHM, after_BKM, weight_BHM)
            ctx.said, ctx.between, ctx.kept = said, between, kept
        return after_BKM, weight_BHM, read_BRK

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """What begins with d is the gradient of what follows."""
        dafter_BKM, dweight_BHM, dread_BRK = grads
        memory_BKM, before_BHM, after_BKM, weight_BHM = ctx.saved_tensors
        reads, said = dread_BRK.shape[1], ctx.said
        # r = w M'
        dafter_BKM = torch.baddbmm(dafter_BKM, dread_BRK.mT, weight_BHM[:, :reads])
        dweights = [dweight_BHM[:, :reads] + torch.bmm(dread_BRK, after_BKM)]
        # M' = M prod_h (1 - w_h e_h) + sum_h w_h a_h
        weight_BWM = weight_BHM[:, reads:]
        dadd_BWK = torch.bmm(weight_BWM, dafter_BKM.mT)
        dwritten_BWM = dweight_BHM[:, reads:] + torch.bmm(said.add_BWK, dafter_BKM)
        derases, dmemory_BKM = [], dafter_BKM
        for head, (erase_BK1, weight_B1M) in enumerate(_heads(said.erase_BWK, weight_BWM)):
            dkept_BKM = dafter_BKM * memory_BKM
            for other_BKM in ctx.kept[:head] + ctx.kept[head + 1 :]:
                dkept_BKM *= other_BKM
            derases.append(torch.bmm(weight_B1M, dkept_BKM.mT).neg_())
            dweights.append(torch.baddbmm(dwritten_BWM[:, head : head + 1], erase_BK1.mT, dkept_BKM, alpha=-1))
            dmemory_BKM = dmemory_BKM * ctx.kept[head]
        dlooked_BKM, dbefore_BHM, dsaid = _look_backward(
            torch.cat(dweights, dim=1), weight_BHM, memory_BKM, before_BHM, said, ctx.between
        )
        dsaid_BN = _pass_backward(said, dadd_BWK, torch.cat(derases, dim=1), *dsaid)
        return dlooked_BKM.add_(dmemory_BKM), dbefore_BHM, dsaid_BN, None


@dataclass(frozen=True)
class _Said:
    """What the controller says to the heads, each number through its function."""

    key_BHK: Tensor
    beta_BH1: Tensor
    gate_BH1: Tensor
    shift_BH3: Tensor  # by 1, 0 and -1
    gamma_BH1: Tensor
    erase_BWK: Tensor
    add_BWK: Tensor
    bounded_BN: Tensor  # keys and adds once more, side by side as they were said
    share_BG: Tensor  # erases and gates
    strength_BS: Tensor  # betas and gammas


def _pass(said_BP: Tensor, heads: int, writes: int, width: int) -> _Said:
    """Numbers that pass the same function stand side by side: keys, adds; erases, gates; betas, gammas; shifts."""
    rows, keys, adds = said_BP.shape[0], heads * width, writes * width
    bounded_BN, share_BG, strength_BS, shift_BU = said_BP.split([keys + adds, adds + heads, 2 * heads, 3 * heads], 1)
    bounded_BN, share_BG, strength_BS = bounded_BN.tanh(), share_BG.sigmoid(), F.softplus(strength_BS)
    return _Said(
        key_BHK=bounded_BN[:, :keys].view(rows, heads, width),
        add_BWK=bounded_BN[:, keys:].view(rows, writes, width),
        erase_BWK=share_BG[:, :adds].view(rows, writes, width),
        gate_BH1=share_BG[:, adds:].unsqueeze(2),
        beta_BH1=strength_BS[:, :heads].unsqueeze(2),
        gamma_BH1=strength_BS[:, heads:].unsqueeze(2) + 1,
        shift_BH3=shift_BU.view(rows, heads, 3).softmax(dim=2),
        bounded_BN=bounded_BN,
        share_BG=share_BG,
        strength_BS=strength_BS,
    )


def _pass_backward(
    said: _Said,
    dadd_BWK: Tensor,
    derase_BWK: Tensor,
    dkey_BHK: Tensor,
    dbeta_BH1: Tensor,
    dgate_BH1: Tensor,
    dshift_BH3: Tensor,
    dgamma_BH1: Tensor,
) -> Tensor:
    dbounded_BN = torch.cat([dkey_BHK.flatten(1), dadd_BWK.flatten(1)], dim=1)
    dshare_BG = torch.cat([derase_BWK.flatten(1), dgate_BH1.flatten(1)], dim=1)
    dstrength_BS = torch.cat([dbeta_BH1, dgamma_BH1], dim=1).squeeze(2)
    return torch.cat(
        [
            torch.ops.aten.tanh_backward(dbounded_BN, said.bounded_BN),
            torch.ops.aten.sigmoid_backward(dshare_BG, said.share_BG),
            dstrength_BS * (1 - said.strength_BS.neg().exp_()),  # sigmoid(x) = 1 - exp(-softplus(x))
            _softmax_backward(dshift_BH3, said.shift_BH3).flatten(1),
        ],
        dim=1,
    )


_Between = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]


def _look(memory_BKM: Tensor, before_BHM: Tensor, said: _Said) -> tuple[Tensor, _Between]:
    """Where each head looks, and what its gradient needs."""
    length_BH1 = (_sum(said.key_BHK, said.key_BHK) + SMALL).sqrt_()
    length_B1M = ((memory_BKM * memory_BKM).sum(dim=1, keepdim=True) + SMALL).sqrt_()
    score_BHM = torch.bmm(said.key_BHK * (said.beta_BH1 / length_BH1), memory_BKM) / length_B1M
    content_BHM = score_BHM.softmax(dim=2)
    turned_N3M = _turned(torch.lerp(before_BHM, content_BHM, said.gate_BH1))
    shifted_BHM = torch.bmm(said.shift_BH3.view(-1, 1, 3), turned_N3M).view_as(before_BHM) + TINY
    log_BHM = shifted_BHM.log()
    weight_BHM = (said.gamma_BH1 * log_BHM).softmax(dim=2)
    return weight_BHM, (length_BH1, length_B1M, score_BHM, content_BHM, turned_N3M, shifted_BHM, log_BHM)


def _look_backward(
    dweight_BHM: Tensor, weight_BHM: Tensor, memory_BKM: Tensor, before_BHM: Tensor, said: _Said, between: _Between
) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor, Tensor, Tensor, Tensor]]:
    """Gradients of the memory, of the weighting before, and of key, beta, gate, shift and gamma."""
    length_BH1, length_B1M, score_BHM, content_BHM, turned_N3M, shifted_BHM, log_BHM = between
    dpower_BHM = _softmax_backward(dweight_BHM, weight_BHM)
    dgamma_BH1 = _sum(dpower_BHM, log_BHM)
    dshifted_BHM = dpower_BHM * said.gamma_BH1 / shifted_BHM
    dshift_BH3 = torch.bmm(dshifted_BHM.view(-1, 1, dshifted_BHM.shape[2]), turned_N3M.mT).view_as(said.shift_BH3)
    dgated_BHM = torch.bmm(said.shift_BH3.flip(2).view(-1, 1, 3), _turned(dshifted_BHM)).view_as(dshifted_BHM)
    dgate_BH1 = _sum(dgated_BHM, content_BHM - before_BHM)
    dcontent_BHM = dgated_BHM * said.gate_BH1
    dscore_BHM = _softmax_backward(dcontent_BHM, content_BHM)
    # score = beta (k / |k|) . (M / |M|)
    ddot_BHM = dscore_BHM / length_B1M
    unit_BHK = said.key_BHK / length_BH1
    dsharp_BHK = torch.bmm(ddot_BHM, memory_BKM.mT)
    dbeta_BH1 = _sum(dsharp_BHK, unit_BHK)
    dkey_BHK = (dsharp_BHK - unit_BHK * dbeta_BH1) * (said.beta_BH1 / length_BH1)
    dlength_B1M = (dscore_BHM * score_BHM).sum(dim=1, keepdim=True) / (length_B1M * length_B1M)
    dmemory_BKM = torch.baddbmm(memory_BKM * dlength_B1M, (unit_BHK * said.beta_BH1).mT, ddot_BHM, beta=-1)
    return (
        dmemory_BKM,
        dgated_BHM - dcontent_BHM,
        (dkey_BHK, dbeta_BH1, dgate_BH1, dshift_BH3, dgamma_BH1),
    )


def _turned(weight_BHM: Tensor) -> Tensor:
    """The weights moved on by 1, 0 and -1, around the ends, for each row and head (N, 3, M)."""
    ring_BHS = torch.cat([weight_BHM[:, :, -1:], weight_BHM, weight_BHM[:, :, :1]], dim=2)
    return ring_BHS.unfold(2, weight_BHM.shape[2], 1).flatten(0, 1).contiguous()


def _heads(erase_BWK: Tensor, weight_BWM: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """The erase vector (B, K, 1) and the weighting (B, 1, M) of each head that writes."""
    for head in range(weight_BWM.shape[1]):
        yield erase_BWK[:, head].unsqueeze(2), weight_BWM[:, head : head + 1]


def _sum(one: Tensor, two: Tensor) -> Tensor:
    return (one * two).sum(dim=-1, keepdim=True)


def _softmax_backward(grad: Tensor, out: Tensor) -> Tensor:
    return torch._softmax_backward_data(grad, out, -1, out.dtype)
