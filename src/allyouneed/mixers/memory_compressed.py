"""Memory-compressed attention: a strided convolution turns every s positions into one slot; queries read the slots.

    k'_j = c + sum_(i < s) C_i k_(s j + i),   v'_j likewise with C', c';     C_i: K x K for each head
    head_h,t = softmax over j of (q_t . k'_j / sqrt(K)) V',     j = null and all slots   (causal: s j + s - 1 <= t)

A causal query reads only slots whose positions are all at or before it, so it reads its own slot only if it is the
last position there. Nearer positions are left to the local layers between these (local.py): T-DMCA is L M L M L. The
*null* slot is a trained key and value, initially zero, that every query can read, so the first queries are not empty.

Cost: O(T S / s D) time, O(S / s D) state (slots, and at most s - 1 positions of the next one), 1 sequential step,
path 1 (never, in a causal text shorter than a slot). Memory O(T D): queries are read in blocks.
Paper: Liu et al. 2018, arXiv:1801.10198, section 4.2.4 (s = 3).
Differs: the paper states neither how the convolution is grouped nor what a query without a slot reads. Here each head
has its own convolutions, and the null slot is that of the package memory-compressed-attention. Slot j starts at real
token s j for any length (that package counts from the end, so one more token changes all slots).
Bidirectional: the last, incomplete slot ends in zeros. For relative positions a slot is at its last position, the
null slot at 0.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, final

import torch
from pydantic import PositiveInt
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from allyouneed.mixers.base import Cost, Memory, Mixer, Role, Theory, map_sink, zero_padding
from allyouneed.mixers.lookup import lookup, soft_alpha, soft_lookup
from allyouneed.mixers.parts.block_sparse import Band, attend_sparsely, bias_of, has_kernel
from allyouneed.mixers.parts.kv_cache import compact, next_positions
from allyouneed.mixers.parts.projections import HeadsConfig, Projections, refuse_state, require_memory
from allyouneed.mixers.parts.state import Growable, join_numbers, join_padded
from allyouneed.positions import ScorePosition

BLOCK = 512  # queries per block


class MemoryCompressedConfig(HeadsConfig):
    summary = "a strided convolution turns every few keys and values into one slot; queries read the slots"
    paper = "Liu et al. 2018, arXiv:1801.10198"
    roles = frozenset({"causal", "bidirectional", "cross"})
    takes_positions = True
    theory = Theory("n² d / s + n d²", 2, 1, "1", "1", leads_at=(2048, 4096, 8192))  # queries come in blocks of 512
    family = "global attention"
    reads_itself = False

    type: Literal["memory-compressed"] = "memory-compressed"
    stride: PositiveInt = 3  # positions per slot

    def build(self, width: int, *, role: Role = "causal", position: ScorePosition | None = None) -> "MemoryCompressed":
        self.require(role, position)
        return MemoryCompressed(self, width, role, position)

    def cost(self, length: int, width: int, *, role: Role = "causal", memory: int | None = None) -> Cost:
        read = length if memory is None or role != "cross" else memory
        complete, rest = divmod(read, self.stride)
        slots = complete if role == "causal" or not rest else complete + 1
        pairs = length * (1 + slots)
        if role == "causal":
            pairs = sum((end - begin) * (1 + end // self.stride) for begin, end in _blocks(length))
        convolution = 4 * slots * self.stride * width * self.head_width(width)
        kept = {"causal": 1 + slots + rest, "bidirectional": 0, "cross": 1 + slots}[role]
        path = 1 if role != "causal" or length >= self.stride else None
        flops = self.projection_flops(length, read, width) + convolution + 4 * pairs * width
        return Cost(flops, 8 * kept * width, sequential=1, path=path)


def _blocks(queries: int) -> Iterator[tuple[int, int]]:
    for begin in range(0, queries, BLOCK):
        yield begin, min(begin + BLOCK, queries)


@dataclass(frozen=True)
class Staircase:
    """Query t is at position t + `shift`; key j is the slot that ends before position `stride` j (0: null)."""

    stride: int
    shift: int

    def sees(self, query: Tensor, key: Tensor) -> Tensor:
        """Return the mask: a slot is visible from its last position on."""
        return key * self.stride <= query + self.shift + 1


@dataclass(frozen=True)
class CompressedState:
    """Slots, and the positions that are not compressed yet."""

    slots: Growable  # (B, S, N): (rotated) keys and values of the null slot and of all complete slots
    rest_BRN: Tensor  # keys and values of the positions after the last complete slot
    seen: int | Tensor  # positions so far: one number, or one per row (B), whose missing slots are masked

    @staticmethod
    def join(nodes: "Sequence[CompressedState]", count_P: Tensor | None) -> "CompressedState":
        """Join rows with different numbers of slots, aligned at the first slot."""
        slots = Growable(join_padded([node.slots.tensor for node in nodes], 1))
        rest_BRN = join_padded([node.rest_BRN for node in nodes], 1)
        return CompressedState(slots, rest_BRN, join_numbers([node.seen for node in nodes], count_P))


@final
class MemoryCompressed(Mixer):
    def __init__(self, config: MemoryCompressedConfig, width: int, role: Role, position: ScorePosition | None) -> None:
        super().__init__()
        self.config, self.role, self.position = config, role, position
        self.project = Projections(config, width, role)
        head_width = config.head_width(width)
        # For the keys of all heads, then for the values: the input is `stride` positions of one head.
        self.along_NPK = nn.Parameter(torch.empty(2 * config.heads, config.stride * head_width, head_width))
        self.bias_N1K = nn.Parameter(torch.zeros(2 * config.heads, 1, head_width)) if config.bias else None
        self.null_N = nn.Parameter(torch.zeros(2 * width))
        for matrix in self.along_NPK:
            nn.init.xavier_uniform_(matrix)

    def forward(
        self,
        x_BTD: Tensor,
        *,
        mask_BT: Tensor | None = None,
        state: CompressedState | None = None,
        memory: Memory | None = None,
    ) -> tuple[Tensor, CompressedState | None]:
        if self.role == "cross":
            if state is None:
                memory = require_memory(memory)
                state = self._compress_all(self.project.key_value(memory.without_padding()), memory.mask_BS)
            return self._read(self.project.queries(x_BTD), state, None), state
        if self.role == "bidirectional":
            refuse_state(state)
        packed_BTN = self.project.query_key_value(zero_padding(x_BTD, mask_BT))
        (q_BHTK,) = self.project.split(packed_BTN[..., : self.project.width], 1)
        new = packed_BTN[..., self.project.width :]
        uniform = mask_BT is None and (state is None or isinstance(state.seen, int))
        place = next_positions(state.seen if state is not None else 0, x_BTD, mask_BT)
        if self.position is not None:
            q_BHTK = self.position.rotate(q_BHTK, place)
        if self.role == "bidirectional":
            return self._read(q_BHTK, self._compress_all(new, mask_BT), place), None
        state = self._extend_uniform(new, state) if uniform else self._extend_ragged(new, mask_BT, state)
        return self._read(q_BHTK, state, place), state

    # Compression.

    def _compress(self, line_BLN: Tensor, first: int | Tensor, ends: Tensor | int | None = None) -> Tensor:
        """Return the slots (B, S, N) of S `stride` positions; the first is slot `first` of its row.

        An incomplete slot ends where its row ends, before position `ends`.
        """
        B, L, N = line_BLN.shape
        stride, heads = self.config.stride, 2 * self.config.heads
        S = L // stride
        x = (
            line_BLN.view(B, S, stride, heads, N // heads)
            .permute(3, 0, 1, 2, 4)
            .reshape(heads, B * S, stride * N // heads)
        )
        y = x @ self.along_NPK if self.bias_N1K is None else torch.baddbmm(self.bias_N1K, x, self.along_NPK)
        y = y.view(heads, B, S, N // heads)
        if self.position is not None:
            index_S = torch.arange(S, device=y.device)
            place = self._place(1 + index_S + (first.unsqueeze(1) if isinstance(first, Tensor) else first), ends)
            keys, values = y.chunk(2)
            y = torch.cat([self.position.rotate(keys.transpose(0, 1), place).transpose(0, 1), values])
        return y.permute(1, 2, 0, 3).reshape(B, S, N)

    def _place(self, slot: Tensor, ends: Tensor | int | None = None) -> Tensor:
        """Return the position of each slot (0: null), which is that of its last member."""
        place = slot * self.config.stride - 1
        if isinstance(ends, int):
            place = place.clamp(max=ends - 1)
        elif ends is not None:
            place = torch.minimum(place, ends.unsqueeze(1) - 1)
        return place.clamp(min=0)

    def _null(self, like_BSN: Tensor) -> Tensor:
        return self.null_N.to(like_BSN.dtype).expand(like_BSN.shape[0], 1, -1)

    def _compress_all(self, new_BTN: Tensor, mask_BT: Tensor | None) -> CompressedState:
        """Return all slots of a complete text; the last one may be padded with zeros."""
        line, seen = (new_BTN, new_BTN.shape[1]) if mask_BT is None else (compact(new_BTN, mask_BT), mask_BT.sum(1))
        line = F.pad(line, (0, 0, 0, -line.shape[1] % self.config.stride))
        slots = self._compress(line, 0, seen)
        return CompressedState(Growable(torch.cat([self._null(slots), slots], dim=1)), line[:, :0].clone(), seen)

    def _extend_uniform(self, new_BTN: Tensor, state: CompressedState | None) -> CompressedState:
        """Append the complete slots of new positions, for rows of equal length."""
        before, line_BLN = 0, new_BTN
        if state is not None:
            assert isinstance(state.seen, int)
            before, line_BLN = state.seen, torch.cat([state.rest_BRN, new_BTN], dim=1)
        complete = line_BLN.shape[1] // self.config.stride * self.config.stride
        slots = state.slots if state is not None else None
        if complete or slots is None:
            new = self._compress(line_BLN[:, :complete], before // self.config.stride)
            slots = slots.append(new) if slots is not None else Growable(torch.cat([self._null(new), new], dim=1))
        # A copy of the rest: a view would keep everything alive.
        return CompressedState(slots, line_BLN[:, complete:].clone(), before + new_BTN.shape[1])

    def _extend_ragged(self, new_BTN: Tensor, mask_BT: Tensor | None, state: CompressedState | None) -> CompressedState:
        """Append slots to rows of different lengths, from their positions without padding."""
        (B, T, N), device, stride = new_BTN.shape, new_BTN.device, self.config.stride
        real_BS = torch.ones(B, T, dtype=torch.bool, device=device) if mask_BT is None else mask_BT
        old, seen_B, both_BSN = self._null(new_BTN), torch.zeros(B, dtype=torch.long, device=device), new_BTN
        if state is not None:
            old, seen_B = state.slots.tensor, seen_B + state.seen
            both_BSN = torch.cat([state.rest_BRN, new_BTN], dim=1)
            waiting_BR = torch.arange(state.rest_BRN.shape[1], device=device) < (seen_B % stride)[:, None]
            real_BS = torch.cat([waiting_BR, real_BS], dim=1)
        line_BLN, length_B, first_B = compact(both_BSN, real_BS), real_BS.sum(dim=1), seen_B // stride
        seen_B = first_B * stride + length_B
        L = line_BLN.shape[1]
        new = self._compress(line_BLN[:, : L // stride * stride], first_B)
        # A row with fewer complete slots writes an incomplete one, which no query sees and which is overwritten later.
        column = 1 + first_B[:, None] + torch.arange(new.shape[1], device=device)
        missing = max(0, int(first_B.max()) + 1 + new.shape[1] - old.shape[1])
        grown = F.pad(old, (0, 0, 0, missing)).scatter(1, column.unsqueeze(-1).expand(-1, -1, N), new.to(old.dtype))
        grown = grown[:, : 1 + int((seen_B // stride).max())]
        rest_B = length_B % stride
        column = ((length_B - rest_B)[:, None] + torch.arange(int(rest_B.max()), device=device)).clamp(max=L - 1)
        return CompressedState(Growable(grown), line_BLN.gather(1, column.unsqueeze(-1).expand(-1, -1, N)), seen_B)

    # Reading.

    def _read(self, q_BHTK: Tensor, state: CompressedState, place: Tensor | None) -> Tensor:
        """Return what queries read from the slots; `place` is None for a cross mixer: its queries have no position."""
        k_BHSK, v_BHSK = self.project.split(state.slots.tensor, 2)
        causal, T = self.role == "causal", q_BHTK.shape[2]
        fused = not self._biased and map_sink() is None and has_kernel(q_BHTK.device)
        if causal and isinstance(state.seen, int) and T > 1 and fused:
            y_BHTK = attend_sparsely(q_BHTK, k_BHSK, v_BHSK, self._bands(T, k_BHSK.shape[2], state.seen))
            return self.project.merge(y_BHTK)
        parts = []
        # Without a bias all queries are read in one call: the mask is no larger than the slots, or there is none.
        step = BLOCK if map_sink() is None and (causal or self._biased) else max(1, T)
        for begin in range(0, T, step):
            end = min(begin + step, T)
            here = None if place is None else place[..., begin:end]
            keys = self._complete_slots(state.seen, place, T, end) if causal else k_BHSK.shape[2]
            arguments = q_BHTK[:, :, begin:end], k_BHSK[:, :, :keys], v_BHSK[:, :, :keys], here, state.seen
            if step < T and torch.is_grad_enabled():  # biases and masks of all blocks would take T x S numbers
                parts.append(checkpoint(self._read_block, *arguments, use_reentrant=False, preserve_rng_state=False))
            else:
                parts.append(self._read_block(*arguments))
        return self.project.merge(parts[0] if len(parts) == 1 else torch.cat(parts, dim=2))

    def _complete_slots(self, seen: int | Tensor, place: Tensor | None, queries: int, end: int) -> int:
        """Return the number of complete slots, null slot included, at query `end` - 1."""
        if isinstance(seen, int):
            return 1 + (seen - queries + end) // self.config.stride
        assert place is not None
        return 1 + (int(place[:, end - 1].max()) + 1) // self.config.stride

    @property
    def _biased(self) -> bool:
        """Return True if the position scheme adds a bias to the scores."""
        return bias_of(self.position) is not None

    def _bands(self, queries: int, keys: int, seen: int) -> list[Band]:
        """Return the keys that all queries of a block see as dense blocks, and the staircases at their ends."""
        near, far, before = [], [], seen - queries
        stairs = Staircase(self.config.stride, before - (keys - queries))
        for begin, end in _blocks(queries):
            # The newest slot that all queries see belongs to the staircase, so none of its rows is empty.
            corner = (before + begin + 1) // self.config.stride
            length = 1 + (before + end) // self.config.stride - corner
            near.append(Band(begin, corner, end - begin, length, sees=stairs.sees))
            if corner:
                far.append(Band(begin, 0, end - begin, corner, again=True))
        return [*near, *far]

    def _read_block(
        self, q_BHTK: Tensor, k_BHSK: Tensor, v_BHSK: Tensor, place: Tensor | None, seen: int | Tensor
    ) -> Tensor:
        slot_S = torch.arange(k_BHSK.shape[2], device=q_BHTK.device)
        bias = None
        if self.position is not None and place is not None:
            ends = seen if self.role == "bidirectional" else None
            bias = self.position.bias(q_BHTK, place, self._place(slot_S, ends))
        visible = None
        if self.role == "causal":
            if place is not None and (place.ndim == 2 or q_BHTK.shape[2] > 1):
                visible = (slot_S * self.config.stride <= place.unsqueeze(-1) + 1).unsqueeze(-3)
        elif isinstance(seen, Tensor):  # slots that start before the row ends, and the null slot
            visible = ((slot_S - 1) * self.config.stride < seen[:, None])[:, None, None]
        sink = map_sink()
        if sink is None:
            return soft_lookup(q_BHTK, k_BHSK, v_BHSK, bias=bias, visible=visible)
        alpha_BHTS = soft_alpha(q_BHTK, k_BHSK, bias, visible)
        sink(self, alpha_BHTS)
        return lookup(alpha_BHTS, v_BHSK)
