"""Nyström attention: softmax attention through a few landmarks, which stand for segments of the sequence.

    ~q_j, ~k_j = the means of q and k over segment j = 1 .. m
    head_h = softmax(q ~k^T / sqrt(K)) A^+ softmax(~q k^T / sqrt(K)) V  (+ conv(V)),   A = softmax(~q ~k^T / sqrt(K))

A^+ is the pseudoinverse, by iterations of Razavi et al. 2014 from Z_0 = A^T / (|A|_1 |A|_inf):

    Z <- Z (13 I - A Z (15 I - A Z (7 I - A Z))) / 4

With `kernel`, a convolution along the positions with one filter for each head is added: a skip connection.

Cost: O(n m D + m^3) time, 1 sequential step, path 1.
Paper: Xiong et al. 2021, arXiv:2102.03902.
Differs: up to m positions it is softmax attention itself, without landmarks. If m does not divide n, segments differ by
one position. Padding is left out. Every landmark contains later positions, so the mixer cannot be causal.
"""

from typing import Annotated, Literal, final

import torch
from pydantic import AfterValidator, PositiveInt
from torch import Tensor, nn

from allyouneed.mixers.base import Cost, Memory, Mixer, Role, State, Theory, zero_padding
from allyouneed.mixers.lookup import soft_alpha, soft_lookup
from allyouneed.mixers.parts.lengths import read_by_length
from allyouneed.mixers.parts.projections import HeadsConfig, Projections, at_least_float32, full_precision, refuse_state
from allyouneed.positions import ScorePosition


def _require_odd(value: int) -> int:
    if value % 2 == 0:
        raise ValueError(f"{value} is even; a filter that is centred on a position has an odd width")
    return value


class NystromConfig(HeadsConfig):
    summary = "softmax attention through landmarks, the means of segments; not causal"
    paper = "Xiong et al. 2021, arXiv:2102.03902"
    roles = frozenset({"bidirectional"})
    theory = Theory("n m d + n d² + m³", 1, 1, "1", "1", leads_at=(1 << 17, 1 << 18, 1 << 19))
    family = "global attention"

    type: Literal["nystrom"] = "nystrom"
    landmarks: PositiveInt = 64  # the paper's m
    iterations: PositiveInt = 6  # of the pseudoinverse
    kernel: Annotated[PositiveInt, AfterValidator(_require_odd)] | None = None  # width of the filters; default: none

    def build(self, width: int, *, role: Role = "bidirectional", position: ScorePosition | None = None) -> "Nystrom":
        self.require(role, position)
        return Nystrom(self, width)

    def cost(self, length: int, width: int, *, role: Role = "bidirectional", memory: int | None = None) -> Cost:
        flops = self.projection_flops(length, length, width)
        flops += 2 * length * width * self.kernel if self.kernel is not None else 0
        if length <= self.landmarks:
            return Cost(flops + 4 * length * length * width, 0, sequential=1, path=1)
        m = self.landmarks
        means, reading, inverse = (
            4 * m * length * width,
            8 * m * length * width,
            8 * self.iterations * m**3 * self.heads,
        )
        return Cost(flops + means + reading + inverse + 4 * m * m * width, 0, sequential=1, path=1)


@final
class Nystrom(Mixer):
    def __init__(self, config: NystromConfig, width: int) -> None:
        super().__init__()
        self.config, self.project = config, Projections(config, width, "bidirectional")
        self.filters_HR = nn.Parameter(torch.empty(config.heads, config.kernel)) if config.kernel is not None else None
        if self.filters_HR is not None:
            nn.init.uniform_(self.filters_HR, -(self.filters_HR.shape[1] ** -0.5), self.filters_HR.shape[1] ** -0.5)

    def forward(
        self,
        x_BTD: Tensor,
        *,
        mask_BT: Tensor | None = None,
        state: State | None = None,
        memory: Memory | None = None,
    ) -> tuple[Tensor, None]:
        refuse_state(state)
        return read_by_length(zero_padding(x_BTD, mask_BT), mask_BT, self._read), None

    def _read(self, x_NSD: Tensor) -> Tensor:
        q_NHSK, k_NHSK, v_NHSK = self.project.queries_keys_values(x_NSD)
        if x_NSD.shape[1] <= self.config.landmarks:
            y_NHSK = soft_lookup(q_NHSK, k_NHSK, v_NHSK)
        else:
            y_NHSK = self._through_landmarks(q_NHSK, k_NHSK, v_NHSK)
        if self.filters_HR is not None:
            H, R = self.filters_HR.shape
            weight = self.filters_HR.to(v_NHSK.dtype).view(H, 1, R, 1)
            y_NHSK = y_NHSK + nn.functional.conv2d(v_NHSK, weight, padding=(R // 2, 0), groups=H)
        return self.project.merge(y_NHSK)

    def _through_landmarks(self, q_NHSK: Tensor, k_NHSK: Tensor, v_NHSK: Tensor) -> Tensor:
        with full_precision(q_NHSK):
            q, k, v = (at_least_float32(part) for part in (q_NHSK, k_NHSK, v_NHSK))
            mean_LS = _segment_means(q.shape[2], self.config.landmarks, q)
            far_q, far_k = mean_LS @ q, mean_LS @ k
            summary = soft_alpha(far_q, k) @ v
            inverse = _pseudoinverse(soft_alpha(far_q, far_k), self.config.iterations)
            return soft_alpha(q, far_k) @ (inverse @ summary)


def _segment_means(length: int, segments: int, like: Tensor) -> Tensor:
    """Return the matrix (L, S) that takes the mean of each segment of positions."""
    segment_S = torch.arange(length, device=like.device) * segments // length
    chosen_LS = (torch.arange(segments, device=like.device)[:, None] == segment_S).to(like.dtype)
    return chosen_LS / chosen_LS.sum(dim=1, keepdim=True)


def _pseudoinverse(a: Tensor, iterations: int) -> Tensor:
    """Return A^+ of the matrices (N, H, L, L) by iteration. Rows of A sum to 1, so |A|_inf = 1."""
    identity = torch.eye(a.shape[-1], dtype=a.dtype, device=a.device)
    # One coefficient for all heads, as in the authors' code; it is at most that of each head, so all converge.
    z = a.mT / a.sum(dim=-2).amax(dim=(1, 2))[:, None, None, None]
    for _ in range(iterations):
        az = a @ z
        z = 0.25 * z @ (13 * identity - az @ (15 * identity - az @ (7 * identity - az)))
    return z
