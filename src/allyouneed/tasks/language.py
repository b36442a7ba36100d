"""Language modelling: predict each token from those before it.

    input = BOS x_{i+1} ... x_{i+T-1};   output = x_{i+1} ... x_{i+T}

Every window starts with BOS: nothing is known of the text before it, as at the start of a prompt.

Training takes random windows. Evaluation predicts every token of the held-out text once. Each window also reads up to
`overlap` earlier tokens, so the loss hardly depends on where windows start.

With a `segment`, a window is read that many tokens at a time, and each segment continues from the state of the one
before it, for models with a memory. Held-out text is then read as a few long streams whose states are never dropped.

Paper: Bengio et al. 2003; Graves 2013, arXiv:1308.0850 (characters).
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, final

import numpy as np
import torch
from pydantic import Field, model_validator

from allyouneed.errors import ConfigError, DataError
from allyouneed.randomness import generator
from allyouneed.sizes import Sizes, Traits
from allyouneed.tasks.base import Batch, Split, TaskConfig, TaskData, Units
from allyouneed.tasks.meter import Meter
from allyouneed.tasks.preparation import Preparation
from allyouneed.tasks.prepared import codec_key, file_hashes, prepared
from allyouneed.tasks.scale import ahead, text_bytes, tokenizer_sample
from allyouneed.tasks.weighting import key_of, read_shares, save_counts
from allyouneed.text.codec import Codec
from allyouneed.text.corpora import TextCorpus
from allyouneed.text.corpus_settings import (
    TextCorpora,
    described,
    parse_corpora,
    require_weights_for_training,
    sources_of,
    written,
)
from allyouneed.text.lines import Pair, blocks, resolve
from allyouneed.text.long_texts import encode_long
from allyouneed.text.ragged import Array, Ragged, RaggedWriter, dtype_for, padded
from allyouneed.text.specials import BOS, EOS, PAD
from allyouneed.text.tokenizer import LONGEST_TRAINED, TokenizerConfig, train

Piece = tuple[int, str | None]  # the number of a corpus, and a piece of its text; None before each document
Block = list[Piece]  # of about 1 MiB: one large piece, or many small documents
BLOCK_CHARACTERS, BLOCK_PIECES = 1 << 20, 1 << 14  # of a block, at most, if it has several pieces
PART_BLOCKS = 32  # blocks in a part of prepared data


class LanguageConfig(TaskConfig):
    summary = "language modelling from text, JSONL, Parquet or Arrow files: characters, bytes or BPE"
    paper = "Graves 2013, arXiv:1308.0850"
    kinds = frozenset({"decoder"})

    type: Literal["language"] = "language"
    train: TextCorpora  # files; each file of plain text, and each record of other formats, is one document
    valid: TextCorpora | None = None
    test: TextCorpora | None = None
    split: tuple[float, ...] | None = None  # fractions of one file's characters: [0.9, 0.1] train and valid, or three
    tokenizer: TokenizerConfig = TokenizerConfig(kind="characters")
    context: Annotated[int, Field(ge=1)] = 256
    batch: Annotated[int, Field(ge=1)] = 32  # sequences
    overlap: Annotated[int, Field(ge=0)] | None = None  # default: half the context
    segment: Annotated[int, Field(ge=1)] | None = None  # tokens read at once, with the state carried on; default: all

    @model_validator(mode="after")
    def _consistent(self) -> "LanguageConfig":
        if (self.split is None) == (self.valid is None):
            raise ValueError("needs either valid files or split = [0.9, 0.1]")
        if self.split is not None:
            if not (len(self.train) == 1 and self.train[0].is_one_text()) or self.test is not None:
                raise ValueError("split cuts one file into parts: give one train file of plain text and no other file")
            if len(self.split) not in (2, 3) or min(self.split) <= 0 or abs(sum(self.split) - 1) > 1e-9:
                raise ValueError(f"split={list(self.split)}: should be two or three fractions that sum to 1")
        require_weights_for_training(self.train, self.valid, self.test)
        if self.tokenizer.dropout:
            raise ValueError("tokenizer.dropout works for translation only: running text is tokenised once")
        if self.overlap is not None and self.overlap >= self.context:
            raise ValueError(f"overlap={self.overlap}: should be less than context={self.context}")
        if self.segment is not None and self.segment > self.context:
            raise ValueError(f"segment={self.segment}: should not be more than context={self.context}")
        return self

    def traits(self) -> Traits:
        return Traits(self.type, segment=self.segment)

    @property
    def context_tokens(self) -> int:
        """Tokens that a window of held-out text reads before the first one it predicts."""
        return self.context // 2 if self.overlap is None else self.overlap

    @property
    def reading(self) -> str:
        """How held-out text is cut into windows, for signatures."""
        if self.segment is None:
            return f"context:{self.context}|overlap:{self.context_tokens}"
        return f"segment:{self.segment}|carried|streams:{self.batch}|overlap:{self.context_tokens}"

    def read_rows(self, files: Any) -> Iterator[Pair]:
        corpora = parse_corpora(files, TextCorpus, self.train)
        return (("", text) for corpus in corpora for (text,) in corpus.rows())

    def from_files(self, codec: Codec, files: Any, longest: int | None = None) -> "TextFile":
        return TextFile(self, codec, files)

    def weights(self) -> list[float]:
        """Return how often the text of each training corpus is read, in proportion to its length."""
        return [corpus.weight for corpus in self.train]

    def largest_batch(self) -> tuple[str, int]:
        return f"batch={self.batch} with context={self.context}", self.batch * self.context

    def example(self, seed: int) -> str | None:
        return next((text for block in _parts(self)["valid"]() for _, text in block if text), "")

    def prepare(self, folder: Path, seed: int) -> "LanguageData":
        return self._prepare(folder, None)

    def prepare_with(self, codec: Codec, folder: Path, seed: int) -> "LanguageData":
        if codec.target is None or codec.classes is not None:
            raise ConfigError(f"task {self.type!r} needs a model that generates texts; this one labels them")
        return self._prepare(folder, replace(codec, source=None, frame=None, sentences=None))

    def _prepare(self, folder: Path, codec: Codec | None) -> "LanguageData":
        given = {"train": self.train, "valid": self.valid, "test": self.test}
        splits = {name: None if part is None else written(part, weights=False) for name, part in given.items()}
        files = {**splits, "split": self.split}
        hashes = file_hashes(sources_of([corpus for part in given.values() for corpus in part or ()]))
        key = {"task": self.type, "files": files, "sha256": hashes, "tokenizer": self.tokenizer.model_dump()}
        key |= key_of(self.weights()) | codec_key(codec)
        return LanguageData(self, prepared(folder, key, lambda preparation: _build(self, preparation, codec)))


def _build(task: LanguageConfig, preparation: Preparation, given: Codec | None) -> None:
    splits = _parts(task)
    learnt = Meter("training the tokeniser", "tokens").set

    def train_codec(folder: Path) -> int:
        """Train the tokeniser; return the number of blocks that were read for that."""
        if given is not None:
            given.save(folder)
            return 0
        meter = Meter("reading for the tokeniser", "blocks")
        sample = tokenizer_sample(meter.over(splits["train"]()), text_bytes(sources_of(task.train).values()))
        texts = (text for block in sample for _, text in block)
        tokenizer = train(_short(texts), task.tokenizer, sentences=False, progress=learnt)
        Codec(target=tokenizer).save(folder)
        return meter.done

    blocks_read = preparation.stage("codec", train_codec)
    codec = Codec.load(preparation.path("codec"))
    units = {}
    for name, read in splits.items():

        def write(folder: Path, given: Iterator[Block], name: str = name) -> dict[str, Any]:
            return _write_text(codec, folder, name, given)

        meter = Meter(f"encoding {name}", "blocks", blocks_read or None if name == "train" else None)
        parts = preparation.parts(name, read, write, meter, PART_BLOCKS)
        tokens, characters, size = (sum(part["units"][number] for part in parts) for number in range(3))
        if not tokens:
            files = (task.valid if name == "valid" else task.test if name == "test" else None) or task.train
            raise DataError(f"{described(files)}: the {name} text is empty")
        units[name] = (tokens, characters, size)
        if name == "train":
            save_counts(preparation.folder, parts, task.weights())
    (preparation.folder / "units.json").write_text(json.dumps(units), encoding="utf-8")


def _write_text(codec: Codec, folder: Path, name: str, given: Iterator[Block]) -> dict[str, Any]:
    """Encode blocks of text into a folder; return their tokens, characters and bytes, and the ids of each corpus.

    A document begins with BOS. In training data of a model without BOS, the end of the one before it separates them.
    """
    tokenizer = codec.target
    assert tokenizer is not None
    begin = [BOS] if codec.bos else [EOS] if name == "train" else []
    tokens = characters = size = 0
    counts: dict[int, int] = {}

    def encoded(block: Block) -> list[tuple[int, str | None, list[int]]]:
        ids = iter(encode_long(tokenizer, [text for _, text in block if text is not None]))
        return [(corpus, text, begin if text is None else next(ids)) for corpus, text in block]

    with RaggedWriter(folder, name, dtype_for(tokenizer.size)) as stream:
        for block in ahead(encoded, given):
            stream.extend([ids for _, _, ids in block])
            for corpus, text, ids in block:
                counts[corpus] = counts.get(corpus, 0) + len(ids)
                if text is not None:
                    tokens, characters, size = tokens + len(ids), characters + len(text), size + len(text.encode())
    return {"units": [tokens, characters, size], "corpora": sorted(counts.items())}


def _parts(task: LanguageConfig) -> dict[str, Callable[[], Iterator[Block]]]:
    """Return for each split a function that yields its text in blocks, with None before each document."""
    if task.split is None:
        given = {"train": task.train, "valid": task.valid, "test": task.test}
        return {name: partial(_blocks, partial(_documents, corpora)) for name, corpora in given.items() if corpora}
    path = resolve(task.train[0].files[0])
    total = sum(len(text) for text in blocks(path))
    cuts = [int(total * share) for share in np.cumsum([0.0, *task.split[:-1]])] + [total]
    return {
        name: partial(_blocks, partial(_between, path, start, end))
        for name, start, end in zip(("train", "valid", "test"), cuts, cuts[1:], strict=False)
    }


def _blocks(read: Callable[[], Iterator[Piece]]) -> Iterator[Block]:
    """Yield pieces together: a large one, or many small ones."""
    block: Block = []
    held = 0
    for piece in read():
        size = len(piece[1] or "")
        if block and (held + size > BLOCK_CHARACTERS or len(block) >= BLOCK_PIECES):
            yield block
            block, held = [], 0
        block.append(piece)
        held += size
    if block:
        yield block


def _documents(corpora: Sequence[TextCorpus]) -> Iterator[Piece]:
    for number, corpus in enumerate(corpora):
        for text in corpus.documents():
            yield number, text


def _between(path: Path, start: int, end: int) -> Iterator[Piece]:
    yield 0, None
    seen = 0
    for text in blocks(path):
        piece = text[max(0, start - seen) : max(0, end - seen)]
        seen += len(text)
        if piece:
            yield 0, piece


def _short(texts: Iterator[str | None]) -> Iterator[str]:
    for text in texts:
        for start in range(0, len(text or ""), LONGEST_TRAINED):
            yield (text or "")[start : start + LONGEST_TRAINED]


@final
class LanguageData(TaskData):
    """Prepared running text."""

    def __init__(self, task: LanguageConfig, folder: Path) -> None:
        self.task = self._config = task
        self.codec = Codec.load(folder)
        assert self.codec.target is not None
        size = self.codec.target.size
        self.sizes = Sizes(source=size, target=size, shared=True)
        self._units = json.loads((folder / "units.json").read_text(encoding="utf-8"))
        self.notes = [f"{split}: {tokens:,} tokens" for split, (tokens, _, _) in self._units.items()]
        # All files are mapped now, so preparing the folder again does not change this object.
        self._streams = {split: Ragged(folder, split, dtype_for(size)).values for split in self._units}
        self._train = self._streams["train"]
        self._shares = read_shares(folder, task.weights())
        self.train_tokens = self._units["train"][0]
        if len(self._train) <= task.context:
            raise DataError(
                f"{described(task.train)}: {len(self._train):,} tokens to learn from; "
                f"context={task.context} needs more than that"
            )

    def batch(self, seed: int, index: int) -> Batch:
        length, count = self._config.context, self._config.batch
        places = len(self._train) - length
        starts = self._places(generator(seed, index).random(count), places)
        windows = self._train[starts[:, None] + np.arange(length + 1)].astype(np.int64)
        if self.codec.bos:
            windows[:, 0] = BOS
        tokens_BT = torch.from_numpy(windows)
        return Batch(input_BT=tokens_BT[:, :-1], output_BT=_no_start(tokens_BT[:, 1:]), segment=self._config.segment)

    def _places(self, random: Array, places: int) -> Array:
        """Return places in the text, from random numbers between 0 and 1; weighted ones if corpora have weights."""
        if not self._shares:
            return np.floor(random * places).astype(np.int64)
        counts, weights = np.array(self._shares).T
        ends = np.minimum(np.cumsum(counts), places)  # the last window starts before the end
        lengths = np.diff(ends, prepend=0.0)
        mass = np.cumsum(lengths * weights)
        found = np.interp(random * mass[-1], np.concatenate([[0.0], mass]), np.concatenate([[0.0], ends]))
        return np.minimum(np.floor(found).astype(np.int64), places - 1)

    def held_out(self, split: Split) -> Iterator[Batch]:
        return text_windows(self._stream(split), self._config, self.codec.bos)

    def examples(self, split: Split) -> list[tuple[str, str]]:
        return []

    def units(self, split: Split) -> Units:
        self._stream(split)
        tokens, characters, size = self._units[split]
        return Units(tokens, characters, size, self._config.reading)

    def _stream(self, split: Split) -> Array:
        if split not in self._streams:
            raise ConfigError(f"task: {split}: the recipe has no such data; measure another split, or your own files")
        return self._streams[split]


def text_windows(stream: Array, task: LanguageConfig, bos: bool) -> Iterator[Batch]:
    """Yield batches of windows over a text in which every token but the first is predicted once.

    Each window begins with BOS, which is the text's first id. Without `bos` it begins with the token before it.
    """
    length, overlap = task.context, task.context_tokens
    if task.segment is not None:  # one batch of windows, as long as the text allows
        length = max(length, -(-(len(stream) - 1 + (task.batch - 1) * overlap) // task.batch))
    # Window k predicts tokens first[k] .. first[k + 1] - 1; the first window has nothing before it.
    first = np.concatenate([[1], np.arange(1 + length, len(stream), length - overlap)])
    for begin in range(0, len(first), task.batch):
        rows = []
        for start in first[begin : begin + task.batch].tolist():
            read = start if start == 1 else start - overlap  # the first token whose prediction is in the window
            before = [BOS] if bos else stream[read - 1 : read]
            rows.append((np.concatenate([before, stream[read : read + length]]), start - read))
        input_BT = torch.from_numpy(padded([row[:-1] for row, _ in rows], pad=PAD))
        output_BT = _no_start(torch.from_numpy(padded([row[1:] for row, _ in rows], pad=PAD)))
        for line, (_, known) in zip(output_BT, rows, strict=True):
            line[:known] = PAD
        yield Batch(input_BT=input_BT, output_BT=output_BT, segment=task.segment)


def _no_start(output_BT: torch.Tensor) -> torch.Tensor:
    """Replace BOS, which nothing predicts, by PAD, which does not count."""
    return output_BT.masked_fill(output_BT == BOS, PAD)


@final
class TextFile(TaskData):
    """Running text from a file, in the ids of a finished model: evaluation data only."""

    def __init__(self, task: LanguageConfig, codec: Codec, files: Any) -> None:
        corpora = parse_corpora(files, TextCorpus, task.train)
        if len(corpora) != 1:
            raise ConfigError("a language model is measured on one corpus: --data FILE, or --data '{files=[...]}'")
        assert codec.target is not None
        self.task = self._config = task
        self.codec, self.notes = codec, []
        self.sizes = Sizes(codec.target.size, codec.target.size, shared=True)
        ids, characters, size = list[int](), 0, 0
        for _, text in _documents(corpora):
            ids += codec.target.encode(text) if text is not None else [BOS] if codec.bos else []
            characters, size = characters + len(text or ""), size + len((text or "").encode())
        if not characters or len(ids) <= 1:
            raise DataError(f"{described(corpora)}: is empty or a single token; should hold some text")
        unpredicted = ids.count(BOS) if codec.bos else 1
        self._stream, self._units = np.asarray(ids), Units(len(ids) - unpredicted, characters, size, task.reading)

    def batch(self, seed: int, index: int) -> Batch:
        raise NotImplementedError("files are for evaluation")

    def held_out(self, split: Split) -> Iterator[Batch]:
        return text_windows(self._stream, self._config, self.codec.bos)

    def examples(self, split: Split) -> list[tuple[str, str]]:
        return []

    def units(self, split: Split) -> Units:
        return self._units
