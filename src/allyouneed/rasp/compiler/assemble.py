"""Converts linear forms to the weights of an ordinary encoder or decoder.

Every row of a weight matrix is a form: its slots' coefficients, its constant as a bias, and a weight on the slot `bos`
that gives the specified value at BOS. Scores are multiplied by an inverse temperature

    beta = ln(L / LEAK)            unselected positions together get less than LEAK of the weight
    beta = 2 ln(L / LEAK)          where the sink is half way between selected and unselected

rounded up to four binary digits (with sqrt(K), by which the mixer divides). Integer scores are then exact, so that all
selected positions get equal weights.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from allyouneed.mixers.softmax import SoftmaxConfig
from allyouneed.models.base import Model
from allyouneed.models.decoder import DecoderConfig
from allyouneed.models.encoder import EncoderConfig
from allyouneed.positions import LearnedConfig
from allyouneed.rasp.compiler.elementwise import raw_position
from allyouneed.rasp.compiler.ir import Floats, TabulatedSOp
from allyouneed.rasp.compiler.lowering import HeadIR, LayerIR, LinearForm, Network, Readout
from allyouneed.rasp.compiler.schedule import ProgramIR
from allyouneed.sizes import Sizes
from allyouneed.text.specials import BOS, UNK

FIRST = UNK + 1  # the id of the first token of a vocabulary
LEAK = 1e-7
UNUSED_LOGIT = -100.0  # the logit of ids that are not a value of an output
SHARP = 8.0  # margin of the correct logit over the next


@dataclass(frozen=True)
class Output:
    """The logits of an output: one for each value, starting at `begin`."""

    name: str
    begin: int
    values: tuple[bool | int | float | str, ...]


def assemble(program: ProgramIR, network: Network) -> tuple[Model, list[Output]]:
    """Return the model, and where its outputs are."""
    rows = _Rows(program, network)
    outputs, begin = [], FIRST if program.bounds.causal else 0
    for readout in network.readouts:
        outputs.append(Output(readout.name, begin, readout.sop.values))
        begin += len(readout.sop.values)
    tokens = FIRST + len(program.token.values)
    model = _empty(rows, network, tokens, begin)
    _fill(model, _weights(rows, network, program, tokens, outputs, begin))
    return model.eval(), outputs


class _Rows:
    """Linear forms as rows over the residual stream."""

    def __init__(self, program: ProgramIR, network: Network) -> None:
        self.causal, self.length = program.bounds.causal, program.bounds.length
        for place, slot in enumerate(network.slots):
            slot.place = place
        self.ones_slot = len(network.slots) if self.causal else None  # a decoder's head has no bias
        self.width = len(network.slots) + self.causal
        forms = list(_forms(network))
        self.number = {id(form): number for number, form in enumerate(forms)}
        self.rows_ND, self.biases_N = self._all(forms, network)

    def row(self, form: LinearForm) -> tuple[Floats, float]:
        """Return the coefficients and the bias of a form."""
        number = self.number[id(form)]
        return self.rows_ND[number], float(self.biases_N[number])

    def _all(self, forms: Sequence[LinearForm], network: Network) -> tuple[Floats, Floats]:
        """Return the rows and biases of all forms, grouped by owner."""
        rows_ND, at_bos_N = np.zeros((len(forms), self.width)), np.zeros(len(forms))
        biases_N = np.array([form.constant for form in forms])
        parts: dict[tuple[int, bool], list[tuple[int, TabulatedSOp, Floats]]] = {}
        for number, form in enumerate(forms):
            for owner, function, raw in form.parts:
                parts.setdefault((id(owner), raw), []).append((number, owner, function))
        for (key, raw), own in parts.items():
            owner, numbers, functions = own[0][1], [part[0] for part in own], np.stack([part[2] for part in own])
            slots = [network.raw[key]] if raw else network.of_owner[key]
            if raw:
                slopes, offsets = _through(raw_position(owner), functions)
            else:
                columns = np.stack([np.ones(len(owner.values)), *(slot.function for slot in slots)], axis=1)
                offsets, *rest = np.linalg.pinv(columns) @ functions.T
                slopes = np.array(rest).reshape(len(slots), len(own)).T
            at_bos = np.array([slot.raw_at_bos if raw else slot.at_bos for slot in slots])
            np.add.at(rows_ND, (np.array(numbers)[:, None], [slot.place for slot in slots]), slopes)  # type: ignore[arg-type]
            np.add.at(biases_N, numbers, offsets)
            np.add.at(at_bos_N, numbers, slopes @ at_bos)
        sizes = np.abs(rows_ND)
        rows_ND[sizes < 1e-13 * np.maximum(1.0, sizes.max(axis=1, initial=0.0, keepdims=True))] = 0.0
        rows_ND[:, 0] += np.array([form.at_bos for form in forms]) - biases_N - at_bos_N
        return rows_ND, biases_N


def _forms(network: Network) -> Iterator[LinearForm]:
    for layer in network.layers:
        for head in layer.heads.values():
            yield from itertools.chain.from_iterable(head.products)
            yield from (form for form, _ in head.values)
        yield from (group.line for group in layer.neurons)
    for readout in network.readouts:
        yield from readout.forms


def _through(x: Floats, y_NV: Floats) -> tuple[Floats, Floats]:
    """Return the slopes and offsets of y = a x + b for several y."""
    low, high = int(x.argmin()), int(x.argmax())
    slopes = (y_NV[:, high] - y_NV[:, low]) / (x[high] - x[low]) if low != high else np.zeros(len(y_NV))
    return slopes[:, None], y_NV[:, low] - slopes * x[low]


def _sizes(layer: LayerIR) -> tuple[int, int, int]:
    heads = list(layer.heads.values())
    keys = max((len(head.products) for head in heads), default=1)
    values = max((len(head.values) for head in heads), default=1)
    return max(1, len(heads)), keys, values


def _hidden(network: Network) -> int:
    return max((sum(len(group.steps.slopes_N) for group in layer.neurons) for layer in network.layers), default=1) or 1


def _empty(rows: _Rows, network: Network, tokens: int, classes: int) -> Model:
    """Return the model with untrained weights."""
    mixers = [
        SoftmaxConfig(heads=heads, key_width=keys, value_width=values)
        for heads, keys, values in map(_sizes, network.layers)
    ]
    settings = {
        "width": rows.width,
        "layers": len(network.layers),
        "norm": "none",
        "feedforward": "relu",
        "hidden": _hidden(network),
        "dropout": 0.0,
        "mixer": mixers or SoftmaxConfig(heads=1),
        "positions": LearnedConfig(max_length=rows.length + 1),
    }
    with torch.random.fork_rng(devices=[]):  # leave the caller's random state unchanged
        if rows.causal:
            return DecoderConfig(tied=False, **settings).build(Sizes(0, max(tokens, classes)))  # type: ignore[arg-type]
        return EncoderConfig(pool="none", **settings).build(Sizes(tokens, classes))  # type: ignore[arg-type]


def _fill(model: Model, weights: dict[str, Floats]) -> None:
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(torch.from_numpy(weights[name]))


def _weights(
    rows: _Rows, network: Network, program: ProgramIR, tokens: int, outputs: Sequence[Output], classes: int
) -> dict[str, Floats]:
    side, stack = ("target", "decoder") if rows.causal else ("source", "encoder")
    named: dict[str, Floats] = {}
    token_VD = np.zeros((max(tokens, classes) if rows.causal else tokens, rows.width))
    place_ND = np.zeros((rows.length + 1, rows.width))
    token_VD[BOS, 0] = 1.0
    for owner, table, first in ((program.token, token_VD, FIRST), (program.index, place_ND, 1)):
        for slot in network.of_owner[id(owner)]:
            table[first : first + len(owner.values), slot.place] = slot.function
    if rows.ones_slot is not None:
        place_ND[1:, rows.ones_slot] = 1.0
    # The model multiplies embeddings by sqrt(D).
    named[f"{side}.weight_VD"] = token_VD / math.sqrt(rows.width)
    named[f"{side}.position.table_ND"] = place_ND
    for number, layer in enumerate(network.layers):
        prefix = f"{stack}.blocks.{number}"
        named |= {f"{prefix}.mixer.{name}": value for name, value in _attention(rows, layer).items()}
        feed = _feedforward(rows, layer, _hidden(network))
        named |= {f"{prefix}.feedforward.{name}": value for name, value in feed.items()}
    weight_VD, bias_V = _head(rows, network.readouts, outputs, len(token_VD) if rows.causal else classes)
    if rows.ones_slot is not None:
        weight_VD[:, rows.ones_slot] += bias_V
        weight_VD[:FIRST, rows.ones_slot] = weight_VD[classes:, rows.ones_slot] = UNUSED_LOGIT
    else:
        named["head.bias_V"] = bias_V
    named["head.weight_VD"] = weight_VD
    return named


def _attention(rows: _Rows, layer: LayerIR) -> dict[str, Floats]:
    heads, keys, values = _sizes(layer)
    query_ND, key_ND, value_ND = (np.zeros((heads * size, rows.width)) for size in (keys, keys, values))
    query_N, key_N, value_N = (np.zeros(heads * size) for size in (keys, keys, values))
    output_DN, output_D = np.zeros((rows.width, heads * values)), np.zeros(rows.width)
    for number, head in enumerate(layer.heads.values()):
        beta = _inverse_temperature(head, rows.length, keys)
        for place, (query, key) in enumerate(head.products, start=number * keys):
            row, bias = rows.row(query)
            query_ND[place], query_N[place] = beta * row, beta * bias
            key_ND[place], key_N[place] = rows.row(key)
        for place, (form, slot) in enumerate(head.values, start=number * values):
            value_ND[place], value_N[place] = rows.row(form)
            output_DN[slot.place, place] = 1.0
    for slot, bias in layer.biases:
        output_D[slot.place] += bias
    return {
        "query_key_value.weight": np.concatenate([query_ND, key_ND, value_ND]),
        "query_key_value.bias": np.concatenate([query_N, key_N, value_N]),
        "output.weight": output_DN,
        "output.bias": output_D,
    }


def _inverse_temperature(head: HeadIR, length: int, keys: int) -> float:
    beta = math.log(length / LEAK) * (1 if head.counts else 2)
    exact = beta * math.sqrt(keys)
    unit = 2.0 ** (math.floor(math.log2(exact)) - 3)
    return math.ceil(exact / unit) * unit


def _feedforward(rows: _Rows, layer: LayerIR, hidden: int) -> dict[str, Floats]:
    inner_FD, inner_F = np.zeros((hidden, rows.width)), np.zeros(hidden)
    outer_DF, outer_D = np.zeros((rows.width, hidden)), np.zeros(rows.width)
    place = 0
    for group in layer.neurons:
        row, bias = rows.row(group.line)
        made = group.steps
        own = slice(place, place + len(made.slopes_N))
        inner_FD[own] = made.slopes_N[:, None] * row
        inner_F[own] = made.slopes_N * bias + made.offsets_N
        # At BOS the line is 0 and all neurons are inactive.
        inner_FD[own, 0] -= made.offsets_N + 1.0
        for number, slot in enumerate(group.slots):
            outer_DF[slot.place, own] = made.outputs_NR[:, number]
            outer_D[slot.place] += made.base_R[number]
        place = own.stop
    return {"inner.weight": inner_FD, "inner.bias": inner_F, "outer.weight": outer_DF, "outer.bias": outer_D}


def _head(rows: _Rows, readouts: Sequence[Readout], outputs: Sequence[Output], size: int) -> tuple[Floats, Floats]:
    weight_VD, bias_V = np.zeros((size, rows.width)), np.zeros(size)
    for readout, output in zip(readouts, outputs, strict=True):
        own = slice(output.begin, output.begin + len(output.values))
        for number, form in enumerate(readout.forms):
            row, bias = rows.row(form)
            point_V = readout.points_VN[:, number]
            weight_VD[own] += 2 * SHARP * point_V[:, None] * row
            bias_V[own] += SHARP * (2 * point_V * bias - point_V**2)
    return weight_VD, bias_V
