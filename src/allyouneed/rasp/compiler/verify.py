"""A compiled model against the interpreter: every input, where there are few; else edge cases and random ones.

Inputs on which the interpreter fails (a mean of strings, a division by zero) have no right answer and are left out.
"""

import itertools
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from allyouneed.rasp.atoms import Atom
from allyouneed.rasp.causal import seen_causally
from allyouneed.rasp.compiler.program import Compiled
from allyouneed.rasp.errors import RaspError
from allyouneed.rasp.evaluate import evaluate_all
from allyouneed.rasp.graph import Input, SOp

ALL = 1000  # inputs, up to which every one is tried
ROWS = 256  # inputs at a time


class NotExact(RaspError):
    """The compiled model does not compute the program: the margins of float32 were not enough."""


@dataclass(frozen=True)
class Verified:
    """What was compared."""

    inputs: int
    exhaustive: bool
    undefined: int  # of the inputs: those on which the program itself fails


def verify(compiled: Compiled, outputs: Mapping[str, SOp], most: int = ALL, seed: int = 0) -> Verified:
    """Compares; NotExact names the first input that differs."""
    size, length = len(compiled.vocabulary), compiled.length
    exhaustive = sum(size**n for n in range(1, length + 1)) <= most
    inputs = list(_every(compiled) if exhaustive else some_inputs(compiled, most, random.Random(seed)))
    sops = [seen_causally(sop) if compiled.causal else sop for sop in outputs.values()]
    undefined = 0
    for begin in range(0, len(inputs), ROWS):
        rows = inputs[begin : begin + ROWS]
        for given, result in zip(rows, compiled.run(rows), strict=True):
            try:
                expected = evaluate_all(sops, given)
            except RaspError:
                undefined += 1
                continue
            for name, right in zip(outputs, expected, strict=True):
                if not equal(result[name], right):
                    raise NotExact(
                        f"{name}: on {list(given)!r} the compiled model gives {result[name]!r}, the program {right!r}; "
                        "shorter inputs or fewer values leave wider margins"
                    )
    return Verified(len(inputs), exhaustive, undefined)


def equal(found: Sequence[Atom], right: Sequence[Atom]) -> bool:
    """Python's ==, but for the last digits of floats."""
    return len(found) == len(right) and all(
        a == b
        or (not isinstance(a, str) and not isinstance(b, str) and math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-12))
        for a, b in zip(found, right, strict=True)
    )


def _every(compiled: Compiled) -> Iterator[Input]:
    for n in range(1, compiled.length + 1):
        yield from itertools.product(compiled.vocabulary, repeat=n)


def some_inputs(compiled: Compiled, count: int, dice: random.Random) -> Iterator[Input]:
    """Edge cases (one token, all equal, all different, as long as may be), then random ones of all lengths."""
    tokens, length = compiled.vocabulary, compiled.length
    yield from ((token,) for token in tokens)
    for n in dict.fromkeys((2, length - 1, length)):
        yield from ((token,) * n for token in tokens if n >= 1)
        yield tuple(tokens[i % len(tokens)] for i in range(n))
        yield tuple(tokens[-1 - i % len(tokens)] for i in range(n))
    for number in range(count):
        n = length if number % 4 == 0 else dice.randint(1, length)
        # Few different tokens repeat often, which all of them do not.
        own = tokens if number % 2 else dice.sample(tokens, min(len(tokens), dice.randint(1, 3)))
        yield tuple(dice.choices(own, k=n))
