"""Transformers as two ONNX graphs with explicit state.

    encoder.onnx   source (B, S), valid (B, S) -> for each decoder layer i: cross_i_*
    decoder.onnx   tokens (B, T), for each layer i: past_i_*; and valid, cross_i_*, if there is an encoder
                   -> logits (B, T, V), present_i_*

    mixer of a layer   past_i_* (present_i_* has P + T for P, cross_i_* has S)
    softmax            key (B, G, P, K), value (B, G, P, R)
    linear             sum (B, H, K, K + 1)
    rnn, gru           h (B, D)
    lstm               h (B, D), c (B, D)

A decoder-only model has decoder.onnx only. The first step has P = 0 and zeros. The `present` of one step is the `past`
of the next, and the rows of a beam are rows of these tensors. A step takes any number of tokens: a whole prompt, then
one by one. Sources are padded at the end; the rows of `tokens` have equal length.

If no layer of a decoder has keys, their number does not tell how many tokens were read. If added positions need it,
there is past_seen (B). Rows of such a decoder may have read different numbers of tokens.

Added and rotary positions are tables of `TABLE` rows (or as many as were learned); a runtime refuses longer sequences.
The other schemes have no maximum length.
"""

from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from allyouneed.block import FUNCTIONS, Block, FeedForward
from allyouneed.errors import ConfigError
from allyouneed.interop.onnx import recurrent
from allyouneed.interop.onnx.graph import FLOAT, Graph, Shape
from allyouneed.interop.supported_settings import MIXERS, require_supported
from allyouneed.mixers.linear import Linear
from allyouneed.mixers.recurrent import Recurrent
from allyouneed.mixers.softmax import Softmax
from allyouneed.models import Model
from allyouneed.models.decoder import Decoder
from allyouneed.models.encoder_decoder import EncoderDecoder
from allyouneed.models.parts.stack import Embedding, Stack
from allyouneed.positions import Alibi, Learned, Rotary, ScorePosition, Shaw, T5Bias

TABLE = 2048  # positions of sines and angles
HIDDEN = -1e30  # the score of masked positions
KNOWN = MIXERS | {"linear": {"type", "heads", "bias"}, "rnn": {"type"}, "lstm": {"type"}, "gru": {"type"}}
Kept = dict[str, str]  # inputs and outputs of a step, by external name


def graphs_of(model: Model) -> dict[str, Graph]:
    """Return the graphs of a model that generates, by file name."""
    model = require_supported(model, "onnx", KNOWN)
    if isinstance(model, EncoderDecoder) and not len(model.decoder.blocks):
        raise ConfigError("onnx: model.decoder_layers 0 is not supported; at least one layer must read the source")
    graphs = {"decoder.onnx": _decoder(model)}
    return {"encoder.onnx": _encoder(model), **graphs} if isinstance(model, EncoderDecoder) else graphs


def _encoder(model: EncoderDecoder) -> Graph:
    g = Graph("encoder")
    source, valid = g.input("source", int, ["B", "S"]), g.input("valid", bool, ["B", "S"])
    place = g.counted(g.constant(0), g.size(source, 1))
    run = Operations(g, place, place, g.unsqueeze(valid, 1, 2), {"valid": valid})
    x = run.stack(model.encoder, run.embedding(model.source, source))
    for number, mixer in enumerate(_mixers(model.decoder, "cross")):
        made = run.remembered(mixer, x)
        for (name, shape), part in zip(_kept_by(mixer, "S").items(), made, strict=True):
            g.output(part, f"cross_{number}_{name}", float, shape)
    return g


def _decoder(model: EncoderDecoder | Decoder) -> Graph:
    g = Graph("decoder")
    tokens = g.input("tokens", int, ["B", "T"])
    kept: Kept = {}
    if isinstance(model, EncoderDecoder):
        kept["valid"] = g.input("valid", bool, ["B", "S"])
    for what, length, kind in (("past", "P", "mixer"), ("cross", "S", "cross")):
        for number, mixer in enumerate(_mixers(model.decoder, kind)):
            for name, shape in _kept_by(mixer, length).items():
                full = f"{what}_{number}_{name}"
                kept[full] = g.input(full, float, shape)
    run = _begin(g, model, tokens, kept)
    x = run.stack(model.decoder, run.embedding(model.target, tokens))
    logits = g("MatMul", x, g("Transpose", g.weight(model.head.weight_VD), perm=[1, 0]))
    if model.head.cap is not None:
        logits = run.capped(logits, model.head.cap)
    if model.head.bias_V is not None:
        logits = g("Add", logits, g.weight(model.head.bias_V))
    g.output(logits, "logits", float, ["B", "T", model.head.weight_VD.shape[0]])
    for number, mixer in enumerate(_mixers(model.decoder, "mixer")):
        for name, shape in _kept_by(mixer, "P + T").items():
            full = f"present_{number}_{name}"
            g.output(kept[full], full, float, shape)
    if "present_seen" in kept:
        g.output(kept["present_seen"], "present_seen", int, ["B"])
    return g


