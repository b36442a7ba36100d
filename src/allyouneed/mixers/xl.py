"""Transformer-XL: a memory of the positions before the segment, and positions that are distances.

    score_ts = ((q_t + u) . k_s + (q_t + v) . W_R r_{t-s}) / sqrt(K),      t - M <= s <= t
    r_d = (sin(d f_0), sin(d f_1), .., cos(d f_0), ..),   f_i = 10000^(-2i/D)

u and v are trained vectors: the importance of a key, and of a distance, to any query. A text is read segment by
segment. The state holds the last M inputs of the layer; their keys and values are computed again with the current
weights. `memory` is not part of the weights: a trained model can use a longer one. Distances beyond those of training
would be out of distribution, so those beyond `clamp` count as `clamp` (the authors' clamp_len).

Cost: O(T M D) time, O(M D) state, 1 sequential step, path n / M.
Paper: Dai et al. 2019, arXiv:1901.02860, section 3.
Differs: every position reads exactly the M before it, in training too (the authors' `same_length`, which they use in
evaluation). So segment boundaries do not matter, and training equals evaluation. `stretch` trains as the authors do: a
position reads the M before its segment, and its segment up to itself. Each layer has its own u and v. The gradient
stops where one segment passes its state to the next (tasks/loss.py), not inside the mixer. Padding is not a position.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, final

import torch
from pydantic import PositiveInt
from torch import Tensor, nn
from torch.nn import functional as F

from allyouneed.mixers.base import Cost, Memory, Mixer, Role, Theory, map_sink
from allyouneed.mixers.lookup import lookup, soft_alpha, soft_lookup
from allyouneed.mixers.parts.block_sparse import Pattern, area, attend_unfused, bands_of
from allyouneed.mixers.parts.kv_cache import join_kv_caches, pack
from allyouneed.mixers.parts.projections import HeadsConfig, Projections, initialise, wide_on_cpu
from allyouneed.mixers.parts.state import Growable, join_fields
from allyouneed.positions import ScorePosition
from allyouneed.sizes import Traits


class XLConfig(HeadsConfig):
    summary = "a memory of earlier segments, with its own relative positions"
    paper = "Dai et al. 2019, arXiv:1901.02860"
    roles = frozenset({"causal"})
    theory = Theory("n m d + n d²", 1, 1, "1", "n / m")
    family = "local attention"

    type: Literal["xl"] = "xl"
    memory: PositiveInt = 128  # positions read before each one; may change after training
    clamp: PositiveInt | None = None  # larger distances count as this one; needed for memories longer than in training
    stretch: bool = False  # in training also read the whole segment so far: learns distances of longer memories

    def check_task(self, task: Traits) -> None:
        check_stretch(self.stretch, task)

    def build(self, width: int, *, role: Role = "causal", position: ScorePosition | None = None) -> "XL":
        self.require(role, position)
        return XL(self, width, role)

    def cost(self, length: int, width: int, *, role: Role = "causal", memory: int | None = None) -> Cost:
        bands, reach = bands_of(Pattern(self.memory, 0), length, length), min(self.memory, length - 1)
        places = sum(
            band.blocks * band.size * (min(reach, band.query - band.key + band.size - 1) + 1) for band in bands
        )
        distances = 2 * (largest_distance(reach, self.clamp) + 1) * width * width + 2 * places * width
        attention = 4 * area(bands) * width
        state = (8 * min(length, self.memory) + 4 * (reach + 1)) * width  # keys and values; distance keys
        path = math.ceil((length - 1) / self.memory)
        flops = self.projection_flops(length, length, width) + distances + attention
        return Cost(flops, state, sequential=1, path=path)


def check_stretch(stretch: bool, task: Traits) -> None:
    """Raise ValueError if `stretch` is set for a task that has no segments."""
    if stretch and task.segment is None:
        raise ValueError(
            "mixer.stretch reads whole segments, but task.segment is not set; set it or remove mixer.stretch"
        )


class Distances(nn.Module):
    """The parameters u, v and W_R of the score's dependence on distance."""

    def __init__(self, heads: int, width: int, clamp: int | None) -> None:
        super().__init__()
        self.heads, self.clamp = heads, clamp
        self.content_D = nn.Parameter(torch.zeros(width))  # u
        self.place_D = nn.Parameter(torch.zeros(width))  # v
        self.project = nn.Linear(width, width, bias=False)  # W_R
        initialise(self.project, width)

    def keys(self, reach: int) -> Tensor:
        """Return W_R r_d for each head, from d = reach down to 0."""
        weight, near = self.project.weight, largest_distance(reach, self.clamp)
        distance_N = torch.arange(near, -1, -1, device=weight.device)
        keys_RD = wide_on_cpu(self.project(sinusoids(distance_N, weight.shape[1]).to(weight.dtype)))
        if near < reach:
            keys_RD = torch.cat([keys_RD[:1].expand(reach - near, -1), keys_RD])
        return keys_RD.unflatten(1, (self.heads, -1)).permute(1, 2, 0)

    def with_content(self, q_BHTK: Tensor) -> Tensor:
        """Return q + u."""
        return q_BHTK + self._by_head(self.content_D)

    def scores(self, q_BHTK: Tensor, keys_HKR: Tensor) -> Tensor:
        """Return (q + v) . W_R r_d / sqrt(K), from queries to which u was added."""
        q_BHTK = q_BHTK + self._by_head(self.place_D - self.content_D)
        return q_BHTK @ keys_HKR / math.sqrt(q_BHTK.shape[-1])

    def _by_head(self, vector_D: Tensor) -> Tensor:
        return vector_D.view(self.heads, 1, -1)


