"""Performer: linear attention whose random features make it an unbiased estimate of softmax attention (FAVOR+).

    exp(q . k / sqrt(K)) = E_w[phi(q) phi(k)^T],    phi(x)_m = exp(w_m . x' - |x'|^2 / 2) / sqrt(M),   x' = x / K^(1/4)

w_1 .. w_M are Gaussian vectors, orthogonal to each other in blocks of K. Positive features cannot make a denominator
vanish, and their error falls with 1 / sqrt(M).

Cost: O(T M D) time, O(M D) state whatever T is, 1 + T / C sequential steps, path 1.
Paper: Choromanski et al. 2021, arXiv:2009.14794.
Differs: the authors keep exp from overflowing by subtracting the largest exponent of all keys, which looks into the
future. As w . x - |x|^2 / 2 <= |w|^2 / 2 for every x, here a constant suffices, and no key depends on another. Queries
subtract their own largest exponent, which cancels.
"""

from typing import Literal, final

import torch
from pydantic import NonNegativeInt, PositiveInt
from torch import Tensor

from allyouneed.mixers.base import Cost, Memory, Mixer, Role
from allyouneed.mixers.linear import CHUNK, SumState, read, read_causally, sum_cost, total
from allyouneed.mixers.projections import HeadsConfig, Projections, refuse_state
from allyouneed.positions import ScorePosition

HIGHEST = 40.0  # the largest exponent of a key's feature: a sum of millions of exp(40) is still a float32


class PerformerConfig(HeadsConfig):
    summary = "random positive features that estimate softmax attention in linear time (FAVOR+)"
    paper = "Choromanski et al. 2021, arXiv:2009.14794"
    roles = frozenset({"causal", "bidirectional", "cross"})

    type: Literal["performer"] = "performer"
    features: PositiveInt = 256  # of each head; the error falls with the square root of their number
    redraw: NonNegativeInt = 1000  # steps of training after which new features are drawn; 0: never
    seed: NonNegativeInt = 0  # of the features

    def build(self, width: int, *, role: Role = "causal", position: ScorePosition | None = None) -> "Performer":
        self.require(role, position)
        return Performer(self, width, role)

    def cost(self, length: int, width: int, *, role: Role = "causal", memory: int | None = None) -> Cost:
        seen = length if memory is None or role != "cross" else memory
        head_width = self.head_width(width)
        flops, state = sum_cost(length, seen, self.features, head_width, role)
        flops += 2 * (length + seen) * head_width * self.features
        chunks = -(-length // CHUNK) if role == "causal" else 1
        projections = self.projection_flops(length, seen, width)
        return Cost(projections + self.heads * flops, self.heads * state, sequential=chunks, path=1)


@final
class Performer(Mixer):
    direction_HMK: Tensor

    def __init__(self, config: PerformerConfig, width: int, role: Role) -> None:
        super().__init__()
        self.config, self.role, self.project = config, role, Projections(config, width, role)
        self.shape = config.heads, config.features, config.head_width(width)
        # Saved with the weights, which were trained to live with these features.
        self.register_buffer("direction_HMK", draw_directions(*self.shape, config.seed, 0))

    def after_step(self, step: int) -> None:
        if self.config.redraw and step % self.config.redraw == 0:
            drawn = draw_directions(*self.shape, self.config.seed, step // self.config.redraw)
            self.direction_HMK.copy_(drawn)

    def forward(
        self,
        x_BTD: Tensor,
        *,
        valid_BT: Tensor | None = None,
        state: SumState | None = None,
        memory: Memory | None = None,
    ) -> tuple[Tensor, SumState | None]:
        if self.role == "cross":
            if state is None:
                k_BHSK, v_BHSK = self.project.remembered(memory)
                state = SumState(total(self._of_keys(k_BHSK), v_BHSK, memory.valid_BS if memory else None))
            return self.project.merge(read(self._of_queries(self.project.queries(x_BTD)), state.sum_BHMR)), state
        q_BHTK, k_BHTK, v_BHTK = self.project.itself(x_BTD)
        q_BHTM, k_BHTM = self._of_queries(q_BHTK), self._of_keys(k_BHTK)
        if self.role == "bidirectional":
            refuse_state(state)
            return self.project.merge(read(q_BHTM, total(k_BHTM, v_BHTK, valid_BT))), None
        y_BHTK, state = read_causally(q_BHTM, k_BHTM, v_BHTK, valid_BT, state)
        return self.project.merge(y_BHTK), state

    def _exponents(self, x_BHTK: Tensor) -> Tensor:
        x_BHTK = x_BHTK * self.shape[-1] ** -0.25
        return x_BHTK @ self.direction_HMK.mT - x_BHTK.square().sum(dim=-1, keepdim=True) / 2

    def _of_queries(self, q_BHTK: Tensor) -> Tensor:
        exponent_BHTM = self._exponents(q_BHTK)
        return (exponent_BHTM - exponent_BHTM.detach().amax(dim=-1, keepdim=True)).exp()

    def _of_keys(self, k_BHTK: Tensor) -> Tensor:
        bound_H11 = self.direction_HMK.square().sum(dim=-1).amax(dim=-1)[:, None, None] / 2
        return (self._exponents(k_BHTK) + (HIGHEST - bound_H11).clamp(max=0.0)).exp()


def draw_directions(heads: int, features: int, head_width: int, seed: int, draw: int) -> Tensor:
    """Gaussian vectors w (H, M, K), orthogonal in blocks of K: directions from QR, lengths as those of Gaussians."""
    generator = torch.Generator().manual_seed((seed * 1_000_003 + draw) % 2**63)
    blocks = -(-features // head_width)
    gauss = torch.randn(heads, blocks, head_width, head_width, generator=generator, dtype=torch.float64)
    # Without the signs of R's diagonal, Q would not be uniformly distributed.
    q, r = torch.linalg.qr(gauss)
    q = q * r.diagonal(dim1=-2, dim2=-1).sign().unsqueeze(-2)
    direction = q.mT.flatten(1, 2)[:, :features]
    length = torch.randn(heads, features, head_width, generator=generator, dtype=torch.float64).norm(dim=-1)
    return (direction * length.unsqueeze(-1)).to(torch.get_default_dtype())
