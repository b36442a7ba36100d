"""Performer: linear attention whose random features make it an unbiased estimate of softmax attention (FAVOR+).

    exp(q . k / sqrt(K)) = E_w[phi(q) phi(k)^T],    phi(x)_m = exp(w_m . x' - |x'|^2 / 2) / sqrt(M),   x' = x / K^(1/4)

w_1 .. w_M are Gaussian vectors, orthogonal to each other in blocks of K. Positive features cannot make a denominator
vanish, and their error falls with 1 / sqrt(M).

exp must neither overflow nor underflow. Each query subtracts its largest exponent, each key the largest of its chunk,
and the sums of chunks carry a running largest exponent, as in a blockwise softmax. All of it cancels in the quotient.
Only if the keys of one causal chunk differ by more than exp(87) does float32 lose the smaller one.

Cost: O(T M D) time, O(M D) state for any T, 1 + T / C sequential steps, path 1.
Paper: Choromanski et al. 2021, arXiv:2009.14794.
Differs: the authors subtract the largest exponent of all keys and add an epsilon, so the future leaks into a causal
model. Here the subtracted exponents cancel exactly.
"""

from dataclasses import dataclass
from typing import Literal, final

import torch
from pydantic import NonNegativeInt, PositiveInt
from torch import Tensor
from torch.nn import functional as F

from allyouneed.mixers.base import Cost, Memory, Mixer, Role, Theory, zero_padding
from allyouneed.mixers.linear import by_segments, divide, hide, read, sum_cost, with_ones
from allyouneed.mixers.parts.projections import HeadsConfig, Projections, at_least_float32, full_precision, refuse_state
from allyouneed.positions import ScorePosition

CHUNK = 128  # positions; more features than in linear attention need larger chunks: 64 takes 1.6 times as long
SEGMENT = 16 * CHUNK  # positions per segment: intermediate results fit the cache, 1.7 times as fast at 16,384
EMPTY = float("-inf")  # the largest exponent of an empty set


