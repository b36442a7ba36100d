"""What a model does with one text, in one shape for every architecture: tokens, probabilities, who read whom.

    found = look(bundle, "forty-one")
    found.said[0].best        # what else the first token might have been
    found.maps[0].weights_HTS # each head: how much the token of row T read of column S

Who read whom comes from the mixers themselves (`maps.py`). Rows and columns are named after what stands there: `source`
and `target` are the tokens read and written; `input` is what a decoder is given, one token behind what it writes;
`other` is no token (a slot of a memory). A model none of whose layers weighs tokens shows influence instead,

    w_ts = |d log P(y_t) / d x_s|,  each row divided by its sum,      x_s the vector of token s,

which every model has: so that a recurrence can stand beside a Transformer.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from allyouneed.decode import SampleConfig, SearchConfig, search, stream
from allyouneed.decode.base import as_float32, device_of, evaluating, resting
from allyouneed.decode.translate import check_known
from allyouneed.errors import ConfigError, DataError
from allyouneed.folder import Bundle
from allyouneed.inspection.maps import Map, record_maps
from allyouneed.inspection.vectors import Vectors
from allyouneed.tasks.base import FIRST_CLASS
from allyouneed.text.specials import BOS, EOS, UNK
from allyouneed.text.tokenizer import Tokenizer

Part = Literal["encoder", "decoder", "cross", "other"]
Axis = Literal["source", "target", "input", "other"]
LONGEST = 256  # tokens of a text
ANSWER = 96  # tokens that a model says at most
GOES_ON = 16  # tokens that a language model adds to a text
ROWS = 64  # tokens whose influences are followed: each is a pass backwards
CELLS = 4_000_000  # weights of all maps together: some 25 MB as JSON


@dataclass(frozen=True)
class Heads:
    """The maps of one layer."""

    name: str  # where it is in its model: "decoder.blocks.1.cross"
    layer: int  # from 1
    part: Part
    rows: Axis
    columns: Axis
    heads: list[str]
    weights_HTS: Tensor


@dataclass(frozen=True)
class Said:
    """One token, and what else it might have been."""

    text: str
    logprob: float
    best: list[tuple[str, float]]  # the most probable tokens, and their log P
    given: bool = False  # whether it was there before the model spoke


@dataclass(frozen=True)
class Look:
    """One text in one model."""

    source: list[str] | None
    target: list[str] | None  # what is being written
    input: list[str] | None  # what a decoder is given: "start", then what it has written
    answer: str
    said: list[Said] = field(repr=False)
    maps: list[Heads] = field(repr=False)
    note: str  # what is shown instead of attention, or is missing

    def labels(self, axis: Axis) -> list[str] | None:
        """The tokens along an axis; None: there are none, only places."""
        return {"source": self.source, "target": self.target, "input": self.input}.get(axis)

    def _repr_html_(self) -> str:
        from allyouneed.inspection.page import small_html

        return small_html(self)


def look(
    bundle: Bundle,
    text: str,
    target: str | None = None,
    *,
    longest: int = LONGEST,
    new_tokens: int | None = None,
    alternatives: int = 5,
) -> Look:
    """What a model reads and says; with a `target`, what it makes of that one. `new_tokens`: of its own, at most."""
    codec = bundle.codec
    if codec.classes is not None:
        if target is not None:
            raise ConfigError("target: this model names classes, and can be given none; leave it out")
        return _Classified(bundle, text, longest).look(alternatives)
    if codec.source is not None:
        return _Translated(bundle, text, target, longest, new_tokens).look(alternatives)
    return _Continued(bundle, text, target, longest, new_tokens).look(alternatives)


class _Looking:
    """What the three ways have in common. Each fills the fields, then runs the model once, watched."""

    def __init__(self, bundle: Bundle, text: str, longest: int) -> None:
        self.bundle, self.model, self.codec, self.text = bundle, bundle.model, bundle.codec, text
        self.longest, self.device = longest, device_of(bundle.model)
        self.source_ids: list[int] | None = None
        self.input_ids: list[int] | None = None
        self.target_ids: list[int] | None = None
        self.given = 0  # tokens of the target that the model did not choose

    def _require_short(self, what: str, tokenizer: Tokenizer, text: str) -> None:
        if tokenizer.surely_longer(text, self.longest) or len(tokenizer.encode(text)) > self.longest:
            raise DataError(f"{what}: more than {self.longest} tokens; maps are shown of shorter ones")

    def _ids(self, ids: Sequence[int]) -> Tensor:
        return torch.tensor([list(ids)], device=self.device)

    def _run(self) -> tuple[Tensor, list[tuple[str, Map]]]:
        """Logits of all positions (T, V), and each map with the phase in which it came."""
        raise NotImplementedError

    def look(self, alternatives: int) -> Look:
        with evaluating(self.model):
            logits_TV, found = self._run()
            logprob_TV = as_float32(logits_TV).log_softmax(dim=-1)
        maps = self._placed(found)
        note = ""
        if not any(one.columns != "other" for one in maps):
            traced, note = self._influence(bool(maps))
            maps = [*traced, *maps]
        _require_few(maps)
        return Look(
            self._names(self.source_ids, self.codec.source),
            self._target_names(),
            self._names(self.input_ids, self.codec.target or self.codec.source),
            self._answer(logprob_TV),
            self._said(logprob_TV, alternatives),
            maps,
            note,
        )

    # --- names -------------------------------------------------------------------------------------------------------

    def _names(self, ids: Sequence[int] | None, tokenizer: Tokenizer | None) -> list[str] | None:
        return None if ids is None or tokenizer is None else pieces(tokenizer, ids)

    def _target_names(self) -> list[str] | None:
        return self._names(self.target_ids, self.codec.target)

    def _answer(self, logprob_TV: Tensor) -> str:
        return "" if self.target_ids is None else self.codec.decode_target(self.target_ids[self.given :])

    def _said(self, logprob_TV: Tensor, alternatives: int) -> list[Said]:
        assert self.codec.target is not None
        ids = self.target_ids or []
        best = logprob_TV[-len(ids) :].topk(min(alternatives, logprob_TV.shape[1]), dim=-1) if ids else None
        said = []
        for place, token in enumerate(ids):
            assert best is not None
            names = pieces(self.codec.target, best.indices[place].tolist())
            own = float(logprob_TV[place - len(ids), token])
            choices = list(zip(names, best.values[place].tolist(), strict=True))
            said.append(Said(pieces(self.codec.target, [token])[0], own, choices, place < self.given))
        return said

    # --- maps --------------------------------------------------------------------------------------------------------

    def _length(self, axis: Axis) -> int | None:
        ids = {"source": self.source_ids, "target": self.target_ids, "input": self.input_ids}.get(axis)
        return None if ids is None else len(ids)

    def _axes(self, name: str, phase: str) -> tuple[Part, Axis, Axis]:
        """What rows and columns should be in a phase, if their lengths agree."""
        raise NotImplementedError

    def _placed(self, found: list[tuple[str, Map]]) -> list[Heads]:
        placed: list[Heads] = []
        for phase, one in found:
            weights_HTS = one.weights_BHTS[0].float()
            H, T, S = weights_HTS.shape
            part, rows, columns = self._axes(one.name, phase)
            rows = rows if self._length(rows) == T else "other"
            columns = columns if self._length(columns) == S else "other"
            part = "other" if "other" in (rows, columns) else part
            number = re.search(r"\.(\d+)(?=\.|$)", one.name)
            layer = 1 + (int(number[1]) if number else sum(other.part == part for other in placed))
            placed.append(Heads(one.name, layer, part, rows, columns, self.model.head_names(one.name, H), weights_HTS))
        return placed

    # --- influence ---------------------------------------------------------------------------------------------------

    def _traced(self, vectors: Vectors) -> tuple[Tensor, list[tuple[Axis, Tensor]]]:
        """Runs the model where gradients are kept: log P (T, V) of the last rows, and the vectors of its tokens."""
        raise NotImplementedError

    def _chosen(self, logprob_TV: Tensor) -> list[int]:
        return self.target_ids or []

    def _row_axis(self) -> Axis:
        return "target"

    def _influence(self, others: bool) -> tuple[list[Heads], str]:
        """How much each token that is read moves each one that is said."""
        with resting(self.model), torch.enable_grad(), Vectors() as vectors:
            logprob_TV, read = self._traced(vectors)
            chosen = self._chosen(logprob_TV)
            rows: list[list[Tensor]] = [[] for _ in read]
            if not read or not logprob_TV.requires_grad or not 0 < len(chosen) <= ROWS:
                why = f"more than {ROWS} tokens" if len(chosen) > ROWS else "none that could be followed"
                return [], "" if others else f"No attention in this model, and {why}: there is no map to show."
            for place, token in enumerate(chosen):
                output = logprob_TV[place - len(chosen), token]
                wanted = [x_BTD for _, x_BTD in read]
                gradients = torch.autograd.grad(
                    output, wanted, retain_graph=True, allow_unused=True, materialize_grads=True
                )
                for kept, gradient in zip(rows, gradients, strict=True):
                    kept.append(gradient[0].norm(dim=-1))
        total_T = sum(torch.stack(kept).sum(dim=1) for kept in rows)
        assert isinstance(total_T, Tensor)
        maps = []
        for (axis, _), kept in zip(read, rows, strict=True):
            weights_TS = torch.stack(kept) / total_T.clamp_min(1e-30)[:, None]
            part: Part = "encoder" if self._row_axis() == axis else "cross" if axis == "source" else "decoder"
            row: Axis = self._row_axis() if len(chosen) > 1 or self._length(self._row_axis()) == 1 else "other"
            maps.append(Heads("influence", 1, part, row, axis, ["influence"], weights_TS.detach().cpu()[None]))
        note = (
            "This model does not weigh tokens. Shown is influence: the size of the gradient of each answer's log "
            "probability by each token's vector, as shares of a row."
        )
        return maps, note


class _Translated(_Looking):
    """A source is answered; for a decoder the source is the beginning of its text."""

    def __init__(
        self, bundle: Bundle, text: str, target: str | None, longest: int, new_tokens: int | None = None
    ) -> None:
        super().__init__(bundle, text, longest)
        source, wanted = self.codec.both()
        self._require_short("text", source, text)
        self.source_ids = self.codec.encode_source(text)
        if target is not None:
            self._require_short("target", wanted, target)
            self.target_ids = self.codec.encode_target(target)
            self.given = len(self.target_ids)
        else:
            usual = SearchConfig(beam=1).limit(self.source_ids)
            limit = min(usual, self.longest, ANSWER if new_tokens is None else new_tokens)
            best = search(self.model, [self.source_ids], SearchConfig(beam=1, max_length=max(1, limit)))[0][0]
            self.target_ids = [*best.ids, EOS] if best.finished or not best.ids else best.ids
        # Row t is what was read in order to write token t, so the input is one token behind.
        self.input_ids = [BOS, *self.target_ids[:-1]]
        self.alone, self.joined = self.model.kind == "decoder", 0  # source tokens that are part of the input

    def _run(self) -> tuple[Tensor, list[tuple[str, Map]]]:
        assert self.source_ids is not None
        assert self.input_ids is not None
        with record_maps(self.model) as maps:
            if self.alone:
                logits_BTV, _ = self.model.step(self._ids([*self.source_ids, *self.input_ids]), self.model.start())
                self._read_as_one()
                return logits_BTV[0], [("write", one) for one in maps]
            state = self.model.condition(self._ids(self.source_ids))
            before = len(maps)
            logits_BTV, _ = self.model.step(self._ids(self.input_ids), state)
        phases = ["read"] * before + ["write"] * (len(maps) - before)
        return logits_BTV[0], list(zip(phases, maps, strict=True))

    def _read_as_one(self) -> None:
        """What a decoder reads is one text."""
        assert self.source_ids is not None
        assert self.input_ids is not None
        self.input_ids, self.joined = [*self.source_ids, *self.input_ids], len(self.source_ids)

    def _names(self, ids: Sequence[int] | None, tokenizer: Tokenizer | None) -> list[str] | None:
        whole = self.input_ids
        if not self.alone or whole is None or ids is not whole:
            return super()._names(ids, tokenizer)
        source, target = self.codec.both()  # two vocabularies in one text
        return pieces(source, whole[: self.joined]) + pieces(target, whole[self.joined :])

    def _answer(self, logprob_TV: Tensor) -> str:
        return self.codec.decode_target(self.target_ids or [])

    def _axes(self, name: str, phase: str) -> tuple[Part, Axis, Axis]:
        if self.alone:
            return "decoder", "input", "input"
        if name == "heads":  # of a Neural Turing Machine, over slots
            return "other", "source" if phase == "read" else "target", "other"
        if phase == "read":
            return "encoder", "source", "source"
        # Blocks call what looks at the past `mixer`; whatever else looks while writing looks at the source.
        return ("decoder", "target", "input") if name.endswith("mixer") else ("cross", "target", "source")

    def _traced(self, vectors: Vectors) -> tuple[Tensor, list[tuple[Axis, Tensor]]]:
        assert self.source_ids is not None
        assert self.input_ids is not None
        if self.alone:
            logits_BTV, _ = self.model.step(self._ids(self.input_ids), self.model.start())
            return as_float32(logits_BTV[0]).log_softmax(dim=-1), _of_length(vectors, "input", len(self.input_ids))
        state = self.model.condition(self._ids(self.source_ids))
        read = _of_length(vectors, "source", len(self.source_ids))
        before = len(vectors.found)
        logits_BTV, _ = self.model.step(self._ids(self.input_ids), state)
        read += _of_length(vectors, "input", len(self.input_ids), before)
        return as_float32(logits_BTV[0]).log_softmax(dim=-1), read


class _Continued(_Looking):
    """A language model reads a text and goes on."""

    def __init__(
        self, bundle: Bundle, text: str, target: str | None, longest: int, new_tokens: int | None = None
    ) -> None:
        super().__init__(bundle, text, longest)
        assert self.codec.target is not None
        self._require_short("text", self.codec.target, text)
        prompt = self.codec.encode_prompt(text)[1:]
        if target is not None:
            self._require_short("target", self.codec.target, target)
            more = self.codec.target.encode(target)
        else:
            # All of it is read again after BOS, the last token too.
            most = self.longest if self.model.longest is None else min(self.longest, self.model.longest - 1)
            room = max(0, most - len(prompt))
            limit = min(GOES_ON if new_tokens is None else new_tokens, room)
            more = list(stream(self.model, prompt, SampleConfig(temperature=0, max_length=limit)))
        self.target_ids = [*prompt, *more]
        if len(self.target_ids) > self.longest:
            raise DataError(f"text and target: more than {self.longest} tokens; maps are shown of shorter ones")
        self.given = len(prompt)
        self.input_ids = [BOS, *self.target_ids]

    def _run(self) -> tuple[Tensor, list[tuple[str, Map]]]:
        assert self.input_ids is not None
        with record_maps(self.model) as maps:
            logits_BTV, _ = self.model.step(self._ids(self.input_ids), self.model.start())
        return logits_BTV[0, :-1], [("write", one) for one in maps]

    def _axes(self, name: str, phase: str) -> tuple[Part, Axis, Axis]:
        return "decoder", "input", "input"

    def _traced(self, vectors: Vectors) -> tuple[Tensor, list[tuple[Axis, Tensor]]]:
        assert self.input_ids is not None
        logits_BTV, _ = self.model.step(self._ids(self.input_ids), self.model.start())
        read = _of_length(vectors, "input", len(self.input_ids))
        return as_float32(logits_BTV[0, :-1]).log_softmax(dim=-1), read


class _Classified(_Looking):
    """A class for the whole text, or for each of its tokens."""

    def __init__(self, bundle: Bundle, text: str, longest: int) -> None:
        super().__init__(bundle, text, longest)
        assert self.codec.source is not None
        self._require_short("text", self.codec.source, text)
        self.source_ids = self.codec.encode_source(text)
        if self.codec.each:
            check_known(text, self.source_ids, "text")

    def _logits(self) -> Tensor:
        """One row for each answer."""
        assert self.source_ids is not None
        assert self.codec.classes is not None
        source_BS = self._ids(self.source_ids)
        if self.model.kind == "decoder":  # says a class by its id
            logits_BSV, _ = self.model.step(source_BS, self.model.start())
            return logits_BSV[0, 1:, FIRST_CLASS : FIRST_CLASS + len(self.codec.classes)]
        logits = self.model.classify(source_BS)
        # What frames a text has no class.
        return logits[0, self.codec.inside(logits.shape[1])] if self.codec.each else logits

    def _run(self) -> tuple[Tensor, list[tuple[str, Map]]]:
        with record_maps(self.model) as maps:
            logits_TV = self._logits()
        return logits_TV, [("read", one) for one in maps]

    def _axes(self, name: str, phase: str) -> tuple[Part, Axis, Axis]:
        return "decoder" if self.model.kind == "decoder" else "encoder", "source", "source"

    def _placed(self, found: list[tuple[str, Map]]) -> list[Heads]:
        """A hop of a memory network has one row, whose columns are tokens all the same."""
        return [_with_columns(one, "source", self._length("source")) for one in super()._placed(found)]

    def _answer(self, logprob_TV: Tensor) -> str:
        assert self.codec.classes is not None
        return " ".join(self.codec.classes[number] for number in self._chosen(logprob_TV))

    def _said(self, logprob_TV: Tensor, alternatives: int) -> list[Said]:
        names = self.codec.classes
        assert names is not None
        best = logprob_TV.topk(min(alternatives, len(names)), dim=-1)
        said = []
        for values, places in zip(best.values.tolist(), best.indices.tolist(), strict=True):
            choices = [(names[place], value) for place, value in zip(places, values, strict=True)]
            said.append(Said(*choices[0], choices))
        return said

    def _traced(self, vectors: Vectors) -> tuple[Tensor, list[tuple[Axis, Tensor]]]:
        logprob_TV = as_float32(self._logits()).log_softmax(dim=-1)
        assert self.source_ids is not None
        return logprob_TV, _of_length(vectors, "source", len(self.source_ids))

    def _chosen(self, logprob_TV: Tensor) -> list[int]:
        chosen: list[int] = logprob_TV.argmax(dim=-1).tolist()
        return chosen

    def _row_axis(self) -> Axis:
        return "other"  # an answer is no token of the text


def _with_columns(one: Heads, axis: Axis, length: int | None) -> Heads:
    if one.columns == "other" and one.weights_HTS.shape[-1] == length:
        return Heads(one.name, one.layer, one.part, one.rows, axis, one.heads, one.weights_HTS)
    return one


def _of_length(vectors: Vectors, axis: Axis, length: int, begin: int = 0) -> list[tuple[Axis, Tensor]]:
    """What the tokens became: the first vectors that are as many as they. Positions may be looked up later."""
    found = [x for x in vectors.found[begin:] if x.dim() == 3 and x.shape[1] == length]
    return [(axis, found[0])] if found else []


def _require_few(maps: Sequence[Heads]) -> None:
    cells = sum(one.weights_HTS.numel() for one in maps)
    if cells > CELLS:
        raise DataError(f"text: its maps hold {cells:,} weights; at most {CELLS:,} are shown: give a shorter text")


def pieces(tokenizer: Tokenizer, ids: Sequence[int]) -> list[str]:
    """The text of each token; special ones have names."""
    names = {BOS: "start", EOS: "end", UNK: "?"}
    return [names.get(token) or tokenizer.decode([token]) for token in ids]


def as_json(found: Look) -> dict[str, Any]:
    """A look as plain values; weights to four digits."""
    return {
        "source": found.source,
        "target": found.target,
        "input": found.input,
        "answer": found.answer,
        "said": [
            {"text": one.text, "logprob": _finite(one.logprob), "given": one.given, "best": _choices(one.best)}
            for one in found.said
        ],
        "maps": [_heads_as_json(one) for one in found.maps],
        "note": found.note,
    }


def _heads_as_json(one: Heads) -> dict[str, Any]:
    """The maps of one layer as plain values."""
    weights = one.weights_HTS.double().nan_to_num().round(decimals=4).tolist()
    names = {"name": one.name, "layer": one.layer, "part": one.part, "rows": one.rows, "columns": one.columns}
    return {**names, "heads": one.heads, "weights": weights}


def _choices(best: list[tuple[str, float]]) -> list[list[Any]]:
    return [[text, _finite(logprob)] for text, logprob in best]


def _finite(number: float) -> float:
    return round(max(number, -1e4), 4) if number == number else -1e4
