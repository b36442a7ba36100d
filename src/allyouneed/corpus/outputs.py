"""Files for rows that are written again: named as those of the input, in the same format.

Rows of TMX and Arrow files become JSONL. Compressed files become plain ones.
"""

import os
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO

from allyouneed.corpus.records import has_header, shards_of
from allyouneed.errors import ConfigError
from allyouneed.text.compressed import without_packing
from allyouneed.text.corpora import Corpus, Shard
from allyouneed.text.lines import lines
from allyouneed.text.records import Row


class OutputNames:
    """A name for each output file: that of the input, below the folder that all inputs have in common."""

    def __init__(self, corpora: Sequence[Corpus], reserved: Sequence[str] = ()) -> None:
        shards = [shard for _, shard in shards_of(corpora)]
        paths = [_output_path(path, shard) for shard in shards for path in _output_sources(shard)]
        common = os.path.commonpath([path.parent for path in paths])
        self._common, taken = Path(common), set(reserved)
        for path in paths:
            name = str(path.relative_to(common))
            if name in taken:
                raise ConfigError(f"{path}: two files would be written as {name}; rename one of them")
            taken.add(name)

    def of(self, shard: Shard) -> list[str]:
        """Return the names of the files of a shard."""
        return [str(_output_path(path, shard).relative_to(self._common)) for path in _output_sources(shard)]


def _output_sources(shard: Shard) -> tuple[Path, ...]:
    """Return the files that name the outputs of a shard; the parts of a dataset become one file."""
    return shard.paths[:1] if shard.format == "arrow" else shard.paths


def _output_path(path: Path, shard: Shard) -> Path:
    plain = Path(os.path.abspath(without_packing(str(path))))
    return plain.with_suffix(".jsonl") if shard.format in ("tmx", "arrow") else plain


class ShardWriter:
    """The files of one shard in a folder, with the header of the input."""

    def __init__(self, folder: Path, names: OutputNames, corpus: Corpus, shard: Shard) -> None:
        self._stack, self._files = ExitStack(), list[IO[str]]()
        for name in names.of(shard):
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            self._files.append(self._stack.enter_context(path.open("x", encoding="utf-8", newline="\n")))
        if has_header(corpus, shard):
            self._files[0].write(f"{next(lines(shard.paths[0]))}\n")

    def write(self, rows: Sequence[Row]) -> None:
        """Write rows: a line for each file."""
        for number, file in enumerate(self._files):
            file.write("".join([f"{raw[number]}\n" for raw in rows]))

    def close(self) -> None:
        self._stack.close()
