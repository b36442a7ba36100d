"""A whole stack of blocks as one call: what stack.c is told, as ctypes. The fields are those of its structs."""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from allyouneed.kernels import Packed, PackedInt8, gather, made

_POINTER, _NUMBER, _DOUBLE = ctypes.c_void_p, ctypes.c_int64, ctypes.c_double


class _Matrix(ctypes.Structure):
    _fields_ = [
        *((name, _POINTER) for name in ("packed", "bytes", "scale", "sums", "bias")),
        *((name, _NUMBER) for name in ("inputs", "outputs")),
    ]


class _Norm(ctypes.Structure):
    _fields_ = [("gamma", _POINTER), ("beta", _POINTER), ("epsilon", _DOUBLE)]


class _Heads(ctypes.Structure):
    _fields_ = [
        *((name, _NUMBER) for name in ("count", "key_width", "value_width")),
        ("scale", _DOUBLE),
    ]


class _Block(ctypes.Structure):
    _fields_ = [
        *((name, _Matrix) for name in ("query_key_value", "mixed", "query", "crossed", "inner", "outer")),
        *((name, _Norm) for name in ("mixer_norm", "cross_norm", "feedforward_norm")),
        *((name, _Heads) for name in ("heads", "cross_heads")),
        ("pre", _NUMBER),
    ]


class _Memory(ctypes.Structure):
    _fields_ = [
        *((name, _POINTER) for name in ("k", "v", "visible")),
        *((name, _NUMBER) for name in ("slots", "k_row", "k_head", "k_slot", "v_row", "v_head", "v_slot")),
        ("visible_row", _NUMBER),
    ]


@dataclass(frozen=True)
class Attention:
    """How a block looks: heads, and the widths of one."""

    heads: int
    key_width: int
    value_width: int
    scale: float


@dataclass(frozen=True)
class Norm:
    """Layer norm, or RMS norm without a beta."""

    gamma_D: Tensor
    beta_D: Tensor | None
    epsilon: float


@dataclass(frozen=True)
class Layer:
    """The weights of a block, packed: `matrices` and `norms` by the names that stack.c has for them."""

    matrices: dict[str, Packed | PackedInt8]
    norms: dict[str, Norm]
    attention: Attention
    cross: Attention | None
    pre: bool


Keys = tuple[Tensor, Tensor]  # keys (N, H, S, K) and values (N, H, S, R); the last dimension is contiguous
Waves = tuple[Tensor, Tensor]  # cosine and sine (..., K) of rotary positions


class Memories:
    """What each block of a stack reads beside it, and which slots of it may be seen, by all blocks."""

    def __init__(self, each: Sequence[Keys], visible_NS: Tensor | None) -> None:
        N, _, S, _ = each[0][0].shape
        if visible_NS is not None:
            visible_NS = visible_NS.expand(N, S).contiguous()
        self.rows, self.slots, self._kept = N, S, ([*each], visible_NS)  # structs hold addresses only
        seen, row = (None, 0) if visible_NS is None else (visible_NS.data_ptr(), S)
        self._structs = (_Memory * len(each))(
            *(_Memory(k.data_ptr(), v.data_ptr(), seen, S, *k.stride()[:3], *v.stride()[:3], row) for k, v in each)
        )
        self.at = ctypes.addressof(self._structs)


