"""Algorithms to learn, generated on the fly: copy, reverse, sort, addition, associative recall, ListOps.

Training batch `index` depends on (seed, index) alone. The held-out items are drawn first and never occur in training,
so the scores measure the algorithm, not memorisation. `test_lengths` sets lengths that training does not have.

Papers: Graves et al. 2014, arXiv:1410.5401 (copy, sort, recall); Zaremba and Sutskever 2014, arXiv:1410.4615
(addition); Nangia and Bowman 2018, arXiv:1804.06028 and Tay et al. 2021, arXiv:2011.04006 (ListOps).
"""

import hashlib
import random
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, ClassVar, Literal, final

from pydantic import Field, model_validator

from allyouneed.errors import ConfigError
from allyouneed.sizes import Sizes
from allyouneed.tasks.base import Batch, Score, Split, TaskConfig, TaskData
from allyouneed.tasks.collate import text_class_batch, text_pair_batch
from allyouneed.tasks.scores import accuracy, exact_match
from allyouneed.text.codec import Codec
from allyouneed.text.lines import Pair
from allyouneed.text.tokenizer import of_symbols

Length = Annotated[int, Field(ge=1, le=100_000)]
Lengths = tuple[Length, Length]
MOST_DRAWS = 1000  # for one item; then the settings are refused


class Dice:
    """Random draws for one address. Only `random()` is used: Python guarantees that its sequence never changes."""

    def __init__(self, *address: int | str) -> None:
        self.random = random.Random("/".join(map(str, address))).random

    def below(self, end: int) -> int:
        """Return an integer from 0 to end - 1."""
        return int(self.random() * end)

    def between(self, low: int, high: int) -> int:
        """Return an integer from low to high."""
        return low + self.below(high - low + 1)


class AlgorithmTask(TaskConfig):
    """The settings of a generated task."""

    kinds = frozenset({"encoder-decoder", "decoder"})
    # Held-out items come from a fixed part of all items (a quarter for each split), so training always has others.
    parts: ClassVar[int] = 4

    lengths: Lengths = (1, 20)
    test_lengths: Lengths | None = None  # default: as in training
    batch: Annotated[int, Field(ge=1)] = 64  # items
    valid: Annotated[int, Field(ge=1)] = 500
    test: Annotated[int, Field(ge=1)] = 500

    @model_validator(mode="after")
    def _rising(self) -> "AlgorithmTask":
        for name, range_ in (("lengths", self.lengths), ("test_lengths", self.test_lengths or self.lengths)):
            if range_[0] > range_[1]:
                raise ValueError(f"{name}={list(range_)}: should be [shortest, longest]")
        return self

    @abstractmethod
    def codec(self) -> Codec:
        """Return the codec, which is known without data."""

    @abstractmethod
    def draw(self, dice: Dice, lengths: Lengths) -> Pair | None:
        """Draw a random (source, target). Return None if it does not have one of these lengths."""

    def of_batch(self, dice: Dice, index: int) -> "AlgorithmTask":
        """Return the task that the items of training batch `index` are drawn from. One length needs no padding."""
        return self

    def measure(self, hypotheses: list[str], references: list[str]) -> list[Score]:
        return [exact_match(hypotheses, references)]

    def sizes(self, codec: Codec) -> Sizes:
        """Return the numbers of ids."""
        assert codec.source is not None
        size, classes = codec.source.size, codec.classes
        return Sizes(size, size, shared=True) if classes is None else Sizes(size, len(classes))

    def as_batch(self, codec: Codec, items: Sequence[Pair]) -> Batch:
        return (text_pair_batch if codec.classes is None else text_class_batch)(codec, items)

    def prepare(self, folder: Path, seed: int) -> "AlgorithmData":
        return AlgorithmData(self, seed)


Symbols = Annotated[int, Field(ge=2, le=10_000)]


class CopyConfig(AlgorithmTask):
    summary = "repeat a sequence"
    paper = "Graves et al. 2014, arXiv:1410.5401"

    type: Literal["copy"] = "copy"
    symbols: Symbols = 10

    def codec(self) -> Codec:
        return one_tokenizer(map(str, range(self.symbols)), "words")

    def draw(self, dice: Dice, lengths: Lengths) -> Pair:
        items = [str(dice.below(self.symbols)) for _ in range(dice.between(*lengths))]
        return " ".join(items), " ".join(items)


