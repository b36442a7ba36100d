"""Inspections of translators, language models and classifiers."""

from collections.abc import Sequence

from torch import Tensor

from allyouneed.decode import SampleConfig, SearchConfig, search, stream
from allyouneed.decode.base import as_float32
from allyouneed.errors import DataError
from allyouneed.folder import Bundle
from allyouneed.inspection.inspector import Inspector, embeddings_of
from allyouneed.inspection.maps import AttentionMap, record_maps
from allyouneed.inspection.result import Axis, LayerMaps, OutputToken, Part, token_texts
from allyouneed.inspection.vectors import Vectors
from allyouneed.tasks.base import FIRST_CLASS
from allyouneed.text.checks import check_known
from allyouneed.text.specials import BOS, EOS
from allyouneed.text.tokenizer import Tokenizer

MAX_ANSWER = 96  # tokens that a model generates for a source
MAX_CONTINUATION = 16  # tokens that a language model adds to a text


class TranslationInspector(Inspector):
    """A source and its target. A decoder-only model reads the source as the start of its text."""

    def __init__(
        self, bundle: Bundle, text: str, target: str | None, longest: int, new_tokens: int | None = None
    ) -> None:
        super().__init__(bundle, text, longest)
        source, written = self.codec.both()
        self._require_short("text", source, text)
        self.source_ids = self.codec.encode_source(text)
        if target is not None:
            self._require_short("target", written, target)
            self.target_ids = self.codec.encode_target(target)
            self.given = len(self.target_ids)
        else:
            default = SearchConfig(beam=1).limit(self.source_ids)
            limit = min(default, self.longest, MAX_ANSWER if new_tokens is None else new_tokens)
            best = search(self.model, [self.source_ids], SearchConfig(beam=1, max_length=max(1, limit)))[0][0]
            self.target_ids = [*best.ids, EOS] if best.finished or not best.ids else best.ids
        # Row t shows what the model read to write token t, so the input is one token behind the target.
        self.input_ids = [BOS, *self.target_ids[:-1]]
        self.decoder_only = self.model.kind == "decoder"
        self.source_length = 0  # source tokens at the start of the input

    def _run(self) -> tuple[Tensor, list[tuple[str, AttentionMap]]]:
        assert self.source_ids is not None
        assert self.input_ids is not None
        with record_maps(self.model) as maps:
            if self.decoder_only:
                logits_BTV, _ = self.model.step(self._ids([*self.source_ids, *self.input_ids]), self.model.start())
                self._prepend_source()
                return logits_BTV[0], [("write", one) for one in maps]
            state = self.model.condition(self._ids(self.source_ids))
            before = len(maps)
            logits_BTV, _ = self.model.step(self._ids(self.input_ids), state)
        phases = ["read"] * before + ["write"] * (len(maps) - before)
        return logits_BTV[0], list(zip(phases, maps, strict=True))

    def _prepend_source(self) -> None:
        """Put the source before the input: a decoder-only model reads both as one text."""
        assert self.source_ids is not None
        assert self.input_ids is not None
        self.input_ids, self.source_length = [*self.source_ids, *self.input_ids], len(self.source_ids)

    def _texts(self, ids: Sequence[int] | None, tokenizer: Tokenizer | None) -> list[str] | None:
        whole = self.input_ids
        if not self.decoder_only or whole is None or ids is not whole:
            return super()._texts(ids, tokenizer)
        source, target = self.codec.both()  # the input mixes both vocabularies
        length = self.source_length
        return token_texts(source, whole[:length]) + token_texts(target, whole[length:])

    def _answer(self, logprob_TV: Tensor) -> str:
        return self.codec.decode_target(self.target_ids or [])

    def _axes(self, name: str, phase: str) -> tuple[Part, Axis, Axis]:
        if self.decoder_only:
            return "decoder", "input", "input"
        if name == "heads":  # a Neural Turing Machine reads and writes slots
            return "other", "source" if phase == "read" else "target", "other"
        if phase == "read":
            return "encoder", "source", "source"
        # Blocks call their self-attention `mixer`. Every other map made while writing reads the source.
        return ("decoder", "target", "input") if name.endswith("mixer") else ("cross", "target", "source")

    def _traced(self, vectors: Vectors) -> tuple[Tensor, list[tuple[Axis, Tensor]]]:
        assert self.source_ids is not None
        assert self.input_ids is not None
        if self.decoder_only:
            logits_BTV, _ = self.model.step(self._ids(self.input_ids), self.model.start())
            return as_float32(logits_BTV[0]).log_softmax(dim=-1), embeddings_of(vectors, "input", len(self.input_ids))
        state = self.model.condition(self._ids(self.source_ids))
        read = embeddings_of(vectors, "source", len(self.source_ids))
        start = len(vectors.found)
        logits_BTV, _ = self.model.step(self._ids(self.input_ids), state)
        read += embeddings_of(vectors, "input", len(self.input_ids), start)
        return as_float32(logits_BTV[0]).log_softmax(dim=-1), read


