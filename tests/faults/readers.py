"""Readers of untrusted files, and hostile inputs for them: a reader accepts a file or raises a one-line UserError.

A fuzzer's input is a string of bytes. Its first byte selects how the rest is used: as the file itself, or as choices
of what to change in a good file (`Choices`), which gets past the first checks of a parser. Used by fuzz_readers.py and
test_readers.py.
"""

import copy
import functools
import json
import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from allyouneed.config import override, parse, read_recipe, to_toml
from allyouneed.errors import ConfigError, UserError
from allyouneed.storage import open_tensors
from allyouneed.storage.manifest import parse_manifest
from allyouneed.text.codec import Codec
from allyouneed.text.tokenizer import Kind, Tokenizer, TokenizerConfig, train
from allyouneed.training.recipe import Recipe

WHERE = Path("file")


def hostile(number: int) -> Any:
    """Return one of a few values that have broken parsers."""
    if number < len(HOSTILE):
        return copy.deepcopy(HOSTILE[number])
    depth, value = (40, 40, 900, 900)[number - len(HOSTILE)], 1
    for _ in range(depth):
        value = {"x": value} if number % 2 else [value]  # type: ignore[assignment]
    return value


HOSTILE: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 3, 2**31, 2**63, 2**64, -(2**63) - 1, 10**30, 10**400, 0.5, -0.0, 1e308, 1e-320),
    *(float("nan"), float("inf"), float("-inf"), "", " ", "x", "0", "nan", "1e999", "a" * 5_000, "\0", "\x1b[31m"),
    *("\ud800", "\u202e", "😀", "../..", "/etc/passwd", "os.system", "https://example.org", "__class__", "(a+)+$"),
    *(
        [],
        {},
        [[]],
        [None],
        {"": 1},
        {"type": "softmax"},
        {"type": 3},
        {"type": None},
        ["softmax"],
        "softmax",
        "decoder",
    ),
)
MOST_HOSTILE = len(HOSTILE) + 4


class Choices:
    """Choices read from the bytes of a fuzzer's input; after its end, always the first option."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def below(self, count: int) -> int:
        taken, self.at = self.data[self.at : self.at + 2], self.at + 2
        return int.from_bytes(taken, "little") % count

    def rest(self) -> bytes:
        return self.data[self.at :]

    @property
    def is_over(self) -> bool:
        return self.at >= len(self.data)


def places(tree: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the paths at which a tree can be changed; of long lists and tables, only the first ones."""
    found = [path]
    if len(path) > 8:
        return found
    items = list(tree.items()) if isinstance(tree, dict) else list(enumerate(tree)) if isinstance(tree, list) else []
    for key, value in items[:40]:
        found += places(value, (*path, key))
    return found


def changed(tree: Any, choices: Choices) -> Any:
    """Return a good tree with a few places removed, doubled, renamed, or replaced by hostile values."""
    for _ in range(1 + choices.below(4)):
        where = places(tree)
        path = where[choices.below(len(where))]
        value = hostile(choices.below(MOST_HOSTILE))
        if not path:
            tree = value if choices.below(40) == 0 else tree
            continue
        parent = functools.reduce(lambda node, key: node[key], path[:-1], tree)
        match choices.below(6):
            case 0:
                del parent[path[-1]]
            case 1 if isinstance(parent, dict):
                parent[str(value)[:60]] = parent.pop(path[-1])
            case 2 if isinstance(parent, list):
                parent.insert(path[-1], value)
            case _:
                parent[path[-1]] = value
    return tree


def garbled(data: bytes, choices: Choices) -> bytes:
    """Return a good file with a few bytes changed, cut or doubled."""
    raw = bytearray(data)
    for _ in range(1 + choices.below(5)):
        at = choices.below(max(len(raw), 1))
        match choices.below(4):
            case 0 if raw:
                raw[at] ^= 1 << choices.below(8)
            case 1:
                del raw[at : at + 1 + choices.below(30)]
            case 2:
                raw[at:at] = choices.data[choices.at : choices.at + 1 + choices.below(30)]
            case _:
                raw[at:at] = raw[at : at + 1 + choices.below(200)]
    return bytes(raw)


def as_json(tree: Any) -> bytes:
    try:
        return json.dumps(tree, ensure_ascii=False).encode("utf-8", "surrogatepass")
    except RecursionError:  # the writer's recursion limit is lower than the reader's
        return b'{"files":' + b"[" * 100_000


def as_toml(tree: Any) -> bytes:
    """Write a tree as TOML; values that TOML cannot represent become text."""

    def value(item: Any) -> str:
        if isinstance(item, dict):
            return "{" + ", ".join(f"{json.dumps(str(k))} = {value(v)}" for k, v in item.items()) + "}"
        if isinstance(item, list):
            return "[" + ", ".join(map(value, item)) + "]"
        if isinstance(item, bool):
            return str(item).lower()
        if isinstance(item, str):
            return json.dumps(item, ensure_ascii=False)
        return "0" if item is None else repr(item) if not isinstance(item, int) or item < 10**300 else "9" * 400

    try:
        rows = tree.items() if isinstance(tree, dict) else [("x", tree)]
        return "\n".join(f"{json.dumps(str(k))} = {value(v)}" for k, v in rows).encode("utf-8", "surrogatepass")
    except RecursionError:
        return b"x = " + b"[" * 100_000


def mutated(data: bytes, good: list[Any], write: Callable[[Any], bytes]) -> bytes:
    """Return the file that an input of the fuzzer describes."""
    choices = Choices(data)
    way = choices.below(3)
    if way == 0 or not good:
        return choices.rest()
    example = copy.deepcopy(good[choices.below(len(good))])
    return garbled(write(example), choices) if way == 1 else write(changed(example, choices))


