"""Pairs of texts, prepared once: the common part of translation, number words and dates.

source = text EOS;    input = BOS target;    output = target EOS
"""

import json
from abc import abstractmethod
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, final

import numpy as np
from pydantic import Field, model_validator

from allyouneed.errors import ConfigError, DataError
from allyouneed.randomness import generator
from allyouneed.sizes import Sizes
from allyouneed.tasks.base import Batch, Score, Split, TaskConfig, TaskData
from allyouneed.tasks.collate import text_pair_batch
from allyouneed.tasks.corpus_tags import RowTags, different, require_known_tags
from allyouneed.tasks.meter import Meter
from allyouneed.tasks.overlap import note_overlap
from allyouneed.tasks.pair_split import SIDES, Mixture, PairSplit
from allyouneed.tasks.prepared import PART_ROWS, Preparation, codec_key, prepared
from allyouneed.tasks.scale import ahead, tokenizer_sample
from allyouneed.tasks.scores import bleu_and_chrf, exact_match
from allyouneed.tasks.weighting import Numbered, key_of, read_shares, save_counts
from allyouneed.text.bpe_dropout import SEGMENTATIONS, WordWriter
from allyouneed.text.codec import Codec
from allyouneed.text.control_symbols import leave_room, with_controls
from allyouneed.text.lines import Pair, Skips, chunks, filled, merged
from allyouneed.text.ragged import Ragged, RaggedWriter, dtype_for
from allyouneed.text.sentences import SentenceCounter
from allyouneed.text.tokenizer import Tokenizer, TokenizerConfig, train

AnySplit = Literal["train", "valid", "test"]
SPLITS: tuple[AnySplit, ...] = ("train", "valid", "test")
CODEC = "codec"  # the stage of preparation that trains the tokenisers


class PairTask(TaskConfig):
    """The settings of a task of pairs. A subclass defines where its pairs come from."""

    kinds = frozenset({"encoder-decoder", "decoder"})
    translates = True
    target_default: ClassVar[TokenizerConfig | None] = None

    tokenizer: TokenizerConfig = TokenizerConfig()
    target_tokenizer: TokenizerConfig | None = None  # default: as for the source, or what suits the task
    shared: bool = True  # one vocabulary for both sides, learnt from both
    batch_tokens: Annotated[int, Field(ge=1)] = 4096  # at most, on each side, padding included
    max_length: Annotated[int, Field(ge=2)] = 256  # tokens of a text, EOS included; longer pairs are skipped

    @model_validator(mode="after")
    def _sizes_fit(self) -> "PairTask":
        if self.shared and self.target_tokenizer is not None:
            raise ValueError(
                "shared=true makes one tokeniser for both sides; drop target_tokenizer or set shared=false"
            )
        if self.max_length > self.batch_tokens:
            raise ValueError(
                f"max_length={self.max_length} is more than batch_tokens={self.batch_tokens}: one pair must fit a batch"
            )
        return self

    @abstractmethod
    def describe(self, split: AnySplit, corpus: int | None = None) -> str:
        """Return where the pairs of a split, or of one of its corpora, come from, for messages."""

    @abstractmethod
    def sources(self, seed: int) -> dict[str, Any]:
        """Return everything that the pairs depend on, as JSON: the key of prepared data."""

    @abstractmethod
    def rows(self, split: AnySplit, seed: int) -> Iterator[Pair] | None:
        """Yield the pairs of a split, in order. Return None if the recipe does not have the split."""

    def corpora(self, split: AnySplit, seed: int) -> list[Iterator[Pair]]:
        """Return the pairs of each corpus of a split, in order; none if the recipe does not have the split."""
        rows = self.rows(split, seed)
        return [] if rows is None else [rows]

    def weights(self) -> list[float]:
        """Return how often a pair of each training corpus is read in an epoch."""
        return [1.0]

    def corpus_tags(self) -> list[str | None]:
        """Return the tag of each training corpus, which is put in front of its sources."""
        return [None]

    def training_bytes(self) -> int:
        """Return about how many bytes of text the training pairs have. 0: few."""
        return 0

    def in_languages(self, codec: Codec) -> Codec:
        """Return the codec of a model for the languages of the task. Raise ConfigError if it cannot have them."""
        return codec

    def check_files(self) -> None:
        """Raise ConfigError if the names of files cannot be right."""

    def check_splits(self, seed: int) -> None:
        """Raise DataError if held-out pairs do not belong to the training pairs."""

    def as_batch(self, codec: Codec, items: Sequence[Pair]) -> Batch:
        return text_pair_batch(codec, items)

    def tokenizers(self) -> tuple[TokenizerConfig, TokenizerConfig]:
        """Return the tokeniser settings of the source and of the target."""
        own = self.target_tokenizer or self.target_default or self.tokenizer
        return self.tokenizer, self.tokenizer if self.shared else own

    def largest_batch(self) -> tuple[str, int]:
        return f"batch_tokens={self.batch_tokens}", self.batch_tokens

    def example(self, seed: int) -> str | None:
        return next(filled(self.rows("valid", seed) or iter(()), Skips("valid")), ("", ""))[0]

    def prepare(self, folder: Path, seed: int) -> "PairData":
        return self._prepare(folder, seed, None)

    def prepare_with(self, codec: Codec, folder: Path, seed: int) -> "PairData":
        if codec.source is None or codec.target is None or codec.classes is not None:
            found = "labels texts" if codec.source is not None else "continues texts, without a source"
            raise ConfigError(
                f"task {self.type!r} needs a model that reads a source and generates a target; this one {found}"
            )
        for config, tokenizer in zip(self.tokenizers(), codec.both(), strict=True):
            if config.dropout and tokenizer.kind != "bpe":
                raise ConfigError(
                    f"task.tokenizer.dropout={config.dropout}: only a bpe tokenizer has merges to skip; that of the "
                    f"model is {tokenizer.kind}; use 0"
                )
        require_known_tags(codec, self.corpus_tags())
        return self._prepare(folder, seed, self.in_languages(codec))

    def _prepare(self, folder: Path, seed: int, codec: Codec | None) -> "PairData":
        self.check_files()
        tokenizers = [config.model_dump() for config in self.tokenizers()]
        sampled = seed if any(config.dropout for config in self.tokenizers()) else None
        settings = {"tokenizers": tokenizers, "sampled": sampled, "shared": self.shared, "max_length": self.max_length}
        key = {"task": self.type, "sources": self.sources(seed), **settings, **key_of(self.weights())}
        key |= codec_key(codec)
        return PairData(self, prepared(folder, key, lambda preparation: _build(self, preparation, seed, codec)))


