"""Rows of a corpus with the lines that they came from, so that they can be written again unchanged."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from allyouneed.text.corpora import Corpus, Shard
from allyouneed.text.lines import CHUNK_CHARACTERS, CHUNK_ROWS, lines
from allyouneed.text.records import Row


@dataclass(frozen=True)
class Chunk:
    """Successive rows of a shard."""

    shard: Shard
    first: int  # the number of the first row in its shard; from 1, a header counts
    rows: Sequence[Row]
    raw: Sequence[Row]  # what is written again: a line for each file


def shards_of(corpora: Sequence[Corpus]) -> Iterator[tuple[Corpus, Shard]]:
    """Yield the parts of corpora. TSV files of labels have the columns that the task expects by default."""
    for corpus in corpora:
        order = ("label", "text") if "label" in corpus.sides else None
        yield from ((corpus, shard) for shard in corpus.shards(order))


def place(shard: Shard, number: int) -> str:
    """Return the name of a row. Blank lines are no rows of JSONL."""
    return f"{shard.where}: {'record' if shard.format == 'jsonl' else shard.unit} {number}"


def has_header(corpus: Corpus, shard: Shard) -> bool:
    """Return whether the first line of a TSV file has the names of columns."""
    return shard.format == "tsv" and any(isinstance(getattr(corpus, side), str) for side in corpus.sides)


def chunks_of(corpus: Corpus, shard: Shard) -> Iterator[Chunk]:
    """Yield the rows of a shard, a few thousand at a time."""
    rows: list[Row] = []
    raw: list[Row] = []
    first, held = 1 + has_header(corpus, shard), 0
    for row, line in _with_lines(corpus, shard):
        rows.append(row)
        raw.append(line)
        held += sum(map(len, row))
        if len(rows) >= CHUNK_ROWS or held >= CHUNK_CHARACTERS:
            yield Chunk(shard, first, rows, raw)
            first, held, rows, raw = first + len(rows), 0, [], []
    if rows:
        yield Chunk(shard, first, rows, raw)


def _with_lines(corpus: Corpus, shard: Shard) -> Iterator[tuple[Row, Row]]:
    """Yield each row with what is written again. Lines with columns or fields are read a second time, in step."""
    if shard.format == "text":
        return ((row, row) for row in shard.rows())
    if shard.format in ("tsv", "jsonl"):
        kept = islice(lines(shard.paths[0]), int(has_header(corpus, shard)), None)
        whole = ((line,) for line in kept if shard.format == "tsv" or line.strip())
        return zip(shard.rows(), whole, strict=False)
    return ((row, (as_json(corpus.sides, row),)) for row in shard.rows())


def as_json(sides: Sequence[str], row: Row) -> str:
    """Return a row as a line of JSON."""
    return json.dumps(dict(zip(sides, row, strict=True)), ensure_ascii=False)
