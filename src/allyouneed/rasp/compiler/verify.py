"""Compares a compiled model with the interpreter: on every input if there are few, else on edge cases and random ones.

Inputs on which the interpreter fails (a mean of strings, a division by zero) have no correct output and are skipped.
"""

import itertools
import math
import random
from collections.abc import Iterator, Mapping, Sequence

from allyouneed.rasp.api import evaluate_all
from allyouneed.rasp.atoms import Atom, shortened
from allyouneed.rasp.causal import seen_causally
from allyouneed.rasp.compiler.compiled import CompiledProgram, Verification
from allyouneed.rasp.compiler.refusal import CannotCompile
from allyouneed.rasp.errors import RaspError
from allyouneed.rasp.graph import Input, SOp

ALL = 1000  # inputs; if there are no more, all are tried
ROWS = 256  # batch size


class NotExact(RaspError):
    """The compiled model does not compute the program."""


def verify(compiled: CompiledProgram, outputs: Mapping[str, SOp], most: int = ALL, seed: int = 0) -> Verification:
    """Compare on many inputs. Raise NotExact at the first difference, CannotCompile if the program always fails."""
    size, length = len(compiled.vocabulary), compiled.length
    exhaustive = sum(size**n for n in range(1, length + 1)) <= most
    inputs = list(_every(compiled) if exhaustive else some_inputs(compiled, most, random.Random(seed)))
    sops = [seen_causally(sop) if compiled.causal else sop for sop in outputs.values()]
    undefined, failure = 0, ""
    for begin in range(0, len(inputs), ROWS):
        rows = inputs[begin : begin + ROWS]
        for given, result in zip(rows, compiled.run(rows), strict=True):
            try:
                expected = evaluate_all(sops, given)
            except RaspError as error:
                undefined += 1
                failure = failure or f"on {shortened(list(given), 80)}: {error}"
                continue
            for name, right in zip(outputs, expected, strict=True):
                if not equal(result[name], right):
                    raise NotExact(_difference(compiled, name, given, result[name], right))
    if undefined == len(inputs):
        every = "every input" if exhaustive else f"all {undefined:,} inputs tried"
        raise CannotCompile([f"the program itself fails on {every}; {failure}"])
    return Verification(len(inputs), exhaustive, undefined, failure)


NARROW = 64.0  # margins (elementwise.py) above this are safe in float32


def _difference(
    compiled: CompiledProgram, name: str, given: Input, found: Sequence[Atom], right: Sequence[Atom]
) -> str:
    """Describe the first difference and its likely cause."""
    place = next(n for n in range(len(right)) if not equal(found[n : n + 1], right[n : n + 1]))
    text = f"{name}: on {shortened(list(given), 200)} the model gives {found[place]!r} at position {place}, "
    text += f"the program {right[place]!r}"
    (output,) = (one for one in compiled.outputs if one.name == name)
    if not any(equal([value], right[place : place + 1]) for value in output.values):
        return f"{text}, which the compiler did not expect: a compiler bug, please report it"
    margin = min((one.margin for layer in compiled.report.layers for one in layer.functions), default=math.inf)
    if margin < NARROW:
        hint = "use shorter inputs or fewer values to widen it"
        return f"{text}; the smallest margin is only {margin:.0f} errors of float32: {hint}"
    return f"{text}, although margins are wide ({margin:.0f} errors of float32): a compiler bug, please report it"


def equal(found: Sequence[Atom], right: Sequence[Atom]) -> bool:
    """Compare with ==, except for the last digits of floats."""
    return len(found) == len(right) and all(
        a == b
        or (not isinstance(a, str) and not isinstance(b, str) and math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-12))
        for a, b in zip(found, right, strict=True)
    )


def _every(compiled: CompiledProgram) -> Iterator[Input]:
    for n in range(1, compiled.length + 1):
        yield from itertools.product(compiled.vocabulary, repeat=n)


def some_inputs(compiled: CompiledProgram, count: int, dice: random.Random) -> Iterator[Input]:
    """Yield edge cases (one token, all equal, all different, maximum length), then random inputs of all lengths."""
    tokens, length = compiled.vocabulary, compiled.length
    yield from ((token,) for token in tokens)
    for n in dict.fromkeys((2, length - 1, length)):
        yield from ((token,) * n for token in tokens if n >= 1)
        yield tuple(tokens[i % len(tokens)] for i in range(n))
        yield tuple(tokens[-1 - i % len(tokens)] for i in range(n))
    for number in range(count):
        n = length if number % 4 == 0 else dice.randint(1, length)
        # Half of the inputs use few tokens, so that tokens repeat often.
        own = tokens if number % 2 else dice.sample(tokens, min(len(tokens), dice.randint(1, 3)))
        yield tuple(dice.choices(own, k=n))
