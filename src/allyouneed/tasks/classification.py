"""Classification: one label for a whole text, from TSV, JSONL, Parquet or Arrow files.

    source = BOS text;    class = the index of the label among those of the training files, sorted by name

Paper: Devlin et al. 2019, arXiv:1810.04805 (BOS plays the role of its [CLS]).
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Annotated, Any, Literal, final

from pydantic import Field, model_validator

from allyouneed.errors import ConfigError, DataError
from allyouneed.sizes import Sizes
from allyouneed.tasks.base import Batch, Score, Split, TaskConfig, TaskData
from allyouneed.tasks.batching import Batches
from allyouneed.tasks.collate import class_batch, text_class_batch
from allyouneed.tasks.meter import Meter
from allyouneed.tasks.preparation import Preparation
from allyouneed.tasks.prepared import codec_key, file_hashes, prepared
from allyouneed.tasks.scale import ahead, text_bytes, tokenizer_sample
from allyouneed.tasks.scores import accuracy
from allyouneed.tasks.weighting import Numbered, Share, key_of, read_shares, save_counts
from allyouneed.text.codec import Codec
from allyouneed.text.corpora import LabelCorpus
from allyouneed.text.corpus_settings import (
    LabelCorpora,
    described,
    parse_corpora,
    require_weights_for_training,
    sources_of,
    written_name,
)
from allyouneed.text.lines import Pair, Skips, chunks, filled, merged
from allyouneed.text.overlap import Overlap, Shared, join_shared
from allyouneed.text.ragged import Array, Ragged, RaggedWriter, dtype_for, padded
from allyouneed.text.tokenizer import Tokenizer, TokenizerConfig, train
from allyouneed.words import counted

MOST_CLASSES = 100_000
SIDES = ("text", "label")


class ClassificationConfig(TaskConfig):
    summary = "one label for a whole text, from TSV, JSONL, Parquet or Arrow files"
    paper = "Devlin et al. 2019, arXiv:1810.04805"
    kinds = frozenset({"encoder"})

    type: Literal["classification"] = "classification"
    train: LabelCorpora  # files, or several corpora (docs/data.md)
    valid: LabelCorpora
    test: LabelCorpora | None = None
    columns: tuple[Literal["label", "text"], Literal["label", "text"]] = ("label", "text")  # of TSV files
    tokenizer: TokenizerConfig = TokenizerConfig()
    batch_tokens: Annotated[int, Field(ge=1)] = 8192  # at most, padding included
    max_length: Annotated[int, Field(ge=2)] = 512  # tokens of a text, BOS included; longer texts are skipped

    @model_validator(mode="after")
    def _consistent(self) -> "ClassificationConfig":
        if len(set(self.columns)) != 2:
            raise ValueError(f"columns={list(self.columns)}: should be label and text, in the order of the file")
        if self.max_length > self.batch_tokens:
            raise ValueError(
                f"max_length={self.max_length} is more than batch_tokens={self.batch_tokens}: one text must fit a batch"
            )
        if self.tokenizer.dropout:
            raise ValueError("tokenizer.dropout works for translation only")
        require_weights_for_training(self.train, self.valid, self.test)
        return self

    def files(self) -> dict[str, tuple[LabelCorpus, ...]]:
        """Return the corpora of each split that has some."""
        given = {"train": self.train, "valid": self.valid, "test": self.test}
        return {split: corpora for split, corpora in given.items() if corpora is not None}

    def weights(self) -> list[float]:
        """Return how often a text of each training corpus is read in an epoch."""
        return [corpus.weight for corpus in self.train]

    def rows(self, corpora: Sequence[LabelCorpus]) -> Iterator[Pair]:
        """Yield (text, label) for each row of corpora."""
        return ((text, label.strip()) for corpus in corpora for text, label in corpus.rows(self.columns))

    def read_pairs(self, files: Any) -> Iterator[Pair]:
        parallel_files = isinstance(files, list | tuple) and len(files) == 2
        return super().read_pairs(files) if parallel_files else self.rows(parse_corpora(files, LabelCorpus, self.train))

    def as_batch(self, codec: Codec, items: Sequence[Pair]) -> Batch:
        return text_class_batch(codec, items)

    def measure(self, hypotheses: list[str], references: list[str]) -> list[Score]:
        return [accuracy(hypotheses, references)]

    def largest_batch(self) -> tuple[str, int]:
        return f"batch_tokens={self.batch_tokens}", self.batch_tokens

    def example(self, seed: int) -> str | None:
        return next(filled(self.rows(self.valid), Skips("valid"), SIDES), ("", ""))[0]

    def prepare(self, folder: Path, seed: int) -> "ClassificationData":
        return self._prepare(folder, None)

    def prepare_with(self, codec: Codec, folder: Path, seed: int) -> "ClassificationData":
        if codec.source is None or codec.target is not None:
            raise ConfigError(f"task {self.type!r} needs an encoder; this model generates texts")
        return self._prepare(folder, codec)

    def _prepare(self, folder: Path, codec: Codec | None) -> "ClassificationData":
        settings = self.model_dump(include={"columns", "tokenizer", "max_length"})
        files = {split: written_name(corpora, weights=False) for split, corpora in self.files().items()}
        hashes = file_hashes(sources_of([corpus for corpora in self.files().values() for corpus in corpora]))
        key = {"task": self.type, "files": files, "sha256": hashes, **settings, **key_of(self.weights())}
        key |= codec_key(codec)
        return ClassificationData(self, prepared(folder, key, lambda preparation: _build(self, preparation, codec)))


def _build(task: ClassificationConfig, preparation: Preparation, given: Codec | None) -> None:
    def train_codec(folder: Path) -> int:
        """Train the tokeniser; return the number of training lines."""
        classes, read = _classes(task)
        if given is not None:
            with_classes(given, classes).save(folder)
            return read
        meter = Meter("reading for the tokeniser", "texts", read)
        rows = meter.over(filled(task.rows(task.train), Skips("train"), SIDES))
        sample = tokenizer_sample(rows, text_bytes(sources_of(task.train).values()))
        tokenizer = train(
            (text for text, _ in sample), task.tokenizer, progress=Meter("training the tokeniser", "tokens").set
        )
        Codec(source=tokenizer, classes=classes).save(folder)
        return read

    read = preparation.stage("codec", train_codec)
    codec = Codec.load(preparation.path("codec"))
    assert codec.classes is not None
    overlap = Overlap(
        {split: partial(task.rows, corpora) for split, corpora in task.files().items() if split != "train"}
    )
    notes: list[str] = []
    shared: list[Shared] = []
    for split, corpora in task.files().items():
        write = partial(_write_part, task, codec, split, overlap if split == "train" else None)
        meter = Meter(f"encoding {split}", "texts", read if split == "train" else None)
        parts = preparation.parts(split, partial(_checked, corpora, task.columns, codec.classes), write, meter)
        shared += [part["shared"] for part in parts]
        skips = merged(parts)
        if not skips.kept:
            raise DataError(
                f"{described(corpora)}: none of {skips.read:,} lines can be used; should hold at least one label with "
                "a text"
            )
        notes += [f"{split}: {skips.kept:,} texts", *skips.notes()]
        if split == "train":
            save_counts(preparation.folder, parts, task.weights())
    notes += overlap.notes(shared, "text")
    text = json.dumps(notes, ensure_ascii=False, indent=1)
    (preparation.folder / "notes.json").write_text(text, encoding="utf-8")


def with_classes(codec: Codec, classes: tuple[str, ...]) -> Codec:
    """Return the codec of an encoder for the labels of other data. If it knows all of them, its classes stay."""
    if codec.classes is not None and not codec.per_position and set(classes) <= set(codec.classes):
        return codec
    return replace(codec, classes=classes, per_position=False, frame=codec.framing)


def _classes(task: ClassificationConfig) -> tuple[tuple[str, ...], int]:
    """Return the labels of the training corpora, and the number of their rows."""
    names: set[str] = set()
    skips = Skips("train")
    for _, label in filled(task.rows(task.train), skips, SIDES):
        names.add(label)
        if len(names) > MOST_CLASSES:
            raise DataError(
                f"{described(task.train)}: more than {MOST_CLASSES:,} different labels; are the columns swapped?"
            )
    if len(names) < 2:
        raise DataError(
            f"{described(task.train)}: {counted(len(names), 'label')} in {skips.read:,} lines; "
            "there should be at least two"
        )
    return tuple(sorted(names)), skips.read


def _write_part(
    task: ClassificationConfig,
    codec: Codec,
    split: str,
    overlap: Overlap | None,
    folder: Path,
    rows: Iterator[Numbered],
) -> dict[str, Any]:
    """Encode labelled texts into a folder; return what was skipped, how many of each corpus are kept or held out."""
    assert codec.source is not None
    assert codec.classes is not None
    numbers = {label: number for number, label in enumerate(codec.classes)}
    skips, limit, kept = Skips(split), task.max_length - _frame_length(codec), dict[int, int]()
    shared: list[Shared] = []
    with (
        RaggedWriter(folder, f"{split}.source", dtype_for(codec.source.size)) as ids,
        RaggedWriter(folder, f"{split}.class", "<u4") as classes,
        RaggedWriter(folder, f"{split}.text", "u1") as texts,
    ):
        for corpus, of_corpus in groupby(rows, itemgetter(0)):
            usable = filled((row for _, row in of_corpus), skips, SIDES)
            encoded = partial(_encoded, codec.source, limit, numbers, overlap)
            for count, fitting, known in ahead(encoded, chunks(usable)):
                shared.append(known)
                for _ in range(count - len(fitting)):
                    skips.skip(f"longer than max_length={task.max_length} tokens")
                kept[corpus] = kept.get(corpus, 0) + len(fitting)
                ids.extend(row for row, _, _ in fitting)
                classes.extend([number] for _, _, number in fitting)
                if split != "train":
                    texts.extend(text.encode("utf-8") for _, text, _ in fitting)
    return {**asdict(skips), "corpora": sorted(kept.items()), "shared": join_shared(shared)}


def _encoded(
    tokenizer: Tokenizer, limit: int, classes: Mapping[str, int], overlap: Overlap | None, chunk: list[Pair]
) -> tuple[int, list[tuple[list[int], str, int]], Shared]:
    """Return the number of texts, (ids, text, class) of those that are not too long, and what is held out, too."""
    sane = [item for item in chunk if not tokenizer.surely_longer(item[0], limit)]
    encoded = tokenizer.encode_batch([text for text, _ in sane])
    rows = zip(encoded, sane, strict=True)
    fitting = [(row, text, classes[label]) for row, (text, label) in rows if len(row) <= limit]
    return len(chunk), fitting, overlap.shared(chunk) if overlap is not None else {}


def _frame_length(codec: Codec) -> int:
    """Return how many ids a text has besides its tokens."""
    return sum(map(len, codec.framing))


def _checked(corpora: Sequence[LabelCorpus], columns: Sequence[str], classes: tuple[str, ...]) -> Iterator[Numbered]:
    """Yield all rows with the number of their corpus. Raise DataError at a label that does not occur in training."""
    labels = frozenset(classes)
    for corpus, one in enumerate(corpora):
        for shard in one.shards(columns):
            for number, (text, label) in enumerate(shard.rows(), start=1):
                label = label.strip()
                if text.strip() and label and label not in labels:
                    known = ", ".join(classes[:10]) + (", ..." if len(classes) > 10 else "")
                    raise DataError(
                        f"{shard.where}: {shard.unit} {number}: label {label!r} does not occur in training; "
                        f"known: {known}"
                    )
                yield corpus, (text, label)


@final
class ClassificationData(TaskData):
    """Prepared texts with their classes."""

    def __init__(self, task: ClassificationConfig, folder: Path) -> None:
        self.task = task
        self.codec = Codec.load(folder)
        assert self.codec.source is not None
        assert self.codec.classes is not None
        self.sizes = Sizes(source=self.codec.source.size, target=len(self.codec.classes))
        self.notes = json.loads((folder / "notes.json").read_text(encoding="utf-8"))
        # All files are mapped now, so preparing the folder again does not change this object.
        shares = {"train": read_shares(folder, task.weights())}
        self._splits = {
            split: _ClassSplit(folder, split, self.codec, task.batch_tokens, shares.get(split, []))
            for split in task.files()
        }
        self._train = self._splits["train"]
        self.epoch = len(self._train.batches)

    def batch(self, seed: int, index: int) -> Batch:
        return self._train.batch(self._train.batches.members(seed, index))

    def held_out(self, split: Split) -> Iterator[Batch]:
        data = self._split(split)
        for members in data.batches.in_order():
            yield data.batch(members)

    def examples(self, split: Split) -> list[tuple[str, str]]:
        classes, texts = self._split(split).classes, self._split(split).texts
        assert self.codec.classes is not None
        return [(texts.text(i), self.codec.classes[int(classes.values[i])]) for i in range(len(texts))]

    def _split(self, split: Split) -> "_ClassSplit":
        if split not in self._splits:
            raise ConfigError(f"task: {split}: the recipe has no such data; measure another split, or your own files")
        return self._splits[split]


class _ClassSplit:
    def __init__(self, folder: Path, split: str, codec: Codec, budget: int, shares: Sequence[Share]) -> None:
        assert codec.source is not None
        self.source, self.framing = Ragged(folder, f"{split}.source", dtype_for(codec.source.size)), codec.framing
        self.classes = Ragged(folder, f"{split}.class", "<u4")
        self.texts = Ragged(folder, f"{split}.text", "u1")
        lengths = self.source.short_lengths(more=_frame_length(codec))
        self.batches = Batches((lengths, lengths), budget, shares=shares)

    def batch(self, members: Array) -> Batch:
        rows = [self.source[i] for i in members.tolist()]
        return class_batch(padded(rows, *self.framing), self.classes.values[members])
