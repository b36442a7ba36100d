"""A stack of blocks as one call (kernels/stack.c), where all its blocks are of the ordinary kind.

Ordinary: softmax attention with as many keys as queries, no positions inside the score or rotary ones, a memory that is
read likewise or none, ReLU, norms before or after. Other stacks, and every call that needs something else (gradients,
maps, another device), go the usual way; both give the same.

    encoder    sentences lie one behind the other, so that padding costs nothing
    decoder    rows that are chosen, repeated or dropped are not copied: `FusedState` notes where they lie
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from allyouneed import kernels
from allyouneed.block import Block, BlockState
from allyouneed.kernels.stack import Attention, CosSin, Memories, Norm, PackedBlock, PackedStack, StackCache
from allyouneed.mixers import Memory
from allyouneed.mixers.base import map_sink
from allyouneed.mixers.parts.kv_cache import CrossState, SoftmaxState, behind_last_seen, extend_valid, first_seen
from allyouneed.mixers.parts.state import Growable, join_numbers, join_padded, join_rows
from allyouneed.mixers.softmax import Softmax
from allyouneed.models.parts.stack import Stack, StackState
from allyouneed.positions import Rotary

# Positions of a source up to which each reads all others one by one. That takes their number squared; where it counts,
# torch's attention over all pairs at once is faster.
SHORT = 128


def fits(stack: Stack) -> bool:
    """Whether all blocks are of the ordinary kind, and their positions the same."""
    blocks = [block for block in stack.blocks if isinstance(block, Block)]
    if not blocks or not all(map(_ordinary, blocks)) or len({_kept(block) for block in blocks}) > 1:
        return False
    positions = [getattr(block.mixer, "position", None) for block in blocks]
    turns = [position for position in positions if isinstance(position, Rotary)]
    return not turns or (
        len(turns) == len(blocks) and all(torch.equal(one.frequency_R, turns[0].frequency_R) for one in turns)
    )


def _ordinary(block: Block) -> bool:
    mixer, cross, feed = block.mixer, block.cross, block.feedforward
    return (
        isinstance(mixer, Softmax)
        and mixer.role in ("causal", "bidirectional")
        and mixer.groups == mixer.heads
        and (mixer.position is None or isinstance(mixer.position, Rotary))
        and (cross is None or (isinstance(cross, Softmax) and cross.groups == cross.heads))
        and not feed.gated
        and feed.function is torch.relu_
        and block.norm_place != "none"
        and block.streams == 1
    )


def _kept(block: Block) -> int:
    """Numbers that the past keeps of a position."""
    assert isinstance(block.mixer, Softmax)
    return block.mixer.keys + block.mixer.values


def fuse(stack: Stack) -> None:
    """From now on a stack that fits, laid out for prediction, runs as one call where it can."""
    fused = FusedStack(stack)
    stack.__dict__ |= {"forward": fused.forward, "advance": fused.advance}


@dataclass(frozen=True)
class FusedState:
    """What the past leaves behind in a fused decoder. Its rows may lie anywhere in what is kept."""

    past: StackCache  # of all blocks, in P rows
    order_BS: Tensor | None  # in which of the P rows each slot lies; None: row b in row b
    mask_BS: Tensor | None  # as for all blocks
    crosses: tuple[CrossState, ...]  # the memories of each block, or none
    memories: Memories | None  # the same for the kernel
    which_B: Tensor | None  # which memory a row reads; None: row b reads memory b
    seen: int | Tensor

    def select(self, rows_B: Tensor) -> "FusedState":
        """Some rows, in the given order; nothing large is copied."""
        order_PS = self.order_BS
        if order_PS is None:
            order_PS = torch.arange(self.past.rows)[:, None].expand(-1, self.past.length)
        chosen_B = rows_B.long().clone(memory_format=torch.contiguous_format)  # of its own: a state is a value
        which_B = chosen_B if self.which_B is None else self.which_B.index_select(0, rows_B)
        return replace(
            self,
            order_BS=order_PS.index_select(0, rows_B),
            mask_BS=None if self.mask_BS is None else self.mask_BS.index_select(0, rows_B),
            which_B=which_B if self.crosses else None,
            seen=self.seen.index_select(0, rows_B) if isinstance(self.seen, Tensor) else self.seen,
        )

    @staticmethod
    def join(nodes: "Sequence[FusedState | StackState]", count_P: Tensor | None) -> "FusedState | StackState":
        """Rows of several side by side."""
        fused = [node for node in nodes if isinstance(node, FusedState)]
        if len(fused) < len(nodes):
            return join_rows([settled(node) for node in nodes], count_P)
        masks = [node._mask() for node in fused]
        lengths = [mask_BS.shape[1] for mask_BS in masks]
        mask_BS = join_padded(masks, 1, left=True)
        past = StackCache.joined([(node.past, node.order_BS) for node in fused], lengths)
        seen = join_numbers([node.seen for node in fused], count_P)
        joined = FusedState(past, None, None if bool(mask_BS.all()) else mask_BS, (), None, None, seen)
        return joined.reading(_join_crosses([(node.crosses, node.which_B) for node in fused]))

    def _mask(self) -> Tensor:
        """Which slots a row sees, without those before the first that any row does."""
        if self.mask_BS is None:
            rows = self.past.rows if self.order_BS is None else self.order_BS.shape[0]
            return torch.ones(rows, self.past.length, dtype=torch.bool)
        return self.mask_BS[:, first_seen(self.mask_BS) :]

    def reading(self, crosses: Sequence[CrossState]) -> "FusedState":
        """The same beside memories, if there are any."""
        if not crosses:
            return self
        crosses = [replace(cross.by_rows(), sharing=1) for cross in crosses]  # `which` says who reads what
        memories = Memories([(one.k_NHSK, one.v_NHSR) for one in crosses], crosses[0].mask_NS)
        rows, which_B = self.past.rows, None
        if rows != memories.rows:
            which_B = torch.arange(memories.rows).repeat_interleave(rows // memories.rows)
        return replace(self, crosses=tuple(crosses), memories=memories, which_B=which_B)


def _join_crosses(parts: Sequence[tuple[tuple[CrossState, ...], Tensor | None]]) -> list[CrossState]:
    """The memories of all rows of several states, one for each row."""
    if not parts[0][0]:
        return []
    wanted = [_wanted(crosses[0], which) for crosses, which in parts]  # the same for all blocks
    orders, valid = [order for order, _ in wanted], join_padded([mask for _, mask in wanted], 1)
    seen = None if bool(valid.all()) else valid
    joined = []
    for each in zip(*(crosses for crosses, _ in parts), strict=True):
        keys = _join_slots([one.k_NHSK for one in each], orders, valid.shape[1])
        values = _join_slots([one.v_NHSR for one in each], orders, valid.shape[1])
        joined.append(CrossState(keys, values, seen))
    return joined


def _wanted(cross: CrossState, which_B: Tensor | None) -> tuple[Tensor, Tensor]:
    """In which memory the slots of each row lie, and which are real; without those that no row sees at the end."""
    N, _, S, _ = cross.k_NHSK.shape
    row_B = torch.arange(N) if which_B is None else which_B
    real_NS = torch.ones(N, S, dtype=torch.bool) if cross.mask_NS is None else cross.mask_NS.expand(N, S)
    mask_BS = real_NS[row_B]
    length = behind_last_seen(mask_BS)
    return row_B[:, None].expand(-1, length), mask_BS[:, :length]


def _join_slots(parts: Sequence[Tensor], orders: Sequence[Tensor], slots: int) -> Tensor:
    """Keys or values of some rows of each part, padded with zeros behind: (B, H, S, K)."""
    _, H, _, K = parts[0].shape
    rows = [order.shape[0] for order in orders]
    joined_BSM = parts[0].new_zeros(sum(rows), slots, H * K)
    for part, order, to in zip(parts, orders, joined_BSM.split(rows), strict=True):
        length = order.shape[1]
        by_slots = part.transpose(1, 2).flatten(2)  # (N, S, M), a view where heads follow each other
        kernels.gather(by_slots[:, :length], to[:, :length], order)
    return joined_BSM.unflatten(2, (H, K)).transpose(1, 2)


def settled(state: FusedState | StackState) -> StackState:
    """The state as any stack has it."""
    if isinstance(state, StackState):
        return state
    past = state.past if state.order_BS is None else state.past.gathered(state.order_BS)
    pasts = [SoftmaxState(Growable(one), state.mask_BS) for one in past.tensor_LPSN]
    if not state.crosses:
        return StackState(tuple(BlockState(past) for past in pasts), None, state.seen)
    crosses = [cross if state.which_B is None else cross.select(state.which_B) for cross in state.crosses]
    return StackState(tuple(map(BlockState, pasts, crosses)), None, state.seen)


class FusedStack:
    """`Stack.forward` and `Stack.advance` of a stack that fits."""

    def __init__(self, stack: Stack) -> None:
        self._stack = stack
        self._blocks = [block for block in stack.blocks if isinstance(block, Block)]
        self._mixers = [mixer for block in self._blocks if isinstance(mixer := block.mixer, Softmax)]
        self._attentions = [_attention(mixer) for mixer in self._mixers]
        self._turns = self._mixers[0].position
        self._encodes = self._mixers[0].role == "bidirectional"
        self._packed: PackedStack | None = None

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_packed": None}  # a copy packs its own

    def forward(
        self, x_BSD: Tensor, state: FusedState | StackState, mask_BS: Tensor | None = None
    ) -> tuple[Tensor, StackState]:
        """All positions of some sentences at once, if they are an encoder's."""
        B, S, _ = x_BSD.shape
        fresh = isinstance(state, StackState) and not any(state.blocks)
        if self._encodes and fresh and 0 < S <= SHORT and kernels.few_rows(B * S) and self._usable(x_BSD):
            length_B = torch.full((B,), S) if mask_BS is None else mask_BS.sum(dim=1)
            if mask_BS is None or torch.equal(mask_BS, torch.arange(S) < length_B[:, None]):  # padding stands behind
                after = StackState((BlockState(None),) * len(self._blocks), None, S if mask_BS is None else length_B)
                return self._encoded(x_BSD, length_B, mask_BS), after
        return Stack.forward(self._stack, x_BSD, settled(state), mask_BS)

    def _encoded(self, x_BSD: Tensor, length_B: Tensor, mask_BS: Tensor | None) -> Tensor:
        x_MD = x_BSD.flatten(0, 1) if mask_BS is None else x_BSD[mask_BS]
        longest = x_BSD.shape[1]
        y_MD = self._pack().encode(x_MD, length_B, longest, self._waves(longest, x_MD))
        if mask_BS is None:
            return y_MD.view_as(x_BSD)
        return torch.zeros_like(x_BSD).index_put_((mask_BS,), y_MD)

    def advance(self, x_BD: Tensor, state: FusedState | StackState) -> tuple[Tensor, FusedState | StackState]:
        """One new position of each row."""
        ready = self._fused(state, x_BD) if self._usable(x_BD) else None
        if ready is None:
            return Stack.advance(self._stack, x_BD, settled(state))
        rows, past, order_BS, seen = x_BD.shape[0], ready.past, ready.order_BS, ready.seen
        if order_BS is not None and (rows > past.rows or not past.has_slot):  # copied anyway: only what is needed
            past, order_BS = past.gathered(order_BS), None
        mask_BS = extend_valid(ready.mask_BS, None, rows, past.length, 1)
        past = past.with_slot()
        if order_BS is not None:
            order_BS = torch.cat([order_BS, torch.arange(rows)[:, None]], dim=1)
        waves, place_B = None, None
        if isinstance(seen, Tensor):
            place_B = seen.contiguous()
            waves = self._waves(int(place_B.max()) + 1, x_BD)
        elif (known := self._waves(seen + 1, x_BD)) is not None:
            waves = known[0][seen], known[1][seen]
        memories, which_B = ready.memories, ready.which_B
        y_BD = self._pack().advance(x_BD, past, mask_BS, order_BS, memories, which_B, waves, place_B)
        return y_BD, FusedState(past, order_BS, mask_BS, ready.crosses, memories, which_B, seen + 1)

    def _usable(self, x: Tensor) -> bool:
        return kernels.usable(x) and x.shape[0] > 0 and map_sink() is None

    def _waves(self, count: int, like: Tensor) -> CosSin | None:
        return self._turns.first_waves(count, like) if isinstance(self._turns, Rotary) else None

    def _pack(self) -> PackedStack:
        if self._packed is None:
            norm = self._stack.norm
            last = None if isinstance(norm, nn.Identity) else _norm(norm)
            self._packed = PackedStack([_layer(block) for block in self._blocks], last)
        return self._packed

    def _fused(self, state: FusedState | StackState, x_BD: Tensor) -> FusedState | None:
        """The state as it is kept here; None if that cannot be."""
        if isinstance(state, FusedState):
            return state
        if not any(state.blocks):
            return self._first(state.memory, x_BD)
        pasts = [block.mixer for block in state.blocks if block and isinstance(block.mixer, SoftmaxState)]
        crosses = [block.cross for block in state.blocks if block and isinstance(block.cross, CrossState)]
        reads = self._blocks[0].cross is not None
        if len(pasts) < len(self._blocks) or len(crosses) < len(self._blocks) * reads:
            return None
        kept = StackCache.of([past.past.tensor for past in pasts], self._attentions)
        return FusedState(kept, None, pasts[0].mask_BS, (), None, None, state.seen).reading(crosses)

    def _first(self, memory: Memory | None, x_BD: Tensor) -> FusedState | None:
        """The state before the first position."""
        nothing_B0M = x_BD.new_empty(x_BD.shape[0], 0, _kept(self._blocks[0]))
        past = StackCache.of([nothing_B0M] * len(self._blocks), self._attentions)
        crosses = []
        for cross in [block.cross for block in self._blocks if isinstance(block.cross, Softmax)]:
            if memory is None or x_BD.shape[0] % memory.x_BSD.shape[0]:
                return None
            k_NHSK, v_NHSR = cross.keys_values(cross.key_value(memory.x_BSD))
            crosses.append(CrossState(k_NHSK, v_NHSR, memory.mask_BS))
        return FusedState(past, None, None, (), None, None, 0).reading(crosses)


