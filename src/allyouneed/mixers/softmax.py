"""Multi-head scaled dot-product attention: every position is a query, a key and a value.

    MultiHead(X, Y) = Concat(head_1 .. head_H) W^O
    head_h = softmax(X W^Q_h (Y W^K_h)^T / sqrt(K)) Y W^V_h        Y = X, or the memory of an encoder

Consecutive heads may share keys and values (`key_heads`): grouped-query attention; with one key head, multi-query.
With `head_norm`, queries and keys of each head pass an RMS norm before they meet. With `score_cap`, a score s becomes
cap tanh(s / cap), before a relative position is added to it. With `window` = w a position reads itself and the w
positions before it (and after it, unless it is causal). All pairs are computed and all keys kept; the mixer `window`
saves both.

Cost: O(T S D) time, O(T D) state (the keys and values seen), 1 sequential step, path 1.
Paper: Vaswani et al. 2017, arXiv:1706.03762, section 3.2.2; groups: Ainslie et al. 2023, arXiv:2305.13245;
norms: Henry et al. 2020, arXiv:2010.04245, with an RMS norm as in Qwen3; caps: Gemma Team 2024, arXiv:2408.00118.
Differs: projections carry biases (as in the authors' code); W^Q, W^K, W^V are one matrix; no dropout on the weights,
which the paper's section 5.4 does not mention.
"""

from typing import Literal, final

import torch
from pydantic import PositiveFloat, PositiveInt
from torch import Tensor, nn

from allyouneed.errors import ConfigError
from allyouneed.mixers.base import Cost, Memory, Mixer, MixerConfig, Role, Theory, map_sink, zero_padding
from allyouneed.mixers.lookup import lookup, soft_alpha, soft_lookup
from allyouneed.mixers.parts.kv_cache import CrossState, SoftmaxState, count_positions, extend_mask
from allyouneed.mixers.parts.projections import refuse_state, require_memory, wide_on_cpu
from allyouneed.mixers.parts.state import Growable
from allyouneed.positions import ScorePosition