def largest_distance(reach: int, clamp: int | None) -> int:
    """Return the largest distance that is not clamped."""
    return reach if clamp is None else min(reach, clamp)


def sinusoids(distance_R: Tensor, width: int) -> Tensor:
    """Return sines, then cosines; in float64, which large angles need."""
    exponent_N = torch.arange(0, width, 2, dtype=torch.float64, device=distance_R.device) / width
    angle_RN = distance_R[:, None].to(torch.float64) * 10000.0**-exponent_N
    return torch.cat([angle_RN.sin(), angle_RN.cos()], dim=1)[:, :width]


def shift(score_BHTR: Tensor, first: int, keys: int) -> Tensor:
    """Convert scores by distance (R-1 .. 0) to scores by key: (t, s) takes distance `first` + t - s; zero if none.

    Row t must start one column earlier than the row above. Reshaping the flattened matrix to rows that are one shorter
    does that without an index per pair.
    """
    T, R = score_BHTR.shape[-2:]
    before = first + T - R  # missing columns before the largest distance
    wide_BHTN = F.pad(score_BHTR, (before, keys + T - R - before))
    N = wide_BHTN.shape[-1]
    return wide_BHTN.flatten(-2)[..., T - 1 : T * N - 1].unflatten(-1, (T, N - 1))[..., :keys]


def append_vectors(cache: Growable, new_BTN: Tensor) -> Growable:
    """Append vectors; out of place under autograd, where a weight's gradient may need the old ones."""
    return Growable(torch.cat([cache.tensor, new_BTN], dim=1)) if torch.is_grad_enabled() else cache.append(new_BTN)


@dataclass(frozen=True)
class DistanceKeys:
    """The keys of distances, cached while decoding; they depend on the weights, not on rows."""

    keys_HKR: Tensor

    def select(self, rows_B: Tensor) -> "DistanceKeys":
        """Return the same keys for any rows."""
        return self


def most_distance_keys(distance_keys: "Sequence[DistanceKeys | None]") -> "DistanceKeys | None":
    """Return the keys of the most distances, for joined rows; they depend on the weights alone."""
    return max((one for one in distance_keys if one is not None), key=lambda one: one.keys_HKR.shape[2], default=None)


@dataclass(frozen=True)
class XLState:
    """The last M vectors; the newest is last."""

    cache: Growable  # (B, S, N): inputs of the layer; without autograd, keys and values
    projected: bool
    real_BS: Tensor | None = None  # which of them are real: rows may have fewer (None: all)
    distance_keys: DistanceKeys | None = None

    @staticmethod
    def join(nodes: "Sequence[XLState]", count_P: Tensor | None) -> "XLState":
        """Join rows that have read different numbers of positions."""
        cache, real_BS = join_kv_caches([(node.cache, node.real_BS) for node in nodes])
        return join_fields(
            nodes,
            count_P,
            cache=cache,
            real_BS=real_BS,
            distance_keys=most_distance_keys([node.distance_keys for node in nodes]),
        )


