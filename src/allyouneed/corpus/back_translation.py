"""Back-translation: pairs for training, made of texts in the target language alone.

    x' = a translation of y by a reverse model, from the target to the source language;    a new pair: x' -> y

A person wrote y, so a model learns to write from it, and mistakes in x' do less harm. x' comes from the search, or is a
sample of P(x | y), which has more of the variety of real sources. Noise drops words of x' and changes their order. The
setting `tag` of a corpus puts a token in front of x' (`tasks/corpus_tags.py`).

Pairs whose x' cannot be right are dropped (`text/output_checks.py`). Texts are read as a stream, in steps that a kill
does not lose. What is made depends on the settings, the model and the texts, not on interruptions.

Paper: Sennrich et al. 2016, arXiv:1511.06709; Edunov et al. 2018, arXiv:1808.09381 (samples, noise); Caswell et al.
2019, arXiv:1906.06442 (tags).
Differs: noise replaces no words by a filler.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, NonNegativeInt

from allyouneed.config import Config
from allyouneed.corpus.growing_files import Counts, GrowingFiles, refuse_other_files
from allyouneed.corpus.records import has_header, place
from allyouneed.decode import SampleConfig, SearchConfig, translate
from allyouneed.decode.minimum_risk import sampled
from allyouneed.decode.sentences import in_pieces
from allyouneed.decode.translate import Answer, as_answers
from allyouneed.errors import ConfigError, DataError
from allyouneed.evaluation.settings import in_languages, recipe_of, sentence_splitter
from allyouneed.folder import Bundle
from allyouneed.randomness import generator
from allyouneed.shortlist.build import require_shortlist
from allyouneed.storage import lock
from allyouneed.tasks.meter import Meter
from allyouneed.tasks.prepared import file_hashes
from allyouneed.text.checks import LONGEST
from allyouneed.text.corpora import TextCorpus
from allyouneed.text.corpus_settings import described, sources_of, written
from allyouneed.text.output_checks import EXPLAINED, Doubt, doubts_of
from allyouneed.text.records import one_line
from allyouneed.text.sentences import Sentences

KEY, DROPPED = "back-translation.json", "dropped.jsonl"
ROWS, CHARACTERS = 512, 1 << 17  # of a step
REACH = 3  # places that noise moves a word, at most
NOISE = 17  # the last number of an address, used nowhere else
Reason = Literal["empty", "long"] | Doubt
MEANINGS = {"empty": "the translation is empty", "long": "the text is too long for the model"} | {
    str(doubt): meaning for doubt, meaning in EXPLAINED.items()
}


class BackSettings(Config):
    """How texts are translated, and which pairs are kept."""

    search: SearchConfig
    sample: SampleConfig | None = None  # instead of the search
    noise: Annotated[float, Field(ge=0, lt=1)] = 0.0  # the probability of dropping a word; others may change places
    seed: NonNegativeInt = 0  # of noise
    keep: tuple[Doubt, ...] = ()  # pairs to keep in spite of this
    sentences: Sentences = "auto"
    source_language: str | None = None  # of the texts; of a multilingual model
    target_language: str | None = None
    int8: bool = False  # the model was loaded in int8
    shortlist: bool = False


@dataclass(frozen=True)
class BackTranslated:
    """A finished corpus: its files, and how many texts became pairs."""

    files: tuple[Path, Path]  # machine-made sources, and the texts
    texts: int
    empty: int  # texts
    pairs: int
    reasons: Counter[str]  # of dropped texts, which may have several


def back_translate(
    reverse: Bundle, corpora: Sequence[TextCorpus], folder: Path, settings: BackSettings
) -> BackTranslated:
    """Write the corpus into a folder, or continue there; if it is finished, only return what it has.

    Raise ConfigError if the folder holds anything else. Progress is reported to `tasks.meter.reporting_to`.
    """
    codec = reverse.codec
    if codec.source is None or codec.target is None or codec.classes is not None:
        raise ConfigError(f"{reverse.path}: does not translate; back-translation needs a model that does")
    names, maker = _names(reverse, settings), _Maker(reverse, settings)
    key = {
        "model": reverse.sha256,
        "settings": settings.model_dump(mode="json"),
        "texts": {"corpora": written(corpora), "sha256": file_hashes(sources_of(corpora))},
    }
    refuse_other_files(folder, KEY)
    folder.mkdir(parents=True, exist_ok=True)
    with lock(folder):
        files = GrowingFiles(folder, [*names, DROPPED], KEY, key)
        counts = files.finished
        if counts is None:
            counts = _write(maker, corpora, files, names)
            files.finish(counts)
    paths = folder / names[0], folder / names[1]
    return BackTranslated(paths, counts["rows"], counts["empty"], counts["pairs"], Counter(counts["reasons"]))


def _names(reverse: Bundle, settings: BackSettings) -> tuple[str, str]:
    """Return the names of the files: with the languages as suffixes, if they are known."""
    theirs = recipe_of(reverse).task.languages() or ("target", "source")
    ends = settings.target_language or theirs[1], settings.source_language or theirs[0]
    if ends[0] == ends[1]:
        ends = "source", "target"
    return f"back.{ends[0]}", f"back.{ends[1]}"


def _write(maker: "_Maker", corpora: Sequence[TextCorpus], files: GrowingFiles, names: tuple[str, str]) -> Counts:
    """Translate all texts that no earlier step has translated; return the counts."""
    counts = files.begin() or {"rows": 0, "empty": 0, "pairs": 0, "reasons": {}}
    count = sum(1 for _ in Meter("counting the texts", "texts").over(_texts(corpora)))  # reads all before hours of work
    if not count:
        raise DataError(f"{described(corpora)}: no text to translate")
    meter = Meter("translating", "texts", count)
    meter.skip(counts["rows"])
    rest = islice(_texts(corpora), counts["rows"], None)
    while step := _step(rest):
        made = maker.pairs(step, counts["rows"], meter)
        reasons = Counter[str](counts["reasons"])
        for one in made:
            reasons.update(one.reasons)
        pairs = [one for one in made if not one.reasons]
        counts = {
            "rows": counts["rows"] + len(step),
            "empty": counts["empty"] + len(step) - len(made),
            "pairs": counts["pairs"] + len(pairs),
            "reasons": dict(reasons),
        }
        lists = [f"{one.as_json()}\n" for one in made if one.reasons]
        texts = {names[0]: [f"{one.source}\n" for one in pairs], names[1]: [f"{one.target}\n" for one in pairs]}
        files.append({name: "".join(lines) for name, lines in {**texts, DROPPED: lists}.items()}, counts)
        meter.set(counts["rows"])
    return counts


def _texts(corpora: Sequence[TextCorpus]) -> Iterator[tuple[str, str]]:
    """Yield the place and the text of each row."""
    for corpus in corpora:
        for shard in corpus.shards():
            for number, (text,) in enumerate(shard.rows(), start=1 + has_header(corpus, shard)):
                yield place(shard, number), one_line(text) if "\n" in text else text


def _step(rows: Iterator[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return the rows of the next step."""
    found: list[tuple[str, str]] = []
    held = 0
    for row in rows:
        found.append(row)
        held += len(row[1])
        if len(found) >= ROWS or held >= CHARACTERS:
            break
    return found


