"""Compressive Transformer: positions that leave the memory of Transformer-XL are compressed, not dropped.

    groups      g = positions g c .. g c + c - 1;   slot_g = f(x of its c positions)
    of t        n_t = max(0, floor((t - M) / c)) groups are entirely older than the M positions before t
    t reads     slots n_t - C .. n_t - 1, then positions n_t c .. t, as one line: the r-th entry from the end has
                distance r, whether it is a slot or a position. The score is that of xl.py.

f is a convolution of width and stride c, or a mean or maximum over the group. It is trained by an auxiliary loss, which
the trainer adds (`send_losses_to`). It compares what the queries of a segment read, by content alone, from the
positions compressed during the segment and from their slots:

    sum_t || attn(q_t, old) - attn(q_t, f(old)) ||^2 / D

Neither loss has a gradient for the other's weights: the model treats slots as constants, and this loss the model.

Cost: O(T (M + C) D) time, O((M + C) D) state, 1 sequential step, path n / (M + c C).
Paper: Rae et al. 2020, arXiv:1911.05507.
Differs: groups are counted from the start of the text, and each position alone determines which of them are
compressed, so segment boundaries do not matter. Positions of incomplete groups (fewer than c) are read uncompressed.
The loss is squared; the paper's is a norm. `stretch` trains as the paper does: all positions of a segment read the
slots that exist at its start.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, final

import torch
from pydantic import NonNegativeInt, PositiveInt
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from allyouneed.mixers.base import Cost, Memory, Mixer, Role, Theory, loss_sink
from allyouneed.mixers.lookup import lookup, soft_alpha, soft_lookup
from allyouneed.mixers.parts.kv_cache import pack
from allyouneed.mixers.parts.projections import HeadsConfig, Projections, initialise
from allyouneed.mixers.parts.state import Growable, join_fields
from allyouneed.mixers.xl import (
    DistanceKeys,
    Distances,
    append_vectors,
    check_stretch,
    largest_distance,
    most_distance_keys,
    shift,
)
from allyouneed.positions import ScorePosition
from allyouneed.sizes import Traits


@dataclass(frozen=True)
class Tile:
    """Adjacent queries and everything that any of them reads."""

    begin: int  # queries begin .. end - 1
    end: int
    position: int  # positions position .. end - 1
    slot: int  # slots slot .. slots - 1
    slots: int
    fixed: int | None = None  # number of compressed groups, if it is the same for all queries

    @property
    def pairs(self) -> int:
        return (self.end - self.begin) * (self.end - self.position + self.slots - self.slot)


class CompressiveConfig(HeadsConfig):
    summary = "a memory of earlier segments, and a compressed memory of still earlier ones"
    paper = "Rae et al. 2020, arXiv:1911.05507"
    roles = frozenset({"causal"})
    theory = Theory("n (m + c) d + n d²", 1, 1, "1", "n / (m + r c)")
    family = "local attention"

    type: Literal["compressive"] = "compressive"
    memory: PositiveInt = 128  # positions read before each one, at least; may change after training
    compressed: NonNegativeInt = 128  # number of slots before those; may change after training
    rate: PositiveInt = 4  # positions per slot
    compression: Literal["convolution", "mean", "max"] = "convolution"
    clamp: PositiveInt | None = None  # larger distances count as this one; needed for memories longer than in training
    stretch: bool = False  # in training compress nothing within a segment: learns distances of longer memories

    def check_task(self, task: Traits) -> None:
        check_stretch(self.stretch, task)

    def build(self, width: int, *, role: Role = "causal", position: ScorePosition | None = None) -> "Compressive":
        self.require(role, position)
        return Compressive(self, width, role)

    def old(self, t: int) -> int:
        """Return n_t, the number of groups that are compressed at position t."""
        return max(0, (t - self.memory) // self.rate)

    def tiles(self, begin: int, end: int, fixed: int | None = None) -> Iterator[Tile]:
        """Yield queries begin .. end - 1 in tiles, so that time and memory are linear in the length, not quadratic.

        `fixed`: the number of compressed groups, if it is the same for all queries.
        """
        size = max(16, min(256, self.memory + self.compressed))
        for first in range(begin, end, size):
            last = min(first + size, end)
            old, newest = (self.old(first), self.old(last - 1)) if fixed is None else (fixed, fixed)
            yield Tile(first, last, old * self.rate, max(0, old - self.compressed), newest, fixed)

    def reach(self, length: int, segment: int = 1) -> int:
        """Return the largest distance within `length` positions, if nothing is compressed within a segment."""
        return min(length - 1, self.memory + self.rate - 1 + self.compressed + segment - 1)

    def cost(self, length: int, width: int, *, role: Role = "causal", memory: int | None = None) -> Cost:
        old, distances = self.old(length), self.reach(length) + 1
        group = self.rate if self.compression == "convolution" else 0
        slots = 2 * old * (group + 2) * width * width
        places = 2 * (largest_distance(distances - 1, self.clamp) + 1) * width * width + 2 * length * distances * width
        attention = 4 * sum(tile.pairs for tile in self.tiles(0, length)) * width
        kept = 3 * (length - old * self.rate) + 2 * min(old, self.compressed) + distances
        t, path = length - 1, 0
        while t > 0:
            t, path = max(0, self.old(t) - self.compressed) * self.rate, path + 1
        flops = self.projection_flops(length, length, width) + slots + places + attention
        return Cost(flops, 4 * kept * width, sequential=1, path=path)


@dataclass(frozen=True)
class CompressiveState:
    """Positions that are not compressed yet, and the last slots; the newest are last.

    In training both are vectors. In inference, positions also have their keys and values, and slots only those.
    """

    recent: Growable  # (B, S, N)
    slots: Growable  # (B, R, N)
    projected: bool
    seen: int | Tensor  # positions so far: one number, or one per row (B)
    distance_keys: DistanceKeys | None = None

    @staticmethod
    def join(nodes: "Sequence[CompressiveState]", count_P: Tensor | None) -> "CompressiveState":
        """Join rows that have read different numbers of positions."""
        return join_fields(nodes, count_P, distance_keys=most_distance_keys([node.distance_keys for node in nodes]))


@final
class Compressive(Mixer):
    def __init__(self, config: CompressiveConfig, width: int, role: Role) -> None:
        super().__init__()
        self.config, self.width = config, width
        self.project = Projections(config, width, role)
        self.distances = Distances(config.heads, width, config.clamp)
        if config.compression == "convolution":
            self.compress = nn.Linear(config.rate * width, width)  # stride c: each group is read once
            initialise(self.compress, width)

    def forward(
        self,
        x_BTD: Tensor,
        *,
        mask_BT: Tensor | None = None,
        state: CompressiveState | None = None,
        memory: Memory | None = None,
    ) -> tuple[Tensor, CompressiveState]:
        seen = 0 if state is None else state.seen
        if isinstance(seen, Tensor) and bool((seen == seen[0]).all()):
            seen = int(seen[0])
            state = None if state is None else self._unpadded(state, seen)
        if mask_BT is not None or isinstance(seen, Tensor):
            return self._row_by_row(x_BTD, mask_BT, state)
        return self._forward(x_BTD, state, seen)

    def _forward(self, x_BTD: Tensor, state: CompressiveState | None, seen: int) -> tuple[Tensor, CompressiveState]:
        """Run rows that have read the same number of positions."""
        config, end = self.config, seen + x_BTD.shape[1]
        before, after = config.old(seen), config.old(end)
        state = state or self._empty_state(x_BTD)
        q_BHTK, k_BHTK, v_BHTK = self.project.queries_keys_values(x_BTD)
        new_BTN = x_BTD
        if state.projected:
            new_BTN = torch.cat([x_BTD, pack(k_BHTK, v_BHTK)], dim=2)
        recent = append_vectors(state.recent, new_BTN)
        leaving_BSD = recent.tensor[:, : (after - before) * config.rate, : self.width].detach()
        fresh_BRD = self._compress(leaving_BSD)
        slots = state.slots
        if after > before:
            made_BRD = fresh_BRD.detach()
            slots = append_vectors(slots, self.project.keys_and_values(made_BRD) if state.projected else made_BRD)
        keys_values = self._keys_and_values(state, recent, slots, (k_BHTK, v_BHTK))
        fixed = before if config.stretch and self.training else None
        distance_keys = self._distance_keys(config.reach(end, 1 if fixed is None else end - seen), state)
        q_BHTK = self.distances.with_content(q_BHTK)
        sink, outputs = loss_sink(), []
        first = before * config.rate, after - slots.length  # the first entries of `recent` and of `slots`
        tiles = list(config.tiles(seen, end, fixed))
        queries = q_BHTK.split([tile.end - tile.begin for tile in tiles], dim=2)
        read = zip(tiles, queries, _windows(keys_values, tiles, first), strict=True)
        again = len(tiles) > 1 and torch.is_grad_enabled()  # all scores together would take most of the memory
        for tile, q_BHMK, window in read:
            here = slice(tile.begin - seen, tile.end - seen)
            outputs.append(
                checkpoint(
                    self._read,
                    q_BHMK,
                    window,
                    tile,
                    distance_keys.keys_HKR,
                    use_reentrant=False,
                    preserve_rng_state=False,
                )
                if again
                else self._read(q_BHMK, window, tile, distance_keys.keys_HKR)
            )
            groups = config.old(tile.begin) - before, config.old(tile.end) - before
            if sink is not None and config.compression == "convolution" and groups[1] > groups[0]:
                part = slice(groups[0] * config.rate, groups[1] * config.rate)
                sink(self._difference(x_BTD[:, here], leaving_BSD[:, part], fresh_BRD[:, slice(*groups)]))
        kept = None if torch.is_grad_enabled() else distance_keys
        recent, slots = recent.keep_last(end - after * config.rate), slots.keep_last(config.compressed)
        y_BTD = self.project.merge(torch.cat(outputs, dim=2))
        return y_BTD, CompressiveState(recent, slots, state.projected, end, kept)

    def _empty_state(self, x_BTD: Tensor) -> CompressiveState:
        projected = not torch.is_grad_enabled()
        recent, slots = (x_BTD.new_zeros(x_BTD.shape[0], 0, n * self.width) for n in ((3, 2) if projected else (1, 1)))
        return CompressiveState(Growable(recent), Growable(slots), projected, 0)

    def _compress(self, x_BSD: Tensor) -> Tensor:
        """Return f: one vector per group."""
        B, S, D = x_BSD.shape
        groups = x_BSD.reshape(B, S // self.config.rate, self.config.rate, D)
        if self.config.compression == "convolution":
            slots: Tensor = self.compress(groups.flatten(2))
            return slots
        return groups.mean(dim=2) if self.config.compression == "mean" else groups.amax(dim=2)

    def _keys_and_values(
        self, state: CompressiveState, recent: Growable, slots: Growable, new: tuple[Tensor, Tensor]
    ) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """Return keys and values of the slots, and of the positions."""
        split = self.project.split
        if state.projected:
            return split(slots.tensor, 2), split(recent.tensor[..., self.width :].contiguous(), 2)
        of_slots = split(self.project.keys_and_values(slots.tensor), 2)
        if not state.recent.length:
            return of_slots, new
        old = split(self.project.keys_and_values(state.recent.tensor), 2)
        return of_slots, tuple(torch.cat(pair, dim=2) for pair in zip(old, new, strict=True))

    def _distance_keys(self, reach: int, state: CompressiveState) -> DistanceKeys:
        distance_keys = state.distance_keys
        if distance_keys is not None and not torch.is_grad_enabled():
            if distance_keys.keys_HKR.shape[2] > reach:
                return distance_keys
            reach = max(reach, self.config.reach(2 * reach))
        return DistanceKeys(self.distances.keys(reach))

    def _read(self, q_BHTK: Tensor, window: tuple[Tensor, Tensor], tile: Tile, keys_HKR: Tensor) -> Tensor:
        """Return what the queries of a tile read from slots and positions, in one softmax."""
        B, H, T, _ = q_BHTK.shape
        config, device, (k_BHSK, v_BHSK) = self.config, q_BHTK.device, window
        score_BHTR = self.distances.scores(q_BHTK, keys_HKR)
        R = score_BHTR.shape[-1]
        t_T1 = torch.arange(tile.begin, tile.end, device=device)[:, None]
        old_T1 = ((t_T1 - config.memory) // config.rate).clamp(min=0)
        if tile.fixed is not None:
            old_T1 = torch.full_like(t_T1, tile.fixed)
        g_N = torch.arange(tile.slot, tile.slots, device=device)
        s_M = torch.arange(tile.position, tile.end, device=device)
        # Position t reads n_t slots, then t - n_t c + 1 positions.
        apart_TN = t_T1 - old_T1 * (config.rate - 1) - g_N
        column_TN = (R - 1 - apart_TN).clamp(0, R - 1)
        bias_BHTS = torch.cat(
            [
                score_BHTR.gather(-1, column_TN.expand(B, H, -1, -1)),
                shift(score_BHTR, tile.begin - tile.position, len(s_M)),
            ],
            dim=-1,
        )
        visible_TS = torch.cat(
            [(g_N < old_T1) & (g_N >= old_T1 - config.compressed), (s_M <= t_T1) & (s_M >= old_T1 * config.rate)], dim=1
        )
        if T == 1:
            return soft_lookup(q_BHTK, k_BHSK, v_BHSK, bias=bias_BHTS, visible=visible_TS)
        return lookup(soft_alpha(q_BHTK, k_BHSK, bias_BHTS, visible_TS), v_BHSK)

    def _difference(self, x_BTD: Tensor, old_BSD: Tensor, slots_BRD: Tensor) -> Tensor:
        """Return the auxiliary loss of reading slots instead of positions; only the slots get a gradient."""
        layer = self.project.query_key_value
        weight_ND, bias_N = layer.weight.detach(), None if layer.bias is None else layer.bias.detach()
        D = self.width
        q_BHTK = self.project.split(F.linear(x_BTD.detach(), weight_ND[:D], None if bias_N is None else bias_N[:D]), 1)[
            0
        ]
        read = []
        for y in (old_BSD, slots_BRD):
            k, v = self.project.split(F.linear(y, weight_ND[D:], None if bias_N is None else bias_N[D:]), 2)
            read.append(soft_lookup(q_BHTK, k, v))
        return (read[0] - read[1]).square().sum() / D

    def _row_by_row(
        self, x_BTD: Tensor, mask_BT: Tensor | None, state: CompressiveState | None
    ) -> tuple[Tensor, CompressiveState]:
        """Read rows with different real positions one by one, without padding."""
        outputs, rows = [], []
        for row in range(x_BTD.shape[0]):
            here = slice(row, row + 1)
            real_N = torch.arange(x_BTD.shape[1], device=x_BTD.device)
            if mask_BT is not None:
                real_N = mask_BT[row].nonzero()[:, 0]
            alone = self._empty_state(x_BTD[here]) if state is None else self._select_row(state, row)
            y = torch.zeros_like(x_BTD[here])
            if len(real_N):
                read, alone = self._forward(x_BTD[here].index_select(1, real_N), alone, int(alone.seen))
                y = y.to(read.dtype).index_copy(1, real_N, read)
            outputs.append(y)
            rows.append(alone)
        seen_B = torch.tensor([int(row.seen) for row in rows], device=x_BTD.device)
        recent, slots = (_aligned([getattr(row, name).tensor for row in rows]) for name in ("recent", "slots"))
        return torch.cat(outputs), CompressiveState(recent, slots, rows[0].projected, seen_B)

    def _select_row(self, state: CompressiveState, row: int) -> CompressiveState:
        """Return the state of one row, without the padding that aligned it with others."""
        here, seen = slice(row, row + 1), int(state.seen[row]) if isinstance(state.seen, Tensor) else state.seen
        kept = self._unpadded(state, seen)
        return replace(kept, recent=Growable(kept.recent.tensor[here]), slots=Growable(kept.slots.tensor[here]))

    def _unpadded(self, state: CompressiveState, seen: int) -> CompressiveState:
        """Return the state of rows that have all read `seen` positions, without the padding that aligned them."""
        old = self.config.old(seen)
        recent = state.recent.keep_last(seen - old * self.config.rate)
        return CompressiveState(recent, state.slots.keep_last(min(old, self.config.compressed)), state.projected, seen)


def _windows(
    keys_values: tuple[tuple[Tensor, ...], tuple[Tensor, ...]], tiles: list[Tile], first: tuple[int, int]
) -> Iterator[tuple[Tensor, Tensor]]:
    """Return the keys and values of each tile: of its slots, then of its positions."""
    spans = [slice(tile.slot - first[1], tile.slots - first[1]) for tile in tiles]
    ranges = [slice(tile.position - first[0], tile.end - first[0]) for tile in tiles]
    keys, values = (
        _gathered(of_slots, of_places, spans, ranges) for of_slots, of_places in zip(*keys_values, strict=True)
    )
    return zip(keys, values, strict=True)


def _gathered(slots_BHRK: Tensor, places_BHSK: Tensor, spans: list[slice], ranges: list[slice]) -> Sequence[Tensor]:
    """Return one tensor for each span of slots and range of positions.

    One call gathers all: the gradient of a slice is as long as its source, so a slice per tile would cost quadratic
    time.
    """
    if len(spans) == 1:
        return [torch.cat([slots_BHRK[:, :, spans[0]], places_BHSK[:, :, ranges[0]]], dim=2)]
    every_N = torch.arange(slots_BHRK.shape[2] + places_BHSK.shape[2], device=slots_BHRK.device)
    of_slots_R, of_places_S = every_N.tensor_split([slots_BHRK.shape[2]])
    rows = [torch.cat([of_slots_R[a], of_places_S[b]]) for a, b in zip(spans, ranges, strict=True)]
    both_BHNK = torch.cat([slots_BHRK, places_BHSK], dim=2)
    return both_BHNK.index_select(2, torch.cat(rows)).split([len(row) for row in rows], dim=2)


def _aligned(rows: list[Tensor]) -> Growable:
    longest = max(row.shape[1] for row in rows)
    return Growable(torch.cat([F.pad(row, (0, 0, longest - row.shape[1], 0)) for row in rows]))
