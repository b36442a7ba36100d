"""From forms to the weights of an ordinary encoder or decoder.

Every row of a weight matrix is a form: its slots' coefficients, its constant as a bias, and a weight on the slot `bos`
such that its value at BOS is the one wanted. Scores are multiplied by a coldness

    beta = ln(L / LEAK)            what is not selected gets less than LEAK of the weight together
    beta = 2 ln(L / LEAK)          where the sink stands half way between selected and not

rounded up to four binary digits (with sqrt(K), by which the mixer divides): scores of whole numbers are then exact, so
that what is selected is weighted alike.
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
UNSAID = -100.0  # the logit of ids that are no value of an output
SHARP = 8.0  # the logit of the right value above that of the next


@dataclass(frozen=True)
class Output:
    """Where an output is read: the logits from `begin`, one for each value."""

    name: str
    begin: int
    values: tuple[bool | int | float | str, ...]


def assemble(program: ProgramIR, network: Network) -> tuple[Model, list[Output]]:
    """The model, and where its outputs are."""
    work = _Rows(program, network)
    outputs, begin = [], FIRST if program.bounds.causal else 0
    for answer in network.answers:
        outputs.append(Output(answer.name, begin, answer.sop.values))
        begin += len(answer.sop.values)
    tokens = FIRST + len(program.token.values)
    model = _empty(work, network, tokens, begin)
    _fill(model, _weights(work, network, program, tokens, outputs, begin))
    return model.eval(), outputs


class _Rows:
    """Forms as rows over the residual stream."""

    def __init__(self, program: ProgramIR, network: Network) -> None:
        self.causal, self.length = program.bounds.causal, program.bounds.length
        for place, slot in enumerate(network.slots):
            slot.place = place
        self.one = len(network.slots) if self.causal else None  # a decoder's head has no bias
        self.width = len(network.slots) + self.causal
        forms = list(_forms(network))
        self.number = {id(form): number for number, form in enumerate(forms)}
        self.rows_ND, self.biases_N = self._all(forms, network)

    def row(self, form: LinearForm) -> tuple[Floats, float]:
        """Coefficients and bias of a form."""
        number = self.number[id(form)]
        return self.rows_ND[number], float(self.biases_N[number])

    def _all(self, forms: Sequence[LinearForm], network: Network) -> tuple[Floats, Floats]:
        """Of all forms at once, one owner after the other."""
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
    for answer in network.answers:
        yield from answer.forms


def _through(x: Floats, y_NV: Floats) -> tuple[Floats, Floats]:
    """a and b of y = a x + b, for some y."""
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


def _empty(rows: _Rows, network: Network, tokens: int, answers: int) -> Model:
    """The architecture, without weights."""
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
    with torch.random.fork_rng(devices=[]):  # compiling draws nothing from the caller's generator
        if rows.causal:
            return DecoderConfig(tied=False, **settings).build(Sizes(0, max(tokens, answers)))  # type: ignore[arg-type]
        return EncoderConfig(pool="none", **settings).build(Sizes(tokens, answers))  # type: ignore[arg-type]


def _fill(model: Model, weights: dict[str, Floats]) -> None:
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(torch.from_numpy(weights[name]))


def _weights(
    rows: _Rows, network: Network, program: ProgramIR, tokens: int, outputs: Sequence[Output], answers: int
) -> dict[str, Floats]:
    side, stack = ("target", "decoder") if rows.causal else ("source", "encoder")
    named: dict[str, Floats] = {}
    token_VD = np.zeros((max(tokens, answers) if rows.causal else tokens, rows.width))
    place_ND = np.zeros((rows.length + 1, rows.width))
    token_VD[BOS, 0] = 1.0
    for owner, table, first in ((program.token, token_VD, FIRST), (program.index, place_ND, 1)):
        for slot in network.of_owner[id(owner)]:
            table[first : first + len(owner.values), slot.place] = slot.function
    if rows.one is not None:
        place_ND[1:, rows.one] = 1.0
    # The model multiplies embeddings by sqrt(D).
    named[f"{side}.weight_VD"] = token_VD / math.sqrt(rows.width)
    named[f"{side}.position.table_ND"] = place_ND
    for number, layer in enumerate(network.layers):
        prefix = f"{stack}.blocks.{number}"
        named |= {f"{prefix}.mixer.{name}": value for name, value in _attention(rows, layer).items()}
        feed = _feedforward(rows, layer, _hidden(network))
        named |= {f"{prefix}.feedforward.{name}": value for name, value in feed.items()}
    weight_VD, bias_V = _head(rows, network.answers, outputs, len(token_VD) if rows.causal else answers)
    if rows.one is not None:
        weight_VD[:, rows.one] += bias_V
        weight_VD[:FIRST, rows.one] = weight_VD[answers:, rows.one] = UNSAID
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
        cold = _coldness(head, rows.length, keys)
        for place, (query, key) in enumerate(head.products, start=number * keys):
            row, bias = rows.row(query)
            query_ND[place], query_N[place] = cold * row, cold * bias
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


def _coldness(head: HeadIR, length: int, keys: int) -> float:
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
        # At BOS the line is 0 and all neurons are off.
        inner_FD[own, 0] -= made.offsets_N + 1.0
        for number, slot in enumerate(group.slots):
            outer_DF[slot.place, own] = made.outputs_NR[:, number]
            outer_D[slot.place] += made.base_R[number]
        place = own.stop
    return {"inner.weight": inner_FD, "inner.bias": inner_F, "outer.weight": outer_DF, "outer.bias": outer_D}


def _head(rows: _Rows, answers: Sequence[Readout], outputs: Sequence[Output], size: int) -> tuple[Floats, Floats]:
    weight_VD, bias_V = np.zeros((size, rows.width)), np.zeros(size)
    for answer, output in zip(answers, outputs, strict=True):
        own = slice(output.begin, output.begin + len(output.values))
        for number, form in enumerate(answer.forms):
            row, bias = rows.row(form)
            point_V = answer.points_VN[:, number]
            weight_VD[own] += 2 * SHARP * point_V[:, None] * row
            bias_V[own] += SHARP * (2 * point_V * bias - point_V**2)
    return weight_VD, bias_V
