"""Split rows into training and held-out data, by a hash of their first side.

The same text is always on the same side, whatever its case, blanks and punctuation, and wherever it stands. A split
depends on the texts and the seed only: more rows move none of the others.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from hashlib import blake2b
from pathlib import Path

from allyouneed.corpus.outputs import OutputNames, ShardWriter
from allyouneed.corpus.records import chunks_of, shards_of
from allyouneed.corpus.survey import Progress
from allyouneed.errors import ConfigError, DataError
from allyouneed.text.corpora import Corpus
from allyouneed.text.corpus_settings import described
from allyouneed.text.fingerprints import plain

SPLITS = ("train", "valid", "test")


def split_of(text: str, shares: Sequence[float], seed: int) -> int:
    """Return the split of a text: 0 for train, 1 for valid, 2 for test. `shares`: of valid and test."""
    key = "".join(filter(str.isalnum, plain(text).casefold())) or plain(text)
    digest = blake2b(f"{seed}\n{key}".encode("utf-8", "surrogatepass"), digest_size=8).digest()
    place = int.from_bytes(digest, "little") / (1 << 64)
    valid, test = shares
    return 1 if place < valid else 2 if place < valid + test else 0


def require_shares(valid: float, test: float) -> None:
    """Raise ConfigError if the shares of held-out data are not possible."""
    if min(valid, test) < 0 or not 0 < valid + test < 1:
        raise ConfigError(
            f"--valid {valid:g} --test {test:g}: should be shares of the rows, below 1 together, not both 0"
        )


def write_split(
    folder: Path, corpora: Sequence[Corpus], shares: Sequence[float], seed: int, progress: Progress
) -> list[int]:
    """Write the rows into folders train, valid and test. Return how many rows each has."""
    if any(len(corpus.sides) == 1 and shard.format == "text" for corpus, shard in shards_of(corpora)):
        raise ConfigError(f"{described(corpora)}: plain text is one document, whose lines belong together; give JSONL")
    names, counts = OutputNames(corpora), [0] * len(SPLITS)
    used = [0, *(number for number, share in enumerate(shares, 1) if share)]
    shards = list(shards_of(corpora))
    for number, (corpus, shard) in enumerate(shards):
        with ExitStack() as stack:
            writers = {split: ShardWriter(folder / SPLITS[split], names, corpus, shard) for split in used}
            for writer in writers.values():
                stack.callback(writer.close)
            for chunk in chunks_of(corpus, shard):
                chosen = [split_of(row[0], shares, seed) for row in chunk.rows]
                for split, writer in writers.items():
                    rows = [raw for raw, own in zip(chunk.raw, chosen, strict=True) if own == split]
                    writer.write(rows)
                    counts[split] += len(rows)
                progress(number / len(shards), f"writing: {sum(counts):,} rows")
    for split in used:
        if not counts[split]:
            raise DataError(
                f"{described(corpora)}: no row of {sum(counts):,} is in {SPLITS[split]}; choose a larger share"
            )
    return counts