def _layer(block: Block) -> PackedBlock:
    mixer, cross, feed = block.mixer, block.cross, block.feedforward
    assert isinstance(mixer, Softmax)
    matrices = {"query_key_value": mixer.query_key_value, "mixed": mixer.output}
    norms = {"mixer_norm": block.mixer_norm, "feedforward_norm": block.feedforward_norm}
    if isinstance(cross, Softmax):
        matrices |= {"query": cross.query, "crossed": cross.output}
        norms |= {"cross_norm": block.cross_norm}
    matrices |= {"inner": feed.inner, "outer": feed.outer}
    return PackedBlock(
        {name: layer.product.packed() for name, layer in matrices.items()},  # type: ignore[operator, union-attr]
        {name: _norm(norm) for name, norm in norms.items()},
        _attention(mixer),
        _attention(cross) if isinstance(cross, Softmax) else None,
        block.norm_place == "pre",
    )


def _norm(norm: nn.Module) -> Norm:
    weight, bias, epsilon = norm.weight, norm.bias, norm.eps
    assert isinstance(weight, Tensor)
    assert isinstance(epsilon, float)
    return Norm(weight.detach().clone(), bias.detach().clone() if isinstance(bias, Tensor) else None, epsilon)


def _attention(mixer: Softmax) -> Attention:
    return Attention(mixer.heads, mixer.keys // mixer.groups, mixer.values // mixer.groups, mixer.scale)
