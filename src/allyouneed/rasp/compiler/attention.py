"""The expected attention of a compiled program's heads on an input, beside the actual attention weights.

A head implements one term of a selector (`ir.py`). Its softmax should give equal weights to all selected positions. A
head that counts always selects BOS, the sink, too; any head selects BOS if it selects nothing else. The expected
selection is computed here without weights, from the values of the variables that the term compares.
"""

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from allyouneed.mixers.base import send_maps_to
from allyouneed.rasp.api import evaluate
from allyouneed.rasp.atoms import Atom, mean
from allyouneed.rasp.causal import seen_causally
from allyouneed.rasp.compiler.compile import run_passes
from allyouneed.rasp.compiler.compiled import CompiledProgram
from allyouneed.rasp.compiler.ir import Bools, Floats, Ints, TabulatedSOp, Term, term_key
from allyouneed.rasp.compiler.schedule import ProgramIR
from allyouneed.rasp.graph import Input, Node, SOp, in_order
from allyouneed.rasp.labels import title


@dataclass(frozen=True)
class HeadAttention:
    """One head on one input: a row for each position, a column for BOS and for each position."""

    selector: str
    counts: bool
    part: str  # "1 of 2" if the selector needs several heads
    expected: Floats  # equal weights over the selected positions
    weights: Floats  # the model's attention weights

    @property
    def difference(self) -> float:
        return float(np.abs(self.expected - self.weights).max())


@dataclass(frozen=True)
class AttentionTrace:
    """The expected and actual attention of a compiled program on one input."""

    compiled: CompiledProgram
    name: str
    given: Input
    heads: tuple[tuple[HeadAttention, ...], ...]  # by layer
    right: list[Atom]  # the program's output
    found: list[Atom]  # the model's output


def trace_attention(
    sop: SOp,
    given: Input,
    vocabulary: Sequence[Atom] | None = None,
    length: int | None = None,
    *,
    name: str = "output",
    causal: bool = False,
    names: Mapping[Node, str] | None = None,
) -> AttentionTrace:
    """Compile an s-op and trace it on an input. Vocabulary and length default to those of the input."""
    right = evaluate(seen_causally(sop) if causal else sop, given)
    names = _named(sop, names or {})
    tokens = list(dict.fromkeys(given)) if vocabulary is None else list(vocabulary)
    compiled, program, network = run_passes({name: sop}, tokens, length or len(given), causal, names)
    expected = _ExpectedAttention(program, given)
    maps = _maps(compiled, given)
    layers = []
    for number, layer in enumerate(network.layers, start=1):
        heads = [expected.head(number, key) for key in layer.heads]
        weights = maps[number - 1][: len(heads)]
        parts = _parts([head[:2] for head in heads])
        layers.append(
            tuple(
                HeadAttention(*head[:2], part, head[2], weights_TS[1:].double().numpy())
                for head, part, weights_TS in zip(heads, parts, weights, strict=True)
            )
        )
    return AttentionTrace(compiled, name, given, tuple(layers), right, compiled.run([given])[0][name])


def _named(sop: SOp, names: Mapping[Node, str]) -> dict[Node, str]:
    """Return a name for every computed node: its name in the program or, by default, its expression."""
    return {node: title(node, names) for node in in_order([sop]) if node.parts}


def _parts(kinds: Sequence[Hashable]) -> list[str]:
    """Return "1 of 2", "2 of 2" for equal kinds and "" for unique ones."""
    seen: Counter[Hashable] = Counter()
    parts = []
    for kind in kinds:
        seen[kind] += 1
        parts.append(f"{seen[kind]} of {kinds.count(kind)}" if kinds.count(kind) > 1 else "")
    return parts


def _maps(compiled: CompiledProgram, given: Input) -> list[Tensor]:
    """Return the attention weights of every layer: (heads, positions, positions), BOS first."""
    maps: list[Tensor] = []

    def keep(mixer: torch.nn.Module, weights_BHTS: Tensor) -> None:
        maps.append(weights_BHTS[0].detach().cpu())

    with send_maps_to(keep):
        compiled.logits([given])
    return maps


class _ExpectedAttention:
    """Computes the values of the compiler's s-ops on an input, as indices into their domains."""

    def __init__(self, program: ProgramIR, given: Input) -> None:
        self.program, self.length = program, len(given)
        place = {token: number for number, token in enumerate(program.token.values)}
        self.numbers: dict[TabulatedSOp, Ints] = {
            program.token: np.array([place[token] for token in given]),
            program.index: np.arange(self.length),
        }
        self.terms: dict[Any, tuple[str, Term]] = {}
        for sop in program.sops:
            if sop.selector is not None:
                for term in sop.selector.terms:
                    self.terms[sop.layer, sop.kind == "width", term_key(term)] = sop.selector.label, term

    def head(self, layer: int, key: Any) -> tuple[str, bool, Floats]:
        """Return the selector of a head, whether the head counts, and its expected attention."""
        counts = key[0]
        label, term = self.terms[(layer, *key)]
        selected = self.selected(term)
        sink = np.full((self.length, 1), fill_value=True) if counts else ~selected.any(axis=1, keepdims=True)
        together = np.concatenate([sink, selected], axis=1).astype(np.float64)
        return label, counts, together / together.sum(axis=1, keepdims=True)

    def selected(self, term: Term) -> Bools:
        """Return the matrix whose row i, column j is True if i selects j."""
        rows: Bools = np.ones((self.length, self.length), dtype=np.bool_)
        if self.program.bounds.causal:
            rows = np.tril(rows)
        for condition in term:
            keys, queries = (self._of(side) for side in (condition.keys, condition.queries))
            rows = rows & condition.relation[keys[None, :], queries[:, None]]
        return rows

    def _of(self, sop: TabulatedSOp | None) -> Ints:
        if sop is None or not sop.frontier:
            return np.zeros(self.length, dtype=np.int64)
        if sop not in self.numbers:
            self.numbers[sop] = self._compute(sop)
        return self.numbers[sop]

    def _compute(self, sop: TabulatedSOp) -> Ints:
        if sop.kind == "cut":
            return self._of(sop.arguments[0])
        if sop.selector is None:
            found: Ints = sop.table[tuple(self._of(variable) for variable in sop.frontier)]
            return found
        if sop.kind == "width":
            counts = self.selected(sop.selector.terms[0]).sum(axis=1)
            return np.array([sop.values.index(int(count)) for count in counts])
        assert sop.value is not None
        atoms = [sop.value.values[number] for number in self._of(sop.value)]
        rows = np.any([self.selected(term) for term in sop.selector.terms], axis=0)
        chosen = [[atom for atom, bit in zip(atoms, row, strict=True) if bit] for row in rows]
        return np.array([_value_index(mean(some) if some else sop.default, sop.values) for some in chosen])


def _value_index(atom: Atom, values: Sequence[Atom]) -> int:
    """Return the index of a value; for numbers the nearest, since equal means may differ in the last digit."""
    if atom in values:
        return values.index(atom)
    assert not isinstance(atom, str)
    return int(np.argmin([abs(float(value) - float(atom)) for value in values]))
