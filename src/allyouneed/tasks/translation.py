"""Translation, learnt from parallel text: two files whose lines correspond, or one TSV file.

Paper: Sutskever et al. 2014, arXiv:1409.3215; Bahdanau et al. 2015, arXiv:1409.0473; Vaswani et al. 2017,
arXiv:1706.03762.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from allyouneed.tasks.base import Score
from allyouneed.tasks.pairs import AnySplit, PairTask, translation_scores
from allyouneed.tasks.prepared import source_hashes
from allyouneed.text.lines import Pair, as_names, pairs

LANGUAGE = re.compile(r"[a-z]{2,3}([_-][A-Za-z0-9]{2,8})*")
Files = Annotated[tuple[str, ...], BeforeValidator(as_names), Field(min_length=1, max_length=2)]


class TranslationConfig(PairTask):
    summary = "translation from parallel text files or TSV"
    paper = "Vaswani et al. 2017, arXiv:1706.03762"
    has_sentences = True

    type: Literal["translation"] = "translation"
    train: Files  # [source file, target file], or one TSV file: source TAB target
    valid: Files
    test: Files | None = None

    def files(self, split: AnySplit) -> tuple[str, ...] | None:
        """Return the files of a split."""
        return {"train": self.train, "valid": self.valid, "test": self.test}[split]

    def languages(self) -> tuple[str, str] | None:
        if len(self.train) != 2:
            return None
        # Parallel files are usually named after their languages: train.en, train.de.
        source, target = (Path(file).suffix.removeprefix(".") for file in self.train)
        known = source != target and LANGUAGE.fullmatch(source) and LANGUAGE.fullmatch(target)
        return (source, target) if known else None

    def describe(self, split: AnySplit) -> str:
        return " and ".join(self.files(split) or ())

    def sources(self, seed: int) -> dict[str, Any]:
        splits = {"train": self.train, "valid": self.valid, "test": self.test}
        hashes = source_hashes(name for files in splits.values() for name in files or ())
        return {"splits": splits, "sha256": hashes}

    def rows(self, split: AnySplit, seed: int) -> Iterator[Pair] | None:
        files = self.files(split)
        return None if files is None else pairs(files)

    def measure(self, hypotheses: list[str], references: list[str]) -> list[Score]:
        return translation_scores(hypotheses, references)