class Pasts:
    """Keys and values of the past of each block, in P rows with room for more slots: the keys of all heads, then their
    values.

    A value: several may share one room, and the first to go on writes behind the end; another one copies. Those that
    share a room stay in one thread. Structs of addresses cannot be copied or pickled, so neither can this.
    """

    SLACK = 32  # slots to spare, at least

    def __init__(self, room: "_Room", length: int) -> None:
        self._room, self.length = room, length
        self.rows, self.at = room.tensor.shape[1], room.at

    @staticmethod
    def of(each: Sequence[Tensor], attentions: Sequence[Attention]) -> "Pasts":
        """Of what blocks kept elsewhere: (P, S, N) of each."""
        P, S, N = each[0].shape
        past = Pasts._new(each[0], attentions, P, S, N)
        for to_PSN, from_PSN in zip(past.tensor_LPSN, each, strict=True):
            to_PSN.copy_(from_PSN)
        return past

    @staticmethod
    def _new(like: Tensor, attentions: Sequence[Attention], rows: int, length: int, width: int) -> "Pasts":
        slots = length + max(Pasts.SLACK, length // 2)
        return Pasts(_Room(like.new_empty(len(attentions), rows, slots, width), attentions, length), length)

    @staticmethod
    def joined(parts: "Sequence[tuple[Pasts, Tensor | None]]", lengths: Sequence[int]) -> "Pasts":
        """The last so many slots of the rows of several, each with its order; what is newest stands last, and zeros
        before the first."""
        rows = [past.rows if order_BS is None else order_BS.shape[0] for past, order_BS in parts]
        first, longest = parts[0][0]._room, max(lengths)
        new = Pasts._new(first.tensor, first.attentions, sum(rows), longest, first.tensor.shape[3])
        for (past, order), length, to in zip(parts, lengths, new.tensor_LPSN.split(rows, dim=1), strict=True):
            past._write(length, order, to)
        return new

    def _write(self, length: int, order_BS: Tensor | None, to_LBUN: Tensor) -> None:
        begin, skipped = self.length - length, to_LBUN.shape[2] - length
        to_LBUN[:, :, :skipped] = 0.0  # nobody sees it, but zero times what is no number is none
        if order_BS is None:
            to_LBUN[:, :, skipped:] = self.tensor_LPSN[:, :, begin:]
            return
        for to, kept in zip(to_LBUN, self.tensor_LPSN, strict=True):
            gather(kept[:, begin:], to[:, skipped:], order_BS[:, begin:])

    @property
    def tensor_LPSN(self) -> Tensor:
        """All of it."""
        return self._room.tensor[:, :, : self.length]

    @property
    def has_slot(self) -> bool:
        """Whether there is room behind its end."""
        return self._room.end == self.length < self._room.tensor.shape[2]

    def with_slot(self) -> "Pasts":
        """This, and a slot that is still to be written."""
        room, after = self._room, self.length + 1
        if not self.has_slot:
            room = Pasts.joined([(self, None)], [self.length])._room
        room.end = after
        return Pasts(room, after)

    def gathered(self, order_BS: Tensor) -> "Pasts":
        """With the slots of each row in that row."""
        return Pasts.joined([(self, order_BS)], [self.length])


class _Room:
    """Where pasts lie: (L, P, C, N), of which `end` slots are written."""

    def __init__(self, tensor_LPCN: Tensor, attentions: Sequence[Attention], end: int) -> None:
        self.tensor, self.attentions, self.end = tensor_LPCN, attentions, end
        begin, size = tensor_LPCN.data_ptr(), tensor_LPCN.itemsize
        layer, row, slot, _ = tensor_LPCN.stride()
        self._structs = (_Memory * len(attentions))()
        for number, (one, struct) in enumerate(zip(attentions, self._structs, strict=True)):
            keys = begin + number * layer * size
            struct.k, struct.v = keys, keys + one.heads * one.key_width * size
            struct.k_row = struct.v_row = row
            struct.k_slot = struct.v_slot = slot
            struct.k_head, struct.v_head = one.key_width, one.value_width
        self.at = ctypes.addressof(self._structs)


class PackedStack:
    """Some blocks on top of each other, and a norm above the last one or none."""

    def __init__(self, layers: Sequence[Layer], norm: Norm | None) -> None:
        self._kept = [*layers], norm  # the structs hold their addresses only
        self._blocks = (_Block * len(layers))(*map(_block, layers))
        self._norm = None if norm is None else _norm(norm)
        self._at = ctypes.addressof(self._blocks)
        self._norm_at = None if self._norm is None else ctypes.addressof(self._norm)

    def advance(
        self,
        x_BD: Tensor,
        past: Pasts,
        visible_BS: Tensor | None,
        order_BS: Tensor | None,
        memory: Memories | None,
        which_B: Tensor | None,
        waves: Waves | None,
        place_B: Tensor | None = None,
    ) -> Tensor:
        """The output (B, D) for one new position of each row; the last slot of a row's past is written here.

        `visible`: what a row sees of its past (None: all). `order`: in which row of the past each slot of a row lies
        (None: its own). `which`: the memory that a row reads (None: its own). `waves`: of the new position; with
        `place`, of all positions up to the largest there.
        """
        rows, slots = x_BD.shape[0], past.length
        # Addresses are computed from these: what does not fit would be read and written beside what is there.
        if rows > past.rows or (order_BS is None and rows != past.rows):
            raise ValueError(f"a state of {past.rows} rows cannot go on with {rows}")
        if order_BS is not None and order_BS.shape != (rows, slots):
            raise ValueError(f"an order of {tuple(order_BS.shape)} does not fit {rows} rows of {slots} slots")
        if visible_BS is not None and visible_BS.shape != (rows, slots):
            raise ValueError(f"a mask of {tuple(visible_BS.shape)} does not fit {rows} rows of {slots} slots")
        if memory is not None and rows != (memory.rows if which_B is None else len(which_B)):
            raise ValueError(f"{rows} rows do not fit those that read {memory.rows} memories")
        if place_B is not None and len(place_B) != rows:
            raise ValueError(f"{len(place_B)} places for {rows} rows")
        x_BD = x_BD.contiguous()
        out_BD = torch.empty_like(x_BD)
        room = self._room(x_BD, max(slots, 0 if memory is None else memory.slots))
        made().advance_stack(
            *(self._at, len(self._blocks), self._norm_at, x_BD.data_ptr(), out_BD.data_ptr(), rows, past.at, slots),
            *(_at(visible_BS, torch.bool), _at(order_BS), None if memory is None else memory.at, _at(which_B)),
            *(_at(place_B), *_both(waves), room.data_ptr()),
        )
        return out_BD

    def encode(self, x_MD: Tensor, length_N: Tensor, longest: int, waves: Waves | None) -> Tensor:
        """The output (M, D) for sentences one behind the other, of so many positions each. `waves`: of the first
        `longest` positions."""
        if int(length_N.sum()) != len(x_MD) or int(length_N.max()) > longest:
            raise ValueError(f"sentences of {length_N.tolist()} positions are not {len(x_MD)} positions of {longest}")
        x_MD, length_N = x_MD.contiguous(), length_N.long().contiguous()
        out_MD = torch.empty_like(x_MD)
        room = self._room(x_MD, longest)
        made().encode_stack(
            *(self._at, len(self._blocks), self._norm_at, x_MD.data_ptr(), out_MD.data_ptr(), len(x_MD)),
            *(len(length_N), length_N.data_ptr(), *_both(waves), room.data_ptr()),
        )
        return out_MD

    def _room(self, x_BD: Tensor, slots: int) -> Tensor:
        return x_BD.new_empty(made().room_for_stack(self._at, len(self._blocks), len(x_BD), slots))


def _at(tensor: Tensor | None, dtype: torch.dtype = torch.long) -> int | None:
    if tensor is None:
        return None
    if tensor.dtype is not dtype or not tensor.is_contiguous():
        raise ValueError(f"{tensor.dtype} {tensor.stride()} where {dtype} one behind the other is read")
    return tensor.data_ptr()


def _both(waves: Waves | None) -> tuple[int | None, int | None]:
    return (None, None) if waves is None else (waves[0].data_ptr(), waves[1].data_ptr())


def _block(layer: Layer) -> Any:
    return _Block(
        **{name: _matrix(matrix) for name, matrix in layer.matrices.items()},
        **{name: _norm(norm) for name, norm in layer.norms.items()},
        heads=_heads(layer.attention),
        cross_heads=_heads(layer.cross),
        pre=layer.pre,
    )


def _norm(norm: Norm) -> Any:
    return _Norm(norm.gamma_D.data_ptr(), None if norm.beta_D is None else norm.beta_D.data_ptr(), norm.epsilon)


def _heads(attention: Attention | None) -> Any:
    if attention is None:
        return _Heads()
    return _Heads(attention.heads, attention.key_width, attention.value_width, attention.scale)


def _matrix(matrix: Packed | PackedInt8) -> Any:
    shared = {"bias": matrix.bias.data_ptr(), "inputs": matrix.inputs, "outputs": matrix.outputs}
    if isinstance(matrix, Packed):
        return _Matrix(packed=matrix.packed.data_ptr(), **shared)
    return _Matrix(bytes=matrix.packed.data_ptr(), scale=matrix.scale.data_ptr(), sums=matrix.sums.data_ptr(), **shared)
