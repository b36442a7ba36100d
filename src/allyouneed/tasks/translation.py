"""Translation, learnt from parallel text: two files whose lines correspond, or one TSV file.

Paper: Sutskever et al. 2014, arXiv:1409.3215; Bahdanau et al. 2015, arXiv:1409.0473; Vaswani et al. 2017,
arXiv:1706.03762.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator

from allyouneed.errors import ConfigError
from allyouneed.tasks.base import Score
from allyouneed.tasks.direction import require_same_direction
from allyouneed.tasks.pairs import AnySplit, PairData, PairTask, translation_scores
from allyouneed.tasks.prepared import source_hashes
from allyouneed.text.compressed import SUFFIXES
from allyouneed.text.lines import Pair, as_names, pairs
from allyouneed.words import counted

SPLITS: tuple[AnySplit, ...] = ("train", "valid", "test")
LANGUAGE = re.compile(r"[a-z]{2,3}([_-][A-Za-z0-9]{2,8})*")


def _one_or_two(value: Any) -> Any:
    names = as_names(value)
    if isinstance(names, list | tuple) and len(names) not in (1, 2):
        raise ValueError(
            f"{counted(len(names), 'file')}; should be two, [source file, target file], or one TSV file. "
            "Concatenate several corpora, in the same order for both sides"
        )
    return names


Files = Annotated[tuple[str, ...], BeforeValidator(_one_or_two)]


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
        return _languages(self.train)

    def prepare(self, folder: Path, seed: int) -> PairData:
        for split in SPLITS:
            _require_two_files(split, self.files(split) or ())
        for split in ("valid", "test"):
            files, train = self.files(split), _languages(self.train)
            _require_same_languages(split, files or (), self.train)
            if files is not None and train is not None and _languages(files) == train[::-1]:
                raise ConfigError(
                    f"task.{split}: {' and '.join(files)}: their names are in the order {' '.join(train[::-1])}, those "
                    f"of task.train in the order {' '.join(train)}; swap them"
                )
        return super().prepare(folder, seed)

    def check_splits(self, seed: int) -> None:
        for split in ("valid", "test"):
            files = self.files(split)
            if files is not None:
                require_same_direction(pairs(self.train), pairs(files), f"task.{split}: {' and '.join(files)}")

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


def _require_two_files(split: str, files: tuple[str, ...]) -> None:
    """Raise ConfigError if one file is given as source and as target."""
    if len(files) == 2 and Path(files[0]).resolve() == Path(files[1]).resolve():
        raise ConfigError(f"task.{split}: {files[0]} is the source and the target; give [source file, target file]")


def _require_same_languages(split: str, files: tuple[str, ...], train: tuple[str, ...]) -> None:
    """Raise ConfigError if the names of both splits end with languages, one of which is the same and one is not.

    Other endings (train.src, train.tgt) may differ.
    """
    found, known = _suffixes(files), _suffixes(train)
    if found is None or known is None:
        return
    same = [_is_one_language(*sides) for sides in zip(found, known, strict=True)]
    if sum(same) == 1 and all(re.match("[a-z]{2}(?![a-z])", sides[same.index(False)]) for sides in (found, known)):
        raise ConfigError(
            f"task.{split}: {' and '.join(files)}: their names end with {' '.join(found)}, those of task.train with "
            f"{' '.join(known)}; give files in the languages of task.train"
        )


def _is_one_language(one: str, other: str) -> bool:
    return re.split("[_-]", one)[0] == re.split("[_-]", other)[0]


def _languages(files: tuple[str, ...]) -> tuple[str, str] | None:
    """Return the languages of two files. Parallel files are usually named after them: train.en, train.de.gz."""
    found = _suffixes(files)
    return found if found is not None and found[0] != found[1] else None


def _suffixes(files: tuple[str, ...]) -> tuple[str, str] | None:
    """Return the suffixes of two files if both look like languages."""
    if len(files) != 2:
        return None
    plain = [path.with_suffix("") if path.suffix in SUFFIXES else path for path in map(Path, files)]
    source, target = (path.suffix.removeprefix(".") for path in plain)
    return (source, target) if LANGUAGE.fullmatch(source) and LANGUAGE.fullmatch(target) else None