class SoftmaxConfig(MixerConfig):
    summary = "multi-head scaled dot-product attention: every position reads every (earlier) one"
    paper = "Vaswani et al. 2017, arXiv:1706.03762"
    roles = frozenset({"causal", "bidirectional", "cross"})
    takes_positions = True
    theory = Theory("n² d + n d²", 2, 1, "1", "1")
    family = "global attention"

    type: Literal["softmax"] = "softmax"
    heads: PositiveInt = 8
    key_heads: PositiveInt | None = None  # heads of keys and values; default: heads
    key_width: PositiveInt | None = None  # of one head (the paper's d_k); default: width / heads
    value_width: PositiveInt | None = None  # of one head (the paper's d_v); default: width / heads
    bias: bool | Literal["inputs"] = True  # of the four projections; inputs: of queries, keys and values only
    head_norm: PositiveFloat | None = None  # epsilon of the norms of queries and keys; default: no norms
    score_cap: PositiveFloat | None = None  # bound of the scores; default: none
    window: PositiveInt | None = None  # positions read to each side (causal: before it); default: all

    @property
    def position_heads(self) -> int:
        return self.heads

    def head_widths(self, width: int) -> tuple[int, int]:
        """Return d_k and d_v."""
        if width % self.heads and None in (self.key_width, self.value_width):
            raise ConfigError(f"model.width {width} is not divisible by mixer.heads {self.heads}")
        return self.key_width or width // self.heads, self.value_width or width // self.heads

    @property
    def groups(self) -> int:
        """Return the number of heads of keys and values."""
        if self.heads % (self.key_heads or self.heads):
            raise ConfigError(f"mixer.heads {self.heads} is not divisible by mixer.key_heads {self.key_heads}")
        return self.key_heads or self.heads

    def position_width(self, width: int) -> int:
        return self.head_widths(width)[0]

    def build(self, width: int, *, role: Role = "causal", position: ScorePosition | None = None) -> "Softmax":
        self.require(role, position)
        if self.window is not None and role == "cross":
            raise ConfigError("mixer.window: a mixer that reads a memory reads all of it; remove it from model.cross")
        return Softmax(self, width, role, position)

    def cost(self, length: int, width: int, *, role: Role = "causal", memory: int | None = None) -> Cost:
        read = length if memory is None or role != "cross" else memory
        key_width, value_width = self.head_widths(width)
        both = key_width + value_width
        projections = 2 * (length * self.heads + read * self.groups) * width * both
        attention = 2 * length * read * self.heads * both
        state = 0 if role == "bidirectional" else read * self.groups * both * 4
        path = 1 if self.window is None or role == "cross" else max(1, -(-(length - 1) // self.window))
        return Cost(flops=projections + attention, state_bytes=state, sequential=1, path=path)


@final
class Softmax(Mixer):
    def __init__(self, config: SoftmaxConfig, width: int, role: Role, position: ScorePosition | None) -> None:
        super().__init__()
        self.heads, self.role, self.position = config.heads, role, position
        key_width, value_width = config.head_widths(width)
        self.groups, self.scale = config.groups, key_width**-0.5
        self.queries, self.keys, self.values = (
            config.heads * key_width,
            self.groups * key_width,
            self.groups * value_width,
        )
        biased = bool(config.bias)
        if role == "cross":
            self.query = nn.Linear(width, self.queries, bias=biased)
            self.key_value = nn.Linear(width, self.keys + self.values, bias=biased)
        else:
            self.query_key_value = nn.Linear(width, self.queries + self.keys + self.values, bias=biased)
        self.output = nn.Linear(config.heads * value_width, width, bias=config.bias is True)
        self.normed, self.score_cap, self.window = config.head_norm is not None, config.score_cap, config.window
        if self.normed:
            self.query_norm, self.key_norm = (nn.RMSNorm(key_width, eps=config.head_norm) for _ in range(2))
        self._initialise()

    def _initialise(self) -> None:
        """Initialise W^Q, W^K, W^V and W^O separately by Glorot, though some are stored as one matrix."""
        if self.role == "cross":
            matrices = [self.query.weight, *self.key_value.weight.split([self.keys, self.values])]
        else:
            matrices = list(self.query_key_value.weight.split([self.queries, self.keys, self.values]))
        for matrix in (*matrices, self.output.weight):
            nn.init.xavier_uniform_(matrix)
        for layer in self.children():
            if isinstance(layer, nn.Linear) and layer.bias is not None:
                nn.init.zeros_(layer.bias)

    @staticmethod
    def _split_heads(x_BTN: Tensor, heads: int) -> Tensor:
        B, T, N = x_BTN.shape
        return x_BTN.view(B, T, heads, N // heads).transpose(1, 2)

    def _queries_keys_values(self, packed_BTN: Tensor) -> tuple[Tensor, ...]:
        if self.queries == self.keys == self.values:  # all heads have one width: split once
            return self._split_heads(packed_BTN, 3 * self.heads).chunk(3, dim=1)
        queries, rest = packed_BTN.split([self.queries, self.keys + self.values], dim=-1)
        return self._split_heads(queries, self.heads), *self.keys_values(rest)

    def keys_values(self, packed_BSN: Tensor) -> tuple[Tensor, ...]:
        """Return keys and values by heads, from the packed form of the cache."""
        if self.keys == self.values:
            return self._split_heads(packed_BSN, 2 * self.groups).chunk(2, dim=1)
        keys, values = packed_BSN.split([self.keys, self.values], dim=-1)
        return self._split_heads(keys, self.groups), self._split_heads(values, self.groups)

    def with_norms(self, packed: Tensor) -> Tensor:
        """Return packed queries, keys and values with the norms of `head_norm` applied, if there are any."""
        if not self.normed:
            return packed
        queries, keys, values = packed.split([self.queries, self.keys, self.values], dim=-1)
        queries = _normed(self.query_norm, queries.unflatten(-1, (self.heads, -1))).flatten(-2)
        keys = _normed(self.key_norm, keys.unflatten(-1, (self.groups, -1))).flatten(-2)
        return torch.cat([queries, keys, values], dim=-1)

    def forward(
        self,
        x_BTD: Tensor,
        *,
        mask_BT: Tensor | None = None,
        state: SoftmaxState | CrossState | None = None,
        memory: Memory | None = None,
    ) -> tuple[Tensor, SoftmaxState | CrossState | None]:
        if self.role == "cross":
            assert state is None or isinstance(state, CrossState)
            return self._read_memory(x_BTD, state, memory)
        if self.role == "bidirectional":
            refuse_state(state)
        assert state is None or isinstance(state, SoftmaxState)
        return self._read_self(x_BTD, mask_BT, state)

    def _read_self(
        self, x_BTD: Tensor, mask_BT: Tensor | None, state: SoftmaxState | None
    ) -> tuple[Tensor, SoftmaxState | None]:
        B, T, _ = x_BTD.shape
        packed_BTN = self.with_norms(wide_on_cpu(self.query_key_value(zero_padding(x_BTD, mask_BT))))
        q_BHTK, k_BGSK, v_BGSR = self._queries_keys_values(packed_BTN)
        kept = packed_BTN[..., self.queries :]
        causal = self.role == "causal"
        before = state.kv_cache.length if state is not None else 0
        mask_BS = extend_mask(state.mask_BS if state else None, mask_BT, B, before, T)

        bias = None
        if self.position is not None:
            key_position = count_positions(mask_BS, before + T, x_BTD.device)
            query_position = key_position[..., before:]
            queries_keys = self.queries + self.keys
            both = self._split_heads(packed_BTN[..., :queries_keys], self.heads + self.groups)
            rotated = self.position.rotate(both, query_position)  # both at once: half as many operations
            if rotated is not both:
                q_BHTK, k_BGSK = rotated.split([self.heads, self.groups], dim=1)
                if causal:  # the cache keeps rotated keys
                    kept = torch.cat([k_BGSK.transpose(1, 2).flatten(2), packed_BTN[..., queries_keys:]], dim=-1)
            bias = self.position.bias(q_BHTK, query_position, key_position)

        kv_cache = state.kv_cache.append(kept) if state is not None else Growable(kept)
        if state is not None:
            k_BGSK, v_BGSR = self.keys_values(kv_cache.tensor)
        # Without a cache and padding the kernel's own triangle suffices; a single step sees everything.
        triangle = causal and before == 0 and mask_BS is None and self.window is None
        visible = None if triangle else self._visible(mask_BS, T, before, x_BTD)
        y_BHTR = self._look_up(q_BHTK, k_BGSK, v_BGSR, bias, visible, triangle and T > 1)
        y_BTD = self.output(y_BHTR.transpose(1, 2).flatten(2))
        return y_BTD, SoftmaxState(kv_cache, mask_BS) if causal else None

    def _visible(self, mask_BS: Tensor | None, T: int, before: int, like: Tensor) -> Tensor | None:
        """Return which position may read which, broadcastable to (B, H, T, S); None if all may read all."""
        visible = None if mask_BS is None else mask_BS[:, None, None, :]
        if self.role == "causal" and T > 1:
            past_TS = torch.ones(T, before + T, dtype=torch.bool, device=like.device).tril(before)
            visible = past_TS if visible is None else visible & past_TS
        if self.window is not None:
            place = count_positions(mask_BS, before + T, like.device)  # (S), or (B, S) with padding
            apart = (place[..., before:, None] - place[..., None, :]).abs()
            near = apart <= self.window if mask_BS is None else (apart <= self.window).unsqueeze(1)
            visible = near if visible is None else visible & near
        return visible

    def _read_memory(self, x_BTD: Tensor, state: CrossState | None, memory: Memory | None) -> tuple[Tensor, CrossState]:
        B, T, _ = x_BTD.shape
        if state is None:
            memory = require_memory(memory)
            k_NHSK, v_NHSR = self.keys_values(wide_on_cpu(self.key_value(memory.without_padding())))
            k_NHSK = _normed(self.key_norm, k_NHSK) if self.normed else k_NHSK
            state = CrossState(k_NHSK, v_NHSR, memory.mask_BS)
        N = state.k_NHSK.shape[0]
        # Rows that share a memory become more queries of one row: the memory is read once for all of them.
        q = self._split_heads(wide_on_cpu(self.query(x_BTD)).view(N, (B // N) * T, self.queries), self.heads)
        q = _normed(self.query_norm, q) if self.normed else q
        visible = None if state.mask_NS is None else state.mask_NS[:, None, None, :]
        y = self._look_up(q, state.k_NHSK, state.v_NHSR, None, visible, False)
        return self.output(y.transpose(1, 2).reshape(B, T, -1)), state

    def _look_up(
        self,
        q_BHTK: Tensor,
        k_BGSK: Tensor,
        v_BGSR: Tensor,
        bias: Tensor | None,
        visible: Tensor | None,
        causal: bool,
    ) -> Tensor:
        sink = map_sink()
        if sink is None:
            cap = self.score_cap
            return soft_lookup(q_BHTK, k_BGSK, v_BGSR, bias=bias, visible=visible, causal=causal, cap=cap)
        if causal:
            T = q_BHTK.shape[2]
            visible = torch.ones(T, T, dtype=torch.bool, device=q_BHTK.device).tril()
        alpha_BHTS = soft_alpha(q_BHTK, k_BGSK, bias, visible, self.score_cap)
        sink(self, alpha_BHTS)
        return lookup(alpha_BHTS, v_BGSR)


def _normed(norm: nn.Module, x: Tensor) -> Tensor:
    """Return Norm(x), computed in the precision of the norm's weight: mixed precision has narrower vectors."""
    weight = norm.weight
    assert isinstance(weight, Tensor)
    y: Tensor = norm(x.to(weight.dtype))
    return y.to(x.dtype)
