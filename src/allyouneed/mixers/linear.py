"""Linear attention: a product of features replaces the softmax's exp(q . k), so the state is one matrix.

    out_t = phi(q_t)^T S_t / phi(q_t)^T z_t,     S_t = sum_(s <= t) phi(k_s) v_s^T,   z_t = sum_(s <= t) phi(k_s)
    phi(x) = elu(x) + 1

A causal Transformer with it is an RNN whose hidden state is (S, z). Here z is one more column of S: a 1 is appended to
v. Sequences are read in chunks of C positions: positions of the chunk by masked products, earlier ones through S.

Cost: O(T (C + K) D) time, O(K D) state for any T, 1 + T / C sequential steps, path 1.
Paper: Katharopoulos et al. 2020, arXiv:2006.16236.
Differs: chunks instead of the authors' kernel, with the same result; no epsilon in the denominator, which is positive
unless everything is masked: then the output is zero.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeVar, final

import torch
from torch import Tensor
from torch.nn import functional as F

from allyouneed.mixers.base import Cost, Memory, Mixer, Role, Theory, zero_padding
from allyouneed.mixers.parts.projections import HeadsConfig, Projections, at_least_float32, full_precision, refuse_state
from allyouneed.positions import ScorePosition

Sums = TypeVar("Sums")  # a state

SEGMENT = 2048  # positions per segment: intermediate results of one segment exist at once
CHUNK = 64  # positions; at width 64, 32 to 96 are within 5 % of each other, 128 and more are slower


class LinearConfig(HeadsConfig):
    summary = "linear attention (elu + 1): the state is one matrix, decoding costs the same at any length"
    paper = "Katharopoulos et al. 2020, arXiv:2006.16236"
    roles = frozenset({"causal", "bidirectional", "cross"})
    theory = Theory("n d² / h + n d²", 1, 2, "n / c", "1")
    family = "global attention"

    type: Literal["linear"] = "linear"

    def build(self, width: int, *, role: Role = "causal", position: ScorePosition | None = None) -> "Linear":
        self.require(role, position)
        return Linear(self, width, role)

    def cost(self, length: int, width: int, *, role: Role = "causal", memory: int | None = None) -> Cost:
        read = length if memory is None or role != "cross" else memory
        head_width = self.head_width(width)
        flops, state = sum_cost(length, read, head_width, head_width, role, CHUNK, SEGMENT)
        chunks = -(-length // CHUNK) if role == "causal" else 1
        projections = self.projection_flops(length, read, width)
        return Cost(projections + self.heads * flops, self.heads * state, sequential=chunks, path=1)


@final
class Linear(Mixer):
    def __init__(self, config: LinearConfig, width: int, role: Role) -> None:
        super().__init__()
        self.role, self.project = role, Projections(config, width, role)

    def forward(
        self,
        x_BTD: Tensor,
        *,
        mask_BT: Tensor | None = None,
        state: "SumState | None" = None,
        memory: Memory | None = None,
    ) -> tuple[Tensor, "SumState | None"]:
        if self.role == "cross":
            q_BHTK = self.project.queries(x_BTD)
            k_BHSK, v_BHSK = self.project.memory_keys_values(memory) if state is None else (None, None)
        else:
            q_BHTK, k_BHSK, v_BHSK = self.project.queries_keys_values(zero_padding(x_BTD, mask_BT))
        with full_precision(x_BTD):
            if self.role == "causal":
                assert k_BHSK is not None
                assert v_BHSK is not None
                y_BHTK, state = by_segments(_read, SEGMENT, (q_BHTK, k_BHSK, v_BHSK), mask_BT, state)
            else:
                if self.role == "bidirectional":
                    refuse_state(state)
                if k_BHSK is not None and v_BHSK is not None:
                    mask_BS = mask_BT if memory is None else memory.mask_BS
                    state = SumState(total(feature(at_least_float32(k_BHSK)), at_least_float32(v_BHSK), mask_BS))
                assert state is not None
                y_BHTK = read(feature(at_least_float32(q_BHTK)), state.sum_BHMR)
        return self.project.merge(y_BHTK), None if self.role == "bidirectional" else state


def by_segments(
    read: Callable[..., tuple[Tensor, Sums]],
    segment: int,
    queries_keys_values: tuple[Tensor, ...],
    mask_BT: Tensor | None,
    state: Sums | None,
) -> tuple[Tensor, Sums]:
    """Read a long text segment by segment through the state, so that intermediate results fit the processor's cache.

    Tensors are split, not sliced: the gradient of a slice is as long as the whole text.
    """
    outputs = []
    parts = zip(*(x.split(segment, dim=2) for x in queries_keys_values), strict=True)
    for number, (q, k, v) in enumerate(parts):
        mask = None if mask_BT is None else mask_BT[:, number * segment : (number + 1) * segment]
        y, state = read(q, k, v, mask, state)
        outputs.append(y)
    assert state is not None
    return outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=2), state


def _read(
    q_BHTK: Tensor, k_BHTK: Tensor, v_BHTK: Tensor, mask_BT: Tensor | None, state: "SumState | None"
) -> tuple[Tensor, "SumState"]:
    return read_causally(
        feature(at_least_float32(q_BHTK)), feature(at_least_float32(k_BHTK)), at_least_float32(v_BHTK), mask_BT, state
    )


def feature(x: Tensor) -> Tensor:
    """Return phi(x) = elu(x) + 1."""
    return F.elu(x).add_(1)


@dataclass(frozen=True)
class SumState:
    """S with z as its last column: the whole state."""

    sum_BHMR: Tensor


def with_ones(v_BHSK: Tensor) -> Tensor:
    """Append a 1 to each value, so that one product gives numerator and denominator."""
    return F.pad(v_BHSK, (0, 1), value=1.0)


def hide(x_BHSM: Tensor, mask_BS: Tensor | None) -> Tensor:
    """Set key features or values to zero at padding."""
    return x_BHSM if mask_BS is None else x_BHSM.masked_fill(~mask_BS[:, None, :, None], 0.0)


def total(k_BHSM: Tensor, v_BHSK: Tensor, mask_BS: Tensor | None) -> Tensor:
    """Return S over whole sequences."""
    return hide(k_BHSM, mask_BS).mT @ hide(with_ones(v_BHSK), mask_BS)


def read(q_BHTM: Tensor, sum_BHMR: Tensor) -> Tensor:
    """Return phi(q)^T S / phi(q)^T z."""
    return divide(q_BHTM @ sum_BHMR)


def divide(y: Tensor) -> Tensor:
    numerator, denominator = y[..., :-1], y[..., -1:]
    return numerator / denominator.masked_fill(denominator == 0, 1.0)  # nothing to read: zero


def read_causally(
    q_BHTM: Tensor, k_BHTM: Tensor, v_BHTK: Tensor, mask_BT: Tensor | None, state: SumState | None
) -> tuple[Tensor, SumState]:
    """Let each position read itself and earlier positions, chunk by chunk."""
    T = q_BHTM.shape[2]
    k_BHTM, v_BHTR = hide(k_BHTM, mask_BT), hide(with_ones(v_BHTK), mask_BT)
    if T == 1:
        sum_BHMR = k_BHTM.mT @ v_BHTR
        sum_BHMR = sum_BHMR if state is None else state.sum_BHMR + sum_BHMR
        return read(q_BHTM, sum_BHMR), SumState(sum_BHMR)
    size = min(CHUNK, T)
    missing = -T % size
    # Padded keys have zero features, so their weight is zero.
    q, k, v = (F.pad(x, (0, 0, 0, missing)).unflatten(2, (-1, size)) for x in (q_BHTM, k_BHTM, v_BHTR))
    sums = (k.mT @ v).cumsum(dim=2)  # up to and including each chunk
    if state is not None:
        sums = sums + state.sum_BHMR.unsqueeze(2)
    first = torch.zeros_like(sums[:, :, :1]) if state is None else state.sum_BHMR.unsqueeze(2)
    before = torch.cat([first, sums[:, :, :-1]], dim=2)
    y = (q @ k.mT).tril() @ v + q @ before
    return divide(y.flatten(2, 3)[:, :, :T]), SumState(sums[:, :, -1].clone())  # not a view: it would keep all


def sum_cost(
    length: int, read: int, features: int, value_width: int, role: Role, chunk: int, segment: int
) -> tuple[int, int]:
    """Return FLOPs and bytes of state of one head, without projections and features."""
    both = features * (value_width + 1)
    state = 0 if role == "bidirectional" else 4 * both
    if role != "causal":
        return 2 * (length + read) * both, state
    flops = 0
    for part, times in ((segment, length // segment), (length % segment, 1)):
        size = min(chunk, part)
        chunks = -(-part // size) if part else 0
        inside = 2 * size * size * (features + value_width + 1) if part > 1 else 0
        flops += times * chunks * (4 * size * both + inside)
    return flops, state
