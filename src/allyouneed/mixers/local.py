"""Local attention: the text is split into blocks of b positions, and each position reads only its own block.

    head_h,t = softmax over s of (q_t . k_s / sqrt(K)) V,     s // b = t // b   (causal: and s <= t)

Blocks do not exchange information: combine such layers with global ones, as in T-DMCA (memory_compressed.py). With
`before`, a position also reads that number of blocks before its own, as in the Reformer's local layers; then a stack
reaches all positions.

Cost: O(T b D) time, O(b D) state, 1 sequential step, path 1 inside a block; other blocks are never reached. With a
blocks before: O(T (1 + a) b D) time, O(T D) state (all positions are kept), path T / (a b).
Paper: Liu et al. 2018, arXiv:1801.10198, section 4.2.4; blocks before: Kitaev et al. 2020, arXiv:2001.04451.
Differs: padding is not a position: a block has b real tokens. The last block may be shorter.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, final

import torch
from pydantic import NonNegativeInt, PositiveInt
from torch import Tensor
from torch.nn import functional as F

from allyouneed.mixers.base import Cost, Memory, Mixer, Role, Theory, map_sink, zero_padding
from allyouneed.mixers.lookup import soft_alpha, soft_lookup
from allyouneed.mixers.parts.block_sparse import Band, grouped
from allyouneed.mixers.parts.kv_cache import compact, count_positions, pack
from allyouneed.mixers.parts.patterned import Patterned, PatternedConfig
from allyouneed.mixers.parts.projections import Projections, refuse_state
from allyouneed.mixers.parts.state import Growable, join_numbers, join_padded
from allyouneed.positions import ScorePosition


class LocalConfig(PatternedConfig):
    summary = "each position reads its own block, and optionally some blocks before it"
    paper = "Liu et al. 2018, arXiv:1801.10198"
    theory = Theory("n b d + n d²", 1, 1, "1", "1, or never")
    family = "local attention"

    type: Literal["local"] = "local"
    block: PositiveInt = 256  # positions
    before: NonNegativeInt = 0  # number of earlier blocks that a position also reads

    def build(  # type: ignore[override]
        self, width: int, *, role: Role = "causal", position: ScorePosition | None = None
    ) -> "Local | Patterned":
        self.require(role, position)
        return Patterned(self, width, role, position) if self.before else Local(self, width, role, position)

    def bands(self, role: Role, queries: int, keys: int) -> tuple[Band, ...]:
        return _bands(self, role, queries, keys)

    def position_queries(self, length: int, role: Role) -> int:
        return super().position_queries(length, role) if self.before else length

    def cost(self, length: int, width: int, *, role: Role = "causal", memory: int | None = None) -> Cost:
        if self.before:
            kept, last = 8 * length * width if role == "causal" else 0, (length - 1) // self.block
            reached = max(1, -(-last // self.before))
            return Cost(self.attention_flops(role, length, width), kept, sequential=1, path=reached)
        blocks, rest = divmod(length, self.block)
        pairs = blocks * self.block**2 + rest**2
        state = 8 * rest * width if role == "causal" else 0
        path = 1 if length <= self.block else None
        return Cost(self.projection_flops(length, length, width) + 4 * pairs * width, state, sequential=1, path=path)


@lru_cache(maxsize=256)
def _bands(config: LocalConfig, role: Role, queries: int, keys: int) -> tuple[Band, ...]:
    """Return the bands: each block reads itself and those before it; if causal, up to each query."""
    size, earlier, blocks = config.block, keys - queries, []
    for block in range(earlier // size, -(-keys // size)):
        begin, end = max(earlier, block * size), min(keys, (block + 1) * size)
        start = max(0, block - config.before) * size
        blocks.append((begin - earlier, start, end - begin, end - start))
    return tuple(grouped(blocks, torch.ge if role == "causal" else None))


@dataclass(frozen=True)
class LocalState:
    """Keys and values of the block that is not complete yet."""

    kv_cache: Growable  # (B, S, N)
    filled_B: Tensor | None  # how many slots of each row are filled, from the left (None: all)

    @staticmethod
    def join(nodes: "Sequence[LocalState]", count_P: Tensor | None) -> "LocalState":
        """Join rows whose current blocks are filled to different lengths."""
        filled_B = join_numbers(
            [node.kv_cache.length if node.filled_B is None else node.filled_B for node in nodes], count_P
        )
        kv_cache = Growable(join_padded([node.kv_cache.tensor for node in nodes], 1))
        return LocalState(kv_cache, None if isinstance(filled_B, int) else filled_B)


@final
class Local(Mixer):
    def __init__(self, config: LocalConfig, width: int, role: Role, position: ScorePosition | None) -> None:
        super().__init__()
        self.config, self.role, self.position = config, role, position
        self.project = Projections(config, width, role)

    def forward(
        self,
        x_BTD: Tensor,
        *,
        mask_BT: Tensor | None = None,
        state: LocalState | None = None,
        memory: Memory | None = None,
    ) -> tuple[Tensor, LocalState | None]:
        if self.role == "bidirectional":
            refuse_state(state)
        packed_BTN = self.project.query_key_value(zero_padding(x_BTD, mask_BT))
        q_BHTK, k_BHTK, v_BHTK = self.project.split(packed_BTN, 3)
        new = packed_BTN[..., self.project.width :]
        place = count_positions(mask_BT, x_BTD.shape[1], x_BTD.device)  # counted from the start of the state's block
        if state is not None:
            place = place + (state.kv_cache.length if state.filled_B is None else state.filled_B.unsqueeze(1))
        if self.position is not None:  # only distances within a block matter
            inside = place % self.config.block
            q_BHTK, rotated_BHTK = self.position.rotate(q_BHTK, inside), self.position.rotate(k_BHTK, inside)
            if rotated_BHTK is not k_BHTK:
                new = pack(rotated_BHTK, v_BHTK)
        if mask_BT is None and (state is None or state.filled_B is None):
            return self._read_uniform(q_BHTK, new, place, state)
        return self._read_ragged(q_BHTK, new, place, mask_BT, state)

    def _read_uniform(
        self, q_BHTK: Tensor, new_BTN: Tensor, place_T: Tensor, state: LocalState | None
    ) -> tuple[Tensor, LocalState | None]:
        """Read rows of equal length."""
        line = Growable(new_BTN) if state is None else state.kv_cache.append(new_BTN)
        k_BHLK, v_BHLK = self.project.split(line.tensor, 2)
        L, T = line.length, q_BHTK.shape[2]
        self._show(q_BHTK, k_BHLK, place_T, None)
        if self.config.block >= L:
            y_BHTK = self._read_one_block(q_BHTK, k_BHLK, v_BHLK, place_T, None)
        else:
            q_BHLK = F.pad(q_BHTK, (0, 0, L - T, 0)) if T < L else q_BHTK
            y_BHTK = self._read_blocks(q_BHLK, k_BHLK, v_BHLK, None)[:, :, L - T :]
        y_BTD = self.project.merge(y_BHTK)
        if self.role == "bidirectional":
            return y_BTD, None
        if self.config.block <= L:  # a copy: a view would keep everything alive
            line = Growable(line.tensor[:, L // self.config.block * self.config.block :].clone())
        return y_BTD, LocalState(line, None)

    def _read_ragged(
        self, q_BHTK: Tensor, new_BTN: Tensor, place: Tensor, mask_BT: Tensor | None, state: LocalState | None
    ) -> tuple[Tensor, LocalState | None]:
        """Read rows of different lengths: each becomes a line without padding, which starts with its state's block."""
        (B, T, _), device = new_BTN.shape, new_BTN.device
        real_BS = torch.ones(B, T, dtype=torch.bool, device=device) if mask_BT is None else mask_BT
        both_BSN, R = new_BTN, 0
        if state is not None:
            R = state.kv_cache.length
            filled_B = torch.full((B,), R, device=device) if state.filled_B is None else state.filled_B
            both_BSN = torch.cat([state.kv_cache.tensor, new_BTN], dim=1)
            real_BS = torch.cat([torch.arange(R, device=device) < filled_B[:, None], real_BS], dim=1)
        line_BLN, length_B = compact(both_BSN, real_BS), real_BS.sum(dim=1)
        place_BT = place.expand(B, T)
        k_BHLK, v_BHLK = self.project.split(line_BLN, 2)
        L = line_BLN.shape[1]
        self._show(q_BHTK, k_BHLK, place_BT, length_B)
        if self.config.block >= L:
            y_BHTK = self._read_one_block(q_BHTK, k_BHLK, v_BHLK, place_BT, length_B)
        else:
            q_BSD = F.pad(q_BHTK.transpose(1, 2).flatten(2), (0, 0, R, 0))
            (q_BHLK,) = self.project.split(compact(q_BSD, real_BS), 1)
            y_BHLK = self._read_blocks(q_BHLK, k_BHLK, v_BHLK, length_B)
            index = place_BT[:, None, :, None].expand(-1, q_BHTK.shape[1], -1, q_BHTK.shape[3])
            y_BHTK = y_BHLK.gather(2, index.clamp(max=L - 1))  # padding may read anything
        y_BTD = self.project.merge(y_BHTK)
        if self.role == "bidirectional":
            return y_BTD, None
        rest_B = length_B % self.config.block
        column_BR = (length_B - rest_B)[:, None] + torch.arange(int(rest_B.max()), device=device)
        column_BR1 = column_BR.clamp(max=L - 1).unsqueeze(-1)
        return y_BTD, LocalState(Growable(line_BLN.gather(1, column_BR1.expand(-1, -1, line_BLN.shape[2]))), rest_B)

    def _read_one_block(
        self, q_BHTK: Tensor, k_BHLK: Tensor, v_BHLK: Tensor, place: Tensor, length_B: Tensor | None
    ) -> Tensor:
        """Read a line that fits into one block."""
        T, L = q_BHTK.shape[2], k_BHLK.shape[2]
        if L == 0:  # only padding
            return torch.zeros_like(q_BHTK)
        there_L = torch.arange(L, device=q_BHTK.device)
        bias = None if self.position is None else self.position.bias(q_BHTK, place, there_L)
        if length_B is None and (T == 1 or T == L or self.role == "bidirectional"):
            return soft_lookup(q_BHTK, k_BHLK, v_BHLK, bias=bias, causal=self.role == "causal" and T > 1)
        return soft_lookup(q_BHTK, k_BHLK, v_BHLK, bias=bias, visible=self._visible(place, there_L, length_B))

    def _read_blocks(self, q_BHLK: Tensor, k_BHLK: Tensor, v_BHLK: Tensor, length_B: Tensor | None) -> Tensor:
        """Read a line that starts at a block boundary: complete blocks as rows of a larger batch, then the rest."""
        B, L, size = q_BHLK.shape[0], q_BHLK.shape[2], self.config.block
        whole = L // size * size
        q, k, v = (_as_rows(x[:, :, :whole], size) for x in (q_BHLK, k_BHLK, v_BHLK))
        place_T = torch.arange(size, device=q.device)
        lengths = None
        if length_B is not None:  # of the blocks of each row
            lengths = length_B[:, None] - torch.arange(0, whole, size, device=q.device)
            lengths = lengths.clamp(0, size).flatten()
        # The kernel stores heads next to each other, as `merge` needs them: these are views, not copies.
        y = self._read_one_block(q, k, v, place_T, lengths).transpose(1, 2)
        y = y.unflatten(0, (B, -1)).flatten(1, 2).transpose(1, 2)
        if whole == L:
            return y
        q, k, v = (x[:, :, whole:] for x in (q_BHLK, k_BHLK, v_BHLK))
        left = None if length_B is None else (length_B - whole).clamp(min=0)
        return torch.cat([y, self._read_one_block(q, k, v, place_T[: L - whole], left)], dim=2)

    def _visible(self, place: Tensor, there_L: Tensor, length_B: Tensor | None) -> Tensor:
        """Return which position reads which, broadcastable to (B, H, T, L)."""
        here = place.unsqueeze(-1).unsqueeze(-3)
        visible = here // self.config.block == there_L // self.config.block
        if self.role == "causal":
            visible = visible & (there_L <= here)
        elif length_B is not None:
            visible = visible & (there_L < length_B[:, None, None, None])
        return visible

    def _show(self, q_BHTK: Tensor, k_BHLK: Tensor, place: Tensor, length_B: Tensor | None) -> None:
        if (sink := map_sink()) is not None:
            there_L = torch.arange(k_BHLK.shape[2], device=place.device)
            bias = None if self.position is None else self.position.bias(q_BHTK, place, there_L)
            sink(self, soft_alpha(q_BHTK, k_BHLK, bias, self._visible(place, there_L, length_B)))


def _as_rows(x_BHLK: Tensor, size: int) -> Tensor:
    """Reshape (B, H, N size, K) to (B N, H, size, K)."""
    return x_BHLK.unflatten(2, (-1, size)).transpose(1, 2).flatten(0, 1)
