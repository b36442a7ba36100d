"""A decoder block whose step is one call (kernels/layer.c), where a block is of the ordinary kind.

Ordinary: softmax attention with as many keys as queries, no positions inside the score or rotary ones, a memory that is
read likewise or none, ReLU, norms before or after. Other blocks, and every call that needs something else (gradients,
maps, another device), go the usual way; both give the same.
"""

from typing import Any

import torch
from torch import Tensor

from allyouneed import kernels
from allyouneed.block import Block, BlockState
from allyouneed.kernels.block import Attention, Norm, PackedBlock
from allyouneed.mixers import Memory
from allyouneed.mixers.base import map_sink
from allyouneed.mixers.past import CrossState, SoftmaxState, extend_valid
from allyouneed.mixers.softmax import Softmax
from allyouneed.positions import Rotary


def fits(block: Block) -> bool:
    """Whether a block is of the ordinary kind."""
    mixer, cross, feed = block.mixer, block.cross, block.feedforward
    return (
        isinstance(mixer, Softmax)
        and mixer.role == "causal"
        and mixer.groups == mixer.heads
        and (mixer.position is None or isinstance(mixer.position, Rotary))
        and (cross is None or (isinstance(cross, Softmax) and cross.groups == cross.heads))
        and not feed.gated
        and feed.function is torch.relu_
        and block.norm_place != "none"
        and block.streams == 1
    )


class FusedAdvance:
    """`Block.advance` of a block that fits and is laid out for prediction."""

    def __init__(self, block: Block) -> None:
        self._block = block
        self._packed: PackedBlock | None = None

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_packed": None}  # a copy packs its own

    def __call__(self, x_BD: Tensor, memory: Memory | None, state: BlockState | None) -> tuple[Tensor, BlockState]:
        block, mixer, cross = self._block, self._block.mixer, self._block.cross
        assert isinstance(mixer, Softmax)
        past = None if state is None else state.mixer
        if (
            state is None
            or not isinstance(past, SoftmaxState)
            or (cross is not None and not isinstance(state.cross, CrossState))
            or (past.valid_BS is not None and mixer.position is not None)
            or not kernels.usable(x_BD)
            or map_sink() is not None
        ):
            return Block.advance(block, x_BD, memory, state)
        place = past.past.length
        waves = mixer.position.waves_at(place, x_BD) if isinstance(mixer.position, Rotary) else None
        grown = past.past.with_room(1)
        valid_BS = extend_valid(past.valid_BS, None, x_BD.shape[0], place, 1)
        k_NHSK, v_NHSR = mixer.keys_values(grown.tensor)
        crossed = state.cross.by_rows() if isinstance(state.cross, CrossState) else None
        read = None if crossed is None else (crossed.k_NHSK, crossed.v_NHSR, crossed.valid_NS)
        if self._packed is None:
            self._packed = _packed(block)
        y_BD = self._packed.advance(x_BD, (k_NHSK, v_NHSR, valid_BS), read, waves)
        return y_BD, BlockState(SoftmaxState(grown, valid_BS), crossed)


def _packed(block: Block) -> PackedBlock:
    mixer, cross, feed = block.mixer, block.cross, block.feedforward
    assert isinstance(mixer, Softmax)
    layers: dict[str, Any] = {"query_key_value": mixer.query_key_value, "mixed": mixer.output}
    norms: dict[str, Any] = {"mixer_norm": block.mixer_norm, "feedforward_norm": block.feedforward_norm}
    if isinstance(cross, Softmax):
        layers |= {"query": cross.query, "crossed": cross.output}
        norms |= {"cross_norm": block.cross_norm}
    layers |= {"inner": feed.inner, "outer": feed.outer}
    return PackedBlock(
        {name: layer.quick.packed() for name, layer in layers.items()},
        {name: Norm(norm.weight, norm.bias, norm.eps) for name, norm in norms.items()},
        _attention(mixer),
        _attention(cross) if isinstance(cross, Softmax) else None,
        block.norm_place == "pre",
    )


def _attention(mixer: Softmax) -> Attention:
    return Attention(mixer.heads, mixer.keys // mixer.groups, mixer.values // mixer.groups, mixer.scale)
