"""Pairs of texts, prepared once: the common part of translation, number words and dates.

source = text EOS;    input = BOS target;    output = target EOS
"""

import json
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, final

from pydantic import Field, model_validator

from allyouneed.errors import ConfigError
from allyouneed.sizes import Sizes
from allyouneed.tasks.base import Batch, Score, Split, TaskConfig, TaskData
from allyouneed.tasks.casing import Copies
from allyouneed.tasks.collate import text_pair_batch
from allyouneed.tasks.corpus_tags import RowTags, require_known_tags
from allyouneed.tasks.pair_files import SPLITS, AnySplit, build_pairs
from allyouneed.tasks.pair_split import SIDES, Mixture, PairSplit
from allyouneed.tasks.prepared import codec_key, prepared
from allyouneed.tasks.scale import sample_step
from allyouneed.tasks.scores import bleu_and_chrf, exact_match
from allyouneed.tasks.weighting import key_of, read_shares
from allyouneed.text.codec import Codec
from allyouneed.text.lines import Pair, Skips, filled
from allyouneed.text.ragged import Ragged, dtype_for
from allyouneed.text.tokenizer import TokenizerConfig


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

    def copies(self) -> Sequence[Copies]:
        """Return the changed copies of training pairs that are read, too: each as further corpora, after all others."""
        return ()

    def copies_every(self) -> int:
        """Return n: every n-th training pair has copies."""
        return sample_step(self.training_bytes()) if self.copies() else 1

    def weights_with_copies(self) -> list[float]:
        """Return how often a pair of each training corpus, and of the copies of each, is read in an epoch."""
        own, every = self.weights(), self.copies_every()
        return own + [copies.share * every * weight for copies in self.copies() for weight in own]

    def tags_with_copies(self) -> list[str | None]:
        """Return the tag of each training corpus, and of the copies of each."""
        return self.corpus_tags() * (1 + len(self.copies()))

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
        key |= {"copies": {copies.name: copies.share for copies in self.copies()}} if self.copies() else {}
        return PairData(self, prepared(folder, key, lambda preparation: build_pairs(self, preparation, seed, codec)))


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
        shares, tags = read_shares(folder, task.weights_with_copies()), task.tags_with_copies()
        mixture = Mixture(shares, RowTags.load(folder, self.codec, tags))
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