def _begin(g: Graph, model: EncoderDecoder | Decoder, tokens: str, kept: Kept) -> "Operations":
    """Start a run of the decoder. The number of earlier tokens is that of the keys or, without keys, an input."""
    new = g.size(tokens, 1)
    grown = next((name for name in kept if name.startswith("past_") and name.endswith("_key")), None)
    if grown is not None:
        before = g.size(grown, 2)
        after = g("Add", before, new)
        query, key = g.counted(before, after), g.counted(g.constant(0), after)
        return Operations(g, query, key, g("LessOrEqual", g.unsqueeze(key, 0), g.unsqueeze(query, 1)), kept)
    place = g.counted(g.constant(0), new)
    if model.target.position is not None:
        seen = g.input("past_seen", int, ["B"])
        place, kept["present_seen"] = g("Add", g.unsqueeze(seen, 1), place), g("Add", seen, new)
    return Operations(g, place, "", "", kept)


def _mixers(stack: Stack, kind: str) -> list[nn.Module]:
    """Return the self or the cross mixers of a stack, first layer first."""
    return [mixer for block in stack.blocks if (mixer := getattr(block, kind)) is not None]


def _kept_by(mixer: nn.Module, length: str) -> dict[str, Shape]:
    """Return the shapes of the state that a mixer keeps for a cache or memory of some length."""
    if isinstance(mixer, Softmax):
        widths = {"key": mixer.keys, "value": mixer.values}
        return {name: ["B", mixer.groups, length, width // mixer.groups] for name, width in widths.items()}
    if isinstance(mixer, Linear):
        heads, width = mixer.project.heads, mixer.project.width
        return {"sum": ["B", heads, width // heads, width // heads + 1]}
    assert isinstance(mixer, Recurrent)
    return {name: ["B", mixer.forth.width] for name in ("hc" if mixer.forth.kind == "lstm" else "h")}


class Operations:
    """The operations of one graph: positions, masks, and the state between calls."""

    def __init__(self, g: Graph, query_place: str, key_place: str, visible: str, kept: Kept) -> None:
        self.g, self.query_place, self.key_place, self.visible, self.kept = g, query_place, key_place, visible, kept
        self._tables: dict[int, list[str]] = {}

    @cached_property
    def _distance(self) -> str:
        """Return key position minus query position, (T, S)."""
        return self.g("Sub", self.g.unsqueeze(self.key_place, 0), self.g.unsqueeze(self.query_place, 1))

    @cached_property
    def _valid(self) -> str:
        """Return the mask of a memory, (B, 1, 1, S)."""
        return self.g.unsqueeze(self.kept["valid"], 1, 2)

    @cached_property
    def _lengths(self) -> str:
        return recurrent.lengths_of(self.g, self.kept["valid"])

    def embedding(self, layer: Embedding, tokens: str) -> str:
        """Embed ids."""
        g = self.g
        x = g("Gather", g.weight(layer.weight_VD), tokens)
        if layer.scale != 1:
            x = g("Mul", x, g.constant(layer.scale))
        if layer.segment_ND is not None:
            x = g("Add", x, g.constant(_numbers(layer.segment_ND[0])))
        if layer.position is not None:
            rows = layer.position.table_ND.shape[0] if isinstance(layer.position, Learned) else TABLE
            table = g.constant(_numbers(layer.position.table(rows, torch.device("cpu"))[:rows]))
            x = g("Add", x, g("Gather", table, self.query_place))
        x = x if layer.norm is None else self.norm(layer.norm, x)
        return x if layer.project is None else self.linear(layer.project, x)

    def stack(self, stack: Stack, x: str) -> str:
        """Apply all blocks."""
        for number, block in enumerate(stack.blocks):
            assert isinstance(block, Block)
            x = self.block(block, number, x)
        return self.norm(stack.norm, x)

    def block(self, block: Block, number: int, x: str) -> str:
        """Apply mixer, cross mixer and feed-forward, each with its residual."""
        mixer, cross = block.mixer, block.cross
        if block.parallel:
            fed = self.feedforward(block.feedforward, self.norm(block.feedforward_norm, x))
            mixed = self.itself(mixer, number, self.norm(block.mixer_norm, x))
            return self.g("Add", self.g("Add", x, mixed), fed)
        x = self._residual(block, "mixer_norm", "mixed_norm", x, lambda y: self.itself(mixer, number, y))
        if cross is not None:
            x = self._residual(block, "cross_norm", "crossed_norm", x, lambda y: self.memory(cross, number, y))
        feed = block.feedforward
        return self._residual(block, "feedforward_norm", "fed_norm", x, lambda y: self.feedforward(feed, y))

    def _residual(self, block: Block, norm: str, after: str, x: str, layer: Callable[[str], str]) -> str:
        place, outer = block.norm_place, getattr(block, norm)
        y = layer(self.norm(outer, x) if place in ("pre", "both") else x)
        x = self.g("Add", x, self.norm(getattr(block, after), y) if place == "both" else y)
        return self.norm(outer, x) if place == "post" else x

    def norm(self, layer: nn.Module, x: str) -> str:
        """Apply LayerNorm, RMSNorm, or nothing."""
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
        """Return x W^T + b."""
        g = self.g
        y = g("MatMul", x, g("Transpose", g.weight(layer.weight), perm=[1, 0]))
        return y if layer.bias is None else g("Add", y, g.weight(layer.bias))

    def feedforward(self, layer: FeedForward, x: str) -> str:
        """Return W2 f(W1 x), optionally gated."""
        g, hidden = self.g, layer.outer.in_features
        x = self.linear(layer.inner, x)
        if layer.gated:
            gate, value = g.parts(x, hidden, hidden)
            return self.linear(layer.outer, g("Mul", self.function(layer.function, gate), value))
        return self.linear(layer.outer, self.function(layer.function, x))

    def function(self, function: Callable[[Tensor], Tensor], x: str) -> str:
        """Apply an activation."""
        g = self.g
        if function is torch.tanh:
            return g("Tanh", x)
        if function is FUNCTIONS["relu"]:
            return g("Relu", x)
        if function is FUNCTIONS["silu"]:
            return g("Mul", x, g("Sigmoid", x))
        if function is FUNCTIONS["gelu"]:
            return g("Gelu", x)
        assert function is FUNCTIONS["gelu-tanh"]
        return g("Gelu", x, approximate="tanh")

    def itself(self, mixer: nn.Module, number: int, x: str) -> str:
        """Apply a self mixer to a sequence and, if causal, its cached state."""
        if isinstance(mixer, Softmax):
            return self._softmax(mixer, number, x)
        if isinstance(mixer, Linear):
            return self._linear(mixer, number, x)
        assert isinstance(mixer, Recurrent)
        return self._recurrent(mixer, number, x)

    def _recurrent(self, mixer: Recurrent, number: int, x: str) -> str:
        if mixer.role == "bidirectional":
            return recurrent.recur(self.g, [mixer.forth, mixer.back], x, self._lengths)[0]
        names = list(_kept_by(mixer, ""))
        before = [self.kept[f"past_{number}_{name}"] for name in names]
        y, after = recurrent.recur(self.g, [mixer.forth], x, before=before)
        self.kept |= {f"present_{number}_{name}": one for name, one in zip(names, after, strict=True)}
        return y

    def _linear(self, mixer: Linear, number: int, x: str) -> str:
        g, project = self.g, mixer.project
        parts = g.parts(self.linear(project.query_key_value, x), *[project.width] * 3)
        query, key, value = (self.heads(part, project.heads) for part in parts)
        if mixer.role == "causal":
            before = self.kept[f"past_{number}_sum"]
            y, self.kept[f"present_{number}_sum"] = recurrent.read_causally(g, query, key, value, before)
        else:
            y = recurrent.read(g, query, recurrent.total(g, key, value, self.kept["valid"]))
        return self.linear(project.output, self.merged(y))

    def _softmax(self, mixer: Softmax, number: int, x: str) -> str:
        g = self.g
        query, key, value = g.parts(self.linear(mixer.query_key_value, x), mixer.queries, mixer.keys, mixer.values)
        query, key, value = (
            self.heads(query, mixer.heads),
            self.heads(key, mixer.groups),
            self.heads(value, mixer.groups),
        )
        if mixer.normed:
            query, key = self.norm(mixer.query_norm, query), self.norm(mixer.key_norm, key)
        if isinstance(mixer.position, Rotary):
            query, key = self._turned(mixer.position, query), self._turned(mixer.position, key)
        if mixer.role == "causal":
            key = g("Concat", self.kept[f"past_{number}_key"], key, axis=2)
            value = g("Concat", self.kept[f"past_{number}_value"], value, axis=2)
            self.kept |= {f"present_{number}_key": key, f"present_{number}_value": value}
        bias = None if mixer.position is None else self._bias(mixer.position, mixer, query)
        return self._look_up(mixer, query, key, value, bias, self._near(mixer))

    def _near(self, mixer: Softmax) -> str:
        """Return which positions may read which, within the mixer's window."""
        g = self.g
        if mixer.window is None:
            return self.visible
        return g("And", self.visible, g("LessOrEqual", g("Abs", self._distance), g.constant(mixer.window)))

    def memory(self, mixer: nn.Module, number: int, x: str) -> str:
        """Apply a cross mixer."""
        if isinstance(mixer, Linear):
            query = self.heads(self.linear(mixer.project.query, x), mixer.project.heads)
            y = recurrent.read(self.g, query, self.kept[f"cross_{number}_sum"])
            return self.linear(mixer.project.output, self.merged(y))
        assert isinstance(mixer, Softmax)
        query = self.heads(self.linear(mixer.query, x), mixer.heads)
        query = self.norm(mixer.query_norm, query) if mixer.normed else query
        key, value = self.kept[f"cross_{number}_key"], self.kept[f"cross_{number}_value"]
        return self._look_up(mixer, query, key, value, None, self._valid)

    def remembered(self, mixer: nn.Module, x: str) -> list[str]:
        """Return what a cross mixer precomputes from a memory."""
        g = self.g
        if isinstance(mixer, Linear):
            project = mixer.project
            both = g.parts(self.linear(project.key_value, x), project.width, project.width)
            key, value = (self.heads(part, project.heads) for part in both)
            return [recurrent.total(g, key, value, self.kept["valid"])]
        assert isinstance(mixer, Softmax)
        parts = g.parts(self.linear(mixer.key_value, x), mixer.keys, mixer.values)
        key, value = (self.heads(part, mixer.groups) for part in parts)
        return [self.norm(mixer.key_norm, key) if mixer.normed else key, value]

    def capped(self, x: str, cap: float) -> str:
        """Return cap tanh(x / cap)."""
        bound = self.g.constant(cap)
        return self.g("Mul", self.g("Tanh", self.g("Div", x, bound)), bound)

    def heads(self, x: str, heads: int) -> str:
        """Split heads: (B, T, H K) -> (B, H, T, K)."""
        return self.g("Transpose", self.g.reshape(x, 0, 0, heads, -1), perm=[0, 2, 1, 3])

    def merged(self, x: str) -> str:
        """Merge heads: (B, H, T, K) -> (B, T, H K)."""
        return self.g.reshape(self.g("Transpose", x, perm=[0, 2, 1, 3]), 0, 0, -1)

    def _look_up(self, mixer: Softmax, query: str, key: str, value: str, bias: str | None, visible: str) -> str:
        g = self.g
        if mixer.groups != mixer.heads:
            key, value = self._repeated(key, mixer), self._repeated(value, mixer)
        score = g("MatMul", g("Mul", query, g.constant(mixer.scale)), g("Transpose", key, perm=[0, 1, 3, 2]))
        if mixer.score_cap is not None:
            score = self.capped(score, mixer.score_cap)
        score = score if bias is None else g("Add", score, bias)
        alpha = g("Softmax", g("Where", visible, score, g.constant(HIDDEN)), axis=-1)
        return self.linear(mixer.output, self.merged(g("MatMul", alpha, value)))

    def _repeated(self, x: str, mixer: Softmax) -> str:
        """Repeat key heads for their queries: (B, G, S, K) -> (B, H, S, K)."""
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
        """Return the bias of the scaled scores, broadcastable to (B, H, T, S)."""
        g = self.g
        if isinstance(position, Shaw):
            scaled = g("Mul", query, g.constant(mixer.scale))
            score = g("MatMul", scaled, g("Transpose", g.weight(position.distance_RK), perm=[1, 0]))
            clip = g.constant(position.clip)
            distance = g("Add", g("Clip", self._distance, g.constant(-position.clip), clip), clip)
            shape = g("Concat", g("Shape", query, start=0, end=2), g("Shape", self._distance), axis=0)
            return g("GatherElements", score, g("Expand", distance, shape), axis=-1)
        if isinstance(position, Rotary):  # queries and keys are rotated already
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
        most = position.max_distance  # larger distances share the last bucket
        bias_HR = position.bias_RH[position.bucket(torch.arange(-most, most + 1))].T
        place = g("Add", g("Clip", self._distance, g.constant(-most), g.constant(most)), g.constant(most))
        return g("Gather", g.constant(_numbers(bias_HR)), place, axis=1)


def _numbers(tensor: Tensor) -> "np.ndarray[Any, np.dtype[np.float32]]":
    return np.asarray(tensor.detach().float().cpu().numpy())
