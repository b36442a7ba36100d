"""The result of an inspection: tokens, probabilities and maps, in one shape for every architecture.

The rows and columns of a map are named after the tokens there. `source` and `target` are the tokens read and written.
`input` is what a decoder reads, one token behind what it writes. `other` is not a token, for example a memory slot.
"""

import html
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import Tensor

from allyouneed.inspection.drawing import shorten, weights_html
from allyouneed.text.specials import BOS, EOS, UNK
from allyouneed.text.tokenizer import Tokenizer

Part = Literal["encoder", "decoder", "cross", "other"]
Axis = Literal["source", "target", "input", "other"]
PART_ORDER: tuple[Part, ...] = ("cross", "decoder", "encoder", "other")  # the most informative part first
PART_NAMES: dict[Part, str] = {
    "cross": "cross-attention",
    "decoder": "decoder self-attention",
    "encoder": "encoder self-attention",
    "other": "other map",
}
ANSWER_LENGTH = 500  # characters shown in a notebook


@dataclass(frozen=True)
class LayerMaps:
    """The maps of one layer, one for each head."""

    name: str  # the module's name in its model: "decoder.blocks.1.cross"
    layer: int  # from 1
    part: Part
    rows: Axis
    columns: Axis
    heads: list[str]
    weights_HTS: Tensor

    @property
    def title(self) -> str:
        """The name for people, as on the page. `name` counts layers from 0, as in Python."""
        return self.name if self.name == "influence" else f"{PART_NAMES[self.part]}, layer {self.layer}"


@dataclass(frozen=True)
class OutputToken:
    """A token of the output, and the most probable tokens in its place."""

    text: str
    logprob: float
    best: list[tuple[str, float]]  # texts and log-probabilities
    given: bool = False  # part of the text that was given, not generated


@dataclass(frozen=True)
class Inspection:
    """The output, probabilities and attention maps of a model on one text."""

    source: list[str] | None
    target: list[str] | None  # the tokens written
    input: list[str] | None  # the tokens a decoder reads: "start", then those it has written
    answer: str
    outputs: list[OutputToken] = field(repr=False)
    maps: list[LayerMaps] = field(repr=False)
    note: str  # what is shown instead of attention, or is missing

    def labels(self, axis: Axis) -> list[str] | None:
        """Return the tokens along an axis, or None if its positions are not tokens."""
        return {"source": self.source, "target": self.target, "input": self.input}.get(axis)

    def main_map(self) -> LayerMaps | None:
        """Return the last layer that reads the source, or else the last layer of the next part in `PART_ORDER`."""
        for part in PART_ORDER:
            of_part = [one for one in self.maps if one.part == part]
            if of_part:
                return of_part[-1]
        return None

    def _repr_html_(self) -> str:
        """A line of text and one picture for a notebook. No scripts, nothing fetched."""
        main = self.main_map()
        line = f"<p>→ {html.escape(shorten(self.answer, ANSWER_LENGTH))}</p>" if self.answer else ""
        note = f"<p><small>{html.escape(self.note)}</small></p>" if self.note else ""
        if main is None:
            return f"<div>{line}{note}</div>"
        rows, columns = self.labels(main.rows), self.labels(main.columns)
        return f"<div>{line}{weights_html(main.weights_HTS, rows, columns, main.title)}{note}</div>"


def token_texts(tokenizer: Tokenizer, ids: Sequence[int]) -> list[str]:
    """Return the text of each token, or the name of a special one."""
    names = {BOS: "start", EOS: "end", UNK: "?"}
    return [names.get(token) or tokenizer.decode([token]) for token in ids]


def as_json(found: Inspection) -> dict[str, Any]:
    """Return an inspection as plain values, with weights rounded to four digits."""
    return {
        "source": found.source,
        "target": found.target,
        "input": found.input,
        "answer": found.answer,
        "said": [
            {"text": one.text, "logprob": _finite(one.logprob), "given": one.given, "best": _choices(one.best)}
            for one in found.outputs
        ],
        "maps": [_maps_as_json(one) for one in found.maps],
        "note": found.note,
    }


def _maps_as_json(one: LayerMaps) -> dict[str, Any]:
    weights = one.weights_HTS.double().nan_to_num().round(decimals=4).tolist()
    names = {"name": one.name, "layer": one.layer, "part": one.part, "rows": one.rows, "columns": one.columns}
    return {**names, "heads": one.heads, "weights": weights}


def _choices(best: list[tuple[str, float]]) -> list[list[Any]]:
    return [[text, _finite(logprob)] for text, logprob in best]


def _finite(number: float) -> float:
    return round(max(number, -1e4), 4) if number == number else -1e4
