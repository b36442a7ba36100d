"""Write what a check found: all defects of a corpus, or its rows in two parts, kept and dropped."""

import json
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import chain, groupby
from pathlib import Path
from typing import IO

from allyouneed.corpus.examine import Examination
from allyouneed.corpus.outputs import OutputNames, ShardWriter
from allyouneed.corpus.records import Chunk, place, shards_of
from allyouneed.text.corpora import Corpus

DROPPED, DEFECTS = "dropped.jsonl", "defects.jsonl"


@dataclass
class Cleaned:
    """How many rows were kept, and for which reasons others were dropped. A row may have several."""

    kept: int = 0
    dropped: int = 0
    reasons: Counter[str] = field(default_factory=Counter)

    def add(self, reasons: Sequence[Sequence[str]]) -> None:
        """Count rows with the reasons to drop each."""
        for why in reasons:
            self.reasons.update(why)
            self.dropped += bool(why)
            self.kept += not why


def write_clean(folder: Path, examination: Examination, corpora: Sequence[Corpus], drop: frozenset[str]) -> Cleaned:
    """Write kept rows in the format of their files, and dropped ones with the reasons into `DROPPED`."""
    names = OutputNames(corpora, (DROPPED, "report.html", "report.json", "manifest.json"))
    done, written = Cleaned(), set[str]()
    with (folder / DROPPED).open("x", encoding="utf-8", newline="\n") as file:
        for where, parts in groupby(examination.chunks(), lambda found: found[1].shard.where):
            written.add(where)
            first = next(parts)
            with closing(ShardWriter(folder, names, first[0], first[1].shard)) as writer:
                for corpus, chunk, kinds in chain([first], parts):
                    reasons = [[kind for kind in found if kind in drop] for found in kinds]
                    writer.write([raw for raw, why in zip(chunk.raw, reasons, strict=True) if not why])
                    _list_rows(file, corpus, chunk, reasons)
                    done.add(reasons)
    for corpus, shard in shards_of(corpora):
        if shard.where not in written:  # it has no rows
            ShardWriter(folder, names, corpus, shard).close()
    return done


def write_defects(folder: Path | None, examination: Examination) -> None:
    """Examine all rows, and write those with defects into `DEFECTS`, if there is a folder."""
    if folder is None:
        for _ in examination.chunks():
            pass
        return
    with (folder / DEFECTS).open("x", encoding="utf-8", newline="\n") as file:
        for corpus, chunk, kinds in examination.chunks():
            _list_rows(file, corpus, chunk, kinds)


def _list_rows(file: IO[str], corpus: Corpus, chunk: Chunk, reasons: Sequence[Sequence[str]]) -> None:
    """Write the rows that have reasons, one JSON object a line."""
    for number, (row, raw, why) in enumerate(zip(chunk.rows, chunk.raw, reasons, strict=True), chunk.first):
        if why:
            record = {"where": place(chunk.shard, number), "reasons": why, **dict(zip(corpus.sides, row, strict=True))}
            if chunk.shard.format in ("tsv", "jsonl"):
                record["line"] = raw[0]  # it may have more columns or fields
            file.write(f"{json.dumps(record, ensure_ascii=False)}\n")
