"""Run a stack of blocks as one call (kernels/stack.c), if all its blocks are ordinary.

An ordinary block has softmax attention, rotary positions or none in the score, a cross mixer with as many key heads as
query heads or none, a feed-forward layer of ReLU, SiLU or GELU by tanh, gated or not, and norms before or after. Other
stacks, and calls with gradients, recorded maps or another device, run block by block in torch. Both give the same
output.

    encoder    sentences are concatenated, so that padding costs nothing
    decoder    selecting, repeating or dropping rows copies nothing: `FusedState` records where each slot is
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from allyouneed import kernels
from allyouneed.block import FUNCTIONS, Block, BlockState, FeedForward
from allyouneed.inference.back_reference import BackReference
from allyouneed.kernels.stack import AttentionShape, CosSin, Memories, Norm, PackedBlock, PackedStack, StackCache
from allyouneed.mixers import Memory
from allyouneed.mixers.base import map_sink
from allyouneed.mixers.parts.kv_cache import CrossState, SoftmaxState, extend_mask, first_visible, visible_length
from allyouneed.mixers.parts.state import Growable, join_numbers, join_padded, join_rows
from allyouneed.mixers.softmax import Softmax
from allyouneed.models.parts.stack import Stack, StackState
from allyouneed.positions import Rotary

# Longest source that the kernel encodes. It reads positions one by one, which takes quadratic time; for longer sources
# torch's attention over all pairs at once is faster.
SHORT = 128
NUMBERS = {FUNCTIONS["relu"]: 0, FUNCTIONS["silu"]: 1, FUNCTIONS["gelu-tanh"]: 2}  # of functions, as in kernels.h
# The attributes that the kernel computes.
NORMS = {"mixer_norm", "cross_norm", "feedforward_norm"}
BLOCK = {"norm_place", "streams", "parallel", "mixer", "cross", "feedforward", "dropout", "add_residual", *NORMS}
SOFTMAX = {"heads", "role", "position", "groups", "scale", "queries", "keys", "values", "advance"}
SOFTMAX |= {"normed", "score_cap", "window"}  # only without them
SOFTMAX |= {"query", "key_value", "query_key_value", "output"}
ROTARY = {"frequency_R", "_cached_waves"}
FEEDFORWARD = {"gated", "function", "inner", "outer"}


def is_fusable(stack: Stack) -> bool:
    """Return whether all blocks are ordinary and have the same positions."""
    blocks = [block for block in stack.blocks if isinstance(block, Block)]
    if not blocks or not all(map(_is_ordinary, blocks)) or len({_cache_width(block) for block in blocks}) > 1:
        return False
    positions = [getattr(block.mixer, "position", None) for block in blocks]
    rotary = [position for position in positions if isinstance(position, Rotary)]
    return not rotary or (
        len(rotary) == len(blocks) and all(torch.equal(one.frequency_R, rotary[0].frequency_R) for one in rotary)
    )


def _is_ordinary(block: Block) -> bool:
    mixer, cross, feed = block.mixer, block.cross, block.feedforward
    return (
        _has_only(block, Block, BLOCK)
        and _has_only(mixer, Softmax, SOFTMAX)
        and isinstance(mixer, Softmax)
        and mixer.role in ("causal", "bidirectional")
        and _is_plain(mixer)
        and (mixer.position is None or _has_only(mixer.position, Rotary, ROTARY))
        and (cross is None or _is_ordinary_cross(cross))
        and _has_only(feed, FeedForward, FEEDFORWARD)
        and feed.function in NUMBERS
        and (not feed.gated or feed.function is not torch.relu_)
        and block.norm_place in ("pre", "post")
        and block.streams == 1
        and not block.parallel
    )


def _is_plain(mixer: Softmax) -> bool:
    return not mixer.normed and mixer.score_cap is None and mixer.window is None


def _is_ordinary_cross(cross: nn.Module) -> bool:
    known = _has_only(cross, Softmax, SOFTMAX)
    return known and isinstance(cross, Softmax) and _is_plain(cross) and cross.groups == cross.heads


def _has_only(module: nn.Module, kind: type[nn.Module], known: set[str]) -> bool:
    """Return whether a module has only attributes that the kernel takes into account: what is added later, it lacks."""
    own = vars(module).keys() - vars(nn.Module()).keys() | module._parameters.keys() | module._buffers.keys()
    return type(module) is kind and own | module._modules.keys() <= known


def _cache_width(block: Block) -> int:
    """Return how many numbers the key-value cache has for one position."""
    assert isinstance(block.mixer, Softmax)
    return block.mixer.keys + block.mixer.values


def fuse(stack: Stack) -> None:
    """Replace `forward` and `advance` of a fusable stack with optimized layers by the fused ones."""
    fused = FusedStack(stack)
    stack.__dict__ |= {"forward": fused.forward, "advance": fused.advance}


@dataclass(frozen=True)
class FusedState:
    """The state of a fused decoder. The slots of a row may be in any row of the key-value cache."""

    kv_cache: StackCache  # of all blocks, in P rows
    order_BS: Tensor | None  # which of the P rows holds each slot; None: row b holds those of row b
    mask_BS: Tensor | None  # the padding mask, the same for all blocks
    crosses: tuple[CrossState, ...]  # keys and values of the memory, for each block; may be empty
    memories: Memories | None  # the same for the kernel
    memory_B: Tensor | None  # the memory that each row reads; None: row b reads memory b
    seen: int | Tensor

    def select(self, rows_B: Tensor) -> "FusedState":
        """Return some rows, in the given order, without copying keys or values."""
        order_PS = self.order_BS
        if order_PS is None:
            order_PS = torch.arange(self.kv_cache.rows)[:, None].expand(-1, self.kv_cache.length)
        chosen_B = rows_B.long().clone(memory_format=torch.contiguous_format)  # a copy: a state is a value
        memory_B = chosen_B if self.memory_B is None else self.memory_B.index_select(0, rows_B)
        return replace(
            self,
            order_BS=order_PS.index_select(0, rows_B),
            mask_BS=None if self.mask_BS is None else self.mask_BS.index_select(0, rows_B),
            memory_B=memory_B if self.crosses else None,
            seen=self.seen.index_select(0, rows_B) if isinstance(self.seen, Tensor) else self.seen,
        )

    @staticmethod
    def join(nodes: "Sequence[FusedState | StackState]", count_P: Tensor | None) -> "FusedState | StackState":
        """Return the rows of several states as one batch."""
        fused = [node for node in nodes if isinstance(node, FusedState)]
        if len(fused) < len(nodes):
            return join_rows([as_stack_state(node) for node in nodes], count_P)
        masks = [node._mask() for node in fused]
        lengths = [mask_BS.shape[1] for mask_BS in masks]
        mask_BS = join_padded(masks, 1, left=True)
        kv_cache = StackCache.joined([(node.kv_cache, node.order_BS) for node in fused], lengths)
        seen = join_numbers([node.seen for node in fused], count_P)
        joined = FusedState(kv_cache, None, None if bool(mask_BS.all()) else mask_BS, (), None, None, seen)
        return joined.with_memories(_join_crosses([(node.crosses, node.memory_B) for node in fused]))

    def _mask(self) -> Tensor:
        """Return the mask without the slots before the first one that any row sees."""
        if self.mask_BS is None:
            rows = self.kv_cache.rows if self.order_BS is None else self.order_BS.shape[0]
            return torch.ones(rows, self.kv_cache.length, dtype=torch.bool)
        return self.mask_BS[:, first_visible(self.mask_BS) :]

    def with_memories(self, crosses: Sequence[CrossState]) -> "FusedState":
        """Return the same state with memories, if there are any."""
        if not crosses:
            return self
        crosses = [replace(cross.by_rows(), sharing=1) for cross in crosses]  # `memory_B` replaces it
        memories = Memories([(one.k_NHSK, one.v_NHSR) for one in crosses], crosses[0].mask_NS)
        rows, memory_B = self.kv_cache.rows, None
        if rows != memories.rows:
            memory_B = torch.arange(memories.rows).repeat_interleave(rows // memories.rows)
        return replace(self, crosses=tuple(crosses), memories=memories, memory_B=memory_B)


def _join_crosses(parts: Sequence[tuple[tuple[CrossState, ...], Tensor | None]]) -> list[CrossState]:
    """Return the memories of all rows of several states, one for each row."""
    if not parts[0][0]:
        return []
    slots = [_row_slots(crosses[0], memory_B) for crosses, memory_B in parts]  # the same for all blocks
    orders, joined_mask = [order for order, _ in slots], join_padded([mask for _, mask in slots], 1)
    mask = None if bool(joined_mask.all()) else joined_mask
    joined = []
    for each in zip(*(crosses for crosses, _ in parts), strict=True):
        keys = _join_slots([one.k_NHSK for one in each], orders, joined_mask.shape[1])
        values = _join_slots([one.v_NHSR for one in each], orders, joined_mask.shape[1])
        joined.append(CrossState(keys, values, mask))
    return joined


def _row_slots(cross: CrossState, memory_B: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return which memory holds each slot of each row, and the mask, without slots after the last that any row sees."""
    N, _, S, _ = cross.k_NHSK.shape
    row_B = torch.arange(N) if memory_B is None else memory_B
    real_NS = torch.ones(N, S, dtype=torch.bool) if cross.mask_NS is None else cross.mask_NS.expand(N, S)
    mask_BS = real_NS[row_B]
    length = visible_length(mask_BS)
    return row_B[:, None].expand(-1, length), mask_BS[:, :length]


