"""A decoder block whose step is one call (kernels/layer.c), where a block is of the ordinary kind.

Ordinary: softmax attention with as many keys as queries, no positions inside the score or rotary ones, a memory that is
read likewise or none, ReLU, norms before or after. Other blocks, and every call that needs something else (gradients,
maps, another device), go the usual way; both give the same.
"""

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
    """`Block.advance` of a block that fits; `most`: with more rows than that torch's own products are faster."""

    def __init__(self, block: Block, int8: bool, most: int | None) -> None:
        self._block, self._int8, self._most = block, int8, most
        self._packed: PackedBlock | None = None

    def __call__(self, x_BD: Tensor, memory: Memory | None, state: BlockState | None) -> tuple[Tensor, BlockState]:
        block, mixer, cross = self._block, self._block.mixer, self._block.cross
        assert isinstance(mixer, Softmax)
        past = None if state is None else state.mixer
        if (
            state is None
            or not isinstance(past, SoftmaxState)
            or (cross is not None and not isinstance(state.cross, CrossState))
            or (past.valid_BS is not None and mixer.position is not None)
            or (self._most is not None and x_BD.shape[0] > self._most)
            or not kernels.usable(x_BD)
            or map_sink() is not None
        ):
            return Block.advance(block, x_BD, memory, state)
        place = past.past.length
        waves = mixer.position.waves_at(place, x_BD) if isinstance(mixer.position, Rotary) else None
        grown = past.past.with_room(1)
        valid_BS = extend_valid(past.valid_BS, None, x_BD.shape[0], place, 1)
        k_BHSK, v_BHSR = mixer.keys_values(grown.tensor)
        crossed = state.cross.by_rows() if isinstance(state.cross, CrossState) else None
        read = None if crossed is None else (crossed.k_NHSK, crossed.v_NHSR, crossed.valid_NS)
        if self._packed is None:
            self._packed = _packed(block, self._int8)
        y_BD = self._packed.advance(x_BD, (k_BHSK, v_BHSR, valid_BS), read, waves)
        return y_BD, BlockState(SoftmaxState(grown, valid_BS), crossed)


def _packed(block: Block, int8: bool) -> PackedBlock:
    mixer, cross, feed = block.mixer, block.cross, block.feedforward
    assert isinstance(mixer, Softmax)
    layers = {"query_key_value": mixer.query_key_value, "mixed": mixer.output}
    norms = {"mixer_norm": block.mixer_norm, "feedforward_norm": block.feedforward_norm}
    if isinstance(cross, Softmax):
        layers |= {"query": cross.query, "crossed": cross.output}
        norms |= {"cross_norm": block.cross_norm}
    layers |= {"inner": feed.inner, "outer": feed.outer}
    pack = kernels.PackedInt8 if int8 else kernels.Packed
    return PackedBlock(
        {name: pack(layer.weight, layer.bias) for name, layer in layers.items()},
        {name: Norm(norm.weight, norm.bias, norm.eps) for name, norm in norms.items()},  # type: ignore[arg-type]
        _attention(mixer),
        _attention(cross) if isinstance(cross, Softmax) else None,
        block.norm_place == "pre",
    )


def _attention(mixer: Softmax) -> Attention:
    return Attention(mixer.heads, mixer.keys // mixer.groups, mixer.values // mixer.groups, mixer.scale)
