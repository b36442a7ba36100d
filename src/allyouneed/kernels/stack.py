"""A whole stack of blocks as one call: what layer.c is told, as ctypes. The fields are those of its structs."""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from allyouneed.kernels import Packed, PackedInt8, made

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
    """The weights of a block, packed: `matrices` and `norms` by the names that layer.c has for them."""

    matrices: dict[str, Packed | PackedInt8]
    norms: dict[str, Norm]
    attention: Attention
    cross: Attention | None
    pre: bool


Keys = tuple[Tensor, Tensor]  # keys (N, H, S, K) and values (N, H, S, R); the last dimension is contiguous
Waves = tuple[Tensor, Tensor]  # cosine and sine (..., K) of rotary positions


class Memories:
    """What each block of a stack reads, and which slots of it may be seen, by all blocks."""

    def __init__(self, rows: int, slots: int, structs: Sequence[tuple[int | None, ...]], kept: object) -> None:
        self.rows, self.slots, self._kept = rows, slots, kept  # structs hold addresses only
        self._structs = (_Memory * len(structs))(*(_Memory(*struct) for struct in structs))
        self.at = ctypes.addressof(self._structs)

    @staticmethod
    def of_keys(each: Sequence[Keys], visible_NS: Tensor | None) -> "Memories":
        """Of keys and values by heads."""
        N, _, S, _ = each[0][0].shape
        if visible_NS is not None:
            visible_NS = visible_NS.expand(N, S).contiguous()
        seen = _seen(visible_NS)
        structs = [
            (k.data_ptr(), v.data_ptr(), seen, S, *k.stride()[:3], *v.stride()[:3], S if seen else 0) for k, v in each
        ]
        return Memories(N, S, structs, ([*each], visible_NS))

    @staticmethod
    def of_pasts(
        pasts: Sequence[Tensor], widths: Sequence[tuple[int, int, int]], visible_BS: Tensor | None
    ) -> "Memories":
        """Of what pasts keep (P, S, N): keys of all heads, then their values. `widths`: of all keys, of one, of one
        value. What may be seen is a matter of the row that reads, not of the one in which it lies."""
        P, S, _ = pasts[0].shape
        visible_BS = None if visible_BS is None else visible_BS.contiguous()
        seen, structs = _seen(visible_BS), []
        for past, (keys, key, value) in zip(pasts, widths, strict=True):
            at, (row, slot, _) = past.data_ptr(), past.stride()
            strides = (row, key, slot, row, value, slot)
            structs.append((at, at + keys * past.itemsize, seen, S, *strides, S if seen else 0))
        return Memories(P, S, structs, ([*pasts], visible_BS))


def _seen(visible: Tensor | None) -> int | None:
    return None if visible is None else visible.data_ptr()


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
        past: Memories,
        order_BS: Tensor | None,
        memory: Memories | None,
        which_B: Tensor | None,
        waves: Waves | None,
        place_B: Tensor | None = None,
    ) -> Tensor:
        """The output (B, D) for one new position of each row; the last slot of a row's past is written here.

        `order`: in which row of the past each slot of a row lies (None: its own). `which`: the memory that a row reads
        (None: its own). `waves`: of the new position; with `place`, of all positions up to the largest there.
        """
        x_BD, rows = x_BD.contiguous(), x_BD.shape[0]
        _require(rows <= past.rows, f"a state of {past.rows} rows cannot go on with {rows}")
        _require(order_BS is None or order_BS.shape == (rows, past.slots), "an order needs every row and slot")
        _require(order_BS is not None or rows == past.rows, "some rows of a past need an order")
        if memory is not None:
            _require(which_B is None or len(which_B) == rows, "each row reads one memory")
            _require(which_B is not None or rows == memory.rows, f"{rows} rows cannot read {memory.rows} memories")
        _require(place_B is None or len(place_B) == rows, "each row has one place")
        out_BD = torch.empty_like(x_BD)
        room = self._room(x_BD, max(past.slots, 0 if memory is None else memory.slots))
        made().advance_stack(
            *(self._at, len(self._blocks), self._norm_at, x_BD.data_ptr(), out_BD.data_ptr(), rows),
            *(past.at, _at(order_BS), None if memory is None else memory.at, _at(which_B)),
            *(_at(place_B), *_both(waves), room.data_ptr()),
        )
        return out_BD

    def encode(self, x_MD: Tensor, length_N: Tensor, longest: int, waves: Waves | None) -> Tensor:
        """The output (M, D) for sentences one behind the other, of so many positions each. `waves`: of the first
        `longest` positions."""
        x_MD, length_N = x_MD.contiguous(), length_N.contiguous()
        out_MD = torch.empty_like(x_MD)
        room = self._room(x_MD, longest)
        made().encode_stack(
            *(self._at, len(self._blocks), self._norm_at, x_MD.data_ptr(), out_MD.data_ptr(), len(x_MD)),
            *(len(length_N), length_N.data_ptr(), *_both(waves), room.data_ptr()),
        )
        return out_MD

    def _room(self, x_BD: Tensor, slots: int) -> Tensor:
        return x_BD.new_empty(made().room_for_stack(self._at, len(self._blocks), len(x_BD), slots))


def _require(true: bool, message: str) -> None:
    """Addresses are computed from these: what does not fit would be read and written beside what is there."""
    if not true:
        raise ValueError(message)


def _at(tensor: Tensor | None) -> int | None:
    if tensor is None:
        return None
    _require(tensor.dtype is torch.long and tensor.is_contiguous(), "numbers of rows are contiguous integers")
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
