"""A whole stack of blocks as one call (stack.c)."""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from allyouneed.kernels.adapted import AdaptedMatrix
from allyouneed.kernels.build import functions
from allyouneed.kernels.header import HEADER
from allyouneed.kernels.products import Packed, PackedInt8
from allyouneed.kernels.steps import gather

_STRUCTS = HEADER.structs


@dataclass(frozen=True)
class AttentionShape:
    """The heads of a block's attention, how many of them share keys and values, and the widths of one head."""

    heads: int
    group: int
    key_width: int
    value_width: int
    scale: float


@dataclass(frozen=True)
class Norm:
    """Layer norm, or RMS norm without beta."""

    gamma_D: Tensor
    beta_D: Tensor | None
    epsilon: float


@dataclass(frozen=True)
class PackedBlock:
    """The weights of a block, packed; `matrices` and `norms` have the field names of `struct block` in kernels.h."""

    matrices: dict[str, Packed | PackedInt8 | AdaptedMatrix]
    norms: dict[str, Norm]
    attention: AttentionShape
    cross: AttentionShape | None
    pre: bool
    function: int = 0  # of the feed-forward layer: see kernels.h
    gated: bool = False


KeysValues = tuple[Tensor, Tensor]  # keys (N, H, S, K) and values (N, H, S, R); the last dimension is contiguous
CosSin = tuple[Tensor, Tensor]  # cosine and sine (..., K) of rotary positions


class Memories:
    """The memory that each block of a stack reads, and the mask of visible slots that all blocks share."""

    def __init__(self, each: Sequence[KeysValues], visible_NS: Tensor | None) -> None:
        N, _, S, _ = each[0][0].shape
        if visible_NS is not None:
            visible_NS = visible_NS.expand(N, S).contiguous()
        self.rows, self.slots = N, S
        self._kept = [*each], visible_NS  # the structs hold addresses only
        self._structs = (_STRUCTS["memory"] * len(each))(*(_memory(k, v, visible_NS) for k, v in each))
        self.address = ctypes.addressof(self._structs)


def _memory(k_NHSK: Tensor, v_NHSR: Tensor, visible_NS: Tensor | None) -> Any:
    slots = k_NHSK.shape[2]
    k_row, k_head, k_slot, _ = k_NHSK.stride()
    v_row, v_head, v_slot, _ = v_NHSR.stride()
    return _STRUCTS["memory"](
        k=_float32(k_NHSK),
        v=_float32(v_NHSR),
        visible=_address(visible_NS, torch.bool),
        slots=slots,
        k_row=k_row,
        k_head=k_head,
        k_slot=k_slot,
        v_row=v_row,
        v_head=v_head,
        v_slot=v_slot,
        visible_row=0 if visible_NS is None else slots,
    )


