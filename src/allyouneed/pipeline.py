"""A model folder ready for use from Python: text in, text out, with the folder's own settings.

    pipeline = load("runs/demo")
    pipeline.translate(["forty-one", "nine hundred"])        # the best translation of each text
    pipeline.translate(["forty-one"], beam=8, n_best=3)      # the three best of each, with their scores

`allyouneed.load` is this `load`. The model is optimized for inference, as it is for the command line: it cannot be
trained or hooked. `allyouneed.folder.load_folder` loads the plain model.
"""

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, TypedDict, Unpack, overload

import torch

from allyouneed.config import parse
from allyouneed.decode import Answer, SampleConfig, Scored, sample
from allyouneed.decode.choice import DecisionRule, choose
from allyouneed.decode.embed import Pool, TextVector, embed, longest_text, readable_ids
from allyouneed.decode.minimum_risk import RiskConfig
from allyouneed.decode.rerank import Reverse
from allyouneed.decode.sentences import in_pieces
from allyouneed.errors import ConfigError, DataError, UserError
from allyouneed.evaluation.ensembles import ensemble_of
from allyouneed.evaluation.probabilities import score_rows
from allyouneed.evaluation.settings import (
    in_languages,
    require_generator,
    require_source,
    reverse_of,
    search_config,
    sentence_splitter,
)
from allyouneed.folder import Bundle, load_folder
from allyouneed.inference.optimize import optimize_for_inference
from allyouneed.shortlist.build import require_shortlist
from allyouneed.text.checks import require_known, require_short, room
from allyouneed.text.glossary import Glossary, constraints_of
from allyouneed.text.lines import Pair
from allyouneed.text.sentences import Sentences
from allyouneed.training import Recipe


class SearchSettings(TypedDict, total=False):
    """Settings of `translate`; those that are None or not given are the folder's own."""

    beam: int | None  # hypotheses side by side; 1 is greedy
    length_penalty: float | None
    max_length: int | None  # tokens, EOS included
    mbr: int | RiskConfig | None  # minimum Bayes risk: the number of samples, or all its settings
    reverse: "Bundle | Reverse | None"  # rerank by a model that translates back, with weight 1 or its own


class SampleSettings(TypedDict, total=False):
    """Settings of `generate`, as in `decode.SampleConfig`."""

    temperature: float | None  # 0: always the most probable token
    top_k: int | None
    top_p: float | None
    min_p: float | None
    epsilon: float | None
    seed: int | None
    max_length: int | None  # new tokens, EOS included


def load(
    path: str | Path,
    *,
    device: str | torch.device = "cpu",
    int8: bool = False,
    sets: Sequence[str] = (),
    adapter: str | Path | None = None,
    ensemble: Sequence[str | Path] = (),
) -> "Pipeline":
    """Load a model folder, the model of a run folder or one of its checkpoints, and optimize it for inference.

    `int8` computes projections in int8: faster, slightly less exact. `sets` change settings that are not part of the
    weights, such as `task.segment=128`. `adapter`: a folder of LoRA (`train.lora`) that belongs to this model.
    `ensemble`: folders of further models, which translate together with this one (docs/search.md).
    """
    bundle = load_folder(path, device, sets, compact=True, adapter=adapter)
    if sets:
        _require_valid(bundle, sets)
    whole = optimized(bundle, int8)
    if not ensemble:
        return whole
    folders = _list(ensemble, "ensemble", "folders")
    others = [optimized(load_folder(other, device, compact=True), int8) for other in folders]
    joined = ensemble_of([whole, *others])
    assert isinstance(joined, Pipeline)
    return joined


def optimized(bundle: Bundle, int8: bool = False) -> "Pipeline":
    """Optimize the model of a loaded folder in place, as `load` does."""
    optimize_for_inference(bundle.model, int8)
    return Pipeline(**{field.name: getattr(bundle, field.name) for field in fields(bundle)})