@dataclass(frozen=True)
class _Pair:
    where: str
    source: str
    target: str
    reasons: list[Reason]  # to drop it

    def as_json(self) -> str:
        tree = {"where": self.where, "reasons": self.reasons, "source": self.source, "target": self.target}
        return json.dumps(tree, ensure_ascii=False)


class _Maker:
    """Makes pairs with a model."""

    def __init__(self, reverse: Bundle, settings: BackSettings) -> None:
        self._model, self._settings = reverse.model, settings
        self._codec = in_languages(reverse, settings.source_language, settings.target_language)
        self._splitter = sentence_splitter(reverse, settings.sentences)
        self._shortlist = require_shortlist(reverse) if settings.shortlist else None

    def pairs(self, rows: Sequence[tuple[str, str]], before: int, meter: Meter) -> list[_Pair]:
        """Return the pair of each text that is not empty. `before`: rows of earlier steps."""
        filled = [(number, where, text) for number, (where, text) in enumerate(rows, before) if text.strip()]
        short = [text for _, _, text in filled if not self._is_long(text)]
        found = iter(self._translations(short, meter))
        made = []
        for number, where, text in filled:
            if self._is_long(text):
                made.append(_Pair(where, "", text, ["long"]))
                continue
            source = next(found)
            doubts = [doubt for doubt in doubts_of(text, source) if doubt not in self._settings.keep]
            reasons: list[Reason] = [*doubts] if source.strip() else ["empty"]
            made.append(_Pair(where, self._noised(source, number), text, reasons))
        return made

    def _is_long(self, text: str) -> bool:
        source = self._codec.source
        assert source is not None
        most = min(LONGEST, self._model.longest or LONGEST) - sum(map(len, self._codec.framing))
        return any(
            source.surely_longer(piece, most) or (len(piece.encode()) > most and len(source.encode(piece)) > most)
            for piece in self._splitter.split(text).pieces
        )

    def _translations(self, texts: list[str], meter: Meter) -> list[str]:
        answers = in_pieces(self._splitter, self._whole(meter, len(texts)), 1)(texts)
        # NUL, which a model of bytes may generate, is not text.
        return [one_line(ranked[0].text.replace("\0", " ")) for ranked in answers]

    def _whole(self, meter: Meter, count: int) -> Callable[..., list[list[Answer]]]:
        """Return the translation of pieces of `count` texts."""
        settings, codec, begun = self._settings, self._codec, meter.done

        def work(pieces: list[str], prefixes: Sequence[str] = ()) -> list[list[Answer]]:
            if settings.sample is not None:
                return as_answers(codec, sampled(self._model, codec, pieces, settings.search, settings.sample))
            done = 0

            def show(some: int) -> None:
                nonlocal done
                done += some
                meter.set(begun + done * count // len(pieces))

            return translate(self._model, codec, pieces, settings.search, show, self._shortlist)

        return work

    def _noised(self, text: str, number: int) -> str:
        probability = self._settings.noise
        return with_noise(text, probability, self._settings.seed, number) if probability else text


def with_noise(text: str, probability: float, seed: int, number: int) -> str:
    """Return a text without some words (drawn with a probability), in another order, for (seed, number).

    No word moves more than `REACH` places. One word is kept at least.
    """
    words, random = text.split(), generator(seed, number, NOISE)
    kept = [word for word, drawn in zip(words, random.random(len(words)), strict=True) if drawn >= probability]
    kept = kept or words[:1]
    moved = [word + (REACH + 1) * drawn for word, drawn in enumerate(random.random(len(kept)))]
    return " ".join(kept[word] for word in sorted(range(len(kept)), key=moved.__getitem__))