class StackCache:
    """The key-value caches of all blocks, in P rows with capacity for more slots.

    A slot holds the keys of all heads, then their values. A cache is a value: several may share one buffer. The first
    to continue writes past the end; any other one copies. Caches that share a buffer stay in one thread. Structs of
    addresses cannot be copied or pickled, so neither can a cache.
    """

    SLACK = 32  # spare slots, at least

    def __init__(self, buffer: "_CacheBuffer", length: int) -> None:
        self._buffer, self.length = buffer, length
        self.rows, self.address = buffer.tensor.shape[1], buffer.address

    @staticmethod
    def of(each: Sequence[Tensor], attentions: Sequence[AttentionShape]) -> "StackCache":
        """Copy the caches of blocks: (P, S, N) of each."""
        P, S, N = each[0].shape
        cache = StackCache._new(each[0], attentions, P, S, N)
        for to_PSN, from_PSN in zip(cache.tensor_LPSN, each, strict=True):
            to_PSN.copy_(from_PSN)
        return cache

    @staticmethod
    def _new(like: Tensor, attentions: Sequence[AttentionShape], rows: int, length: int, width: int) -> "StackCache":
        slots = length + max(StackCache.SLACK, length // 2)
        buffer = _CacheBuffer(like.new_empty(len(attentions), rows, slots, width), attentions, length)
        return StackCache(buffer, length)

    @staticmethod
    def joined(parts: "Sequence[tuple[StackCache, Tensor | None]]", lengths: Sequence[int]) -> "StackCache":
        """Concatenate the rows of several caches, each in its given order; keep the last `lengths` slots of each.

        The newest slots are aligned at the end, with zeros before the first slot of a shorter cache.
        """
        rows = [cache.rows if order_BS is None else order_BS.shape[0] for cache, order_BS in parts]
        first, longest = parts[0][0]._buffer, max(lengths)
        new = StackCache._new(first.tensor, first.attentions, sum(rows), longest, first.tensor.shape[3])
        for (cache, order), length, to in zip(parts, lengths, new.tensor_LPSN.split(rows, dim=1), strict=True):
            cache._write(length, order, to)
        return new

    def _write(self, length: int, order_BS: Tensor | None, to_LBUN: Tensor) -> None:
        begin, skipped = self.length - length, to_LBUN.shape[2] - length
        to_LBUN[:, :, :skipped] = 0.0  # masked, but 0 * NaN is NaN
        if order_BS is None:
            to_LBUN[:, :, skipped:] = self.tensor_LPSN[:, :, begin:]
            return
        for to, kept in zip(to_LBUN, self.tensor_LPSN, strict=True):
            gather(kept[:, begin:], to[:, skipped:], order_BS[:, begin:])

    @property
    def tensor_LPSN(self) -> Tensor:
        """Keys and values of all blocks."""
        return self._buffer.tensor[:, :, : self.length]

    @property
    def has_slot(self) -> bool:
        """True if the next slot can be written without a copy."""
        return self._buffer.end == self.length < self._buffer.tensor.shape[2]

    def with_slot(self) -> "StackCache":
        """Return this cache with one more slot, which is still to be written."""
        buffer, after = self._buffer, self.length + 1
        if not self.has_slot:
            buffer = StackCache.joined([(self, None)], [self.length])._buffer
        buffer.end = after
        return StackCache(buffer, after)

    def gathered(self, order_BS: Tensor) -> "StackCache":
        """Return a copy in which the slots of row b are in row b."""
        return StackCache.joined([(self, order_BS)], [self.length])


class _CacheBuffer:
    """Memory of caches: (L, P, C, N), of which `end` slots are written."""

    def __init__(self, tensor_LPCN: Tensor, attentions: Sequence[AttentionShape], end: int) -> None:
        self.tensor, self.attentions, self.end = tensor_LPCN, attentions, end
        begin, size = _float32(tensor_LPCN), tensor_LPCN.itemsize
        layer, row, slot, _ = tensor_LPCN.stride()
        self._structs = (_STRUCTS["memory"] * len(attentions))()
        for number, (one, struct) in enumerate(zip(attentions, self._structs, strict=True)):
            keys = begin + number * layer * size
            struct.k, struct.v = keys, keys + one.heads // one.group * one.key_width * size
            struct.k_row = struct.v_row = row
            struct.k_slot = struct.v_slot = slot
            struct.k_head, struct.v_head = one.key_width, one.value_width
        self.address = ctypes.addressof(self._structs)


class PackedStack:
    """Consecutive blocks, and an optional norm after the last one."""

    def __init__(self, blocks: Sequence[PackedBlock], norm: Norm | None) -> None:
        self._kept = [*blocks], norm  # the structs hold addresses only
        self._blocks = (_STRUCTS["block"] * len(blocks))(*map(_block, blocks))
        self._norm = None if norm is None else _norm(norm)
        self._address = ctypes.addressof(self._blocks)
        self._norm_address = None if self._norm is None else ctypes.addressof(self._norm)
        self._workspaces: dict[tuple[int, int], int] = {}

    def advance(
        self,
        x_BD: Tensor,
        cache: StackCache,
        visible_BS: Tensor | None,
        order_BS: Tensor | None,
        memory: Memories | None,
        memory_of_row_B: Tensor | None,
        cos_sin: CosSin | None,
        position_B: Tensor | None = None,
    ) -> Tensor:
        """Return the output (B, D) for one new position of each row, and write the last slot of the cache.

        `visible`: the slots that a row sees (None: all). `order`: the cache row that holds each slot of a row (None:
        its own). `memory_of_row`: the memory that a row reads (None: its own). `cos_sin`: of the new position; with
        `position`, of all positions up to the largest there.
        """
        rows, slots = x_BD.shape[0], cache.length
        _require_rows(rows, slots, cache, visible_BS, order_BS, memory, memory_of_row_B, position_B)
        x_BD = x_BD.contiguous()
        out_BD = torch.empty_like(x_BD)
        workspace = self._workspace(x_BD, max(slots, 0 if memory is None else memory.slots))
        cos, sin = (None, None) if cos_sin is None else cos_sin
        functions().advance_stack(
            blocks=self._address,
            count=len(self._blocks),
            norm=self._norm_address,
            x=x_BD.data_ptr(),
            y=out_BD.data_ptr(),
            rows=rows,
            cache=cache.address,
            slots=slots,
            visible=_address(visible_BS, torch.bool),
            row_of_slot=_address(order_BS, torch.long),
            memory=None if memory is None else memory.address,
            memory_of_row=_address(memory_of_row_B, torch.long),
            position=_address(position_B, torch.long),
            cos=_address(cos, torch.float32),
            sin=_address(sin, torch.float32),
            workspace=workspace.data_ptr(),
        )
        return out_BD

    def encode(self, x_MD: Tensor, length_N: Tensor, longest: int, cos_sin: CosSin | None) -> Tensor:
        """Return the output (M, D) for concatenated sentences of the given lengths.

        `cos_sin`: of the first `longest` positions.
        """
        if int(length_N.sum()) != len(x_MD) or int(length_N.max()) > longest:
            raise ValueError(f"sentences of {length_N.tolist()} positions are not {len(x_MD)} positions of {longest}")
        x_MD, length_N = x_MD.contiguous(), length_N.long().contiguous()
        out_MD = torch.empty_like(x_MD)
        workspace = self._workspace(x_MD, longest)
        cos, sin = (None, None) if cos_sin is None else cos_sin
        functions().encode_stack(
            blocks=self._address,
            count=len(self._blocks),
            norm=self._norm_address,
            x=x_MD.data_ptr(),
            y=out_MD.data_ptr(),
            rows=len(x_MD),
            sentences=len(length_N),
            length=length_N.data_ptr(),
            cos=_address(cos, torch.float32),
            sin=_address(sin, torch.float32),
            workspace=workspace.data_ptr(),
        )
        return out_MD

    def _workspace(self, x_BD: Tensor, slots: int) -> Tensor:
        rows, slots = x_BD.shape[0], -(-slots // 64) * 64
        floats = self._workspaces.get((rows, slots))
        if floats is None:
            floats = functions().stack_workspace(blocks=self._address, count=len(self._blocks), rows=rows, slots=slots)
            if len(self._workspaces) >= 1000:
                self._workspaces.clear()
            self._workspaces[rows, slots] = floats
        return x_BD.new_empty(floats)


def _require_rows(
    rows: int,
    slots: int,
    cache: StackCache,
    visible_BS: Tensor | None,
    order_BS: Tensor | None,
    memory: Memories | None,
    memory_of_row_B: Tensor | None,
    position_B: Tensor | None,
) -> None:
    """Raise ValueError for sizes that do not match; C would compute wrong addresses from them."""
    if rows > cache.rows or (order_BS is None and rows != cache.rows):
        raise ValueError(f"a state of {cache.rows} rows cannot continue with {rows}")
    if order_BS is not None and order_BS.shape != (rows, slots):
        raise ValueError(f"an order of {tuple(order_BS.shape)} does not fit {rows} rows of {slots} slots")
    if visible_BS is not None and visible_BS.shape != (rows, slots):
        raise ValueError(f"a mask of {tuple(visible_BS.shape)} does not fit {rows} rows of {slots} slots")
    if memory is not None and rows != (memory.rows if memory_of_row_B is None else len(memory_of_row_B)):
        raise ValueError(f"{rows} rows do not fit those that read {memory.rows} memories")
    if position_B is not None and len(position_B) != rows:
        raise ValueError(f"{len(position_B)} positions for {rows} rows")


def _address(tensor: Tensor | None, dtype: torch.dtype) -> int | None:
    if tensor is None:
        return None
    if tensor.dtype is not dtype or not tensor.is_contiguous():
        raise ValueError(f"{tensor.dtype} with strides {tensor.stride()}; should be {dtype} and contiguous")
    return tensor.data_ptr()


def _float32(tensor: Tensor) -> int:
    if tensor.dtype is not torch.float32 or tensor.device.type != "cpu" or tensor.stride(-1) != 1:
        raise ValueError(f"{tensor.dtype} with strides {tensor.stride()}; should be float32, contiguous at the end")
    return tensor.data_ptr()


def _block(block: PackedBlock) -> Any:
    return _STRUCTS["block"](
        **{name: _matrix(matrix) for name, matrix in block.matrices.items()},
        **{name: _norm(norm) for name, norm in block.norms.items()},
        heads=_heads(block.attention),
        cross_heads=_heads(block.cross),
        pre=block.pre,
        function=block.function,
        gated=block.gated,
    )


def _norm(norm: Norm) -> Any:
    gamma, beta = _address(norm.gamma_D, torch.float32), _address(norm.beta_D, torch.float32)
    return _STRUCTS["norm"](gamma=gamma, beta=beta, epsilon=norm.epsilon)


def _heads(attention: AttentionShape | None) -> Any:
    if attention is None:
        return _STRUCTS["heads"](group=1)
    return _STRUCTS["heads"](
        count=attention.heads,
        group=attention.group,
        key_width=attention.key_width,
        value_width=attention.value_width,
        scale=attention.scale,
    )


def _matrix(matrix: Packed | PackedInt8 | AdaptedMatrix) -> Any:
    if isinstance(matrix, AdaptedMatrix):
        struct, down = _matrix(matrix.base), matrix.down
        struct.down, struct.zeros, struct.rank = down.packed.data_ptr(), down.bias.data_ptr(), down.outputs
        struct.up = _address(matrix.up_RN, torch.float32)
        return struct
    shared = {"bias": matrix.bias.data_ptr(), "inputs": matrix.inputs, "outputs": matrix.outputs}
    if isinstance(matrix, Packed):
        return _STRUCTS["matrix"](packed=matrix.packed.data_ptr(), kind=matrix.kind, **shared)
    packed, scale, sums = matrix.packed.data_ptr(), matrix.scale.data_ptr(), matrix.sums.data_ptr()
    return _STRUCTS["matrix"](bytes=packed, scale=scale, sums=sums, **shared)