@dataclass(frozen=True, repr=False)
class Pipeline(Bundle):
    """A loaded model folder with methods from text to text. Settings that are not given are the folder's own."""

    @overload
    def translate(
        self,
        texts: Iterable[str],
        *,
        n_best: None = None,
        shortlist: bool = False,
        sentences: Sentences = "auto",
        source_language: str | None = None,
        target_language: str | None = None,
        glossary: Glossary | None = None,
        prefixes: Sequence[str] = (),
        **settings: Unpack[SearchSettings],
    ) -> list[str]: ...

    @overload
    def translate(
        self,
        texts: Iterable[str],
        *,
        n_best: int,
        shortlist: bool = False,
        sentences: Sentences = "auto",
        source_language: str | None = None,
        target_language: str | None = None,
        glossary: Glossary | None = None,
        prefixes: Sequence[str] = (),
        **settings: Unpack[SearchSettings],
    ) -> list[list[Answer]]: ...

    def translate(
        self,
        texts: Iterable[str],
        *,
        n_best: int | None = None,
        shortlist: bool = False,
        sentences: Sentences = "auto",
        source_language: str | None = None,
        target_language: str | None = None,
        glossary: Glossary | None = None,
        prefixes: Sequence[str] = (),
        **settings: Unpack[SearchSettings],
    ) -> list[str] | list[list[Answer]]:
        """Return the best translation of each text, or its `n_best` best with their scores.

        The search is that of the folder's recipe; `beam`, `length_penalty` and `max_length` change it. A classifier
        answers with the name of a class. An empty text has an empty translation. With `shortlist`, only tokens of the
        folder's shortlist are generated: faster with large vocabularies.

        `sentences`: split a text into sentences, translate each, and join the results. `auto` does so if the text has
        more sentences than a line of the training data usually had; the score is then the mean of all pieces.

        `source_language` and `target_language` choose languages of a multilingual model by the names of its tags.

        `glossary`: terms that translations must use. `prefixes`: what they begin with, one for each text.

        `mbr`: of this many samples, return the one that is most alike to all. `reverse`: rerank the translations of
        the beam by a model that translates back. docs/search.md describes both.
        """
        require_source(self, "translate")
        _require_type(glossary, "glossary", Glossary, "Glossary([(term, target), ...]), of allyouneed.text.glossary")
        codec = in_languages(self, source_language, target_language)
        choice = DecisionRule(
            _risk(settings.pop("mbr", None)), self._reverse(settings, source_language, target_language)
        )
        config = search_config(self, {**settings, "n_best": n_best})
        choice.check(codec, config, constrained=glossary is not None or any(prefixes), shortlist=shortlist)
        listed = require_shortlist(self) if shortlist else None
        texts = _texts(texts, "texts")
        splitter, most = sentence_splitter(self, sentences), room(self.codec, self.model.longest_source)
        for number, text in enumerate(texts):
            for piece in splitter.split(text).pieces:
                require_short(self.codec.source, [piece], "texts", number, most)
        require_known(self.codec, [text.strip() and text for text in texts], "texts", longest=self.model.longest_source)
        prefixes = _texts(prefixes, "prefixes")
        if prefixes and len(prefixes) != len(texts):
            raise ConfigError(f"prefixes: {len(prefixes)} for {len(texts)} texts; give one for each text")
        filled = [text for text in texts if text.strip()]
        begins = [begin for text, begin in zip(texts, prefixes or [""] * len(texts), strict=True) if text.strip()]

        def whole(pieces: list[str], begins: Sequence[str] = ()) -> list[list[Answer]]:
            wanted = constraints_of(glossary, pieces, begins)
            return choose(self.model, codec, pieces, config, choice, shortlist=listed, constraints=wanted)

        found = iter(in_pieces(splitter, whole, config.n_best)(filled, begins))
        answers = [next(found) if text.strip() else [Answer("", 0.0, 0.0)] for text in texts]
        return answers if n_best is not None else [ranked[0].text for ranked in answers]

    @staticmethod
    def _reverse(settings: SearchSettings, source: str | None, target: str | None) -> Reverse | None:
        """Take the reverse model out of the settings."""
        given = settings.pop("reverse", None)
        _require_type(given, "reverse", Bundle | Reverse, "model that allyouneed.load returned, or a Reverse")
        return reverse_of(given, 1.0, source, target) if isinstance(given, Bundle) else given

    @overload
    def classify(self, texts: Iterable[str], *, n_best: None = None) -> list[str]: ...

    @overload
    def classify(self, texts: Iterable[str], *, n_best: int) -> list[list[Answer]]: ...

    def classify(self, texts: Iterable[str], *, n_best: int | None = None) -> list[str] | list[list[Answer]]:
        """Return the most probable class of each text, or its `n_best` classes with their log-probabilities.

        A model that labels each token answers with the labels of all tokens, separated by spaces.
        """
        if self.codec.classes is None:
            raise ConfigError(f"{self.path}: the model has no classes; try `translate` or `generate`")
        return self.translate(texts, n_best=n_best) if n_best is not None else self.translate(texts)

    @overload
    def generate(self, prompt: str = "", *, n: None = None, **settings: Unpack[SampleSettings]) -> str: ...

    @overload
    def generate(self, prompt: str = "", *, n: int, **settings: Unpack[SampleSettings]) -> list[str]: ...

    def generate(
        self,
        prompt: str = "",
        *,
        n: int | None = None,
        **settings: Unpack[SampleSettings],
    ) -> str | list[str]:
        """Return a sampled continuation of the prompt, without the prompt; with `n`, a list of `n` samples.

        A model with a source samples a target for the prompt instead. Settings are `temperature` (default 1), `top_k`,
        `top_p`, `min_p`, `seed` (default 0) and `max_length` (new tokens, default 256).
        """
        asked = {**settings, "n": n}
        given = {name: value for name, value in asked.items() if value is not None}
        config = parse(SampleConfig, {**given, "ends": self.codec.ends})
        require_generator(self)
        codec, prompt = self.codec, _text(prompt, "prompt")
        require_short(codec.source or codec.target, [prompt], "prompt")
        ids = codec.encode_prompt(prompt) if codec.source is None else [*codec.encode_prompt(), *codec.prefix]
        sources = [codec.encode_source(prompt)] if codec.source is not None else None
        known = len(codec.decode_target(ids))
        found = sample(self.model, [ids[1:]], config, sources, begin=ids[0])[0]
        samples = [codec.decode_target([*ids, *one.ids])[known:] for one in found]
        return samples if n is not None else samples[0]

    def embed(
        self,
        texts: Iterable[str],
        *,
        pool: Pool = "mean",
        normalize: bool = True,
        max_length: int | None = None,
    ) -> list[TextVector]:
        """Return a vector for each text, and how many of its tokens were left out.

        `pool`: the mean of all positions, the first one of an encoder, or the last one. `max_length`: tokens of a text
        that are read, special ones included; by default as many as the model can read.
        """
        texts, longest = _texts(texts, "texts"), longest_text(self.model, self.codec)
        frame = sum(map(len, self.codec.framing)) if self.codec.source is not None else 0
        if max_length is not None and max_length <= frame:
            raise ConfigError(f"max_length={max_length}: {frame} of them are special tokens; should be more")
        most = min(filter(None, (max_length, longest)), default=None)
        if longest is None and max_length is None:
            for number, text in enumerate(texts):
                require_short(self.codec.source or self.codec.target, [text], "texts", number)
        ids, left_out = readable_ids(self.codec, texts, most)
        vectors = embed(self.model, self.codec, ids, pool=pool, normalize=normalize)
        return [TextVector(vector_D, count) for vector_D, count in zip(vectors, left_out, strict=True)]

    def score(
        self,
        items: Iterable[str] | Iterable[Pair],
        *,
        source_language: str | None = None,
        target_language: str | None = None,
    ) -> list[Scored]:
        """Return the log-probability (in nats) of each item, with its number of tokens.

        An item is a pair (source, target), or (text, class) for a classifier, or a text for a language model. An empty
        text has no tokens and log-probability 0. `source_language` and `target_language` are those of `translate`.
        """
        bundle = replace(self, codec=in_languages(self, source_language, target_language))
        rows: list[Pair | None]
        if self.codec.source is None:
            rows = [("", text) if text else None for text in _texts(items, "items")]
        else:
            given = _list(items, "items", "pairs (source, target)")
            rows = [_pair(item, f"items: item {number}") for number, item in enumerate(given, start=1)]
        return [scored or Scored(0.0, 0, []) for scored in score_rows(bundle, rows, "items")]


