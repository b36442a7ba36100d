"""Softmax Transformers as two graphs, their state in the open.

    encoder.onnx   source (B, S), valid (B, S)
                   -> for each decoder layer i: cross_i_key (B, G, S, K), cross_i_value (B, G, S, R)
    decoder.onnx   tokens (B, T), past_i_key (B, G, P, K), past_i_value (B, G, P, R); and valid, cross_i_*, if there are
                   -> logits (B, T, V), present_i_key (B, G, P + T, K), present_i_value (B, G, P + T, R)

A decoder alone has decoder.onnx only. The first step has P = 0; what is `present` after one step is `past` in the next,
and rows of a beam are rows of these tensors. Any number of tokens at a time: a prompt at once, then one by one. Padding
is for sources; the rows of `tokens` are equally long.

Added and rotary positions are in the graphs as tables of `TABLE` rows (or as many as were learnt); a runtime refuses
longer sequences. The other schemes know no end.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from allyouneed.block import FUNCTIONS, Block, FeedForward
from allyouneed.interop.known import require_known
from allyouneed.interop.onnx.graph import Graph
from allyouneed.mixers.softmax import Softmax
from allyouneed.models import Model
from allyouneed.models.decoder import Decoder
from allyouneed.models.encoder_decoder import EncoderDecoder
from allyouneed.models.stack import Embedding, Stack
from allyouneed.positions import Alibi, Learned, Rotary, ScorePosition, Shaw, T5Bias

TABLE = 2048  # positions of sines and angles
FLOAT = 1  # TensorProto.FLOAT
HIDDEN = -1e30  # the score of what may not be read
Kept = dict[str, str]  # what a step needs or gives, by its name outside


def graphs_of(model: Model) -> dict[str, Graph]:
    """The files of a model and what they hold."""
    model = require_known(model, "onnx")
    graphs = {"decoder.onnx": _decoder(model)}
    return {"encoder.onnx": _encoder(model), **graphs} if isinstance(model, EncoderDecoder) else graphs


def _encoder(model: EncoderDecoder) -> Graph:
    g = Graph("encoder")
    source, valid = g.input("source", int, ["B", "S"]), g.input("valid", bool, ["B", "S"])
    place = g.counted(g.constant(0), g.size(source, 1))
    run = _Run(g, place, place, g.unsqueeze(valid, 1, 2), {})
    x = run.stack(model.encoder, run.embedding(model.source, source))
    for number, mixer in enumerate(_mixers(model.decoder, "cross")):
        key, value = run.keys_values(mixer, run.linear(mixer.key_value, x))
        for name, part, width in (("key", key, mixer.keys), ("value", value, mixer.values)):
            g.output(part, f"cross_{number}_{name}", float, ["B", mixer.groups, "S", width // mixer.groups])
    return g


def _decoder(model: EncoderDecoder | Decoder) -> Graph:
    g = Graph("decoder")
    tokens = g.input("tokens", int, ["B", "T"])
    kept: Kept = {}
    if isinstance(model, EncoderDecoder):
        kept["valid"] = g.unsqueeze(g.input("valid", bool, ["B", "S"]), 1, 2)
    for what, length, kind in (("past", "P", "mixer"), ("cross", "S", "cross")):
        for number, mixer in enumerate(_mixers(model.decoder, kind)):
            for name, width in (("key", mixer.keys), ("value", mixer.values)):
                full = f"{what}_{number}_{name}"
                kept[full] = g.input(full, float, ["B", mixer.groups, length, width // mixer.groups])
    before = g.size("past_0_key", 2) if model.decoder.blocks else g.constant(0)
    after = g("Add", before, g.size(tokens, 1))
    query, key = g.counted(before, after), g.counted(g.constant(0), after)
    causal = g("LessOrEqual", g.unsqueeze(key, 0), g.unsqueeze(query, 1))
    run = _Run(g, query, key, causal, kept)
    x = run.stack(model.decoder, run.embedding(model.target, tokens))
    logits = g("MatMul", x, g("Transpose", g.weight(model.head.weight_VD), perm=[1, 0]))
    if model.head.bias_V is not None:
        logits = g("Add", logits, g.weight(model.head.bias_V))
    g.output(logits, "logits", float, ["B", "T", model.head.weight_VD.shape[0]])
    for number, mixer in enumerate(_mixers(model.decoder, "mixer")):
        for name, width in (("key", mixer.keys), ("value", mixer.values)):
            full = f"present_{number}_{name}"
            g.output(kept[full], full, float, ["B", mixer.groups, "P + T", width // mixer.groups])
    return g


def _mixers(stack: Stack, kind: str) -> list[Softmax]:
    """The self or the cross mixers of a stack, from the bottom up."""
    found = [getattr(block, kind) for block in stack.blocks]
    return [mixer for mixer in found if isinstance(mixer, Softmax)]


class _Run:
    """The operations of one graph: who stands where, who may read whom, and what is kept between calls."""

    def __init__(self, g: Graph, query_place: str, key_place: str, visible: str, kept: Kept) -> None:
        self.g, self.query_place, self.visible, self.kept = g, query_place, visible, kept
        self._distance = g("Sub", g.unsqueeze(key_place, 0), g.unsqueeze(query_place, 1))  # (T, S)
        self._tables: dict[int, list[str]] = {}

    def embedding(self, layer: Embedding, tokens: str) -> str:
        """Ids to vectors."""
        g = self.g
        x = g("Gather", g.weight(layer.weight_VD), tokens)
        if layer.scale != 1:
            x = g("Mul", x, g.constant(layer.scale))
        if layer.position is not None:
            rows = layer.position.table_ND.shape[0] if isinstance(layer.position, Learned) else TABLE
            table = g.constant(_numbers(layer.position.table(rows, torch.device("cpu"))[:rows]))
            x = g("Add", x, g("Gather", table, self.query_place))
        return x if layer.norm is None else self.norm(layer.norm, x)

    def stack(self, stack: Stack, x: str) -> str:
        """All blocks in turn."""
        for number, block in enumerate(stack.blocks):
            assert isinstance(block, Block)
            x = self.block(block, number, x)
        return self.norm(stack.norm, x)

    def block(self, block: Block, number: int, x: str) -> str:
        """Mixer, cross mixer, feed-forward, each with its residual."""
        mixer, cross = block.mixer, block.cross
        assert isinstance(mixer, Softmax)
        x = self._residual(block, block.mixer_norm, x, lambda y: self.itself(mixer, number, y))
        if isinstance(cross, Softmax):
            x = self._residual(block, block.cross_norm, x, lambda y: self.memory(cross, number, y))
        return self._residual(block, block.feedforward_norm, x, lambda y: self.feedforward(block.feedforward, y))

    def _residual(self, block: Block, norm: nn.Module, x: str, layer: Callable[[str], str]) -> str:
        pre, post = block.norm_place == "pre", block.norm_place == "post"
        x = self.g("Add", x, layer(self.norm(norm, x) if pre else x))
        return self.norm(norm, x) if post else x

    def norm(self, layer: nn.Module, x: str) -> str:
        """LayerNorm, RMSNorm, or none."""
        g = self.g
        if isinstance(layer, nn.LayerNorm):
            return g("LayerNormalization", x, g.weight(layer.weight), g.weight(layer.bias), epsilon=layer.eps, axis=-1)
        if isinstance(layer, nn.RMSNorm):
            assert layer.eps is not None
            square = g("ReduceMean", g("Mul", x, x), g.constant([-1]))
            root = g("Sqrt", g("Add", square, g.constant(float(layer.eps))))
            return g("Mul", g("Div", x, root), g.weight(layer.weight))
        assert isinstance(layer, nn.Identity)
        return x

    def linear(self, layer: nn.Linear, x: str) -> str:
        """x W^T + b."""
        g = self.g
        y = g("MatMul", x, g("Transpose", g.weight(layer.weight), perm=[1, 0]))
        return y if layer.bias is None else g("Add", y, g.weight(layer.bias))

    def feedforward(self, layer: FeedForward, x: str) -> str:
        """W2 f(W1 x), perhaps with a gate."""
        g, hidden = self.g, layer.outer.in_features
        x = self.linear(layer.inner, x)
        if layer.gated:
            gate, value = g.parts(x, hidden, hidden)
            return self.linear(layer.outer, g("Mul", self._function(layer, gate), value))
        return self.linear(layer.outer, self._function(layer, x))

    def _function(self, layer: FeedForward, x: str) -> str:
        g = self.g
        if layer.function is FUNCTIONS["relu"]:
            return g("Relu", x)
        if layer.function is FUNCTIONS["silu"]:
            return g("Mul", x, g("Sigmoid", x))
        if layer.function is FUNCTIONS["gelu"]:
            return g("Gelu", x)
        assert layer.function is FUNCTIONS["gelu-tanh"]
        return g("Gelu", x, approximate="tanh")

    def itself(self, mixer: Softmax, number: int, x: str) -> str:
        """A sequence that reads itself and, if it is causal, what is kept of its past."""
        g = self.g
        query, key, value = g.parts(self.linear(mixer.query_key_value, x), mixer.queries, mixer.keys, mixer.values)
        query, key, value = (
            self.heads(query, mixer.heads),
            self.heads(key, mixer.groups),
            self.heads(value, mixer.groups),
        )
        if isinstance(mixer.position, Rotary):
            query, key = self._turned(mixer.position, query), self._turned(mixer.position, key)
        if mixer.role == "causal":
            key = g("Concat", self.kept[f"past_{number}_key"], key, axis=2)
            value = g("Concat", self.kept[f"past_{number}_value"], value, axis=2)
            self.kept |= {f"present_{number}_key": key, f"present_{number}_value": value}
        bias = None if mixer.position is None else self._bias(mixer.position, mixer, query)
        return self._look_up(mixer, query, key, value, bias, self.visible)

    def memory(self, mixer: Softmax, number: int, x: str) -> str:
        """A sequence that reads a memory."""
        query = self.heads(self.linear(mixer.query, x), mixer.heads)
        key, value = self.kept[f"cross_{number}_key"], self.kept[f"cross_{number}_value"]
        return self._look_up(mixer, query, key, value, None, self.kept["valid"])

    def keys_values(self, mixer: Softmax, both: str) -> tuple[str, str]:
        """What a cross mixer makes of a memory, once."""
        key, value = self.g.parts(both, mixer.keys, mixer.values)
        return self.heads(key, mixer.groups), self.heads(value, mixer.groups)

    def heads(self, x: str, heads: int) -> str:
        """(B, T, H K) -> (B, H, T, K)."""
        return self.g("Transpose", self.g.reshape(x, 0, 0, heads, -1), perm=[0, 2, 1, 3])

    def _look_up(self, mixer: Softmax, query: str, key: str, value: str, bias: str | None, visible: str) -> str:
        g = self.g
        if mixer.groups != mixer.heads:
            key, value = self._repeated(key, mixer), self._repeated(value, mixer)
        score = g("MatMul", g("Mul", query, g.constant(mixer.scale)), g("Transpose", key, perm=[0, 1, 3, 2]))
        score = score if bias is None else g("Add", score, bias)
        alpha = g("Softmax", g("Where", visible, score, g.constant(HIDDEN)), axis=-1)
        merged = g.reshape(g("Transpose", g("MatMul", alpha, value), perm=[0, 2, 1, 3]), 0, 0, -1)
        return self.linear(mixer.output, merged)

    def _repeated(self, x: str, mixer: Softmax) -> str:
        """(B, G, S, K) -> (B, H, S, K): each for the queries it serves."""
        g = self.g
        many = g.constant([1, 1, mixer.heads // mixer.groups, 1, 1])
        length = g("Shape", x, start=2, end=4)
        shape = g("Concat", g.constant([0, mixer.heads]), length, axis=0)
        return g("Reshape", g("Expand", g.unsqueeze(x, 2), many), shape)

    def _turned(self, position: Rotary, x: str) -> str:
        g = self.g
        half = position.frequency_R.shape[0]
        if id(position) not in self._tables:
            waves = position._waves(torch.arange(TABLE), torch.float32)
            self._tables[id(position)] = [g("Gather", g.constant(_numbers(one)), self.query_place) for one in waves]
        cos, sin = self._tables[id(position)]
        left, right = g.parts(x, half, half)
        return g("Add", g("Mul", x, cos), g("Mul", g("Concat", right, left, axis=-1), sin))

    def _bias(self, position: ScorePosition, mixer: Softmax, query: str) -> str | None:
        """What is added to scaled scores, broadcastable to (B, H, T, S)."""
        g = self.g
        if isinstance(position, Shaw):
            scaled = g("Mul", query, g.constant(mixer.scale))
            score = g("MatMul", scaled, g("Transpose", g.weight(position.distance_RK), perm=[1, 0]))
            clip = g.constant(position.clip)
            distance = g("Add", g("Clip", self._distance, g.constant(-position.clip), clip), clip)
            shape = g("Concat", g("Shape", query, start=0, end=2), g("Shape", self._distance), axis=0)
            return g("GatherElements", score, g("Expand", distance, shape), axis=-1)
        if isinstance(position, Rotary):  # it has turned queries and keys
            return None
        if id(position) not in self._tables:
            self._tables[id(position)] = [self._by_distance(position)]
        return self._tables[id(position)][0]

    def _by_distance(self, position: ScorePosition) -> str:
        g = self.g
        if isinstance(position, Alibi):
            slope = g.constant(_numbers(-position.slope_H[:, None, None]))
            return g("Mul", slope, g("Cast", g("Abs", self._distance), to=FLOAT))
        assert isinstance(position, T5Bias)
        most = position.max_distance  # beyond it all distances are in the last bucket
        bias_HR = position.bias_RH[position.bucket(torch.arange(-most, most + 1))].T
        place = g("Add", g("Clip", self._distance, g.constant(-most), g.constant(most)), g.constant(most))
        return g("Gather", g.constant(_numbers(bias_HR)), place, axis=1)


def _numbers(tensor: Tensor) -> "np.ndarray[Any, np.dtype[np.float32]]":
    return np.asarray(tensor.detach().float().cpu().numpy())
