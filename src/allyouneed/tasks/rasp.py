"""A RASP program as a task: can a model learn it, and does a compiled one still compute it?

    source = BOS tokens;      class of each position = the program's value at that position             (an encoder)
    input = BOS tokens;       output = the value at each position, with causal selectors                (a decoder)

Inputs are random strings over the vocabulary; inputs on which the program fails are skipped. A value is written as
Python writes it (whole floats without a point, others to twelve digits). The values of a sequence are separated by
spaces.

Paper: Weiss, Goldberg and Yahav 2021, arXiv:2106.06981, section 5 (Transformers trained on RASP's tasks).
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Annotated, Literal

from pydantic import Field, model_validator

from allyouneed.errors import ConfigError
from allyouneed.rasp.api import evaluate
from allyouneed.rasp.atoms import Atom
from allyouneed.rasp.causal import seen_causally
from allyouneed.rasp.errors import RaspError
from allyouneed.rasp.graph import SOp
from allyouneed.rasp.loading import parse_program
from allyouneed.sizes import Sizes
from allyouneed.tasks.algorithms import AlgorithmTask, Dice, Lengths
from allyouneed.tasks.base import FIRST_CLASS, NO_CLASS, Batch, Score
from allyouneed.tasks.collate import tag_batch
from allyouneed.tasks.scores import exact_match
from allyouneed.text.codec import Codec
from allyouneed.text.lines import Pair
from allyouneed.text.specials import PAD
from allyouneed.text.tokenizer import of_symbols

PROGRAM = 200_000  # characters
RaspLength = Annotated[int, Field(ge=1, le=2_048)]  # as in the compiler; selectors are n x n
RaspLengths = tuple[RaspLength, RaspLength]
TRIED = 500  # random inputs to find the values of a program without `classes`


class RaspConfig(AlgorithmTask):
    summary = "the value of a RASP program at every position"
    paper = "Weiss, Goldberg and Yahav 2021, arXiv:2106.06981"
    kinds = frozenset({"encoder"})
    per_position = True

    type: Literal["rasp"] = "rasp"
    valid: Annotated[int, Field(ge=1)] = 200
    test: Annotated[int, Field(ge=1)] = 200
    lengths: RaspLengths = (1, 20)
    test_lengths: RaspLengths | None = None
    program: Annotated[str, Field(max_length=PROGRAM)]  # source text; may not load files
    result: str | None = None  # the s-op; default: the last one
    # Tokens. If any has several characters, inputs separate them by spaces.
    vocabulary: Annotated[tuple[str, ...], Field(min_length=1, max_length=10_000)]
    # The values of the program; default: those found on random inputs. Inputs with other values are skipped.
    classes: tuple[str, ...] | None = None

    @model_validator(mode="after")
    def _check_program(self) -> "RaspConfig":
        if len(set(self.vocabulary)) < len(self.vocabulary):
            raise ValueError("vocabulary: contains a token twice")
        try:
            self.sop()
        except RaspError as error:
            raise ValueError(f"program: {error}") from None
        return self

    def sop(self) -> SOp:
        """Return the s-op to compute."""
        return _sop(self.program, self.result)

    @property
    def kind(self) -> Literal["characters", "words"]:
        return "characters" if all(len(token) == 1 for token in self.vocabulary) else "words"

    def codec(self) -> Codec:
        return Codec(source=of_symbols(self.vocabulary, self.kind), classes=self.names(), per_position=True)

    def names(self) -> tuple[str, ...]:
        """Return the values of the program as text."""
        return self.classes if self.classes is not None else _found_classes(self)

    def sizes(self, codec: Codec) -> Sizes:
        assert codec.source is not None
        assert codec.classes is not None
        return Sizes(codec.source.size, len(codec.classes))

    def draw(self, dice: Dice, lengths: Lengths) -> Pair | None:
        item = self.drawn(dice, lengths)
        return item if item is not None and set(item[1].split(" ")) <= set(self.names()) else None

    def drawn(self, dice: Dice, lengths: Lengths) -> Pair | None:
        """Return a random input and its values; None if the program fails on it."""
        tokens = [self.vocabulary[dice.below(len(self.vocabulary))] for _ in range(dice.between(*lengths))]
        try:
            values = evaluate(self.sop(), tokens)
        except RaspError:
            return None
        return ("" if self.kind == "characters" else " ").join(tokens), " ".join(map(written, values))

    def as_batch(self, codec: Codec, items: Sequence[Pair]) -> Batch:
        return tag_batch(codec, items)

    def measure(self, hypotheses: list[str], references: list[str]) -> list[Score]:
        return [exact_match(hypotheses, references)]


class RaspCausalConfig(RaspConfig):
    summary = "the value of a RASP program at every position, from those up to it"
    kinds = frozenset({"decoder"})

    type: Literal["rasp-causal"] = "rasp-causal"  # type: ignore[assignment]

    def sop(self) -> SOp:
        return seen_causally(super().sop())

    def sizes(self, codec: Codec) -> Sizes:
        assert codec.source is not None
        assert codec.classes is not None
        return Sizes(0, max(codec.source.size, FIRST_CLASS + len(codec.classes)))

    def as_batch(self, codec: Codec, items: Sequence[Pair]) -> Batch:
        tagged = super().as_batch(codec, items)
        assert tagged.class_BS is not None
        class_BT = tagged.class_BS + FIRST_CLASS
        return Batch(input_BT=tagged.source_BS, output_BT=class_BT.masked_fill(tagged.class_BS == NO_CLASS, PAD))


@lru_cache(maxsize=32)
def _sop(program: str, result: str | None) -> SOp:
    return parse_program(program, "task.program", loads=False).sop(result)


@lru_cache(maxsize=32)
def _found_classes(task: RaspConfig) -> tuple[str, ...]:
    """Return the values that occur on random inputs."""
    dice, found = Dice("classes"), set[str]()
    for _ in range(TRIED):
        item = task.drawn(dice, task.lengths)
        found.update(item[1].split(" ") if item is not None else ())
    if not found:
        raise ConfigError(f"task.program: fails on all of {TRIED:,} random inputs; check vocabulary and lengths")
    return tuple(sorted(found))


def written(value: Atom) -> str:
    """Return a value as a class name: equal for 1 and 1.0, and for means that differ in the last bit only."""
    return f"{value:.12g}" if isinstance(value, float) else str(value)