class PerformerConfig(HeadsConfig):
    summary = "random positive features that estimate softmax attention in linear time (FAVOR+)"
    paper = "Choromanski et al. 2021, arXiv:2009.14794"
    roles = frozenset({"causal", "bidirectional", "cross"})
    theory = Theory("n m d + n d²", 1, 1, "n / c", "1")
    family = "global attention"

    type: Literal["performer"] = "performer"
    features: PositiveInt = 256  # per head; the error falls with the square root of their number
    redraw: NonNegativeInt = 1000  # number of training steps between draws of new features; 0: never

    def build(self, width: int, *, role: Role = "causal", position: ScorePosition | None = None) -> "Performer":
        self.require(role, position)
        return Performer(self, width, role)

    def cost(self, length: int, width: int, *, role: Role = "causal", memory: int | None = None) -> Cost:
        seen = length if memory is None or role != "cross" else memory
        head_width = self.head_width(width)
        flops, state = sum_cost(length, seen, self.features, head_width, role, CHUNK, SEGMENT)
        flops += 2 * (length + seen) * head_width * self.features
        chunks = -(-length // CHUNK) if role == "causal" else 1
        projections = self.projection_flops(length, seen, width)
        state += 4 if state else 0  # the largest exponent
        return Cost(projections + self.heads * flops, self.heads * state, sequential=chunks, path=1)


@dataclass(frozen=True)
class ScaledState:
    """Sums of features divided by exp(largest)."""

    sum_BHMR: Tensor
    largest_BH11: Tensor


@final
class Performer(Mixer):
    direction_HMK: Tensor
    salt: Tensor

    def __init__(self, config: PerformerConfig, width: int, role: Role) -> None:
        super().__init__()
        self.config, self.role, self.project = config, role, Projections(config, width, role)
        self.shape = config.heads, config.features, config.head_width(width)
        # Saved with the weights, which were trained with these features. Each layer has its own salt.
        self.register_buffer("salt", torch.randint(2**31, (), device="cpu"))
        self.register_buffer("direction_HMK", draw_directions(*self.shape, int(self.salt), 0))

    def after_step(self, step: int) -> None:
        if self.config.redraw and step % self.config.redraw == 0:
            drawn = draw_directions(*self.shape, int(self.salt), step // self.config.redraw)
            self.direction_HMK.copy_(drawn)

    def forward(
        self,
        x_BTD: Tensor,
        *,
        mask_BT: Tensor | None = None,
        state: ScaledState | None = None,
        memory: Memory | None = None,
    ) -> tuple[Tensor, ScaledState | None]:
        if self.role == "cross":
            q_BHTK = self.project.queries(x_BTD)
            k_BHSK, v_BHSK = self.project.memory_keys_values(memory) if state is None else (None, None)
        else:
            q_BHTK, k_BHSK, v_BHSK = self.project.queries_keys_values(zero_padding(x_BTD, mask_BT))
        with full_precision(x_BTD):
            if self.role == "causal":
                assert k_BHSK is not None
                assert v_BHSK is not None
                y_BHTK, state = by_segments(self._read, SEGMENT, (q_BHTK, k_BHSK, v_BHSK), mask_BT, state)
            else:
                if self.role == "bidirectional":
                    refuse_state(state)
                if k_BHSK is not None and v_BHSK is not None:
                    mask_BS = mask_BT if memory is None else memory.mask_BS
                    k_BHSM, largest_BH11 = scaled(self._exponents(k_BHSK, mask_BS))
                    state = ScaledState(k_BHSM.mT @ hide(with_ones(at_least_float32(v_BHSK)), mask_BS), largest_BH11)
                assert state is not None
                y_BHTK = read(self._query_features(q_BHTK), state.sum_BHMR)
        return self.project.merge(y_BHTK), None if self.role == "bidirectional" else state

    def _read(
        self, q_BHTK: Tensor, k_BHTK: Tensor, v_BHTK: Tensor, mask_BT: Tensor | None, state: ScaledState | None
    ) -> tuple[Tensor, ScaledState]:
        values = hide(with_ones(at_least_float32(v_BHTK)), mask_BT)
        return read_scaled(self._query_features(q_BHTK), self._exponents(k_BHTK, mask_BT), values, state)

    def _query_features(self, q_BHTK: Tensor) -> Tensor:
        exponent_BHTM = self._exponents(q_BHTK)
        return (exponent_BHTM - exponent_BHTM.detach().amax(dim=-1, keepdim=True)).exp()

    def _exponents(self, x_BHTK: Tensor, mask_BT: Tensor | None = None) -> Tensor:
        x_BHTK = at_least_float32(x_BHTK) * self.shape[-1] ** -0.25
        direction_HMK = self.direction_HMK.to(x_BHTK.dtype)
        exponent_BHTM = x_BHTK @ direction_HMK.mT - x_BHTK.square().sum(dim=-1, keepdim=True) / 2
        return exponent_BHTM if mask_BT is None else exponent_BHTM.masked_fill(~mask_BT[:, None, :, None], EMPTY)


def scaled(exponent: Tensor) -> tuple[Tensor, Tensor]:
    """Return exp(exponent - largest) over the last two dimensions, and the largest; zero where all are EMPTY."""
    largest = exponent.detach().amax(dim=(-2, -1), keepdim=True)
    return (exponent - _finite(largest)).exp(), largest


def _finite(largest: Tensor) -> Tensor:
    return largest.masked_fill(largest == EMPTY, 0.0)


def read_scaled(
    q_BHTM: Tensor, exponent_BHTM: Tensor, v_BHTR: Tensor, state: ScaledState | None
) -> tuple[Tensor, ScaledState]:
    """Do the same as `linear.read_causally` for keys in the form of exponents of any size."""
    T, R = q_BHTM.shape[2], v_BHTR.shape[3]
    size = min(CHUNK, T)
    missing = -T % size
    exponents = F.pad(exponent_BHTM, (0, 0, 0, missing), value=EMPTY).unflatten(2, (-1, size))
    q, v = (F.pad(x, (0, 0, 0, missing)).unflatten(2, (-1, size)) for x in (q_BHTM, v_BHTR))
    k, chunk_largest = scaled(exponents)
    sums = k.mT @ v
    total = q_BHTM.new_zeros(*sums.shape[:2], q.shape[-1], R) if state is None else state.sum_BHMR
    largest = chunk_largest.new_full((*total.shape[:2], 1, 1), EMPTY) if state is None else state.largest_BH11
    before, before_largest = [], []
    for sum_BHMR, here in zip(sums.unbind(dim=2), chunk_largest.unbind(dim=2), strict=True):
        before.append(total)
        before_largest.append(largest)
        both = torch.maximum(largest, here)
        total = total * (largest - _finite(both)).exp() + sum_BHMR * (here - _finite(both)).exp()
        largest = both
    if T == 1:
        return read(q_BHTM, total), ScaledState(total, largest)
    past, past_largest = torch.stack(before, dim=2), torch.stack(before_largest, dim=2)
    shift = _finite(torch.maximum(chunk_largest, past_largest))
    y = (q @ k.mT).tril() @ v * (chunk_largest - shift).exp() + q @ past * (past_largest - shift).exp()
    return divide(y.flatten(2, 3)[:, :, :T]), ScaledState(total, largest)


def draw_directions(heads: int, features: int, head_width: int, seed: int, draw: int) -> Tensor:
    """Draw Gaussian vectors w (H, M, K), orthogonal in blocks of K: directions from QR, lengths of Gaussians."""
    generator = torch.Generator().manual_seed((seed * 1_000_003 + draw) % 2**63)
    blocks = -(-features // head_width)
    gauss = torch.randn(heads, blocks, head_width, head_width, generator=generator, dtype=torch.float64, device="cpu")
    # Without the signs of R's diagonal, Q would not be uniformly distributed.
    q, r = torch.linalg.qr(gauss)
    q = q * r.diagonal(dim1=-2, dim2=-1).sign().unsqueeze(-2)
    direction = q.mT.flatten(1, 2)[:, :features]
    length = torch.randn(heads, features, head_width, generator=generator, dtype=torch.float64, device="cpu").norm(
        dim=-1
    )
    return (direction * length.unsqueeze(-1)).to(torch.get_default_dtype())
