"""Translation from parallel text: two files whose lines correspond, or one TSV file. Text in, text out.

Paper: Sutskever et al. 2014, arXiv:1409.3215; Bahdanau et al. 2015, arXiv:1409.0473; Vaswani et al. 2017,
arXiv:1706.03762.
"""

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from allyouneed.tasks.base import Score
from allyouneed.tasks.pairs import AnySplit, PairTask, translation_scores
from allyouneed.text.ids import source_hashes
from allyouneed.text.lines import Pair, as_names, pairs

Files = Annotated[tuple[str, ...], BeforeValidator(as_names), Field(min_length=1, max_length=2)]


class TranslationConfig(PairTask):
    summary = "translation from parallel text files or TSV"
    paper = "Vaswani et al. 2017, arXiv:1706.03762"

    type: Literal["translation"] = "translation"
    train: Files  # [source file, target file], or one TSV file: source TAB target
    valid: Files
    test: Files | None = None

    def files(self, split: AnySplit) -> tuple[str, ...] | None:
        """The files of a split."""
        return {"train": self.train, "valid": self.valid, "test": self.test}[split]

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
