"""A whole decoder block as one call: what layer.c is told, as ctypes. The fields are those of its structs."""

import ctypes
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from allyouneed.kernels import Packed, PackedInt8, made, require_shared

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
        *((name, _NUMBER) for name in ("slots", "sharing", "k_row", "k_head", "k_slot", "v_row", "v_head", "v_slot")),
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


class PackedBlock:
    """The weights of a block, packed: `matrices` and `norms` by the names that layer.c has for them."""

    def __init__(
        self,
        matrices: dict[str, Packed | PackedInt8],
        norms: dict[str, Norm],
        attention: Attention,
        cross: Attention | None,
        pre: bool,
    ) -> None:
        self._kept = matrices, norms  # the block holds their addresses only
        self._block = _Block(pre=pre, heads=_heads(attention), cross_heads=_heads(cross))
        for name, matrix in matrices.items():
            setattr(self._block, name, _matrix(matrix))
        for name, norm in norms.items():
            beta = None if norm.beta_D is None else norm.beta_D.data_ptr()
            setattr(self._block, name, _Norm(norm.gamma_D.data_ptr(), beta, norm.epsilon))
        self._at = ctypes.addressof(self._block)

    def advance(
        self,
        x_BD: Tensor,
        past: tuple[Tensor, Tensor, Tensor | None],
        memory: tuple[Tensor, Tensor, Tensor | None] | None,
        waves: tuple[Tensor, Tensor] | None,
    ) -> Tensor:
        """The block's output (B, D) for one new position of each row.

        `past`, `memory`: keys (N, H, S, K), values (N, H, S, R) and what may be seen (N, S); rows that follow each
        other may share a memory. The last slot of the past is written here. `waves`: cosine and sine (K) of a rotary
        position.
        """
        x_BD = x_BD.contiguous()
        out_BD, rows = torch.empty_like(x_BD), x_BD.shape[0]
        if past[0].shape[0] != rows:
            raise ValueError(f"a state of {past[0].shape[0]} rows cannot go on with {rows}")
        past = _readable(past)
        behind, beside = _memory(past, rows), None
        if memory is not None:
            require_shared(rows, memory[0].shape[0])
            memory = _readable(memory)
            beside = _memory(memory, rows)
        slots = max(behind.slots, beside.slots if beside is not None else 0)
        call = made()
        room = x_BD.new_empty(call.room_for_block(self._at, rows, slots))
        cos, sin = (None, None) if waves is None else (waves[0].data_ptr(), waves[1].data_ptr())
        call.advance_block(
            *(self._at, x_BD.data_ptr(), out_BD.data_ptr(), rows, ctypes.addressof(behind)),
            *(None if beside is None else ctypes.addressof(beside), cos, sin, room.data_ptr()),
        )
        return out_BD


def _heads(attention: Attention | None) -> Any:
    if attention is None:
        return _Heads()
    return _Heads(attention.heads, attention.key_width, attention.value_width, attention.scale)


def _matrix(matrix: Packed | PackedInt8) -> Any:
    shared = {"bias": matrix.bias.data_ptr(), "inputs": matrix.inputs, "outputs": matrix.outputs}
    if isinstance(matrix, Packed):
        return _Matrix(packed=matrix.packed.data_ptr(), **shared)
    return _Matrix(bytes=matrix.packed.data_ptr(), scale=matrix.scale.data_ptr(), sums=matrix.sums.data_ptr(), **shared)


def _readable(memory: tuple[Tensor, Tensor, Tensor | None]) -> tuple[Tensor, Tensor, Tensor | None]:
    """With a mask whose slots follow each other."""
    k_NHSK, v_NHSR, visible = memory
    return k_NHSK, v_NHSR, None if visible is None else visible.expand(k_NHSK.shape[0], k_NHSK.shape[2]).contiguous()


def _memory(memory: tuple[Tensor, Tensor, Tensor | None], rows: int) -> Any:
    k_NHSK, v_NHSR, visible_NS = memory
    seen, seen_row = (None, 0) if visible_NS is None else (visible_NS.data_ptr(), visible_NS.stride(0))
    strides = (*k_NHSK.stride()[:3], *v_NHSR.stride()[:3], seen_row)
    return _Memory(k_NHSK.data_ptr(), v_NHSR.data_ptr(), seen, k_NHSK.shape[2], rows // k_NHSK.shape[0], *strides)
