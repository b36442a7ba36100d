"""Images with a class each, from folders, tables, or files of MNIST's format.

    a folder           FOLDER/CLASS/NAME.png: the folders name the classes
    a table            .tsv with lines: class TAB name of a file, relative to the table's folder
    an idx file        NAME-images-idx3-ubyte(.gz), beside NAME-labels-idx1-ubyte(.gz): grey images, classes are numbers

    source = the bytes of the pixels (text/pictures.py);    class = the index of the label among those of the training
    images, sorted by name

Without `valid`, the last `held_out` training images are held out; images of a folder are ordered class by class in
turn. Paper: Dosovitskiy et al. 2021, arXiv:2010.11929.
"""

import json
import os
from collections.abc import Iterator, Sequence
from itertools import islice, zip_longest
from pathlib import Path
from typing import Annotated, Any, Literal, final

import numpy as np
from pydantic import BeforeValidator, Field, NonNegativeInt, model_validator

from allyouneed.errors import ConfigError, DataError
from allyouneed.randomness import generator
from allyouneed.sizes import Sizes, Traits
from allyouneed.tasks.base import Batch, Score, Split, TaskConfig, TaskData
from allyouneed.tasks.batching import shuffled
from allyouneed.tasks.classification import with_classes
from allyouneed.tasks.collate import class_batch, text_class_batch
from allyouneed.tasks.meter import Meter
from allyouneed.tasks.preparation import Preparation
from allyouneed.tasks.prepared import codec_key, file_hashes, prepared
from allyouneed.tasks.scores import accuracy
from allyouneed.text.codec import Codec
from allyouneed.text.lines import Pair, lines, open_text, resolve
from allyouneed.text.pictures import FIRST_VALUE, PictureConfig, Pictures, image_text
from allyouneed.text.ragged import Array, Ragged, RaggedWriter
from allyouneed.text.tokenizer import Tokenizer
from allyouneed.words import counted

ENDINGS = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm")
IMAGES, LABELS = "images-idx3", "labels-idx1"  # in the names of idx files
MAGIC = {IMAGES: 0x803, LABELS: 0x801}
LARGEST_IDX = 1 << 31  # bytes, unpacked
HELD_OUT_ROWS = 64
NO_FRAME: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())

Source = Annotated[
    str, BeforeValidator(lambda value: value[0] if isinstance(value, list) and len(value) == 1 else value)
]


class ImagesConfig(TaskConfig):
    summary = "one label for each image, from folders, tables or idx files"
    paper = "Dosovitskiy et al. 2021, arXiv:2010.11929"
    kinds = frozenset({"encoder"})

    type: Literal["images"] = "images"
    train: Source
    valid: Source | None = None
    test: Source | None = None
    held_out: NonNegativeInt = 0  # training images that are validation data instead, if `valid` is not given
    names: tuple[str, ...] = ()  # of classes that are numbers
    picture: PictureConfig = PictureConfig()  # how images are read
    batch: Annotated[int, Field(ge=1)] = 64  # images

    @model_validator(mode="after")
    def _consistent(self) -> "ImagesConfig":
        if (self.valid is None) == (self.held_out == 0):
            raise ValueError("give either valid, or held_out: the number of training images that are held out")
        if len(set(self.names)) < len(self.names):
            raise ValueError(f"names={list(self.names)}: should name each class differently")
        return self

    def traits(self) -> Traits:
        return Traits(self.type, image=(self.picture.size, self.picture.channels))

    def sources(self) -> dict[str, str]:
        """Return the sources of each split that has some."""
        given = {"train": self.train, "valid": self.valid, "test": self.test}
        return {split: source for split, source in given.items() if source is not None}

    def rows(self, source: str) -> Iterator[Pair]:
        """Yield each image of a source, as the name of its file or as text, and its label."""
        path = resolve(source)
        if path.is_dir():
            yield from _in_folder(path)
        elif IMAGES in path.name:
            yield from self._in_idx(path)
        else:
            yield from _in_table(path)

    def _in_idx(self, path: Path) -> Iterator[Pair]:
        from PIL import Image

        images, labels = read_idx(path, IMAGES), read_idx(path.with_name(path.name.replace(IMAGES, LABELS)), LABELS)
        if len(images) != len(labels):
            raise DataError(f"{path}: {len(images):,} images, but {len(labels):,} labels")
        reader = Pictures(self.picture)
        for image, label in zip(images, labels.tolist(), strict=True):
            yield image_text(reader.resized(Image.fromarray(image))), self._name(label, path)

    def _name(self, label: int, path: Path) -> str:
        if self.names and label >= len(self.names):
            raise DataError(f"{path}: class {label}, but task.names has {len(self.names)} names")
        return self.names[label] if self.names else str(label)

    def splits(self) -> dict[str, Iterator[Pair]]:
        """Return the rows of each split."""
        found = {split: self.rows(source) for split, source in self.sources().items()}
        if self.held_out:
            count = sum(1 for _ in self.rows(self.train))
            if count <= self.held_out:
                raise DataError(f"{self.train}: {count:,} images; held_out={self.held_out:,} should be fewer")
            first = count - self.held_out
            found |= {"train": islice(found["train"], first), "valid": islice(self.rows(self.train), first, None)}
        return found

    def read_pairs(self, files: Any) -> Iterator[Pair]:
        if isinstance(files, list | tuple) and len(files) == 2:
            return super().read_pairs(files)
        return self.rows(files if isinstance(files, str) else str(files[0]))

    def as_batch(self, codec: Codec, items: Sequence[Pair]) -> Batch:
        return text_class_batch(codec, items)

    def measure(self, hypotheses: list[str], references: list[str]) -> list[Score]:
        return [accuracy(hypotheses, references)]

    def prepare(self, folder: Path, seed: int) -> "ImagesData":
        return self._prepare(folder, None)

    def prepare_with(self, codec: Codec, folder: Path, seed: int) -> "ImagesData":
        if codec.source is None or codec.source.kind != "pictures" or codec.target is not None:
            raise ConfigError(f"task {self.type!r} needs a model that classifies images; this one reads texts")
        if codec.source.to_json() != Tokenizer(Pictures(self.picture)).to_json():
            raise ConfigError(
                f"task.picture: {self.picture.model_dump()}; has no effect with --from, which reads images as the "
                "model does; remove it"
            )
        return self._prepare(folder, codec)

    def _prepare(self, folder: Path, codec: Codec | None) -> "ImagesData":
        settings = self.model_dump(include={"type", "train", "valid", "test", "held_out", "names", "picture"})
        hashes = file_hashes({name: path for one in self.sources().values() for name, path in files_of(one).items()})
        key = {**settings, "sha256": hashes, **codec_key(codec)}
        return ImagesData(self, prepared(folder, key, lambda preparation: _build(self, preparation, codec)))


