"""Softmax attention of one new position per row: `Softmax.advance` with a kernel, or in fewer operations of torch."""

import torch
from torch import Tensor

from allyouneed import kernels
from allyouneed.inference.back_reference import BackReference
from allyouneed.mixers.base import Memory, Mixer, map_sink
from allyouneed.mixers.lookup import lookup, soft_alpha, soft_lookup
from allyouneed.mixers.parts.kv_cache import CrossState, SoftmaxState, extend_mask
from allyouneed.mixers.softmax import Softmax

Advanced = tuple[Tensor, SoftmaxState | CrossState | None]


class SoftmaxStep:
    """`Softmax.advance` of one mixer."""

    def __init__(self, mixer: Softmax) -> None:
        self._owner = BackReference(mixer)

    @property
    def _mixer(self) -> Softmax:
        return self._owner()

    def __call__(
        self, x_BD: Tensor, *, state: SoftmaxState | CrossState | None = None, memory: Memory | None = None
    ) -> Advanced:
        if map_sink() is None:
            if isinstance(state, CrossState) and not self._mixer.normed and self._mixer.score_cap is None:
                return self._read_memory(x_BD, state)
            plain = self._mixer.position is None and self._mixer.window is None
            if isinstance(state, SoftmaxState) and (state.mask_BS is None or plain):
                return self._read_cache(x_BD, state)
        return Mixer.advance(self._mixer, x_BD, state=state, memory=memory)

    def _read_cache(self, x_BD: Tensor, state: SoftmaxState) -> Advanced:
        mixer, B, place = self._mixer, x_BD.shape[0], state.kv_cache.length
        packed_BN, bias = mixer.with_norms(mixer.query_key_value(x_BD)), None
        if mixer.position is not None:  # the cache holds rotated keys
            rotated = mixer.queries + mixer.keys
            both = packed_BN[:, :rotated].view(B, mixer.heads + mixer.groups, 1, -1)
            turned = mixer.position.rotate_one(both, place)
            if turned is not both:
                packed_BN = torch.cat([turned.view(B, -1), packed_BN[:, rotated:]], dim=1)
        query, kept = packed_BN.split([mixer.queries, mixer.keys + mixer.values], dim=1)
        q_BHTK = query.view(B, mixer.heads, 1, -1)
        if mixer.position is not None:
            place_S = torch.arange(place + 1, device=x_BD.device)
            bias = mixer.position.bias(q_BHTK, place_S[-1:], place_S)
        kv_cache = state.kv_cache.append(kept.unsqueeze(1))
        cached = kv_cache.tensor
        if mixer.window is not None:
            cached, bias = cached[:, -1 - mixer.window :], None if bias is None else bias[..., -1 - mixer.window :]
        keys, values = mixer.keys_values(cached)
        mask_BS = extend_mask(state.mask_BS, None, B, place, 1)
        if mixer.score_cap is None and kernels.usable(query):
            y_BM = self._attend(query, keys, values, mask_BS, None if bias is None else bias.flatten(-2))
        else:
            visible = None if mask_BS is None else mask_BS[:, None, None, :]
            cap = mixer.score_cap
            y_BM = soft_lookup(q_BHTK, keys, values, bias=bias, visible=visible, cap=cap).reshape(B, -1)
        return mixer.output(y_BM), SoftmaxState(kv_cache, mask_BS)

    def _read_memory(self, x_BD: Tensor, state: CrossState) -> Advanced:
        mixer, B, N = self._mixer, x_BD.shape[0], state.k_NHSK.shape[0]
        if kernels.usable(x_BD):
            state = state.by_rows()
            y_BM = self._attend(mixer.query(x_BD), state.k_NHSK, state.v_NHSR, state.mask_NS)
            return mixer.output(y_BM), state
        q_NHTK = mixer.query(x_BD).view(N, B // N, mixer.heads, -1).transpose(1, 2)
        visible = None if state.mask_NS is None else state.mask_NS[:, None, None, :]
        if B == 1:
            state = state.by_rows()
            y_NHTR = soft_lookup(q_NHTK, state.k_NHSK, state.v_NHSR, visible=visible)
        else:  # many rows with few queries each: on keys by columns, torch's fused attention is slower than its parts
            state = state.by_columns()
            y_NHTR = lookup(soft_alpha(q_NHTK, state.k_NHSK, None, visible), state.v_NHSR)
        return mixer.output(y_NHTR.transpose(1, 2).reshape(B, -1)), state

    def _attend(
        self, query: Tensor, k_MGSK: Tensor, v_MGSR: Tensor, mask_MS: Tensor | None, bias: Tensor | None = None
    ) -> Tensor:
        """Return the kernel's attention for one query of each row: (B, H R)."""
        mixer = self._mixer
        if mixer.groups == mixer.heads:
            return kernels.attend(query, k_MGSK, v_MGSR, mixer.scale, mask_MS, bias)
        # For the kernel, queries that share keys are rows that share a memory.
        B, G, J = query.shape[0], mixer.groups, mixer.heads // mixer.groups
        if bias is not None:
            bias = bias.expand(B, mixer.heads, -1).unflatten(1, (G, J)).transpose(1, 2).flatten(0, 1)
        rows = query.view(B, G, J, -1).transpose(1, 2).reshape(B * J, -1)
        y = kernels.attend(rows, k_MGSK, v_MGSR, mixer.scale, mask_MS, bias)
        return y.view(B, J, G, -1).transpose(1, 2).reshape(B, -1)
