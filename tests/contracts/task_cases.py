"""A small case of every line of TASKS: settings, and the files that they need."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.image import imsave

from allyouneed.config import parse
from allyouneed.tasks import TASKS, TaskConfig

Tree = dict[str, Any]
SMALL = {"batch": 4, "valid": 6, "test": 6}
CAPTIONS = "index\tsplit\thexcode\ten"
STORY = (
    "1 Mary moved to the bathroom.\n2 John went to the hallway.\n3 Where is Mary? \tbathroom\t1\n"
    "4 Mary got the milk there.\n5 What is Mary carrying?\tmilk\t4 1\n"
)


@dataclass(frozen=True)
class Case:
    """A task on small data."""

    type: str
    settings: Tree
    write: Callable[[Path], None] = lambda folder: None  # writes the files that the settings name
    files: tuple[str, ...] = ()  # text files that the task reads, relative to its folder
    bad: tuple[Tree, ...] = ()  # settings that must be refused
    disjoint: bool = True  # whether no held-out item may occur in training

    def config(self, folder: Path, **changes: Any) -> TaskConfig:
        """Return the config, with its files written into a folder."""
        folder.mkdir(exist_ok=True)
        self.write(folder)
        return self.parsed(folder, **changes)

    def parsed(self, folder: Path, **changes: Any) -> TaskConfig:
        """Return the config for files that are in a folder already."""
        return parse(TASKS[self.type], _in_folder({**self.settings, **changes}, folder))


def _in_folder(value: Any, folder: Path) -> Any:
    if isinstance(value, dict):
        return {name: _in_folder(one, folder) for name, one in value.items()}
    if isinstance(value, list):
        return [_in_folder(one, folder) for one in value]
    return value.replace("DIR", str(folder)) if isinstance(value, str) else value


def _sentences(count: int, first: int = 0) -> list[tuple[str, str]]:
    words = ["one", "two", "three", "four", "five", "six", "seven"]
    chosen = [[words[(n * n + k) % 7] for k in range(1 + n % 5)] for n in range(first, first + count)]
    return [(" ".join(row), " ".join(row[::-1])) for row in chosen]


def write_pairs(folder: Path) -> None:
    for split, count, first in (("train", 40, 0), ("valid", 6, 3), ("test", 7, 11)):
        pairs = _sentences(count, first)
        for side, name in enumerate(("source", "target")):
            (folder / f"{split}.{name}").write_text("".join(f"{pair[side]}\n" for pair in pairs))


def write_text(folder: Path) -> None:
    text = "".join(f"{source}: {target}.\n" for source, target in _sentences(60))
    for split, part in (("train", text[:1500]), ("valid", text[300:700]), ("test", text[500:1000])):
        (folder / f"{split}.txt").write_text(part)


def write_labels(folder: Path) -> None:
    for split, count, first in (("train", 40, 0), ("valid", 6, 3), ("test", 7, 11)):
        rows = (f"{'long' if len(text) > 15 else 'short'}\t{text}\n" for text, _ in _sentences(count, first))
        (folder / f"{split}.tsv").write_text("".join(rows))


def write_babi(folder: Path) -> None:
    (folder / "en").mkdir(exist_ok=True)
    (folder / "en" / "qa7_counting_train.txt").write_text(STORY * 6)
    (folder / "en" / "qa7_counting_test.txt").write_text(STORY)


def write_pictures(folder: Path) -> None:
    splits = ["train", "val", "test", "train", "train", "test", "train"]
    for number, font in enumerate(("twemoji", "noto")):
        imsave(folder / f"{font}_32px.png", np.random.default_rng(number).integers(0, 256, (32, 1600, 3), np.uint8))
        rows = [f"{i}\t{split}\t1F60{i}\tface number {'x' * i}" for i, split in enumerate(splits)]
        (folder / f"{font}_captions.tsv").write_text("\n".join([CAPTIONS, *rows]) + "\n")


def write_images(folder: Path) -> None:
    for split, count in (("train", 9), ("valid", 3), ("test", 4)):
        rows = []
        for number in range(count):
            pixels = np.random.default_rng(10 * count + number).integers(0, 256, (5, 7, 3), np.uint8)
            imsave(folder / f"{split}{number}.png", pixels)
            label = "seven" if split == "train" and not number else "cat" if number % 2 else "dog"
            rows.append(f"{label}\t{split}{number}.png\n")
        (folder / f"{split}.tsv").write_text("".join(rows))


BPE = {"kind": "bpe", "size": 280}
PAIRS = {split: [f"DIR/{split}.source", f"DIR/{split}.target"] for split in ("train", "valid", "test")}
WRONG_LENGTHS = {"lengths": [5, 1]}
RASP = {"program": "sort_of = aggregate(select(indices, length - indices - 1, ==), tokens);", "vocabulary": list("abc")}
_CASES = [
    Case(
        "translation",
        {**PAIRS, "tokenizer": BPE, "batch_tokens": 40, "max_length": 20},
        write_pairs,
        tuple(f"{split}.{side}" for split in ("train", "valid", "test") for side in ("source", "target")),
        ({"max_length": 99}, {"target_tokenizer": BPE}, {"train": ["DIR/train.source", "DIR/valid.target"]}),
        disjoint=False,
    ),
    Case(
        "language",
        {**{split: f"DIR/{split}.txt" for split in ("train", "valid", "test")}, "context": 12, "batch": 4},
        write_text,
        ("train.txt", "valid.txt", "test.txt"),
        ({"overlap": 12}, {"segment": 13}, {"valid": None}, {"context": 9999}),
        disjoint=False,
    ),
    Case(
        "classification",
        {
            **{split: f"DIR/{split}.tsv" for split in ("train", "valid", "test")},
            "tokenizer": BPE,
            "batch_tokens": 60,
            "max_length": 30,
        },
        write_labels,
        ("train.tsv", "valid.tsv", "test.tsv"),
        ({"columns": ["text", "text"]}, {"max_length": 99}, {"valid": "DIR/train.source"}),
        disjoint=False,
    ),
    Case(
        "babi",
        {"folder": "DIR", "task": 7, "batch": 4},
        write_babi,
        ("en/qa7_counting_train.txt", "en/qa7_counting_test.txt"),
        ({"task": 21}, {"task": []}, {"task": 8}),
        disjoint=False,
    ),
    Case(
        "captioning",
        {"folder": "DIR", "tokenizer": {"kind": "words", "size": 50}, "batch": 3},
        write_pictures,
        ("twemoji_captions.tsv", "noto_32px.png"),
        ({"fonts": ["noto", "noto"]}, {"fonts": ["noto"], "held_out": "drawing"}),
        disjoint=False,  # two drawings of one emoji have the same name
    ),
    Case(
        "images",
        {
            **{split: f"DIR/{split}.tsv" for split in ("train", "valid", "test")},
            "picture": {"size": 4, "channels": 3},
            "batch": 4,
        },
        write_images,
        ("train.tsv", "valid.tsv", "test.tsv"),
        ({"picture": {"channels": 2}}, {"held_out": 3}, {"valid": "DIR/train0.png"}, {"names": ["a", "a"]}),
    ),
    Case(
        "numbers",
        {"pairs": 30, "valid": 6, "test": 6, "up_to": 99, "batch_tokens": 40, "max_length": 40},
        bad=({"source": "xx"}, {"pairs": 1000}),
    ),
    Case(
        "dates",
        {"pairs": 30, "valid": 6, "test": 6, "batch_tokens": 200, "max_length": 60},
        bad=({"source": "xx"}, {"first_year": 2000, "last_year": 1999}, {"last_year": 1900, "pairs": 400}),
    ),
    Case("copy", {**SMALL, "lengths": [1, 6]}, bad=(WRONG_LENGTHS, {"symbols": 1})),
    Case("reverse", {**SMALL, "lengths": [1, 6]}, bad=(WRONG_LENGTHS,)),
    Case("sort", {**SMALL, "lengths": [1, 6]}, bad=(WRONG_LENGTHS,)),
    Case("addition", {**SMALL, "lengths": [1, 4]}, bad=(WRONG_LENGTHS,)),
    Case("associative-recall", {**SMALL, "lengths": [2, 5]}, bad=(WRONG_LENGTHS, {"keys": 4})),
    Case("listops", {**SMALL, "lengths": [8, 40], "depth": 4}, bad=(WRONG_LENGTHS, {"lengths": [2, 2]})),
    Case("copy-bits", {**SMALL, "lengths": [2, 5], "bits": 4}, bad=(WRONG_LENGTHS, {"bits": 13})),
    Case("repeat-copy", {**SMALL, "lengths": [2, 4], "bits": 4}, bad=(WRONG_LENGTHS, {"repeats": [1, 16]})),
    Case("recall-bits", {**SMALL, "lengths": [2, 4], "bits": 4}, bad=(WRONG_LENGTHS, {"lengths": [1, 4]})),
    Case("priority-sort", {**SMALL, "lengths": [3, 6], "bits": 4}, bad=(WRONG_LENGTHS, {"lengths": [3, 17]})),
    Case("binary-addition", {**SMALL, "lengths": [3, 6]}, bad=(WRONG_LENGTHS, {"curriculum": -1})),
    Case("binary-multiplication", {**SMALL, "lengths": [3, 5]}, bad=(WRONG_LENGTHS,)),
    Case("rasp", {**SMALL, **RASP, "lengths": [2, 6]}, bad=(WRONG_LENGTHS, {"program": "nonsense"})),
    Case(
        "rasp-causal",
        {**SMALL, "lengths": [2, 6], "vocabulary": list("abc"), "program": "n = selector_width(select(0, 0, ==));"},
        bad=(WRONG_LENGTHS, {"vocabulary": ["a", "a"]}),
    ),
    Case("tags", {}, bad=()),
]
CASES = {case.type: case for case in _CASES}
EVALUATION_ONLY = {"tags"}  # prepare() refuses: there is nothing to train on
TRAINED = sorted(CASES.keys() - EVALUATION_ONLY)
