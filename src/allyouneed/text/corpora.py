"""Corpora of a task: files of any format, by name or pattern, read as rows of texts.

A format is recognised by the name of a file, or given. Each reader streams: memory does not depend on the size of a
file. `docs/data.md` describes the formats and their limits.

    for shard in corpus.shards():              # an iterator for each file (or pair of files), in order
        for row in shard.rows():               # (source, target), (text, label) or (text,)
    for row in corpus.rows():                  # all of them
"""

import glob
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, PositiveFloat, model_validator

from allyouneed.config import Config
from allyouneed.errors import DataError
from allyouneed.text.arrow import arrow_rows, dataset_files
from allyouneed.text.compressed import without_packing
from allyouneed.text.lines import blocks, lines, parallel, resolve
from allyouneed.text.records import Column, Row, one_line_rows
from allyouneed.text.tables import json_rows, tsv_rows
from allyouneed.text.tmx import tmx_languages, tmx_rows
from allyouneed.words import counted

Format = Literal["text", "tsv", "jsonl", "tmx", "arrow"]
FORMATS: dict[str, Format] = {
    ".tsv": "tsv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".tmx": "tmx",
    ".parquet": "arrow",
    ".arrow": "arrow",
    ".feather": "arrow",
}
Chosen = Annotated[int, Field(ge=1)] | Annotated[str, Field(min_length=1)]
LONGEST_TAG = 40  # characters


def _checked_tag(tag: str) -> str:
    if not tag or len(tag) > LONGEST_TAG or not tag.isprintable() or tag.split() != [tag]:
        raise ValueError(f"should have 1 to {LONGEST_TAG} characters without blanks, such as <BT>")
    return tag


Tag = Annotated[str, AfterValidator(_checked_tag)]


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


Names = Annotated[tuple[str, ...], BeforeValidator(_as_list), Field(min_length=1)]


@dataclass(frozen=True)
class Shard:
    """A part of a corpus that is read by itself: a file, or files that are read together."""

    where: str  # for messages
    unit: str  # what a row is: a line, a unit, a row
    rows: Callable[[], Iterator[Row]]
    paths: tuple[Path, ...]
    format: Format


class Corpus(Config):
    """Files of one format that are read one after another. A subclass names the sides of its rows."""

    sides: ClassVar[tuple[str, ...]]
    default: ClassVar[Format]  # the format of a name that does not tell

    files: Names  # names or patterns (*, ?, [...], **)
    format: Format | None = None  # default: by the name
    weight: PositiveFloat = 1.0  # how often a row is read in an epoch of training, on average

    @model_validator(mode="after")
    def _one_format(self) -> "Corpus":
        # By names alone: the recipe of a model is read on machines that do not have its data.
        formats = {self.format or named_format(name) for name in self.files} - {None}
        if len(formats) > 1:
            raise ValueError(f"files of several formats: {', '.join(sorted(map(str, formats)))}; give each as a corpus")
        if formats - {"tsv"} and any(isinstance(column, int) for column in self._chosen()):
            raise ValueError("columns have numbers in TSV files only; give the name of a field")
        if len({column is None for column in self._chosen()}) > 1:
            raise ValueError(f"choose all of {', '.join(self.sides)}, or none")
        return self

    def _format(self, name: str) -> Format:
        known = self.format or _known_format(name)
        return known or ("text" if self.is_parallel() else self.default)

    def is_parallel(self) -> bool:
        """Return whether the files are [source, target], line by line."""
        return False

    def _refuse_columns(self) -> None:
        """Raise DataError if columns of plain text are chosen."""
        if any(column is not None for column in self._chosen()):
            raise DataError(
                f"{self.name}: plain text has no columns; remove them, or give the format: tsv, jsonl, tmx or arrow"
            )

    def _chosen(self) -> list[Column | None]:
        return [getattr(self, side) for side in self.sides]

    @property
    def name(self) -> str:
        """The files, for messages."""
        return " and ".join(self.files)

    def plain(self) -> bool:
        """Return whether nothing but files is given."""
        return self.format is None and self.weight == 1 and not any(column is not None for column in self._chosen())

    def with_fields_of(self: Self, others: Sequence["Corpus"]) -> Self:
        """Return the corpus; if no fields are chosen, with those of another corpus of the same format."""
        if any(column is not None for column in self._chosen()):
            return self
        same = (other for other in others if other._format(other.files[0]) == self._format(self.files[0]))
        fields = next((other._chosen() for other in same if other._chosen()[0] is not None), None)
        return self if fields is None else self.model_copy(update=dict(zip(self.sides, fields, strict=True)))

    def sources(self) -> dict[str, Path]:
        """Return every file, by the name that identifies it."""
        found: dict[str, Path] = {}
        for name in self.files:
            paths = expand(name)
            found |= {name: paths[0]} if paths == [resolve(name)] else {str(path): path for path in paths}
        return found

    def shards(self, order: Sequence[str] | None = None) -> Iterator[Shard]:
        """Yield the parts of the corpus, in order. `order`: of the columns of a TSV file, if none are chosen."""
        for name in self.files:
            yield from self._shards(name, order)

    def rows(self, order: Sequence[str] | None = None) -> Iterator[Row]:
        """Yield the rows of all files."""
        for shard in self.shards(order):
            yield from shard.rows()

    def _shards(self, name: str, order: Sequence[str] | None = None) -> Iterator[Shard]:
        paths, kind = expand(name), self._format(name)
        chosen = self._chosen()
        given = None if chosen[0] is None else [column for column in chosen if column is not None]
        if kind == "arrow":
            fields = [str(field) for field in given or self.sides]
            yield Shard(name, "row", lambda: self._as_lines(arrow_rows(paths, self.sides, fields)), tuple(paths), kind)
            return
        if kind == "text":
            self._refuse_columns()
        if kind == "tmx":
            given = given or list(tmx_languages(paths[0], self.sides))
        for path in paths:
            rows = partial(self._read, kind, path, given, order)
            yield Shard(str(path), "unit" if kind == "tmx" else "line", rows, (path,), kind)

    def _as_lines(self, rows: Iterator[Row]) -> Iterator[Row]:
        """Return rows whose texts are one line each, unless they are running text."""
        return rows if len(self.sides) == 1 else one_line_rows(rows)

    def _read(self, kind: Format, path: Path, given: list[Column] | None, order: Sequence[str] | None) -> Iterator[Row]:
        if kind == "tmx":
            return self._as_lines(tmx_rows(path, [str(code) for code in given or ()]))
        if kind == "jsonl":
            return self._as_lines(json_rows(path, self.sides, [str(field) for field in given or self.sides]))
        if kind == "tsv":
            return tsv_rows(path, self.sides, given, order)
        if len(self.sides) > 1:
            raise DataError(f"{path}: is plain text, but {' and '.join(self.sides)} are needed; give TSV or JSONL")
        return ((line,) for line in lines(path))