def _build(task: PairTask, preparation: Preparation, seed: int, given: Codec | None) -> None:
    task.check_splits(seed)
    codecs: list[Codec] = []

    def train_codec(folder: Path) -> int:
        codec, read = _train_tokenizers(task, seed) if given is None else (given, 0)
        codec.save(folder)
        codecs.append(codec)
        return read

    read = preparation.stage(CODEC, train_codec)
    codec = codecs[0] if codecs else Codec.load(preparation.path(CODEC))
    notes: list[str] = []
    for split in SPLITS:
        corpora = task.corpora(split, seed)
        if corpora:
            meter = Meter(f"encoding {split}", "pairs", read or None if split == "train" else None)
            notes += _write_split(_SplitWriter(task, codec, split, seed), preparation, corpora, meter)
    notes += note_overlap(preparation, partial(task.rows, seed=seed), SPLITS, "pair", read)
    text = json.dumps(notes, ensure_ascii=False, indent=1)
    (preparation.folder / "notes.json").write_text(text, encoding="utf-8")


def _train_tokenizers(task: PairTask, seed: int) -> tuple[Codec, int]:
    """Return the codec, and the number of training pairs that were read."""
    counter = SentenceCounter((task.languages() or (None,))[0])
    most = 0

    def side(numbers: Sequence[int]) -> Iterator[str]:
        nonlocal most
        skips, meter = Skips("train"), Meter("reading for the tokeniser", "pairs")
        rows = filled(task.rows("train", seed) or iter(()), skips)
        for pair in tokenizer_sample(meter.over(rows), task.training_bytes()):
            if task.has_sentences and 0 in numbers:
                counter.add(pair[0])
            for number in numbers:
                yield pair[number]
        most = skips.read
        if not skips.kept:
            raise DataError(_nothing_left(task, "train", skips))

    def learn(numbers: Sequence[int], config: TokenizerConfig) -> Tokenizer:
        tags, meter = different(task.corpus_tags()) if 0 in numbers else [], Meter("training the tokeniser", "tokens")
        return with_controls(train(side(numbers), leave_room(config, len(tags)), progress=meter.set), tags)

    source, target = task.tokenizers()
    if task.shared:
        ours = theirs = learn((0, 1), source)
    else:
        ours, theirs = learn((0,), source), learn((1,), target)
    if task.has_sentences and not most:  # a tokeniser of bytes learns nothing from the text
        deque(side((0,)), maxlen=0)
    return Codec(ours, theirs, sentences=counter.usual() if task.has_sentences else None), most


