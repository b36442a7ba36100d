"""Captioning: the names of emoji, from their pictures.

    source = red, green, blue of the first pixel, of the second, ... EOS        32 x 32 x 3 byte values, ids 4 to 259
    target = the name in one language, tokenised

An image is a text of 3,072 characters: byte v is the Braille pattern U+2800 + v. So codecs, `translate`, model folders
and search work for images without change. Images are stored as bytes, batches hold ids, and only scores need text.

`held_out` sets what is new in the held-out splits:

    emoji      the emoji, in every drawing. All emoji with the same first code point (skin tones, professions, flags
               with the same first letter) are in one split. Most held-out names have a word that no training name has.
    drawing    only the drawing: the first font's pictures of all emoji are training data; the other fonts' pictures of
               the held-out emoji are not.

In training each picture is shifted by up to `shift` pixels, and a batch holds names of (nearly) one length, as in the
paper. Paper: Xu et al. 2015, arXiv:1502.03044. Pictures: sheets of 50 columns of 32 x 32 pixels with a table of names.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, final

import numpy as np
import torch
from pydantic import Field, NonNegativeInt, model_validator

from allyouneed.errors import DataError
from allyouneed.randomness import generator
from allyouneed.sizes import Sizes, Traits
from allyouneed.tasks.base import Batch, Score, Split, TaskConfig, TaskData
from allyouneed.tasks.batching import shuffled
from allyouneed.tasks.collate import text_pair_batch
from allyouneed.tasks.pairs import translation_scores
from allyouneed.tasks.prepared import prepared, source_hashes
from allyouneed.tasks.scores import word_scores
from allyouneed.text.codec import Codec
from allyouneed.text.lines import Pair, lines, resolve
from allyouneed.text.pictures import BYTES, FIRST_VALUE, character, image_text
from allyouneed.text.ragged import Array, Ragged, RaggedWriter, dtype_for, padded
from allyouneed.text.specials import BOS, EOS
from allyouneed.text.tokenizer import Tokenizer, TokenizerConfig, of_symbols, train

SIDE, CHANNELS, COLUMNS = 32, 3, 50
VALUES = SIDE * SIDE * CHANNELS
WHITE = 255
HELD_OUT_ROWS = 128
SPLITS = {"train": "train", "valid": "val", "test": "test"}  # our names: those of the tables
Font = Literal["twemoji", "noto"]


@dataclass(frozen=True)
class Picture:
    """One drawing of one emoji."""

    font: str
    index: int  # in its sheet
    split: str
    code: str  # its code points, in hexadecimal
    name: str


class CaptioningConfig(TaskConfig):
    summary = "names of emoji from their pictures"
    paper = "Xu et al. 2015, arXiv:1502.03044"
    kinds = frozenset({"encoder-decoder"})

    type: Literal["captioning"] = "captioning"
    folder: str = "$DATA/captioning/emoji"  # holds FONT_32px.png and FONT_captions.tsv
    fonts: Annotated[tuple[Font, ...], Field(min_length=1, max_length=2)] = ("twemoji", "noto")
    language: Literal["en", "de", "fr", "es", "it", "ja", "pl", "ru"] = "en"
    held_out: Literal["emoji", "drawing"] = "emoji"
    tokenizer: TokenizerConfig = TokenizerConfig(size=1500)
    shift: NonNegativeInt = 2  # pixels, at most
    batch: Annotated[int, Field(ge=1)] = 64  # pictures, at most

    @model_validator(mode="after")
    def _different(self) -> "CaptioningConfig":
        if len(set(self.fonts)) < len(self.fonts):
            raise ValueError(f"fonts={list(self.fonts)}: should name each font at most once")
        return self

    def traits(self) -> Traits:
        return Traits(self.type, image=(SIDE, CHANNELS))

    def as_batch(self, codec: Codec, items: Sequence[Pair]) -> Batch:
        return text_pair_batch(codec, items)

    def measure(self, hypotheses: list[str], references: list[str]) -> list[Score]:
        return [*translation_scores(hypotheses, references), *word_scores(hypotheses, references)]

    def pictures(self) -> list[Picture]:
        """Return every drawing with its split."""
        found = []
        for font in self.fonts:
            known = self.held_out == "drawing" and font == self.fonts[0]
            for one in read_table(resolve(f"{self.folder}/{font}_captions.tsv"), font, self.language):
                found.append(Picture(one.font, one.index, "train", one.code, one.name) if known else one)
        return found

    def prepare(self, folder: Path, seed: int) -> "CaptioningData":
        names = [f"{self.folder}/{font}{end}" for font in self.fonts for end in ("_captions.tsv", "_32px.png")]
        made_from = self.model_dump(include={"type", "fonts", "language", "held_out", "tokenizer"}, mode="json")
        key = {**made_from, "sha256": source_hashes(names)}
        return CaptioningData(self, prepared(folder, key, lambda preparation: self._build(preparation.folder)))

    def _build(self, folder: Path) -> None:
        pictures = self.pictures()
        sheets: dict[str, Array] = {font: read_sheet(resolve(f"{self.folder}/{font}_32px.png")) for font in self.fonts}
        splits = {ours: [one for one in pictures if one.split == theirs] for ours, theirs in SPLITS.items()}
        for split, members in splits.items():
            if not members:
                raise DataError(
                    f"{self.folder}: no picture for {split}; fonts={list(self.fonts)} with held_out={self.held_out!r} "
                    "leaves none: a new drawing needs two fonts"
                )
        # The name of an emoji that is drawn in several fonts counts once.
        tokenizer = train(sorted({one.name for one in splits["train"]}), self.tokenizer)
        Codec(source=image_tokenizer(), target=tokenizer).save(folder)
        for split, members in splits.items():
            _write_split(folder, split, members, sheets, tokenizer)
        notes = [f"{split}: {len(members):,} pictures" for split, members in splits.items()]
        (folder / "notes.json").write_text(json.dumps(notes, indent=1), encoding="utf-8")


def read_table(path: Path, font: str, language: str) -> list[Picture]:
    """Return the rows of a table of names: TAB-separated, with the names of the columns in the first line."""
    rows = lines(path)
    columns = next(rows, "").split("\t")
    missing = [name for name in ("index", "split", "hexcode", language) if name not in columns]
    if missing:
        raise DataError(f"{path}: line 1: no column {', '.join(missing)}; it has {', '.join(columns)[:80]}")
    found = []
    for number, line in enumerate(rows, 2):
        cells = dict(zip(columns, line.split("\t"), strict=False))
        if len(line.split("\t")) != len(columns):
            raise DataError(f"{path}: line {number}: {len(cells)} columns; should be {len(columns)}, separated by TABs")
        if cells["index"] != str(number - 2) or cells["split"] not in SPLITS.values():
            raise DataError(
                f"{path}: line {number}: index {cells['index']!r} in split {cells['split']!r}; "
                f"should be {number - 2}, in {', '.join(SPLITS.values())}"
            )
        found.append(Picture(font, number - 2, cells["split"], cells["hexcode"], cells[language]))
    return found


def read_sheet(path: Path) -> Array:
    """Return the pictures of a sheet: bytes (pictures, 3,072)."""
    from matplotlib.image import imread  # imported here: it takes half a second

    try:
        image = np.asarray(imread(path, format="png"))
    except (OSError, ValueError, SyntaxError) as error:
        raise DataError(f"{path}: not readable as a PNG: {error}") from None
    if image.ndim != 3 or image.shape[1] != COLUMNS * SIDE or image.shape[0] % SIDE or image.shape[2] < CHANNELS:
        raise DataError(
            f"{path}: {' x '.join(map(str, image.shape))}; should be in colour, {COLUMNS * SIDE} pixels wide and "
            f"a multiple of {SIDE} high"
        )
    values = np.rint(image[..., :CHANNELS] * WHITE).astype(np.uint8)
    tiles = values.reshape(-1, SIDE, COLUMNS, SIDE, CHANNELS).swapaxes(1, 2)
    return tiles.reshape(-1, VALUES)


def image_tokenizer() -> Tokenizer:
    """Return the tokeniser of images: byte v is character U+2800 + v and id 4 + v."""
    return of_symbols(map(character, range(BYTES)), "characters")


def _write_split(
    folder: Path, split: str, members: Sequence[Picture], sheets: dict[str, Array], tokenizer: Tokenizer
) -> None:
    for one in members:
        if one.index >= len(sheets[one.font]):
            raise DataError(f"{one.font}: picture {one.index} is not in the sheet of {len(sheets[one.font])} pictures")
    with RaggedWriter(folder, f"{split}.image", "u1") as images:
        images.extend(sheets[one.font][one.index].tobytes() for one in members)
    with RaggedWriter(folder, f"{split}.target", dtype_for(tokenizer.size)) as targets:
        targets.extend(tokenizer.encode_batch([one.name for one in members]))
    with RaggedWriter(folder, f"{split}.name", "u1") as names:
        names.extend(one.name.encode("utf-8") for one in members)


@final
class CaptioningData(TaskData):
    """Prepared pictures and names."""

    def __init__(self, task: CaptioningConfig, folder: Path) -> None:
        self.task = task
        self.codec = Codec.load(folder)
        source, target = self.codec.both()
        self.sizes = Sizes(source.size, target.size)
        self.notes = json.loads((folder / "notes.json").read_text(encoding="utf-8"))
        self._splits = {split: _PictureSplit(folder, split, target.size) for split in SPLITS}
        self._train, self._shift = self._splits["train"], task.shift
        self.epoch = -(-len(self._train.images) // task.batch)
        self._cached: tuple[tuple[int, int], Array, Array] | None = None

    def batch(self, seed: int, index: int) -> Batch:
        epoch, number = divmod(index, self.epoch or 1)
        if self._cached is None or self._cached[0] != (seed, epoch):
            random = generator(seed, epoch)
            mixed = shuffled(len(self._train.images), random)
            order = mixed[np.argsort(self._train.targets.lengths()[mixed], kind="stable")]
            self._cached = (seed, epoch), order, shuffled(self.epoch or 1, random)
        _, order, batches = self._cached
        # Batch sizes differ by at most one: in a small last batch each picture would weigh more.
        bounds = [(int(batches[number]) + more) * len(order) // (self.epoch or 1) for more in (0, 1)]
        members = order[slice(*bounds)]
        images = shifted(self._train.images[members], self._shift, generator(seed, epoch, number))
        return self._train.batch(members, images)

    def held_out(self, split: Split) -> Iterator[Batch]:
        data = self._splits[split]
        order = np.argsort(data.targets.lengths(), kind="stable")
        for begin in range(0, len(order), HELD_OUT_ROWS):
            members = order[begin : begin + HELD_OUT_ROWS]
            yield data.batch(members, data.images[members])

    def examples(self, split: Split) -> list[tuple[str, str]]:
        data = self._splits[split]
        return [(image_text(data.images[i]), data.names.text(i)) for i in range(len(data.images))]


def shifted(images: Array, shift: int, random: np.random.Generator) -> Array:
    """Shift each image (a row of bytes) by up to `shift` pixels at random, on white."""
    if not shift:
        return images
    rows, side = len(images), SIDE + 2 * shift
    wide = np.full((rows, side, side, CHANNELS), WHITE, dtype=np.uint8)
    wide[:, shift:-shift, shift:-shift] = images.reshape(rows, SIDE, SIDE, CHANNELS)
    start = (random.random((2, rows)) * (2 * shift + 1)).astype(np.int64)
    down, right = start[:, :, None] + np.arange(SIDE)
    return wide[np.arange(rows)[:, None, None], down[:, :, None], right[:, None, :]].reshape(rows, VALUES)


class _PictureSplit:
    def __init__(self, folder: Path, split: str, target: int) -> None:
        self.images = Ragged(folder, f"{split}.image", "u1").values.reshape(-1, VALUES)
        self.targets = Ragged(folder, f"{split}.target", dtype_for(target))
        self.names = Ragged(folder, f"{split}.name", "u1")

    def batch(self, members: Array, images: Array) -> Batch:
        source = np.full((len(members), VALUES + 1), EOS, dtype=np.int64)
        source[:, :VALUES] = images
        source[:, :VALUES] += FIRST_VALUE
        rows = [self.targets[i] for i in members.tolist()]
        inputs, outputs = padded(rows, before=(BOS,)), padded(rows, after=(EOS,))
        return Batch(
            source_BS=torch.from_numpy(source), input_BT=torch.from_numpy(inputs), output_BT=torch.from_numpy(outputs)
        )