def _build(task: ImagesConfig, preparation: Preparation, given: Codec | None) -> None:
    def find_classes(folder: Path) -> int:
        """Write the codec; return the number of training images."""
        labels = [label for _, label in task.splits()["train"]]
        names = tuple(sorted(set(labels)))
        if len(names) < 2:
            raise DataError(f"{task.train}: {len(names)} different classes; there should be at least two")
        own = Codec(source=Tokenizer(Pictures(task.picture)), classes=names, frame=NO_FRAME)
        (own if given is None else with_classes(given, names)).save(folder)
        return len(labels)

    count = preparation.stage("codec", find_classes)
    codec, notes = Codec.load(preparation.path("codec")), []
    for split in task.splits():

        def read(split: str = split) -> Iterator[Pair]:
            return task.splits()[split]

        def write(folder: Path, rows: Iterator[Pair], split: str = split) -> int:
            return _write_part(task, codec, folder, split, rows)

        meter = Meter(f"reading {split}", "images", count if split == "train" else None)
        written = sum(preparation.parts(split, read, write, meter))
        if not written:
            raise DataError(f"{task.sources()[split]}: no images; should hold at least one")
        notes.append(f"{split}: {counted(written, 'image')}")
    (preparation.folder / "notes.json").write_text(json.dumps(notes, indent=1), encoding="utf-8")


def _write_part(task: ImagesConfig, codec: Codec, folder: Path, split: str, rows: Iterator[Pair]) -> int:
    """Write images and their classes; return their number."""
    assert codec.classes is not None
    numbers, reader, count = {name: n for n, name in enumerate(codec.classes)}, Pictures(task.picture), 0
    with (
        RaggedWriter(folder, f"{split}.image", "u1") as images,
        RaggedWriter(folder, f"{split}.class", "<u4") as classes,
    ):
        for text, label in rows:
            if label not in numbers:
                known = ", ".join(codec.classes[:10]) + (", ..." if len(numbers) > 10 else "")
                raise DataError(f"{split}: class {label!r} does not occur in training; known: {known}")
            images.extend([reader.read(text).tobytes()])
            classes.extend([[numbers[label]]])
            count += 1
    return count


def files_of(source: str) -> dict[str, Path]:
    """Return the files of a source, by the names that identify them."""
    path = resolve(source)
    if path.is_dir():
        return {f"{source}/{Path(name).relative_to(path)}": Path(name) for name, _ in _in_folder(path)}
    if IMAGES in path.name:
        return {source: path, source.replace(IMAGES, LABELS): path.with_name(path.name.replace(IMAGES, LABELS))}
    return {source: path, **{f"{source}: {name}": Path(name) for name, _ in _in_table(path)}}