def _join_slots(parts: Sequence[Tensor], orders: Sequence[Tensor], slots: int) -> Tensor:
    """Return the keys or values of some rows of each part, padded on the right with zeros: (B, H, S, K)."""
    _, H, _, K = parts[0].shape
    rows = [order.shape[0] for order in orders]
    joined_BSM = parts[0].new_zeros(sum(rows), slots, H * K)
    for part, order, to in zip(parts, orders, joined_BSM.split(rows), strict=True):
        length = order.shape[1]
        by_slots = part.transpose(1, 2).flatten(2)  # (N, S, M); a view if heads are contiguous
        kernels.gather(by_slots[:, :length], to[:, :length], order)
    return joined_BSM.unflatten(2, (H, K)).transpose(1, 2)


def as_stack_state(state: FusedState | StackState) -> StackState:
    """Return the state as a plain stack has it."""
    if isinstance(state, StackState):
        return state
    kv_cache = state.kv_cache if state.order_BS is None else state.kv_cache.gathered(state.order_BS)
    caches = [SoftmaxState(Growable(one), state.mask_BS) for one in kv_cache.tensor_LPSN]
    if not state.crosses:
        return StackState(tuple(BlockState(cache) for cache in caches), None, state.seen)
    crosses = [cross if state.memory_B is None else cross.select(state.memory_B) for cross in state.crosses]
    return StackState(tuple(map(BlockState, caches, crosses)), None, state.seen)