class PairCorpus(Corpus):
    """Sources with their targets. Two files of plain text correspond line by line."""

    sides = ("source", "target")
    default = "tsv"

    source: Chosen | None = None  # column, field or language
    target: Chosen | None = None
    tag: Tag | None = None  # a token in front of each source, in training

    def plain(self) -> bool:
        """Return whether nothing but files is given."""
        return super().plain() and self.tag is None

    def is_parallel(self) -> bool:
        return len(self.files) == 2 and self.format in (None, "text") and not any(map(has_format, self.files))

    def shards(self, order: Sequence[str] | None = None) -> Iterator[Shard]:
        """Yield the parts of the corpus, in order."""
        if not self.is_parallel():
            yield from super().shards(order)
            return
        self._refuse_columns()
        for source, target in _matched(*self.files):
            yield Shard(f"{source} and {target}", "line", partial(parallel, source, target), (source, target), "text")


class LabelCorpus(Corpus):
    """Texts with a label each."""

    sides = ("text", "label")
    default = "tsv"

    text: Chosen | None = None
    label: Chosen | None = None


class TextCorpus(Corpus):
    """Running text. A file of plain text is one document; in other formats, each record is one."""

    sides = ("text",)
    default = "text"

    text: Chosen | None = None

    def is_one_text(self) -> bool:
        """Return whether this is one file of plain text."""
        return len(self.files) == 1 and self._format(self.files[0]) == "text" and not glob.has_magic(self.files[0])

    def documents(self) -> Iterator[str | None]:
        """Yield the text in pieces, with None before each document."""
        for name in self.files:
            if self._format(name) == "text":
                self._refuse_columns()
                for path in expand(name):
                    yield None
                    yield from blocks(path)
                continue
            for shard in self._shards(name):
                for (text,) in shard.rows():
                    yield None
                    yield text


def expand(name: str) -> list[Path]:
    """Return the files of a name or pattern, in the order of their names; of a folder, the files of its dataset."""
    path = resolve(name)
    if path.is_dir():
        return dataset_files(path)
    if path.exists() or not glob.has_magic(str(path)):
        return [path]
    found = sorted(Path(one) for one in glob.glob(str(path), recursive=True))
    if not found:
        raise DataError(f"{name}: no file has a name like this")
    return [file for one in found for file in (dataset_files(one) if one.is_dir() else [one])]


def _matched(source: str, target: str) -> list[tuple[Path, Path]]:
    """Return the pairs of files of two names or patterns. What their wildcards stand for must be the same."""
    ours, theirs = expand(source), expand(target)
    if len(ours) != len(theirs):
        raise DataError(
            f"{source} matches {counted(len(ours), 'file')}, {target} matches {len(theirs):,}; "
            "each source file needs its target file"
        )
    if glob.has_magic(source) and glob.has_magic(target):
        for one, other in zip(ours, theirs, strict=True):
            if _wild(source, one) != _wild(target, other):
                raise DataError(f"{one} has no partner among {target} (the next one is {other}); add it")
    return list(zip(ours, theirs, strict=True))


def _wild(pattern: str, path: Path) -> str:
    """Return what stands between the first and the last wildcard of a pattern."""
    whole, marks = str(resolve(pattern)), "*?["
    first = min(whole.find(mark) for mark in marks if mark in whole)
    last = max(whole.rfind(mark) for mark in "*?]")
    return str(path)[first : len(str(path)) - (len(whole) - last - 1)]


def named_format(name: str) -> Format | None:
    """Return the format that a name tells, if it does."""
    return FORMATS.get(Path(without_packing(name)).suffix)


def _known_format(name: str) -> Format | None:
    """Return the format that a name tells, or that of a folder."""
    found = named_format(name)
    if found is None:
        with suppress(DataError):  # $DATA may not exist where a recipe is read
            found = "arrow" if resolve(name).is_dir() else None
    return found


def has_format(name: str) -> bool:
    """Return whether a name tells a format with fields, or is that of a folder."""
    return _known_format(name) is not None