def _in_folder(path: Path) -> Iterator[Pair]:
    """Yield the images of a folder with a folder for each class: one of each class in turn."""
    classes = sorted(entry.name for entry in os.scandir(path) if entry.is_dir())
    listed = [
        [str(path / name / file) for file in sorted(os.listdir(path / name)) if file.lower().endswith(ENDINGS)]
        for name in classes
    ]
    if not any(listed):
        raise DataError(f"{path}: no images; should hold a folder for each class, with {', '.join(ENDINGS[:3])}, ...")
    for files in zip_longest(*listed):
        yield from ((file, name) for file, name in zip(files, classes, strict=True) if file is not None)


def _in_table(path: Path) -> Iterator[Pair]:
    for number, line in enumerate(lines(path), start=1):
        label, tab, name = line.partition("\t")
        if not tab or not label.strip() or not name.strip():
            raise DataError(f"{path}: line {number}: should be a class, a TAB and the name of an image")
        yield str(path.parent / name.strip()), label.strip()


def read_idx(path: Path, kind: str) -> Array:
    """Return the images (N, rows, columns) or labels (N) of an idx file."""
    with open_text(path) as file:
        data = file.read(LARGEST_IDX)
    dimensions = 3 if kind == IMAGES else 1
    start = data[: 4 * (1 + dimensions)].ljust(4 * (1 + dimensions), b"\0")
    header = np.frombuffer(start, ">u4").tolist()
    if header[0] != MAGIC[kind] or 0 in header[1:]:
        raise DataError(f"{path}: not an idx file of {'images' if kind == IMAGES else 'labels'}, one byte a value")
    values = np.frombuffer(data, np.uint8, offset=4 * len(header))
    if len(values) != np.prod(header[1:], dtype=object):
        sizes = " x ".join(f"{size:,}" for size in header[1:])
        raise DataError(f"{path}: {len(values):,} values; its header states {sizes}")
    return values.reshape(header[1:])


@final
class ImagesData(TaskData):
    """Prepared images with their classes."""

    def __init__(self, task: ImagesConfig, folder: Path) -> None:
        self.task = task
        self.codec = Codec.load(folder)
        assert self.codec.source is not None
        assert self.codec.classes is not None
        self.sizes = Sizes(source=self.codec.source.size, target=len(self.codec.classes))
        self.notes = json.loads((folder / "notes.json").read_text(encoding="utf-8"))
        names = [name for name in ("train", "valid", "test") if name != "test" or task.test is not None]
        self._splits = {split: _ImageSplit(folder, split, task.picture.values) for split in names}
        self._train = self._splits["train"]
        self.epoch = -(-len(self._train.classes) // task.batch)
        self._cached: tuple[tuple[int, int], Array] | None = None

    def batch(self, seed: int, index: int) -> Batch:
        epoch, number = divmod(index, self.epoch or 1)
        if self._cached is None or self._cached[0] != (seed, epoch):
            self._cached = (seed, epoch), shuffled(len(self._train.classes), generator(seed, epoch))
        order = self._cached[1]
        # Batch sizes differ by at most one: in a small last batch each image would weigh more.
        bounds = [(number + more) * len(order) // (self.epoch or 1) for more in (0, 1)]
        return self._train.batch(order[slice(*bounds)])

    def held_out(self, split: Split) -> Iterator[Batch]:
        data = self._split(split)
        for begin in range(0, len(data.classes), HELD_OUT_ROWS):
            yield data.batch(np.arange(begin, min(begin + HELD_OUT_ROWS, len(data.classes))))

    def examples(self, split: Split) -> list[tuple[str, str]]:
        data, names = self._split(split), self.codec.classes
        assert names is not None
        return [(image_text(data.images[n]), names[int(data.classes[n])]) for n in range(len(data.classes))]

    def _split(self, split: Split) -> "_ImageSplit":
        if split not in self._splits:
            raise ConfigError(f"task: {split}: the recipe has no such data; measure another split, or your own files")
        return self._splits[split]


class _ImageSplit:
    def __init__(self, folder: Path, split: str, values: int) -> None:
        self.images = Ragged(folder, f"{split}.image", "u1").values.reshape(-1, values)
        self.classes = Ragged(folder, f"{split}.class", "<u4").values

    def batch(self, members: Array) -> Batch:
        return class_batch(self.images[members].astype(np.int64) + FIRST_VALUE, self.classes[members])