class LanguageModelInspector(Inspector):
    """A text and its continuation."""

    def __init__(
        self, bundle: Bundle, text: str, target: str | None, longest: int, new_tokens: int | None = None
    ) -> None:
        super().__init__(bundle, text, longest)
        assert self.codec.target is not None
        self._require_short("text", self.codec.target, text)
        begin, prompt = self.codec.split_prompt(self.codec.target.encode(text))
        if target is not None:
            self._require_short("target", self.codec.target, target)
            more = self.codec.target.encode(target)
        else:
            # The inspection reads the first token and all others, the last one included.
            most = self.longest if self.model.longest is None else min(self.longest, self.model.longest - 1)
            limit = min(MAX_CONTINUATION if new_tokens is None else new_tokens, max(0, most - len(prompt)))
            config = SampleConfig(temperature=0, max_length=limit, ends=self.codec.ends)
            more = list(stream(self.model, prompt, config, begin=begin))
        self.target_ids = [*prompt, *more]
        if len(self.target_ids) > self.longest:
            raise DataError(f"text and target: more than {self.longest} tokens; maps are limited to shorter texts")
        self.given = len(prompt)
        self.input_ids = [begin, *self.target_ids]

    def _run(self) -> tuple[Tensor, list[tuple[str, AttentionMap]]]:
        assert self.input_ids is not None
        with record_maps(self.model) as maps:
            logits_BTV, _ = self.model.step(self._ids(self.input_ids), self.model.start())
        return logits_BTV[0, :-1], [("write", one) for one in maps]

    def _axes(self, name: str, phase: str) -> tuple[Part, Axis, Axis]:
        return "decoder", "input", "input"

    def _traced(self, vectors: Vectors) -> tuple[Tensor, list[tuple[Axis, Tensor]]]:
        assert self.input_ids is not None
        logits_BTV, _ = self.model.step(self._ids(self.input_ids), self.model.start())
        read = embeddings_of(vectors, "input", len(self.input_ids))
        return as_float32(logits_BTV[0, :-1]).log_softmax(dim=-1), read


class ClassifierInspector(Inspector):
    """A text and its class, or the class of each token."""

    def __init__(self, bundle: Bundle, text: str, longest: int) -> None:
        super().__init__(bundle, text, longest)
        assert self.codec.source is not None
        self._require_short("text", self.codec.source, text)
        self.source_ids = self.codec.encode_source(text)
        if self.codec.per_position:
            check_known(text, self.source_ids, "text")

    def _logits(self) -> Tensor:
        """Return a row of logits for each class that is output."""
        assert self.source_ids is not None
        assert self.codec.classes is not None
        source_BS = self._ids(self.source_ids)
        if self.model.kind == "decoder":  # outputs a class as a token id
            logits_BSV, _ = self.model.step(source_BS, self.model.start())
            return logits_BSV[0, 1:, FIRST_CLASS : FIRST_CLASS + len(self.codec.classes)]
        logits = self.model.classify(source_BS)
        # Special tokens around a text have no class.
        return logits[0, self.codec.text_slice(logits.shape[1])] if self.codec.per_position else logits

    def _run(self) -> tuple[Tensor, list[tuple[str, AttentionMap]]]:
        with record_maps(self.model) as maps:
            logits_TV = self._logits()
        return logits_TV, [("read", one) for one in maps]

    def _axes(self, name: str, phase: str) -> tuple[Part, Axis, Axis]:
        return "decoder" if self.model.kind == "decoder" else "encoder", "source", "source"

    def _layer_maps(self, found: list[tuple[str, AttentionMap]]) -> list[LayerMaps]:
        """Name the columns of a memory network's hop, whose single row is not a token."""
        return [_with_columns(one, "source", self._length("source")) for one in super()._layer_maps(found)]

    def _answer(self, logprob_TV: Tensor) -> str:
        assert self.codec.classes is not None
        return " ".join(self.codec.classes[number] for number in self._chosen(logprob_TV))

    def _outputs(self, logprob_TV: Tensor, alternatives: int) -> list[OutputToken]:
        names = self.codec.classes
        assert names is not None
        best = logprob_TV.topk(min(alternatives, len(names)), dim=-1)
        outputs = []
        for values, places in zip(best.values.tolist(), best.indices.tolist(), strict=True):
            choices = [(names[place], value) for place, value in zip(places, values, strict=True)]
            outputs.append(OutputToken(*choices[0], choices))
        return outputs

    def _traced(self, vectors: Vectors) -> tuple[Tensor, list[tuple[Axis, Tensor]]]:
        logprob_TV = as_float32(self._logits()).log_softmax(dim=-1)
        assert self.source_ids is not None
        return logprob_TV, embeddings_of(vectors, "source", len(self.source_ids))

    def _chosen(self, logprob_TV: Tensor) -> list[int]:
        chosen: list[int] = logprob_TV.argmax(dim=-1).tolist()
        return chosen

    def _row_axis(self) -> Axis:
        return "other"  # a class is not a token of the text


def _with_columns(one: LayerMaps, axis: Axis, length: int | None) -> LayerMaps:
    if one.columns == "other" and one.weights_HTS.shape[-1] == length:
        return LayerMaps(one.name, one.layer, one.part, one.rows, axis, one.heads, one.weights_HTS)
    return one