class ReverseConfig(AlgorithmTask):
    summary = "reverse a sequence"

    type: Literal["reverse"] = "reverse"
    symbols: Symbols = 10

    def codec(self) -> Codec:
        return one_tokenizer(map(str, range(self.symbols)), "words")

    def draw(self, dice: Dice, lengths: Lengths) -> Pair:
        items = [str(dice.below(self.symbols)) for _ in range(dice.between(*lengths))]
        return " ".join(items), " ".join(reversed(items))


class SortConfig(AlgorithmTask):
    summary = "sort numbers"
    paper = "Graves et al. 2014, arXiv:1410.5401"

    type: Literal["sort"] = "sort"
    symbols: Symbols = 100

    def codec(self) -> Codec:
        return one_tokenizer(map(str, range(self.symbols)), "words")

    def draw(self, dice: Dice, lengths: Lengths) -> Pair:
        items = [dice.below(self.symbols) for _ in range(dice.between(*lengths))]
        return " ".join(map(str, items)), " ".join(map(str, sorted(items)))


class AdditionConfig(AlgorithmTask):
    summary = "add two numbers, digit by digit"
    paper = "Zaremba and Sutskever 2014, arXiv:1410.4615"

    type: Literal["addition"] = "addition"
    lengths: Lengths = (1, 5)  # digits of the longer number

    def codec(self) -> Codec:
        return one_tokenizer("0123456789+", "characters")

    def draw(self, dice: Dice, lengths: Lengths) -> Pair:
        longest = dice.between(*lengths)
        digits = [longest, dice.between(1, longest)]
        if dice.below(2):
            digits.reverse()
        left, right = (dice.between(10 ** (count - 1) if count > 1 else 0, 10**count - 1) for count in digits)
        return f"{left}+{right}", str(left + right)


class AssociativeRecallConfig(AlgorithmTask):
    summary = "look up the value of a key among key-value pairs"
    paper = "Graves et al. 2014, arXiv:1410.5401; Ba et al. 2016, arXiv:1610.06258"

    type: Literal["associative-recall"] = "associative-recall"
    lengths: Lengths = (2, 8)  # pairs of key and value
    keys: Symbols = 26
    values: Symbols = 10

    @model_validator(mode="after")
    def _enough_keys(self) -> "AssociativeRecallConfig":
        most = max(self.lengths[1], (self.test_lengths or self.lengths)[1])
        if most > self.keys:
            raise ValueError(f"keys={self.keys}: {most} pairs need at least {most} different keys")
        return self

    def codec(self) -> Codec:
        keys, values = (f"k{n}" for n in range(self.keys)), (f"v{n}" for n in range(self.values))
        return one_tokenizer([*keys, *values, "?"], "words")

    def draw(self, dice: Dice, lengths: Lengths) -> Pair:
        keys = list(range(self.keys))
        memory: dict[str, str] = {}
        for _ in range(dice.between(*lengths)):
            memory[f"k{keys.pop(dice.below(len(keys)))}"] = f"v{dice.below(self.values)}"
        query = list(memory)[dice.below(len(memory))]
        return " ".join(f"{key} {value}" for key, value in memory.items()) + f" ? {query}", memory[query]


OPERATORS = ("[MIN", "[MAX", "[MED", "[SM")