def _require_type(value: Any, name: str, kind: Any, what: str) -> None:
    if value is not None and not isinstance(value, kind):
        raise ConfigError(f"{name}: of type {type(value).__name__}; should be a {what}")


def _risk(given: int | RiskConfig | None) -> RiskConfig | None:
    _require_type(given, "mbr", int | RiskConfig, "number of samples, or a RiskConfig")
    return parse(RiskConfig, {"n": given}) if isinstance(given, int) else given


def _require_valid(bundle: Bundle, sets: Sequence[str]) -> None:
    """Raise ConfigError if changed settings are unknown or invalid, whether or not they are used."""
    try:
        parse(Recipe, bundle.recipe)
    except UserError as error:
        raise ConfigError(f"{bundle.path}: with {', '.join(sets)}: {error}") from None


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str):
        raise DataError(f"{where}: of type {type(value).__name__}; should be a text")
    return value


def _list(value: Any, where: str, what: str) -> list[Any]:
    """Return the items of any ordered iterable. Raise DataError for anything else, and for a single text."""
    if isinstance(value, str):
        raise DataError(f"{where}: a single text; should be a list of {what}")
    if isinstance(value, bytes | Mapping | Set) or not isinstance(value, Iterable):
        raise DataError(f"{where}: of type {type(value).__name__}; should be a list of {what}")
    return list(value)


def _texts(value: Any, where: str) -> list[str]:
    """Return a list of texts, given as any ordered iterable."""
    return [_text(item, f"{where}: item {number}") for number, item in enumerate(_list(value, where, "texts"), start=1)]


def _pair(value: Any, where: str) -> Pair:
    if not isinstance(value, Sequence) or isinstance(value, str | bytes) or len(value) != 2:
        raise DataError(f"{where}: should be a pair (source, target)")
    return _text(value[0], f"{where}: source"), _text(value[1], f"{where}: target")
