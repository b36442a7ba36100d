"""Translation, learnt from parallel text: two files whose lines correspond, or corpora of other formats.

Paper: Sutskever et al. 2014, arXiv:1409.3215; Bahdanau et al. 2015, arXiv:1409.0473; Vaswani et al. 2017,
arXiv:1706.03762.
"""

import re
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Literal

from pydantic import model_validator

from allyouneed.errors import ConfigError
from allyouneed.tasks.base import Score
from allyouneed.tasks.casing import CasingConfig, Copies, cased_copies
from allyouneed.tasks.direction import require_same_direction
from allyouneed.tasks.pair_files import AnySplit
from allyouneed.tasks.pairs import PairTask, translation_scores
from allyouneed.tasks.prepared import file_hashes
from allyouneed.tasks.scale import text_bytes
from allyouneed.text.codec import Codec
from allyouneed.text.compressed import without_packing
from allyouneed.text.corpora import PairCorpus
from allyouneed.text.corpus_settings import (
    PairCorpora,
    described,
    pairs,
    require_tags_for_training,
    require_weights_for_training,
    sources_of,
    written,
)
from allyouneed.text.lines import Pair

SPLITS: tuple[AnySplit, ...] = ("train", "valid", "test")
LANGUAGE = re.compile(r"[a-z]{2,3}([_-][A-Za-z0-9]{2,8})*")


class TranslationConfig(PairTask):
    summary = "translation from parallel text, TSV, JSONL, TMX, Parquet or Arrow files"
    paper = "Vaswani et al. 2017, arXiv:1706.03762"
    has_sentences = True

    type: Literal["translation"] = "translation"
    train: PairCorpora  # [source file, target file], one file with both, or several corpora (docs/data.md)
    valid: PairCorpora
    test: PairCorpora | None = None
    casing: CasingConfig | None = None  # copies of training pairs in capitals and in title case
    tags: tuple[str, str] | None = None  # source and target language of a multilingual model that is trained on

    @model_validator(mode="after")
    def _weights(self) -> "TranslationConfig":
        require_weights_for_training(self.train, self.valid, self.test)
        require_tags_for_training(self.train, self.valid, self.test)
        return self

    def files(self, split: AnySplit) -> tuple[PairCorpus, ...]:
        """Return the corpora of a split."""
        return {"train": self.train, "valid": self.valid, "test": self.test or ()}[split]

    def languages(self) -> tuple[str, str] | None:
        return _languages(self.train[0])

    def in_languages(self, codec: Codec) -> Codec:
        if codec.tags and self.tags is None:
            some = ", ".join(sorted(codec.tags)[:5])
            raise ConfigError(
                f"the model knows {len(codec.tags):,} languages ({some}, ...); name two: task.tags = [source, target]"
            )
        return codec if self.tags is None else codec.in_languages(*self.tags)

    def check_files(self) -> None:
        for split in SPLITS:
            for corpus in self.files(split):
                _require_two_files(split, corpus)
                if corpus is not self.train[0]:
                    _require_same_languages(split, corpus, self.train[0])

    def check_splits(self, seed: int) -> None:
        first, *further = self.train
        for corpus in further:
            require_same_direction(_pairs(first), _pairs(corpus), f"task.train: {corpus.name}", first.name)
        for split in ("valid", "test"):
            for corpus in self.files(split):
                require_same_direction(_pairs(first), _pairs(corpus), f"task.{split}: {corpus.name}", "task.train")

    def describe(self, split: AnySplit, corpus: int | None = None) -> str:
        files = self.files(split)
        return described(files if corpus is None else [files[corpus]])

    def sources(self, seed: int) -> dict[str, Any]:
        given = {"train": self.train, "valid": self.valid, "test": self.test}
        splits = {name: None if corpora is None else written(corpora, weights=False) for name, corpora in given.items()}
        files = sources_of([corpus for split in SPLITS for corpus in self.files(split)])
        return {"splits": splits, "sha256": file_hashes(files)}

    def rows(self, split: AnySplit, seed: int) -> Iterator[Pair] | None:
        found = self.corpora(split, seed)
        return chain.from_iterable(found) if found else None

    def corpora(self, split: AnySplit, seed: int) -> list[Iterator[Pair]]:
        return [_pairs(corpus) for corpus in self.files(split)]

    def weights(self) -> list[float]:
        return [corpus.weight for corpus in self.train]

    def corpus_tags(self) -> list[str | None]:
        return [corpus.tag for corpus in self.train]

    def copies(self) -> Sequence[Copies]:
        return cased_copies(self.casing, self.tags or self.languages())

    def read_pairs(self, files: Any) -> Iterator[Pair]:
        return pairs(files, self.train)

    def training_bytes(self) -> int:
        return text_bytes(sources_of(self.train).values())

    def measure(self, hypotheses: list[str], references: list[str]) -> list[Score]:
        return translation_scores(hypotheses, references)


def _pairs(corpus: PairCorpus) -> Iterator[Pair]:
    return ((source, target) for source, target in corpus.rows())


def _require_two_files(split: str, corpus: PairCorpus) -> None:
    """Raise ConfigError if one file is given as source and as target."""
    if corpus.is_parallel() and Path(corpus.files[0]).resolve() == Path(corpus.files[1]).resolve():
        raise ConfigError(
            f"task.{split}: {corpus.files[0]} is the source and the target; give [source file, target file]"
        )


def _require_same_languages(split: str, corpus: PairCorpus, train: PairCorpus) -> None:
    """Raise ConfigError if the languages of a corpus are those of training swapped, or if one of them differs.

    Names that are no languages (train.src, train.tgt) may differ.
    """
    found, known = _named(corpus), _named(train)
    if found is None or known is None:
        return
    same = [_is_one_language(*sides) for sides in zip(found, known, strict=True)]
    if sum(same) == 1 and all(re.match("[a-z]{2}(?![a-z])", sides[same.index(False)]) for sides in (found, known)):
        raise ConfigError(
            f"task.{split}: {corpus.name}: their names end with {' '.join(found)}, those of task.train with "
            f"{' '.join(known)}; give files in the languages of task.train"
        )
    if _languages(train) is not None and found == known[::-1]:
        raise ConfigError(
            f"task.{split}: {corpus.name}: their names are in the order {' '.join(found)}, those "
            f"of task.train in the order {' '.join(known)}; swap them"
        )


def _is_one_language(one: str, other: str) -> bool:
    return re.split("[_-]", one)[0] == re.split("[_-]", other)[0]


def _languages(corpus: PairCorpus) -> tuple[str, str] | None:
    """Return the languages of a corpus. Parallel files are usually named after them: train.en, train.de.gz."""
    found = _named(corpus)
    return found if found is not None and found[0] != found[1] else None


def _named(corpus: PairCorpus) -> tuple[str, str] | None:
    """Return the ends of the names of two files, or of the two fields, if both look like languages."""
    if isinstance(corpus.source, str) and isinstance(corpus.target, str):
        names = [f".{field}" for field in (corpus.source, corpus.target)]
    elif corpus.is_parallel():
        names = [without_packing(name) for name in corpus.files]
    else:
        return None
    source, target = (name.rpartition(".")[2] if "." in Path(name).name else "" for name in names)
    return (source, target) if LANGUAGE.fullmatch(source) and LANGUAGE.fullmatch(target) else None