class ListOpsConfig(AlgorithmTask):
    summary = "the value of nested lists of digits: minimum, maximum, median, sum modulo 10"
    paper = "Nangia and Bowman 2018, arXiv:1804.06028; Tay et al. 2021, arXiv:2011.04006"
    kinds = frozenset({"encoder"})
    parts = 1  # two draws practically never give the same tree

    type: Literal["listops"] = "listops"
    lengths: Lengths = (501, 1999)  # tokens, brackets included; as in the Long Range Arena
    depth: Annotated[int, Field(ge=2, le=50)] = 10
    arguments: Annotated[int, Field(ge=2, le=20)] = 10
    batch: Annotated[int, Field(ge=1)] = 32

    def codec(self) -> Codec:
        digits = tuple(str(digit) for digit in range(10))
        return Codec(source=of_symbols([*digits, *OPERATORS, "]"], "words"), classes=digits)

    def measure(self, hypotheses: list[str], references: list[str]) -> list[Score]:
        return [accuracy(hypotheses, references)]

    def draw(self, dice: Dice, lengths: Lengths) -> Pair | None:
        tokens: list[str] = []
        value = self._node(dice, 1, tokens, lengths[1])
        return (" ".join(tokens), str(value)) if lengths[0] <= len(tokens) <= lengths[1] else None

    def _node(self, dice: Dice, depth: int, tokens: list[str], longest: int) -> int:
        if depth == self.depth or dice.random() > 0.25 or len(tokens) > longest:
            tokens.append(str(dice.below(10)))
            return int(tokens[-1])
        place = len(tokens)
        tokens.append("")
        values = [self._node(dice, depth + 1, tokens, longest) for _ in range(dice.between(2, self.arguments))]
        tokens[place] = OPERATORS[dice.below(len(OPERATORS))]
        tokens.append("]")
        return list_value(tokens[place], values)


def list_value(operator: str, values: list[int]) -> int:
    """Return the value of one list. The median of an even count is the mean of the middle two, rounded down."""
    if operator == "[MIN":
        return min(values)
    if operator == "[MAX":
        return max(values)
    if operator == "[SM":
        return sum(values) % 10
    ordered, half = sorted(values), len(values) // 2
    return ordered[half] if len(values) % 2 else (ordered[half - 1] + ordered[half]) // 2


def one_tokenizer(symbols: Iterable[str], kind: Literal["characters", "words"]) -> Codec:
    """Return a codec whose sources and targets have the same symbols."""
    tokenizer = of_symbols(symbols, kind)
    return Codec(tokenizer, tokenizer)


@final
class AlgorithmData(TaskData):
    """Items, generated on demand."""

    def __init__(self, task: AlgorithmTask, seed: int) -> None:
        self.task = self._config = task
        self.codec = task.codec()
        self.sizes = task.sizes(self.codec)
        self._taken: set[bytes] = set()
        self._items: dict[str, list[Pair]] = {}
        self.notes = []
        test_lengths = task.test_lengths or task.lengths
        for part, (split, count, lengths) in enumerate(
            (("valid", task.valid, task.lengths), ("test", task.test, test_lengths))
        ):
            self._items[split] = self._hold_out(Dice(seed, split), count, lengths, part)
            found = len(self._items[split])
            if found < count:
                self.notes.append(f"{split}: only {found:,} different items instead of {count:,}: lengths are short")

    def _hold_out(self, dice: Dice, count: int, lengths: Lengths, part: int) -> list[Pair]:
        items: list[Pair] = []
        misses = 0
        while len(items) < count and misses < MOST_DRAWS:
            item = self._config.draw(dice, lengths)
            mark = _mark(item)
            misses += 1
            if item and mark not in self._taken and mark[0] % self._config.parts == part % self._config.parts:
                self._taken.add(mark)
                items.append(item)
                misses = 0
        if not items:
            raise ConfigError(f"task: no held-out item of lengths {list(lengths)} in {MOST_DRAWS} draws; widen lengths")
        return items

    def batch(self, seed: int, index: int) -> Batch:
        dice = Dice(seed, "train", index)
        task = self._config.of_batch(dice, index)
        return task.as_batch(self.codec, [self._fresh(dice, task) for _ in range(task.batch)])

    def _fresh(self, dice: Dice, task: AlgorithmTask) -> Pair:
        for _ in range(MOST_DRAWS):
            item = task.draw(dice, task.lengths)
            if item and _mark(item) not in self._taken:
                return item
        raise ConfigError(f"task: no training item of lengths {list(task.lengths)} is left; widen lengths")

    def held_out(self, split: Split) -> Iterator[Batch]:
        items = self._items[split]
        for start in range(0, len(items), self._config.batch):
            yield self._config.as_batch(self.codec, items[start : start + self._config.batch])

    def examples(self, split: Split) -> list[tuple[str, str]]:
        return list(self._items[split]) if self.codec.source is not None else []


def _mark(item: Pair | None) -> bytes:
    return hashlib.blake2b(item[0].encode() if item else b"", digest_size=8).digest()