class _SideWriter:
    """A writer for one side of one split: ids; of held-out data also the text; for BPE dropout also words."""

    def __init__(self, folder: Path, split: AnySplit, side: str, tokenizer: Tokenizer, dropout: float) -> None:
        name, self._dropout, self._dtype = f"{split}.{side}", dropout, dtype_for(tokenizer.size)
        self._ids = RaggedWriter(folder, name, self._dtype)
        self._text = RaggedWriter(folder, f"{name}.text", "u1") if split != "train" else None
        self._words = WordWriter(folder, name, tokenizer) if split == "train" and dropout else None

    def extend(self, ids: list[list[int]], texts: list[str]) -> None:
        self._ids.extend(ids)
        if self._text:
            self._text.extend(text.encode("utf-8") for text in texts)
        if self._words:
            self._words.extend(texts)

    def finish(self, random: np.random.Generator) -> None:
        if self._words:
            self._words.finish(self._dropout, random.random, self._dtype)

    def close(self) -> None:
        for file in (self._ids, self._text, self._words):
            if file:
                file.close()


@dataclass(frozen=True)
class _SplitWriter:
    """What the pairs of a split are encoded with."""

    task: PairTask
    codec: Codec
    split: AnySplit
    seed: int

    def write(self, folder: Path, rows: Iterator[Numbered]) -> dict[str, Any]:
        """Encode pairs into a folder; return what was skipped, and how many pairs of each corpus were kept."""
        task, skips, kept = self.task, Skips(self.split), dict[int, int]()
        sides = [
            _SideWriter(folder, self.split, side, tokenizer, config.dropout)
            for side, tokenizer, config in zip(SIDES, self.codec.both(), task.tokenizers(), strict=True)
        ]
        with ExitStack() as stack:
            for side in sides:
                stack.callback(side.close)
            for corpus, of_corpus in groupby(rows, itemgetter(0)):
                usable = chunks(filled((pair for _, pair in of_corpus), skips))
                for count, fitting in ahead(partial(self._encoded, corpus), usable):
                    for _ in range(count - len(fitting)):
                        skips.skip(f"longer than max_length={task.max_length} tokens")
                    kept[corpus] = kept.get(corpus, 0) + len(fitting)
                    for number, side in enumerate(sides):
                        side.extend([ids[number] for ids, _ in fitting], [texts[number] for _, texts in fitting])
            for number, side in enumerate(sides):
                side.finish(generator(self.seed, number, SEGMENTATIONS))
        return {**asdict(skips), "corpora": sorted(kept.items())}

    def _encoded(self, corpus: int, chunk: list[Pair]) -> tuple[int, list[tuple[tuple[list[int], list[int]], Pair]]]:
        tagged = self.split == "train" and self.task.corpus_tags()[corpus] is not None
        return len(chunk), list(_encode(self.task, self.codec, chunk, int(tagged)))


def _write_split(
    writer: _SplitWriter, preparation: Preparation, corpora: list[Iterator[Pair]], meter: Meter
) -> list[str]:
    split, task = writer.split, writer.task
    rows = ((number, pair) for number, of_corpus in enumerate(corpora) for pair in of_corpus)
    # Words of BPE dropout are numbered across the whole text.
    whole = split == "train" and any(config.dropout for config in task.tokenizers())
    parts = preparation.parts(split, rows, writer.write, meter, None if whole else PART_ROWS)
    skips = merged(parts)
    if not skips.kept:
        raise DataError(_nothing_left(task, split, skips))
    notes = [f"{split}: {skips.kept:,} pairs", *skips.notes()]
    if split == "train" and len(corpora) > 1:
        tags = task.corpus_tags()
        counts = save_counts(preparation.folder, parts, task.weights(), bool(different(tags)))
        for number, (count, tag) in enumerate(zip(counts, tags, strict=True)):
            tagged = "" if tag is None else f", their sources with the tag {tag}"
            notes.append(f"{split}: {task.describe(split, number)}: {count:,} pairs{tagged}")
    return notes


