"""Pairs of texts, written as ids: the tokenisers, each split in parts, and the held-out pairs that are in training."""

import json
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import groupby, islice
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from allyouneed.errors import DataError
from allyouneed.randomness import generator
from allyouneed.tasks.casing import Copies
from allyouneed.tasks.corpus_tags import different
from allyouneed.tasks.meter import Meter
from allyouneed.tasks.pair_split import SIDES
from allyouneed.tasks.preparation import PART_ROWS, Preparation
from allyouneed.tasks.scale import TOKENIZER_BYTES, ahead, sample_step, tokenizer_sample
from allyouneed.tasks.weighting import Numbered, save_counts
from allyouneed.text.bpe_dropout import SEGMENTATIONS, WordWriter
from allyouneed.text.codec import Codec
from allyouneed.text.control_symbols import leave_room, with_controls
from allyouneed.text.lines import Pair, Skips, chunks, filled, merged
from allyouneed.text.overlap import Overlap, Shared, join_shared
from allyouneed.text.ragged import RaggedWriter, dtype_for
from allyouneed.text.sentences import SentenceCounter
from allyouneed.text.tokenizer import Tokenizer, TokenizerConfig, train

if TYPE_CHECKING:
    from allyouneed.tasks.pairs import PairTask

AnySplit = Literal["train", "valid", "test"]
SPLITS: tuple[AnySplit, ...] = ("train", "valid", "test")
SENTENCES_BYTES = 16 << 20  # about; pairs of which the sentences are counted
CODEC = "codec"  # the stage of preparation that trains the tokenisers


