"""Reformer: a position reads those with similar queries, found by locality-sensitive hashing.

    score_ts = q_t . k_s / sqrt(K),     k_s = sqrt(K) q_s / |q_s|                 (one projection for queries and keys)
    bucket_r(x) = argmax([x R_r; -x R_r])                                    for rounds r, R_r random and never trained
    out_t = softmax of score_ts over s in read_t, times V,     out_t = v_t where read_t is empty
    read_t = union over r of the last w before t (bidirectional: and the next w after t) with bucket_r(s) = bucket_r(t)

A score is large where the angle between two queries is small, and such pairs likely share a bucket in some round. So
the softmax mostly omits pairs of small weight. More rounds omit less.

Cost: O(n r w D) time for r rounds and chunks of w, plus O(n r b D / 2) for hashing into b buckets and a sort; O(n D)
state; 1 sequential step; path 1 between positions that share a bucket (which depends on their content). Longer texts
need more buckets, about n / w: the authors' code hashes into b1 and b2, which gives b1 b2 buckets at the cost of
b1 + b2.
Paper: Kitaev, Kaiser, Levskaya 2020, arXiv:2001.04451.
Differs: the paper splits the sorted positions into chunks that read themselves and the chunk before. Where a chunk ends
depends on all positions, including later ones, so the future leaks into a causal model. Here a position reads the w
members of its bucket before it (in the paper 0 to 2w - 1, of any bucket in most code), which depends on earlier
positions alone: step-by-step decoding equals training, for any chunking. Therefore the number of buckets is a setting
that does not follow the length, and the rotations are drawn once and saved with the weights. A pair that shares a
bucket in several rounds counts in the first only, which is equivalent to the paper's correction by - log N_ts. Keys are
scaled to the length sqrt(K), as in Hugging Face's port; the paper's text states 1. No reversible layers.

Rotary positions rotate the queries before they are hashed and before they become keys, so the hashed vectors are the
scored ones. Hashing is a discrete choice: it is computed in float32 at least and has no gradient. If two buckets tie up
to rounding, another order of summation may choose the other one.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Literal, final

import torch
from pydantic import Field, PositiveInt, field_validator
from torch import Tensor, nn

from allyouneed.mixers.base import Cost, Memory, Mixer, Role, Theory, map_sink, zero_padding
from allyouneed.mixers.lookup import soft_alpha, soft_lookup
from allyouneed.mixers.parts.block_sparse import bias_of
from allyouneed.mixers.parts.buckets import PADDING, Reach, attend_in_buckets, sees
from allyouneed.mixers.parts.kv_cache import count_positions, extend_mask, join_kv_caches, pack
from allyouneed.mixers.parts.projections import (
    HeadsConfig,
    at_least_float32,
    full_precision,
    initialise,
    is_autocast,
    refuse_state,
)
from allyouneed.mixers.parts.state import Growable
from allyouneed.positions import ScorePosition

EPSILON = 1e-6  # added to the mean square of a query, as in Hugging Face's port: a zero query has no direction


Buckets = Annotated[int, Field(ge=2, le=2**15 - 1, multiple_of=2)]
AT_ONCE = 2**20  # numbers compared in one call to find buckets: a few megabytes


class ReformerConfig(HeadsConfig):
    summary = "reads the positions with similar queries, found by hashing (LSH)"
    paper = "Kitaev, Kaiser, Levskaya 2020, arXiv:2001.04451"
    roles = frozenset({"causal", "bidirectional"})
    takes_positions = True
    theory = Theory("n r c d + n d²", 1, 1, "1", "1")
    family = "global attention"
    reads_itself = False
    reads_by_content = True

    type: Literal["reformer"] = "reformer"
    buckets: Buckets | tuple[Buckets, Buckets] = (
        64  # about n / chunk, so that most buckets are read whole; [32, 32] gives 1,024
    )
    rounds: PositiveInt = 4  # of hashing
    chunk: PositiveInt = 64  # members of its bucket read before it (bidirectional: to each side)

    @field_validator("buckets")
    @classmethod
    def _check_buckets(cls, buckets: int | tuple[int, int]) -> int | tuple[int, int]:
        if isinstance(buckets, tuple) and math.prod(buckets) >= 2**15:
            raise ValueError(
                f"{buckets[0]} times {buckets[1]} buckets are {math.prod(buckets):,}; at most {2**15 - 1:,}"
            )
        return buckets

    @property
    def factors(self) -> tuple[int, ...]:
        """Return the number of buckets of each hash of a round; the total is their product."""
        return self.buckets if isinstance(self.buckets, tuple) else (self.buckets,)

    def reach(self, role: Role) -> Reach:
        """Return which members of its bucket a position reads."""
        return Reach(self.chunk, 0 if role == "causal" else self.chunk)

    def build(self, width: int, *, role: Role = "causal", position: ScorePosition | None = None) -> "Reformer":
        self.require(role, position)
        return Reformer(self, width, role, position)

    def cost(self, length: int, width: int, *, role: Role = "causal", memory: int | None = None) -> Cost:
        projections = 6 * length * width * width  # queries (also keys), values, output
        hashing = length * width * self.rounds * sum(self.factors)
        attention = 4 * self.rounds * self.reach(role).area(length) * width
        state = length * (8 * width + 2 * self.heads * self.rounds) if role == "causal" else 0
        return Cost(projections + hashing + attention, state, sequential=1, path=1)

    def position_queries(self, length: int, role: Role) -> int:
        return self.rounds * self.reach(role).rows(length)


@dataclass(frozen=True)
class BucketState:
    """Keys and values so far, and their buckets."""

    kv_cache: Growable  # (B, S, 2 D): keys and values
    bucket: Growable  # (B, S, H R), 16-bit; PADDING where there is no position

    @staticmethod
    def join(nodes: "Sequence[BucketState]", count_P: Tensor | None) -> "BucketState":
        """Join rows of different lengths, without slots that only removed rows could see."""
        kv_cache, _ = join_kv_caches([(node.kv_cache, node.bucket.tensor[:, :, 0] != PADDING) for node in nodes])
        buckets = [node.bucket.keep_last(kv_cache.length) for node in nodes]
        return BucketState(kv_cache, Growable.join(buckets, count_P, PADDING))


@final
class Reformer(Mixer):
    rotation_HKM: Tensor

    def __init__(self, config: ReformerConfig, width: int, role: Role, position: ScorePosition | None) -> None:
        super().__init__()
        self.config, self.role, self.position = config, role, position
        self.reach, head_width = config.reach(role), config.head_width(width)
        self.biased = bias_of(position) is not None
        self.query_value = nn.Linear(width, 2 * width, bias=config.bias)
        self.output = nn.Linear(width, width, bias=config.bias)
        for layer in (self.query_value, self.output):
            initialise(layer, width)
        # Saved with the weights, which were trained with these buckets.
        columns = config.rounds * sum(config.factors) // 2
        self.register_buffer("rotation_HKM", torch.randn(config.heads, head_width, columns))

    def forward(
        self,
        x_BTD: Tensor,
        *,
        mask_BT: Tensor | None = None,
        state: BucketState | None = None,
        memory: Memory | None = None,
    ) -> tuple[Tensor, BucketState | None]:
        if self.role == "bidirectional":
            refuse_state(state)
        B, T, D = x_BTD.shape
        with full_precision(x_BTD):  # rounded queries would fall into other buckets
            packed_BTN = self.query_value(zero_padding(x_BTD, mask_BT).to(self.query_value.weight.dtype))
            q_BHTK, v_BHTK = self._split(packed_BTN)
            place = None
            if self.position is not None:
                place = _places(state, mask_BT, B, T, x_BTD.device)
                q_BHTK = self.position.rotate(q_BHTK, place[..., -T:])
            k_BHTK = q_BHTK * (q_BHTK.square().mean(dim=-1, keepdim=True) + EPSILON).rsqrt()
            kept_BTN = pack(k_BHTK, v_BHTK)
            grown = _grow(state, kept_BTN, self._hash(q_BHTK, mask_BT))
            if state is not None and T == 1 and map_sink() is None:
                y_BHTK = self._step(q_BHTK, state, grown, place)
            else:
                y_BHTK = self._read(q_BHTK, grown, place)
        if not is_autocast(x_BTD):
            y_BHTK = y_BHTK.to(self.output.weight.dtype)
        y_BTD = self.output(y_BHTK.transpose(1, 2).reshape(B, T, D))
        return y_BTD, grown if self.role == "causal" else None

    def _split(self, x_BSN: Tensor) -> tuple[Tensor, ...]:
        """Split (B, S, 2 D) into two tensors (B, H, S, K)."""
        return x_BSN.unflatten(2, (2 * self.config.heads, -1)).transpose(1, 2).chunk(2, dim=1)

    @torch.no_grad()
    def _hash(self, q_BHTK: Tensor, mask_BT: Tensor | None) -> Tensor:
        """Return the bucket of each position for each head and round: (B, T, H R)."""
        rotation_HKM = at_least_float32(self.rotation_HKM).to(at_least_float32(q_BHTK).dtype)
        step = max(1, AT_ONCE // max(1, rotation_HKM.shape[-1] * q_BHTK.shape[0] * q_BHTK.shape[1]))
        pieces = [self._numbers(at_least_float32(piece) @ rotation_HKM) for piece in q_BHTK.split(step, dim=2)]
        bucket_BHTR = torch.cat(pieces, dim=2)
        bucket_BTN = bucket_BHTR.transpose(1, 2).flatten(2)
        return bucket_BTN if mask_BT is None else bucket_BTN.masked_fill(~mask_BT.unsqueeze(-1), PADDING)

    def _numbers(self, rotated_BHTM: Tensor) -> Tensor:
        """Return the buckets of rotated queries: (B, H, T, R), 16-bit."""
        factors, number = self.config.factors, torch.zeros((), dtype=torch.long, device=rotated_BHTM.device)
        half = [factor // 2 for factor in factors]
        for side in rotated_BHTM.unflatten(-1, (self.config.rounds, -1)).split(half, dim=-1):
            # argmax([x; -x]) without the copy: the largest magnitude and its sign.
            best = side.abs().argmax(dim=-1, keepdim=True)
            negative = side.gather(-1, best) < 0
            number = number * (2 * side.shape[-1]) + (best + negative * side.shape[-1]).squeeze(-1)
        return number.to(torch.int16)

    def _read(self, q_BHTK: Tensor, seen: "BucketState", place: Tensor | None) -> Tensor:
        """Return what the last T positions read."""
        T, S = q_BHTK.shape[2], seen.kv_cache.length
        k_BHSK, v_BHSK = self._split(seen.kv_cache.tensor)
        bucket_BHRS = seen.bucket.tensor.unflatten(2, (self.config.heads, -1)).permute(0, 2, 3, 1)
        if (sink := map_sink()) is not None:
            bias = None
            if self.position is not None and place is not None:
                bias = self.position.bias(q_BHTK, place[..., -T:], place)
            sink(self, soft_alpha(q_BHTK, k_BHSK, bias, sees(bucket_BHRS, self.reach)[:, :, -T:]))
        # Results of earlier queries are not used, so any values may replace them. Their computation is wasted, but a
        # segment with a cache still costs no more than the whole sequence.
        queries_BHSK = q_BHTK if T == S else torch.cat([k_BHSK[:, :, : S - T].detach(), q_BHTK], dim=2)
        scheme = partial(self._bias, place=place) if self.biased else None
        return attend_in_buckets(queries_BHSK, k_BHSK, v_BHSK, bucket_BHRS, self.reach, scheme)[:, :, S - T :]

    def _bias(
        self, q_NHTK: Tensor, here_NHT: Tensor, there_NHS: Tensor, row_N: Tensor, *, place: Tensor | None
    ) -> Tensor | None:
        """Return the position bias of the scores of queries and keys in these slots."""
        if self.position is None:
            return None
        if place is not None and place.ndim == 2:
            row_N11 = row_N[:, None, None]
            here_NHT, there_NHS = place[row_N11, here_NHT], place[row_N11, there_NHS]
        return self.position.bias(q_NHTK, here_NHT, there_NHS)

    def _step(self, q_BHTK: Tensor, before: "BucketState", seen: "BucketState", place: Tensor | None) -> Tensor:
        """Read the members of one position's buckets; for other positions only bucket numbers are compared."""
        B, H, S = *q_BHTK.shape[:2], before.kv_cache.length
        number_BHRS = before.bucket.tensor.unflatten(2, (H, -1)).permute(0, 2, 3, 1)
        now_BHR1 = seen.bucket.tensor[:, -1].view(B, H, -1, 1)
        slot_S = torch.arange(S, dtype=torch.int32, device=q_BHTK.device)
        slot_BHRS = torch.where(number_BHRS == now_BHR1, slot_S, -1)
        found_BHN = slot_BHRS.topk(min(self.config.chunk, S), dim=-1).values.flatten(2).sort(dim=-1).values.long()
        real_BHN = found_BHN >= 0
        real_BHN[..., 1:] &= found_BHN[..., 1:] != found_BHN[..., :-1]  # found in several rounds, read once
        # Its own slot comes first, for queries without any other member.
        found_BHN = torch.cat([torch.full_like(found_BHN[..., :1], S), found_BHN.clamp(min=0)], dim=-1)
        real_BHN = torch.cat([~real_BHN.any(dim=-1, keepdim=True), real_BHN], dim=-1)
        row_B, head_H = torch.arange(B, device=q_BHTK.device), torch.arange(H, device=q_BHTK.device)
        both_BPMK = seen.kv_cache.tensor.unflatten(2, (2 * H, -1))
        k_BHNK, v_BHNK = (both_BPMK[row_B[:, None, None], found_BHN, first + head_H[:, None]] for first in (0, H))
        bias = self._bias(q_BHTK, torch.full_like(found_BHN[..., :1], S), found_BHN, row_B, place=place)
        return soft_lookup(q_BHTK, k_BHNK, v_BHNK, bias=bias, visible=real_BHN.unsqueeze(2))


def _grow(state: BucketState | None, kept_BTN: Tensor, bucket_BTM: Tensor) -> BucketState:
    if state is None:
        return BucketState(Growable(kept_BTN), Growable(bucket_BTM))
    return BucketState(state.kv_cache.append(kept_BTN), state.bucket.append(bucket_BTM))


def _places(state: BucketState | None, mask_BT: Tensor | None, B: int, T: int, device: torch.device) -> Tensor:
    """Return the positions of all slots, old and new: (S), or (B, S) if rows differ."""
    old_BS, before = None, 0
    if state is not None:
        old_BS, before = state.bucket.tensor[:, :, 0] != PADDING, state.bucket.length
    return count_positions(extend_mask(old_BS, mask_BT, B, before, T), before + T, device)