def _encode(
    task: PairTask, codec: Codec, chunk: list[Pair], more: int
) -> Iterator[tuple[tuple[list[int], list[int]], Pair]]:
    """Yield (ids of both sides, texts of both sides) of the pairs that are not too long with `more` source tokens."""
    source, target = codec.both()
    most, limit = task.max_length - sum(map(len, codec.framing)) - more, task.max_length - 1 - len(codec.target_start)
    sane = [pair for pair in chunk if not (source.surely_longer(pair[0], most) or target.surely_longer(pair[1], limit))]
    ours, theirs = source.encode_batch([text for text, _ in sane]), target.encode_batch([text for _, text in sane])
    for ids, texts in zip(zip(ours, theirs, strict=True), sane, strict=True):
        if len(ids[0]) <= most and len(ids[1]) <= limit:
            yield ids, texts


def _nothing_left(task: PairTask, split: AnySplit, skips: Skips) -> str:
    found = task.describe(split)
    if not skips.read:
        return f"{found}: is empty; should hold at least one pair"
    why = ", ".join(f"{count:,} {reason}" for reason, count in skips.reasons.items())
    return f"{found}: none of {skips.read:,} pairs can be used: {why}"


@final
class PairData(TaskData):
    """Prepared pairs."""

    def __init__(self, task: PairTask, folder: Path) -> None:
        self.task = task
        self.codec = task.in_languages(Codec.load(folder))
        source, target = self.codec.both()
        self.sizes = Sizes(source=source.size, target=target.size, shared=source is target)
        self.notes = json.loads((folder / "notes.json").read_text(encoding="utf-8"))
        # All files are mapped now, so preparing the folder again does not change this object.
        given = [split for split in SPLITS if (folder / f"{split}.source.bin").exists()]
        mixture = Mixture(read_shares(folder, task.weights()), RowTags.load(folder, self.codec, task.corpus_tags()))
        dropouts, sizes = [config.dropout for config in task.tokenizers()], (task.max_length, task.batch_tokens)
        self._splits = {
            split: PairSplit(folder, split, self.codec, dropouts, *sizes, mixture if split == "train" else Mixture())
            for split in given
        }
        self._train = self._splits["train"]
        self._usual = tuple(
            Ragged(folder, f"train.{side}", dtype_for(size))
            for side, size in zip(SIDES, (source.size, target.size), strict=True)
        )
        self.epoch = len(self._train.batches)

    def batch(self, seed: int, index: int) -> Batch:
        batches = self._train.batches
        return self._train.batch(batches.members(seed, index), seed, batches.epoch(index))

    def train_ids(self) -> tuple[Ragged, Ragged]:
        """Return the ids of all training sources and targets, segmented without dropout."""
        source, target = self._usual
        return source, target

    def held_out(self, split: Split) -> Iterator[Batch]:
        data = self._split(split)
        for members in data.batches.in_order():
            yield data.batch(members, 0, 0)

    def examples(self, split: Split) -> list[tuple[str, str]]:
        texts = self._split(split).texts
        return [(texts[0].text(number), texts[1].text(number)) for number in range(len(texts[0]))]

    def _split(self, split: Split) -> PairSplit:
        if split not in self._splits:
            raise ConfigError(f"task: {split}: the recipe has no such data; measure another split, or your own files")
        return self._splits[split]


def translation_scores(hypotheses: list[str], references: list[str]) -> list[Score]:
    """Return BLEU, chrF and exact match."""
    return [*bleu_and_chrf(hypotheses, references), exact_match(hypotheses, references)]


def exactness_scores(hypotheses: list[str], references: list[str]) -> list[Score]:
    """Return exact match, BLEU and chrF: for sources that have only one right target."""
    # "einundvierzig" is one word without 4-grams of words, so BLEU counts 4-grams of characters.
    return [exact_match(hypotheses, references), *bleu_and_chrf(hypotheses, references, tokens="char")]
