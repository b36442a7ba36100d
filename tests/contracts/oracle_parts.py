"""The parts that the mixers' oracles share: what one sequence reads, projections of a head, scores with positions.

An oracle computes one sequence: `oracle(mixer, x_TD, reading)` returns what a mixer with these weights should return,
as plain loops over positions written from the equations of its paper. It uses nothing of the fast code but the weights.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from allyouneed.mixers import Mixer, Role
from allyouneed.mixers.local import Local
from allyouneed.mixers.longformer import Longformer
from allyouneed.mixers.memory_compressed import MemoryCompressed
from allyouneed.mixers.parts.patterned import Patterned
from allyouneed.mixers.parts.projections import Projections
from allyouneed.mixers.reformer import Reformer
from allyouneed.mixers.softmax import Softmax
from allyouneed.mixers.window import Window
from allyouneed.positions import Alibi, Rotary, Shaw, T5Bias


@dataclass(frozen=True)
class Reading:
    """Which slots are read in one sequence, and how."""

    role: Role
    position: str  # the scheme inside the score, or "none"
    valid: Sequence[bool]  # of the slots that are read
    memory_SD: Tensor | None = None  # what a cross mixer reads; None: the sequence itself

    def visible(self, t: int, s: int) -> bool:
        """A padded slot is never read; a causal mixer reads nothing that comes later."""
        return self.valid[s] and (self.role != "causal" or s <= t)

    def place(self, s: int) -> int:
        """The position of a slot: the number of real ones before it."""
        return sum(self.valid[:s])


Oracle = Callable[[Mixer, Tensor, Reading], Tensor]


def head_of(project: Projections, x_TD: Tensor, reading: Reading, head: int) -> tuple[Tensor, ...]:
    """Queries, keys and values of one head."""
    memory_SD = x_TD if reading.memory_SD is None else reading.memory_SD
    return tuple(
        project_head(y, layer, head, project.heads)
        for y, layer in zip((x_TD, memory_SD, memory_SD), matrices(project, [project.width] * 3), strict=True)
    )


Projection = tuple[Tensor, Tensor | None]


def projections(mixer: Softmax) -> tuple[Projection, Projection, Projection]:
    return matrices(mixer, [mixer.queries, mixer.keys, mixer.values])


def matrices(owner: Softmax | Projections, rows: list[int]) -> tuple[Projection, Projection, Projection]:
    """Weight and bias of W^Q, W^K and W^V, however they are stored."""
    stored = [owner.query, owner.key_value] if hasattr(owner, "query") else [owner.query_key_value]
    return parts(stored, rows)


def parts(stored: list[nn.Linear], rows: list[int]) -> tuple[Projection, Projection, Projection]:
    weight_ND = torch.cat([layer.weight for layer in stored])
    weights = torch.split(weight_ND, rows)
    biases: Sequence[Tensor | None] = [None] * 3
    if stored[0].bias is not None:
        biases = torch.split(torch.cat([layer.bias for layer in stored]), rows)
    query, key, value = zip(weights, biases, strict=True)
    return query, key, value


def project_head(y: Tensor, projection: Projection, head: int, heads: int) -> Tensor:
    """The rows of one head: head h owns the h-th part of a projection's outputs."""
    weight, bias = projection
    size = weight.shape[0] // heads
    part = slice(head * size, (head + 1) * size)
    return nn.functional.linear(y, weight[part], None if bias is None else bias[part])


# Mixers with a score in which positions act.
Scored = Softmax | Window | Longformer | Patterned | Local | MemoryCompressed | Reformer


def dot(a_K: Tensor, b_K: Tensor) -> Tensor:
    total = a_K.new_zeros(())
    for i in range(a_K.shape[0]):
        total = total + a_K[i] * b_K[i]
    return total


def plain_score(mixer: Scored, head: int, q_K: Tensor, k_K: Tensor, here: int, there: int) -> Tensor:
    """q . k / sqrt(K)   (Vaswani et al. 2017, equation 1)."""
    return dot(q_K, k_K) / math.sqrt(q_K.shape[0])


def shaw_score(mixer: Scored, head: int, q_K: Tensor, k_K: Tensor, here: int, there: int) -> Tensor:
    """q . (k + a_clip(there - here)) / sqrt(K)   (Shaw et al. 2018, equations 4 and 5)."""
    assert isinstance(mixer.position, Shaw)
    clip = mixer.position.clip
    distance = max(-clip, min(clip, there - here))
    return dot(q_K, k_K + mixer.position.distance_RK[distance + clip]) / math.sqrt(q_K.shape[0])


def t5_score(mixer: Scored, head: int, q_K: Tensor, k_K: Tensor, here: int, there: int) -> Tensor:
    """q . k / sqrt(K) + b[bucket(there - here), head]   (Raffel et al. 2020, section 2.1)."""
    position = mixer.position
    assert isinstance(position, T5Bias)
    bucket = t5_bucket(there - here, position.buckets, position.max_distance, position.causal)
    return plain_score(mixer, head, q_K, k_K, here, there) + position.bias_RH[bucket, head]


def t5_bucket(distance: int, buckets: int, max_distance: int, causal: bool) -> int:
    """Half of the buckets are single distances, half logarithmic up to max_distance; if not causal, for each side."""
    base = 0
    if causal:
        apart = max(0, -distance)
    else:
        buckets //= 2
        base = buckets if distance > 0 else 0
        apart = abs(distance)
    exact = buckets // 2
    if apart < exact:
        return base + apart
    fraction = math.log(apart / exact) / math.log(max_distance / exact)
    return base + min(buckets - 1, exact + math.floor(fraction * (buckets - exact) + 1e-9))


def alibi_score(mixer: Scored, head: int, q_K: Tensor, k_K: Tensor, here: int, there: int) -> Tensor:
    """q . k / sqrt(K) - m |here - there|,  m = 2^(-8 h / H), h from 1   (Press et al. 2022, section 3)."""
    assert isinstance(mixer.position, Alibi)
    slope: float = 2.0 ** (-8.0 * (head + 1) / len(mixer.position.slope_H))
    return plain_score(mixer, head, q_K, k_K, here, there) - slope * abs(here - there)


def rotary_score(mixer: Scored, head: int, q_K: Tensor, k_K: Tensor, here: int, there: int) -> Tensor:
    """Re(sum_i q_i conj(k_i) exp(i (here - there) / base^(2i/K))) / sqrt(K), features as complex numbers.

    The paper's equation 16 in the complex form of its section 3.2.1; q_i = q[i] + 1j q[i + K/2].
    """
    assert isinstance(mixer.position, Rotary)
    K = q_K.shape[0]
    total = q_K.new_zeros(())
    for i in range(K // 2):
        angle = (here - there) * 10000.0 ** (-2 * i / K)
        real = q_K[i] * k_K[i] + q_K[i + K // 2] * k_K[i + K // 2]
        imaginary = q_K[i + K // 2] * k_K[i] - q_K[i] * k_K[i + K // 2]
        total = total + real * math.cos(angle) - imaginary * math.sin(angle)
    return total / math.sqrt(K)


SCORES: dict[str, Callable[[Scored, int, Tensor, Tensor, int, int], Tensor]] = {
    "none": plain_score,
    "shaw": shaw_score,
    "t5": t5_score,
    "alibi": alibi_score,
    "rotary": rotary_score,
}
