"""The memory of a Neural Turing Machine: where its heads look, what they erase, add and read.

    content    wc = softmax_i(beta cos(k, M_i))                              equations 5 and 6
    gate       wg = g wc + (1 - g) w_(t-1)                                   equation 7
    shift      ws_i = sum_j s_j wg_(i - j mod M),  j = -1, 0, 1              equation 8
    sharpen    w_i = ws_i^gamma / sum_j ws_j^gamma                           equation 9
    erase      M_i <- M_i prod_h (1 - w_hi e_h)                              equation 3
    add        M_i <- M_i + sum_h w_hi a_h                                   equation 4
    read       r_h = sum_i w_hi M_i                                          equation 2

with k, a = tanh, g, e = sigmoid, beta = softplus, gamma = 1 + softplus and s = softmax of what the controller says.

Cost: O(M K) for each head and step; a step needs the one before it.
Paper: Graves et al. 2014, arXiv:1410.5401, sections 3.1 to 3.3.
Differs: the paper leaves open the order within a step: here all heads look at the memory of the step before, all write,
then all read. Sums in denominators and logarithms have an epsilon against division by zero.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

SMALL = 1e-8  # added to lengths of vectors: an empty slot has none
TINY = 1e-12  # added to weights before their logarithm: 0^gamma has no gradient
BLANK = 1e-6  # what every number of a memory is at first (Collier and Beel 2018: constants train best)


@dataclass(frozen=True)
class MemoryState:
    """What heads leave behind."""

    memory_BMK: Tensor
    weight_BHM: Tensor  # where each head looked: those that read first, then those that write
    read_BRK: Tensor


class Heads(nn.Module):
    """Heads that read and heads that write: one projection says what all of them do, and all of them look at once."""

    def __init__(self, inputs: int, slots: int, width: int, read_heads: int, write_heads: int) -> None:
        super().__init__()
        self.slots, self.width, self.reads, self.writes = slots, width, read_heads, write_heads
        heads = read_heads + write_heads
        # Numbers that pass the same function stand together: keys and adds, erases and gates, betas and gammas, shifts.
        self.parts = [heads * width, write_heads * width, write_heads * width, heads, heads, heads, 3 * heads]
        self.projection = nn.Linear(inputs, sum(self.parts))
        nn.init.xavier_uniform_(self.projection.weight)
        nn.init.zeros_(self.projection.bias)

    def start(self, rows: int) -> MemoryState:
        """Nothing is written, and every head looks at the first slot."""
        like = self.projection.weight
        weight_BHM = like.new_zeros(rows, self.reads + self.writes, self.slots)
        weight_BHM[:, :, 0] = 1  # a weighting that is learnt instead, or uniform, is far harder to train
        return MemoryState(
            like.new_full((rows, self.slots, self.width), BLANK),
            weight_BHM,
            like.new_full((rows, self.reads, self.width), BLANK),
        )

    def forward(self, x_BD: Tensor, state: MemoryState) -> MemoryState:
        """The heads do what the controller's output says."""
        R, W, K = self.reads, self.writes, self.width
        said_BP = self.projection(x_BD)
        rows, vectors, shares = said_BP.shape[0], (R + 2 * W) * K, W * K + R + W
        bounded_BN = said_BP[:, :vectors].tanh()
        share_BG = said_BP[:, vectors : vectors + shares].sigmoid()
        strength_BS = F.softplus(said_BP[:, vectors + shares : -3 * (R + W)])
        weight_BHM = address(
            state.memory_BMK,
            state.weight_BHM,
            bounded_BN[:, : (R + W) * K].view(rows, R + W, K),
            strength_BS[:, : R + W].unsqueeze(2),
            share_BG[:, W * K :].unsqueeze(2),
            said_BP[:, -3 * (R + W) :].view(rows, R + W, 3).softmax(dim=2),
            1 + strength_BS[:, R + W :].unsqueeze(2),
        )
        memory_BMK = write(
            state.memory_BMK,
            weight_BHM[:, R:],
            share_BG[:, : W * K].view(rows, W, K),
            bounded_BN[:, (R + W) * K :].view(rows, W, K),
        )
        return MemoryState(memory_BMK, weight_BHM, torch.bmm(weight_BHM[:, :R], memory_BMK))

    def flops(self) -> int:
        """Of one step."""
        heads = self.reads + self.writes
        adds = self.writes if self.writes > 1 else 0  # one head's are no matrix product
        project = 2 * self.projection.in_features * self.projection.out_features
        return project + 2 * (heads + adds + self.reads) * self.slots * self.width


def address(
    memory_BMK: Tensor,
    before_BHM: Tensor,
    key_BHK: Tensor,
    beta_BH1: Tensor,
    gate_BH1: Tensor,
    shift_BH3: Tensor,
    gamma_BH1: Tensor,
) -> Tensor:
    """Where each head looks (B, H, M); every row sums to one. shift_BH3 is for steps of -1, 0 and 1."""
    key_BHK = key_BHK * (beta_BH1 / (torch.linalg.vector_norm(key_BHK, dim=2, keepdim=True) + SMALL))
    length_BM = torch.linalg.vector_norm(memory_BMK, dim=2) + SMALL
    content_BHM = (torch.bmm(key_BHK, memory_BMK.mT) / length_BM.unsqueeze(1)).softmax(dim=2)
    gated_BHM = torch.lerp(before_BHM, content_BHM, gate_BH1)
    ring_BHN = torch.cat([gated_BHM[:, :, -1:], gated_BHM, gated_BHM[:, :, :1]], dim=2)
    back_BH1, stay_BH1, on_BH1 = shift_BH3.split(1, dim=2)
    shifted_BHM = back_BH1 * ring_BHN[:, :, 2:] + stay_BH1 * gated_BHM + on_BH1 * ring_BHN[:, :, :-2]
    return (gamma_BH1 * (shifted_BHM + TINY).log()).softmax(dim=2)


def write(memory_BMK: Tensor, weight_BWM: Tensor, erase_BWK: Tensor, add_BWK: Tensor) -> Tensor:
    """The memory after all heads have erased and then all have added."""
    if weight_BWM.shape[1] == 1:  # M (1 - w e) + w a = M + w (a - e M)
        change_BMK = torch.addcmul(add_BWK, erase_BWK, memory_BMK, value=-1)
        return torch.addcmul(memory_BMK, weight_BWM.mT, change_BMK)
    for weight_BM, erase_BK in zip(weight_BWM.unbind(1), erase_BWK.unbind(1), strict=True):
        memory_BMK = memory_BMK * (1 - weight_BM.unsqueeze(2) * erase_BK.unsqueeze(1))
    return torch.baddbmm(memory_BMK, weight_BWM.mT, add_BWK)