# --- recipes ---------------------------------------------------------------------------------------------------------


@functools.cache
def good_recipes() -> list[Any]:
    return [read_recipe(path) for path in sorted((Path(__file__).parents[2] / "recipes").glob("*.toml"))]


def recipe(data: bytes, folder: Path) -> None:
    """Read a TOML file as `train FILE --set PAIR` does; an accepted one can be written and read again."""
    content = mutated(data, good_recipes(), as_toml)
    (folder / "recipe.toml").write_bytes(content)
    tree = read_recipe(folder / "recipe.toml")
    accepted = parse(Recipe, tree)
    (folder / "again.toml").write_text(to_toml(accepted), encoding="utf-8")
    assert parse(Recipe, read_recipe(folder / "again.toml")) == accepted
    with suppress(ConfigError):
        parse(Recipe, override(tree, [f"{choices_of(data)}={data[-20:].decode('utf-8', 'replace')}"]))


def choices_of(data: bytes) -> str:
    """Return a dotted name for --set."""
    names = (
        "seed",
        "model.layers",
        "train.budget.steps",
        "train.optimizer.lr",
        "model.mixer",
        "task.type",
        "x" + ".x" * 2000,
    )
    return names[sum(data) % len(names)]


# --- tokenisers ------------------------------------------------------------------------------------------------------

TEXTS = ["", "one two-three", "< pad > < eos >", "😀\u0301 \u2028\r\n\t", "a" * 300, "x-" * 50]


@functools.cache
def good_tokenizers() -> list[Any]:
    kinds: list[Kind] = ["bpe", "unigram", "characters", "bytes", "words"]
    made = [train(TEXTS, TokenizerConfig(kind=kind, size=270), way) for kind in kinds for way in (True, False)]
    return [json.loads(tokenizer.to_json()) for tokenizer in made]


def tokenizer(data: bytes, folder: Path) -> None:
    """Read a tokenizer.json; an accepted one encodes any text to valid ids, and decodes them."""
    (folder / "tokenizer.json").write_bytes(mutated(data, good_tokenizers(), as_json))
    read = Tokenizer.load(folder / "tokenizer.json")
    for text in TEXTS:
        ids = read.encode(text)
        assert all(0 <= i < read.size for i in ids)
        assert len(ids) <= 1200 + 20 * len(text)  # each part of a pipeline may add a few letters
        read.decode(ids)
        read.surely_longer(text, 5)
    read.decode(list(range(read.size)))


GOOD_CODECS = [{"source": True, "target": True, "classes": None}, {"source": True, "target": False, "classes": ["a"]}]


def codec(data: bytes, folder: Path) -> None:
    """Read a codec.json beside good tokenisers."""
    (folder / "tokenizer.json").write_bytes(as_json(good_tokenizers()[4]))
    (folder / "codec.json").write_bytes(mutated(data, GOOD_CODECS, as_json))
    Codec.load(folder)


# --- folders ---------------------------------------------------------------------------------------------------------

ENTRY = {"sha256": "ab" * 32, "size": 3}
GOOD_MANIFESTS = [{"format": 1, "files": {"a.txt": ENTRY, "b/c.txt": ENTRY}}, {"format": 1, "files": {}}]


def manifest(data: bytes, folder: Path) -> None:
    """Read a manifest.json; an accepted one names files inside its folder."""

    def write(tree: Any) -> bytes:
        compact = as_json(tree)
        try:
            return (json.dumps(json.loads(compact), indent=1) + "\n").encode()  # the only accepted form
        except (ValueError, RecursionError):
            return compact

    for name, entry in parse_manifest(mutated(data, GOOD_MANIFESTS, write), WHERE).items():
        assert (folder / name).resolve().is_relative_to(folder.resolve())
        assert (folder / name).resolve() != folder.resolve()
        assert entry.size >= 0
        assert len(entry.sha256) == 64


GOOD_HEADERS = [
    {
        "a": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]},
        "b": {"dtype": "U8", "shape": [1], "data_offsets": [16, 17]},
        "__metadata__": {"format": "pt"},
    },
    {
        "a": {"dtype": "I64", "shape": [2], "data_offsets": [0, 16]},
        "b": {"dtype": "BOOL", "shape": [], "data_offsets": [16, 17]},
    },
]


def safetensors(data: bytes, folder: Path) -> None:
    """Read a safetensors file; an accepted one has at most as many numbers as bytes."""

    def write(tree: Any) -> bytes:
        header = as_json(tree)
        return struct.pack("<Q", len(header)) + header + bytes(17)

    content = mutated(data, GOOD_HEADERS, write)
    path = folder / "x.safetensors"
    path.write_bytes(content)
    file = open_tensors(path)
    for tensor in map(file.read, file.places):
        assert isinstance(tensor, torch.Tensor)
        assert tensor.numel() * tensor.element_size() <= len(content) or tensor.numel() == 0


READERS: dict[str, Callable[[bytes, Path], None]] = {
    "recipe": recipe,
    "tokenizer": tokenizer,
    "codec": codec,
    "manifest": manifest,
    "safetensors": safetensors,
}


def try_reader(name: str, data: bytes, folder: Path) -> str:
    """Return "accepted" or "refused"; any other outcome raises and is a finding."""
    try:
        READERS[name](data, folder)
    except UserError as error:
        message = str(error)
    else:
        return "accepted"
    assert len(message) < 20_000  # lines on a screen, not a copy of the file
    return "refused"