def build_pairs(task: "PairTask", preparation: Preparation, seed: int, given: Codec | None) -> None:
    task.check_splits(seed)
    codecs: list[Codec] = []

    def train_codec(folder: Path) -> int:
        codec, read = _train_tokenizers(task, seed) if given is None else _with_sentences(given, task, seed)
        codec.save(folder)
        codecs.append(codec)
        return read

    read = preparation.stage(CODEC, train_codec)
    codec = codecs[0] if codecs else Codec.load(preparation.path(CODEC))
    overlap = Overlap({split: partial(task.rows, split, seed) for split in SPLITS[1:]})
    notes: list[str] = []
    parts: list[dict[str, Any]] = []
    for split in SPLITS:
        if task.corpora(split, seed):
            rows = read + len(task.copies()) * (read // task.copies_every())
            meter = Meter(f"encoding {split}", "pairs", rows or None if split == "train" else None)
            writer = _SplitWriter(task, codec, split, seed, overlap if split == "train" else None)
            found = _write_split(writer, preparation, meter)
            notes += _notes(task, split, found, preparation.folder)
            parts += found
    notes += overlap.notes((part["shared"] for part in parts), "pair")
    text = json.dumps(notes, ensure_ascii=False, indent=1)
    (preparation.folder / "notes.json").write_text(text, encoding="utf-8")


def _counter(task: "PairTask") -> SentenceCounter:
    return SentenceCounter((task.languages() or (None,))[0])


def _sentences_step(task: "PairTask") -> int:
    """Return n: the sentences of every n-th pair of `tokenizer_sample` are counted."""
    return max(1, min(task.training_bytes(), TOKENIZER_BYTES) // SENTENCES_BYTES)


def _train_tokenizers(task: "PairTask", seed: int) -> tuple[Codec, int]:
    """Return the codec, and the number of training pairs that were read."""
    counter, changed, every, most = _counter(task), task.copies(), _sentences_step(task), 0

    def side(numbers: Sequence[int]) -> Iterator[str]:
        nonlocal most
        skips, meter = Skips("train"), Meter("reading for the tokeniser", "pairs")
        rows = filled(task.rows("train", seed) or iter(()), skips)
        for place, pair in enumerate(tokenizer_sample(meter.over(rows), task.training_bytes())):
            if task.has_sentences and 0 in numbers and place % every == 0:
                counter.add(pair[0])
            for number in numbers:
                yield pair[number]
            for copy in filter(None, (copies.of_one(pair, place) for copies in changed)):
                yield from (copy[number] for number in numbers if copy[number] != pair[number])
        most = skips.read
        if not skips.kept:
            raise DataError(_nothing_left(task, "train", skips))

    def learn(numbers: Sequence[int], config: TokenizerConfig) -> Tokenizer:
        tags, meter = different(task.corpus_tags()) if 0 in numbers else [], Meter("training the tokeniser", "tokens")
        return with_controls(train(side(numbers), leave_room(config, len(tags)), progress=meter.set), tags)

    source, target = task.tokenizers()
    if task.shared:
        ours = theirs = learn((0, 1), source)
    else:
        ours, theirs = learn((0,), source), learn((1,), target)
    if task.has_sentences and not most:  # a tokeniser of bytes learns nothing from the text
        deque(side((0,)), maxlen=0)
    return Codec(ours, theirs, sentences=counter.usual() if task.has_sentences else None), most


def _with_sentences(codec: Codec, task: "PairTask", seed: int) -> tuple[Codec, int]:
    """Return a codec that knows how many sentences the lines have, too, and the number of pairs that were read."""
    if not task.has_sentences:
        return codec, 0
    counter, skips, meter = _counter(task), Skips("train"), Meter("counting sentences", "pairs")
    step = sample_step(task.training_bytes()) * _sentences_step(task)
    for pair in islice(meter.over(filled(task.rows("train", seed) or iter(()), skips)), 0, None, step):
        counter.add(pair[0])
    return replace(codec, sentences=max(codec.sentences or 1, counter.usual())), skips.read


class _SideWriter:
    """A writer for one side of one split: ids; of held-out data also the text; for BPE dropout also words."""

    def __init__(self, folder: Path, split: AnySplit, side: str, tokenizer: Tokenizer, dropout: float) -> None:
        name, self._dropout, self._dtype = f"{split}.{side}", dropout, dtype_for(tokenizer.size)
        self._ids = RaggedWriter(folder, name, self._dtype)
        self._text = RaggedWriter(folder, f"{name}.text", "u1") if split != "train" else None
        self._words = WordWriter(folder, name, tokenizer) if split == "train" and dropout else None

    def extend(self, ids: list[list[int]], texts: list[str]) -> None:
        self._ids.extend(ids)
        if self._text:
            self._text.extend(text.encode("utf-8") for text in texts)
        if self._words:
            self._words.extend(texts)

    def finish(self, random: np.random.Generator) -> None:
        if self._words:
            self._words.finish(self._dropout, random.random, self._dtype)

    def close(self) -> None:
        for file in (self._ids, self._text, self._words):
            if file:
                file.close()


@dataclass(frozen=True)
class _SplitWriter:
    """What the pairs of a split are encoded with."""

    task: "PairTask"
    codec: Codec
    split: AnySplit
    seed: int
    overlap: Overlap | None = None  # for training pairs: the held-out ones, in which they are looked up

    def write(self, folder: Path, rows: Iterator[Numbered]) -> dict[str, Any]:
        """Encode pairs into a folder; return what was skipped, and of the others how many are of each corpus."""
        task, skips, kept, shared = self.task, Skips(self.split), dict[int, int](), list[Shared]()
        sides = [
            _SideWriter(folder, self.split, side, tokenizer, config.dropout)
            for side, tokenizer, config in zip(SIDES, self.codec.both(), task.tokenizers(), strict=True)
        ]
        with ExitStack() as stack:
            for side in sides:
                stack.callback(side.close)
            for corpus, of_corpus in groupby(rows, itemgetter(0)):
                counted = Skips(self.split) if self._copies(corpus) else skips
                usable = chunks(filled((pair for _, pair in of_corpus), counted))
                for count, fitting, known in ahead(partial(self._encoded, corpus), usable):
                    shared.append(known)
                    for _ in range(count - len(fitting)):
                        counted.skip(f"longer than max_length={task.max_length} tokens")
                    kept[corpus] = kept.get(corpus, 0) + len(fitting)
                    for number, side in enumerate(sides):
                        side.extend([ids[number] for ids, _ in fitting], [texts[number] for _, texts in fitting])
            for number, side in enumerate(sides):
                side.finish(generator(self.seed, number, SEGMENTATIONS))
        return {**asdict(skips), "corpora": sorted(kept.items()), "shared": join_shared(shared)}

    def _encoded(
        self, corpus: int, chunk: list[Pair]
    ) -> tuple[int, list[tuple[tuple[list[int], list[int]], Pair]], Shared]:
        copies = self._copies(corpus)
        if copies is not None:
            chunk = list(copies.of(chunk))
        shared = self.overlap.shared(chunk) if self.overlap is not None and copies is None else {}
        tagged = self.split == "train" and self.task.tags_with_copies()[corpus] is not None
        return len(chunk), list(_encode(self.task, self.codec, chunk, int(tagged))), shared

    def _copies(self, corpus: int) -> Copies | None:
        """Return how a corpus changes pairs, if it consists of copies."""
        place = corpus // len(self.task.weights())
        return self.task.copies()[place - 1] if self.split == "train" and place else None


def _write_split(writer: _SplitWriter, preparation: Preparation, meter: Meter) -> list[dict[str, Any]]:
    """Write a split; return the result of each part."""
    split, task = writer.split, writer.task

    def rows() -> Iterator[Numbered]:
        corpora = task.corpora(split, writer.seed)
        for _ in task.copies() if split == "train" else ():  # pairs are changed when they are encoded
            corpora += [islice(one, 0, None, task.copies_every()) for one in task.corpora(split, writer.seed)]
        return ((number, pair) for number, of_corpus in enumerate(corpora) for pair in of_corpus)

    # Words of BPE dropout are numbered across the whole text.
    whole = split == "train" and any(config.dropout for config in task.tokenizers())
    return preparation.parts(split, rows, writer.write, meter, None if whole else PART_ROWS)


def _notes(task: "PairTask", split: AnySplit, parts: list[dict[str, Any]], folder: Path) -> list[str]:
    """Return notes on a split; write how many pairs each training corpus has, if they have weights."""
    skips = merged(parts)
    if not skips.kept:
        raise DataError(_nothing_left(task, split, skips))
    notes = [f"{split}: {skips.kept:,} pairs", *skips.notes()]
    weights, tags, own = task.weights_with_copies(), task.corpus_tags(), len(task.weights())
    if split == "train" and len(weights) > 1:
        counts = save_counts(folder, parts, weights, bool(different(tags)))
        for number, (count, tag) in enumerate(zip(counts, tags, strict=False) if own > 1 else ()):
            tagged = "" if tag is None else f", their sources with the tag {tag}"
            notes.append(f"{split}: {task.describe(split, number)}: {count:,} pairs{tagged}")
        for number, copies in enumerate(task.copies(), 1):
            notes.append(f"{split}: {sum(counts[number * own :][:own]):,} pairs also {copies.name}")
    return notes


def _encode(
    task: "PairTask", codec: Codec, chunk: list[Pair], more: int
) -> Iterator[tuple[tuple[list[int], list[int]], Pair]]:
    """Yield (ids of both sides, texts of both sides) of the pairs that are not too long with `more` source tokens."""
    source, target = codec.both()
    most, limit = task.max_length - sum(map(len, codec.framing)) - more, task.max_length - 1 - len(codec.target_start)
    sane = [pair for pair in chunk if not (source.surely_longer(pair[0], most) or target.surely_longer(pair[1], limit))]
    ours, theirs = source.encode_batch([text for text, _ in sane]), target.encode_batch([text for _, text in sane])
    for ids, texts in zip(zip(ours, theirs, strict=True), sane, strict=True):
        if len(ids[0]) <= most and len(ids[1]) <= limit:
            yield ids, texts


def _nothing_left(task: "PairTask", split: AnySplit, skips: Skips) -> str:
    found = task.describe(split)
    if not skips.read:
        return f"{found}: is empty; should hold at least one pair"
    why = ", ".join(f"{count:,} {reason}" for reason, count in skips.reasons.items())
    return f"{found}: none of {skips.read:,} pairs can be used: {why}"