@final
class XL(Mixer):
    def __init__(self, config: XLConfig, width: int, role: Role) -> None:
        super().__init__()
        self.config = config
        self.project = Projections(config, width, role)
        self.distances = Distances(config.heads, width, config.clamp)

    def forward(
        self,
        x_BTD: Tensor,
        *,
        mask_BT: Tensor | None = None,
        state: XLState | None = None,
        memory: Memory | None = None,
    ) -> tuple[Tensor, XLState]:
        T, real_BS = x_BTD.shape[1], state.real_BS if state is not None else None
        if mask_BT is not None or (real_BS is not None and T > 1):
            return self._row_by_row(x_BTD, mask_BT, state)
        q_BHTK, k_BHSK, v_BHSK, after = self._extend(x_BTD, state)
        if real_BS is not None:
            real_BS = torch.cat([real_BS, torch.ones_like(real_BS[:, :1])], dim=1)
        distance_keys = self._distance_keys(min(self._reach(T), k_BHSK.shape[2] - 1), state)
        y_BHTK = self._read(self.distances.with_content(q_BHTK), k_BHSK, v_BHSK, distance_keys.keys_HKR, real_BS)
        left = None if real_BS is None else real_BS[:, -self.config.memory :]
        left = None if left is None or bool(left.all()) else left
        kept = None if torch.is_grad_enabled() else distance_keys
        cache = after.cache.keep_last(self.config.memory)
        return self.project.merge(y_BHTK), XLState(cache, after.projected, left, kept)

    def _reach(self, segment: int) -> int:
        """Return how far back the last position of a segment reads."""
        return self.config.memory + (segment - 1 if self.config.stretch and self.training else 0)

    def _extend(self, x_BTD: Tensor, state: XLState | None) -> tuple[Tensor, Tensor, Tensor, XLState]:
        """Return queries of the new positions, keys and values of old and new ones, and the extended state.

        Training caches inputs, so that the projections get gradients through the memory; inference caches keys and
        values.
        """
        projected = not torch.is_grad_enabled() or (state is not None and state.projected)
        q_BHTK, k_BHTK, v_BHTK = self.project.queries_keys_values(x_BTD)
        new_BTN = pack(k_BHTK, v_BHTK) if projected else x_BTD
        if state is None:
            return q_BHTK, k_BHTK, v_BHTK, XLState(Growable(new_BTN), projected)
        cache = state.cache
        if projected and not state.projected:
            cache = Growable(self.project.keys_and_values(cache.tensor))
        if projected:
            cache = cache.append(new_BTN)
            k_BHSK, v_BHSK = self.project.split(cache.tensor, 2)
        else:
            old = self.project.split(self.project.keys_and_values(cache.tensor), 2)
            k_BHSK, v_BHSK = (torch.cat(pair, dim=2) for pair in zip(old, (k_BHTK, v_BHTK), strict=True))
            cache = append_vectors(cache, new_BTN)
        return q_BHTK, k_BHSK, v_BHSK, XLState(cache, projected)

    def _distance_keys(self, reach: int, state: XLState | None) -> DistanceKeys:
        """Return the keys of distances up to `reach`; decoding caches them and doubles their number when needed."""
        if torch.is_grad_enabled() or state is None:
            return DistanceKeys(self.distances.keys(reach))
        distance_keys = state.distance_keys
        if distance_keys is None or distance_keys.keys_HKR.shape[2] <= reach:
            distance_keys = DistanceKeys(self.distances.keys(max(reach, min(self.config.memory, 2 * reach))))
        return distance_keys

    def _read(self, q_BHTK: Tensor, k_BHSK: Tensor, v_BHSK: Tensor, keys_HKR: Tensor, real_BS: Tensor | None) -> Tensor:
        """Return what the last T of S positions read; for a single one, `real_BS` masks missing slots."""
        T, S = q_BHTK.shape[2], k_BHSK.shape[2]
        pattern, sink = Pattern(self._reach(T), 0), map_sink()
        if sink is not None:
            place_S = torch.arange(S, device=q_BHTK.device)
            bias_BHTS = self._bias(q_BHTK, place_S[S - T :], place_S, keys_HKR=keys_HKR)
            sink(self, soft_alpha(q_BHTK, k_BHSK, bias_BHTS, pattern.sees(place_S[S - T :, None], place_S)))
        if T == 1:
            S = min(S, self.config.memory + 1)
            k_BHSK, v_BHSK = k_BHSK[:, :, -S:], v_BHSK[:, :, -S:]
            bias_BHTS = self.distances.scores(q_BHTK, keys_HKR[:, :, -S:])
            visible = None if real_BS is None else real_BS[:, None, None, -S:]
            return soft_lookup(q_BHTK, k_BHSK, v_BHSK, bias=bias_BHTS, visible=visible)
        bands = bands_of(pattern, T, S)
        if len(bands) == 1 and bands[0].blocks == 1:  # segments up to the length of the memory: one dense block
            k_BHSK, v_BHSK = k_BHSK[:, :, bands[0].key :], v_BHSK[:, :, bands[0].key :]
            place_S = torch.arange(bands[0].key, S, device=q_BHTK.device)
            bias_BHTS = self._bias(q_BHTK, place_S[-T:], place_S, keys_HKR=keys_HKR)
            alpha_BHTS = soft_alpha(q_BHTK, k_BHSK, bias_BHTS, pattern.sees(place_S[-T:, None], place_S))
            return lookup(alpha_BHTS, v_BHSK)
        return attend_unfused(q_BHTK, k_BHSK, v_BHSK, bands, partial(self._bias, keys_HKR=keys_HKR))

    def _bias(self, q_BHTK: Tensor, here_T: Tensor, there_S: Tensor, *, keys_HKR: Tensor) -> Tensor:
        first = int(here_T[0] - there_S[0])
        count = first + len(here_T)  # larger distances do not occur
        return shift(self.distances.scores(q_BHTK, keys_HKR[:, :, -count:]), first, len(there_S))

    def _row_by_row(self, x_BTD: Tensor, mask_BT: Tensor | None, state: XLState | None) -> tuple[Tensor, XLState]:
        """Read rows with different real positions one by one, without padding."""
        outputs, rows = [], []
        for row in range(x_BTD.shape[0]):
            here = slice(row, row + 1)
            real_N = torch.arange(x_BTD.shape[1], device=x_BTD.device)
            if mask_BT is not None:
                real_N = mask_BT[row].nonzero()[:, 0]
            alone = None
            if state is not None:
                cache = state.cache.tensor[here]
                cache = cache if state.real_BS is None else cache[:, state.real_BS[row]]
                alone = replace(state, cache=Growable(cache), real_BS=None) if cache.shape[1] else None
            y = torch.zeros_like(x_BTD[here])
            if len(real_N):
                read, alone = self(x_BTD[here].index_select(1, real_N), state=alone)
                y = y.to(read.dtype).index_copy(1, real_N, read)
            outputs.append(y)
            rows.append(alone)
        return torch.cat(outputs), self._aligned(rows, x_BTD, state)

    def _aligned(self, rows: list[XLState | None], x_BTD: Tensor, state: XLState | None) -> XLState:
        """Return the state of rows of different lengths, aligned at their newest position."""
        projected = not torch.is_grad_enabled() or (state is not None and state.projected)
        none = x_BTD.new_zeros(1, 0, (2 if projected else 1) * x_BTD.shape[2])
        caches = [none if row is None else row.cache.tensor for row in rows]
        for number, row in enumerate(rows):
            if row is not None and projected and not row.projected:  # a row without new positions was not converted
                caches[number] = self.project.keys_and_values(caches[number])
        length_B = torch.tensor([cache.shape[1] for cache in caches], device=x_BTD.device)
        longest = int(length_B.max())
        cache = torch.cat([F.pad(cache, (0, 0, longest - cache.shape[1], 0)) for cache in caches])
        real_BS = torch.arange(longest, device=x_BTD.device) >= longest - length_B[:, None]
        return XLState(Growable(cache), projected, None if bool(real_BS.all()) else real_BS)
