"""The algorithms of the Neural Turing Machine paper, on random vectors of bits: copy, repeat copy, associative recall,
priority sort.

A token is a vector, written as its bits: 01101000. The ids of all vectors come first, ordered by the binary numbers
that they spell; marks come after them. All items of a training batch have one length, so there is no padding.

Paper: Graves et al. 2014, arXiv:1410.5401, sections 4.1 to 4.5.
Differs: the end of a source is its end token. Numbers that the paper passes on a separate channel (the number of
repeats, the priority of a vector) are vectors of bits here, so that they are tokens.
"""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from allyouneed.sizes import Traits
from allyouneed.tasks.algorithms import AlgorithmTask, Dice, Length, Lengths, one_tokenizer
from allyouneed.tasks.base import Score
from allyouneed.tasks.scores import exact_match
from allyouneed.text.codec import Codec
from allyouneed.text.lines import Pair


class BitsTask(AlgorithmTask):
    """The settings of a task on vectors of bits."""

    paper = "Graves et al. 2014, arXiv:1410.5401"

    bits: Annotated[int, Field(ge=1, le=12)] = 8  # of a vector

    def traits(self) -> Traits:
        return Traits(self.type, bits=self.bits)

    @property
    @abstractmethod
    def marks(self) -> Sequence[str]:
        """Words that are not vectors."""

    def codec(self) -> Codec:
        # Words are sorted: ; ? and letters come after 0 and 1.
        return one_tokenizer([*(f"{n:0{self.bits}b}" for n in range(2**self.bits)), *self.marks], "words")

    def of_batch(self, dice: Dice, index: int) -> Self:
        length = dice.between(*self.lengths)
        return self.model_copy(update={"lengths": (length, length)})

    def measure(self, hypotheses: list[str], references: list[str]) -> list[Score]:
        return [exact_match(hypotheses, references), bit_errors(hypotheses, references)]

    def vectors(self, dice: Dice, count: int) -> list[str]:
        """Draw random vectors."""
        return [f"{dice.below(2**self.bits):0{self.bits}b}" for _ in range(count)]


class CopyBitsConfig(BitsTask):
    summary = "repeat vectors of bits"

    type: Literal["copy-bits"] = "copy-bits"

    @property
    def marks(self) -> Sequence[str]:
        return ()

    def draw(self, dice: Dice, lengths: Lengths) -> Pair:
        text = " ".join(self.vectors(dice, dice.between(*lengths)))
        return text, text


class RepeatCopyConfig(BitsTask):
    summary = "repeat vectors of bits as often as the last one states"

    type: Literal["repeat-copy"] = "repeat-copy"
    lengths: Lengths = (1, 10)
    repeats: Lengths = (1, 10)

    @model_validator(mode="after")
    def _countable(self) -> Self:
        if not self.repeats[0] <= self.repeats[1] < 2**self.bits:
            raise ValueError(f"repeats={list(self.repeats)}: should be [fewest, most], below {2**self.bits}")
        return self

    @property
    def marks(self) -> Sequence[str]:
        return ("x",)

    def of_batch(self, dice: Dice, index: int) -> Self:
        repeats = dice.between(*self.repeats)
        return super().of_batch(dice, index).model_copy(update={"repeats": (repeats, repeats)})

    def draw(self, dice: Dice, lengths: Lengths) -> Pair:
        text = " ".join(self.vectors(dice, dice.between(*lengths)))
        repeats = dice.between(*self.repeats)
        return f"{text} x {repeats:0{self.bits}b}", " ".join([text] * repeats)


class RecallBitsConfig(BitsTask):
    summary = "recall the item that followed a given one; an item is several vectors of bits"

    type: Literal["recall-bits"] = "recall-bits"
    lengths: Lengths = (2, 6)  # items
    bits: Annotated[int, Field(ge=1, le=12)] = 6
    item: Length = 3  # vectors

    @model_validator(mode="after")
    def _askable(self) -> Self:
        most = max(self.lengths[1], (self.test_lengths or self.lengths)[1])
        if min(self.lengths[0], (self.test_lengths or self.lengths)[0]) < 2:
            raise ValueError("lengths: recalling the item after another needs at least 2 items")
        if 2 ** (self.bits * self.item) < 2 * most:
            raise ValueError(f"bits={self.bits}, item={self.item}: too few different items for {most} of them")
        return self

    @property
    def marks(self) -> Sequence[str]:
        return (";", "?")

    def draw(self, dice: Dice, lengths: Lengths) -> Pair | None:
        items = [" ".join(self.vectors(dice, self.item)) for _ in range(dice.between(*lengths))]
        query = dice.below(len(items) - 1)
        if len(set(items)) < len(items):
            return None
        return "; " + " ; ".join(items) + " ? " + items[query], items[query + 1]


class PrioritySortConfig(BitsTask):
    summary = "sort vectors of bits by priority, highest first"

    type: Literal["priority-sort"] = "priority-sort"
    lengths: Lengths = (20, 20)  # vectors of the source, each followed by its priority
    keep: Length = 16  # vectors of the target, at most

    @model_validator(mode="after")
    def _enough_priorities(self) -> Self:
        most = max(self.lengths[1], (self.test_lengths or self.lengths)[1])
        if most > 2**self.bits:
            raise ValueError(f"bits={self.bits}: {most} vectors need at least {most} different priorities")
        return self

    @property
    def marks(self) -> Sequence[str]:
        return ()

    def draw(self, dice: Dice, lengths: Lengths) -> Pair:
        vectors = self.vectors(dice, dice.between(*lengths))
        priorities: dict[int, str] = {}
        for vector in vectors:
            while (priority := dice.below(2**self.bits)) in priorities:
                pass
            priorities[priority] = vector
        given = " ".join(f"{vector} {priority:0{self.bits}b}" for priority, vector in priorities.items())
        return given, " ".join(priorities[priority] for priority in sorted(priorities, reverse=True)[: self.keep])


def bit_errors(hypotheses: Sequence[str], references: Sequence[str]) -> Score:
    """Return the fraction of wrong bits. All bits of a missing, extra or malformed vector are wrong."""
    wrong = total = 0
    for hypothesis, reference in zip(hypotheses, references, strict=True):
        found, expected = hypothesis.split(), reference.split()
        bits = len(expected[0])
        for ours, theirs in zip(found, expected, strict=False):
            same = sum(a == b for a, b in zip(ours, theirs, strict=True)) if len(ours) == len(theirs) else 0
            wrong += bits - same
        wrong += bits * abs(len(found) - len(expected))
        total += bits * max(len(found), len(expected))
    return Score("bit_errors", wrong / max(1, total), f"n:{len(references)}|bits:{total}", higher_is_better=False)