class FusedStack:
    """`Stack.forward` and `Stack.advance` of a fusable stack."""

    def __init__(self, stack: Stack) -> None:
        self._stack = BackReference(stack)
        self._blocks = [block for block in stack.blocks if isinstance(block, Block)]
        self._mixers = [mixer for block in self._blocks if isinstance(mixer := block.mixer, Softmax)]
        self._attentions = [_attention(mixer) for mixer in self._mixers]
        self._rotary = self._mixers[0].position
        self._is_encoder = self._mixers[0].role == "bidirectional"
        self._packed: PackedStack | None = None

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_packed": None}  # a copy packs its own weights

    def forward(
        self, x_BSD: Tensor, state: FusedState | StackState, mask_BS: Tensor | None = None
    ) -> tuple[Tensor, StackState]:
        """Run an encoder over whole sentences in one call, or fall back to the blocks."""
        B, S, _ = x_BSD.shape
        fresh = isinstance(state, StackState) and not any(state.blocks)
        if self._is_encoder and fresh and 0 < S <= SHORT and kernels.few_rows(B * S) and self._usable(x_BSD):
            length_B = torch.full((B,), S) if mask_BS is None else mask_BS.sum(dim=1)
            if mask_BS is None or torch.equal(mask_BS, torch.arange(S) < length_B[:, None]):  # padding is on the right
                after = StackState((BlockState(None),) * len(self._blocks), None, S if mask_BS is None else length_B)
                return self._encode(x_BSD, length_B, mask_BS), after
        return Stack.forward(self._stack(), x_BSD, as_stack_state(state), mask_BS)

    def _encode(self, x_BSD: Tensor, length_B: Tensor, mask_BS: Tensor | None) -> Tensor:
        x_MD = x_BSD.flatten(0, 1) if mask_BS is None else x_BSD[mask_BS]
        longest = x_BSD.shape[1]
        y_MD = self._pack().encode(x_MD, length_B, longest, self._cos_sin(longest, x_MD))
        if mask_BS is None:
            return y_MD.view_as(x_BSD)
        return torch.zeros_like(x_BSD).index_put_((mask_BS,), y_MD)

    def advance(self, x_BD: Tensor, state: FusedState | StackState) -> tuple[Tensor, FusedState | StackState]:
        """Run one new position of each row in one call, or fall back to the blocks."""
        ready = self._as_fused(state, x_BD) if self._usable(x_BD) else None
        if ready is None:
            return Stack.advance(self._stack(), x_BD, as_stack_state(state))
        rows, kv_cache, order_BS, seen = x_BD.shape[0], ready.kv_cache, ready.order_BS, ready.seen
        if order_BS is not None and (
            rows > kv_cache.rows or not kv_cache.has_slot
        ):  # it must be copied anyway: gather it at once
            kv_cache, order_BS = kv_cache.gathered(order_BS), None
        mask_BS = extend_mask(ready.mask_BS, None, rows, kv_cache.length, 1)
        kv_cache = kv_cache.with_slot()
        if order_BS is not None:
            order_BS = torch.cat([order_BS, torch.arange(rows)[:, None]], dim=1)
        cos_sin, place_B = None, None
        if isinstance(seen, Tensor):
            place_B = seen.contiguous()
            cos_sin = self._cos_sin(int(place_B.max()) + 1, x_BD)
        elif (known := self._cos_sin(seen + 1, x_BD)) is not None:
            cos_sin = known[0][seen], known[1][seen]
        memories, memory_B = ready.memories, ready.memory_B
        y_BD = self._pack().advance(x_BD, kv_cache, mask_BS, order_BS, memories, memory_B, cos_sin, place_B)
        return y_BD, FusedState(kv_cache, order_BS, mask_BS, ready.crosses, memories, memory_B, seen + 1)

    def _usable(self, x: Tensor) -> bool:
        return kernels.usable(x) and x.shape[0] > 0 and map_sink() is None

    def _cos_sin(self, count: int, like: Tensor) -> CosSin | None:
        return self._rotary.first_waves(count, like) if isinstance(self._rotary, Rotary) else None

    def _pack(self) -> PackedStack:
        if self._packed is None:
            norm = self._stack().norm
            last = None if isinstance(norm, nn.Identity) else _norm(norm)
            self._packed = PackedStack([_layer(block) for block in self._blocks], last)
        return self._packed

    def _as_fused(self, state: FusedState | StackState, x_BD: Tensor) -> FusedState | None:
        """Return the state in fused form; None if that is impossible."""
        if isinstance(state, FusedState):
            return state
        if not any(state.blocks):
            return self._start(state.memory, x_BD)
        caches = [block.mixer for block in state.blocks if block and isinstance(block.mixer, SoftmaxState)]
        crosses = [block.cross for block in state.blocks if block and isinstance(block.cross, CrossState)]
        reads = self._blocks[0].cross is not None
        if len(caches) < len(self._blocks) or len(crosses) < len(self._blocks) * reads:
            return None
        kv_cache = StackCache.of([cache.kv_cache.tensor for cache in caches], self._attentions)
        return FusedState(kv_cache, None, caches[0].mask_BS, (), None, None, state.seen).with_memories(crosses)

    def _start(self, memory: Memory | None, x_BD: Tensor) -> FusedState | None:
        """Return the state before the first position."""
        nothing_B0M = x_BD.new_empty(x_BD.shape[0], 0, _cache_width(self._blocks[0]))
        kv_cache = StackCache.of([nothing_B0M] * len(self._blocks), self._attentions)
        crosses = []
        for cross in [block.cross for block in self._blocks if isinstance(block.cross, Softmax)]:
            if memory is None or x_BD.shape[0] % memory.x_BSD.shape[0]:
                return None
            k_NHSK, v_NHSR = cross.keys_values(cross.key_value(memory.x_BSD))
            crosses.append(CrossState(k_NHSK, v_NHSR, memory.mask_BS))
        return FusedState(kv_cache, None, None, (), None, None, 0).with_memories(crosses)


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
        NUMBERS[feed.function],
        feed.gated,
    )


def _norm(norm: nn.Module) -> Norm:
    weight, bias, epsilon = norm.weight, norm.bias, norm.eps
    assert isinstance(weight, Tensor)
    assert isinstance(epsilon, float)
    return Norm(weight.detach().clone(), bias.detach().clone() if isinstance(bias, Tensor) else None, epsilon)


def _attention(mixer: Softmax) -> AttentionShape:
    keys, values = mixer.keys // mixer.groups, mixer.values // mixer.groups
    return AttentionShape(mixer.heads, mixer.heads // mixer.groups, keys, values, mixer.scale)
