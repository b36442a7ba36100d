"""What translation, number words and dates share: pairs of texts, prepared once, given in batches.

source = text EOS;    input = BOS target;    output = target EOS
"""

import json
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, final

import numpy as np
import torch
from pydantic import Field, model_validator

from allyouneed.errors import ConfigError, DataError
from allyouneed.sizes import Sizes
from allyouneed.tasks.base import BOS, EOS, PAD, Batch, Score, Split, TaskConfig, TaskData
from allyouneed.tasks.batching import Array, Batches
from allyouneed.tasks.codec import Codec
from allyouneed.tasks.ids import Ragged, RaggedWriter, dtype_for, padded, prepared
from allyouneed.tasks.scores import bleu_and_chrf, exact_match
from allyouneed.tasks.text import Pair, Skips, filled
from allyouneed.tasks.tokenizer import TokenizerConfig, train

AnySplit = Literal["train", "valid", "test"]
SPLITS: tuple[AnySplit, ...] = ("train", "valid", "test")
CHUNK = 2048  # pairs tokenised at a time


class PairTask(TaskConfig):
    """The settings of a task of pairs. A task says where its pairs come from; the rest is the same for all."""

    kinds = frozenset({"encoder-decoder", "decoder"})
    target_default: ClassVar[TokenizerConfig | None] = None

    tokenizer: TokenizerConfig = TokenizerConfig()
    target_tokenizer: TokenizerConfig | None = None  # default: like the source's, or what suits the task
    shared: bool = True  # one vocabulary for both sides, learnt from both
    batch_tokens: Annotated[int, Field(ge=1)] = 4096  # padded tokens of a batch, at most, on each side
    max_length: Annotated[int, Field(ge=2)] = 256  # tokens of a text with its EOS; pairs with more are skipped

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
    def describe(self, split: AnySplit) -> str:
        """Where the pairs of a split come from, for messages."""

    @abstractmethod
    def sources(self, seed: int) -> dict[str, Any]:
        """Everything the pairs depend on, as JSON: the same value finds prepared data again."""

    @abstractmethod
    def rows(self, split: AnySplit, seed: int) -> Iterator[Pair] | None:
        """The pairs of a split, in order; None: the split is not given."""

    @abstractmethod
    def measure(self, hypotheses: list[str], references: list[str]) -> list[Score]:
        """Scores of decoded text; the first one chooses the best checkpoint."""

    def prepare(self, folder: Path, seed: int) -> "PairData":
        settings = self.model_dump(include={"tokenizer", "target_tokenizer", "shared", "max_length"})
        key = {"task": self.type, "sources": self.sources(seed), **settings}
        return PairData(self, prepared(folder, key, lambda temporary: _build(self, temporary, seed)))


def _build(task: PairTask, folder: Path, seed: int) -> None:
    codec = _train_tokenizers(task, seed)
    codec.save(folder)
    notes: list[str] = []
    for split in SPLITS:
        rows = task.rows(split, seed)
        if rows is not None:
            notes += _write_split(task, codec, folder, split, rows)
    (folder / "notes.json").write_text(json.dumps(notes, ensure_ascii=False, indent=1), encoding="utf-8")


def _train_tokenizers(task: PairTask, seed: int) -> Codec:
    def side(numbers: Sequence[int]) -> Iterator[str]:
        skips = Skips("train")
        for pair in filled(task.rows("train", seed) or iter(()), skips):
            for number in numbers:
                yield pair[number]
        if not skips.kept:
            raise DataError(_nothing_left(task, "train", skips))

    if task.shared:
        both = train(side((0, 1)), task.tokenizer)
        return Codec(both, both)
    target = task.target_tokenizer or task.target_default or task.tokenizer
    return Codec(train(side((0,)), task.tokenizer), train(side((1,)), target))


def _write_split(task: PairTask, codec: Codec, folder: Path, split: AnySplit, rows: Iterator[Pair]) -> list[str]:
    source, target = codec.source, codec.target
    assert source is not None
    assert target is not None
    skips = Skips(split)
    kept = filled(rows, skips)
    with (
        RaggedWriter(folder, f"{split}.source", dtype_for(source.size)) as source_ids,
        RaggedWriter(folder, f"{split}.target", dtype_for(target.size)) as target_ids,
        RaggedWriter(folder, f"{split}.source.text", "u1") as source_text,
        RaggedWriter(folder, f"{split}.target.text", "u1") as target_text,
    ):
        while chunk := list(islice(kept, CHUNK)):
            ours, theirs, texts = _encode(task, codec, chunk, skips)
            source_ids.extend(ours)
            target_ids.extend(theirs)
            if split != "train":
                source_text.extend(text.encode("utf-8") for text, _ in texts)
                target_text.extend(text.encode("utf-8") for _, text in texts)
    if not skips.kept:
        raise DataError(_nothing_left(task, split, skips))
    return [f"{split}: {skips.kept:,} pairs", *skips.notes()]


def _encode(
    task: PairTask, codec: Codec, chunk: list[Pair], skips: Skips
) -> tuple[list[list[int]], list[list[int]], list[Pair]]:
    source, target = codec.source, codec.target
    assert source is not None
    assert target is not None
    limit = task.max_length - 1
    sane = [
        pair for pair in chunk if not (source.surely_longer(pair[0], limit) or target.surely_longer(pair[1], limit))
    ]
    encoded = zip(
        source.encode_batch([text for text, _ in sane]),
        target.encode_batch([text for _, text in sane]),
        sane,
        strict=True,
    )
    fitting = [item for item in encoded if len(item[0]) <= limit and len(item[1]) <= limit]
    for _ in range(len(chunk) - len(fitting)):
        skips.skip(f"longer than max_length={task.max_length} tokens")
    return [item[0] for item in fitting], [item[1] for item in fitting], [item[2] for item in fitting]


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
        self._task = task
        self.codec = Codec.load(folder)
        source, target = self.codec.source, self.codec.target
        assert source is not None
        assert target is not None
        self.sizes = Sizes(source=source.size, target=target.size, shared=source is target)
        self.notes = json.loads((folder / "notes.json").read_text(encoding="utf-8"))
        # All files are mapped now: whoever prepares the folder anew does not change what this object gives.
        given = [split for split in SPLITS if (folder / f"{split}.source.bin").exists()]
        self._splits = {split: _PairSplit(folder, split, self.sizes, task.batch_tokens) for split in given}
        self._train = self._splits["train"]
        self.epoch = len(self._train.batches)

    def batch(self, seed: int, index: int) -> Batch:
        return self._train.batch(self._train.batches.members(seed, index))

    def held_out(self, split: Split) -> Iterator[Batch]:
        data = self._split(split)
        for members in data.batches.in_order():
            yield data.batch(members)

    def examples(self, split: Split) -> list[tuple[str, str]]:
        texts = self._split(split).texts
        return [(texts[0].text(number), texts[1].text(number)) for number in range(len(texts[0]))]

    def measure(self, hypotheses: list[str], references: list[str]) -> list[Score]:
        return self._task.measure(hypotheses, references)

    def _split(self, split: Split) -> "_PairSplit":
        if split not in self._splits:
            raise ConfigError(f"task: {split}: is not given; name the {split} data in the recipe")
        return self._splits[split]


class _PairSplit:
    def __init__(self, folder: Path, split: AnySplit, sizes: Sizes, budget: int) -> None:
        self.source = Ragged(folder, f"{split}.source", dtype_for(sizes.source))
        self.target = Ragged(folder, f"{split}.target", dtype_for(sizes.target))
        self.texts = tuple(Ragged(folder, f"{split}.{side}.text", "u1") for side in ("source", "target"))
        self._budget = budget

    @cached_property
    def batches(self) -> Batches:
        return Batches(self.source.lengths() + 1, self.target.lengths() + 1, self._budget)

    def batch(self, members: Array) -> Batch:
        return pair_batch([self.source[i] for i in members.tolist()], [self.target[i] for i in members.tolist()])


def pair_batch(sources: Sequence[Array], targets: Sequence[Array]) -> Batch:
    """A batch of pairs of ids (without special ones)."""
    source_BS = torch.from_numpy(padded(sources, after=(EOS,)))
    valid_BS = source_BS != PAD
    return Batch(
        source_BS=source_BS,
        source_valid_BS=None if bool(valid_BS.all()) else valid_BS,
        input_BT=torch.from_numpy(padded(targets, before=(BOS,))),
        output_BT=torch.from_numpy(padded(targets, after=(EOS,))),
    )


def translation_scores(hypotheses: list[str], references: list[str]) -> list[Score]:
    """BLEU first."""
    return [*bleu_and_chrf(hypotheses, references), exact_match(hypotheses, references)]


def exactness_scores(hypotheses: list[str], references: list[str]) -> list[Score]:
    """Exact match first: for targets of which there is only one."""
    return [exact_match(hypotheses, references), *bleu_and_chrf(hypotheses, references)]


def as_arrays(rows: Sequence[Sequence[int]]) -> list[Array]:
    """Lists of ids as arrays."""
    return [np.asarray(row, dtype=np.int64) for row in rows]
