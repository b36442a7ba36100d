"""Fuzz the RASP compiler: a random small program compiles and equals the interpreter, or is refused.

    python tests/faults/fuzz_rasp_compiler.py --seconds 180 [--seed 0]

Any exception other than `CannotCompile` is a finding, including a model that differs from the interpreter
(`NotExact`). The script then exits with status 1 and prints the seed of the program; `--only SEED` repeats it.
"""

import argparse
import random
import sys
import time
import traceback
from collections import Counter

import torch

from allyouneed.rasp.api import aggregate, full_s, indicator, indices, length, select, selector_width, tokens, where
from allyouneed.rasp.compiler import CannotCompile, compile_rasp
from allyouneed.rasp.compiler.source import source
from allyouneed.rasp.errors import RaspError
from allyouneed.rasp.graph import COMPARISONS, Selector, SOp, elementwise

ATOMS = ["a", "b", 0, 1, 2, -1, 0.5, True, False]
BINARY = ["+", "-", "*", "/", "%", "==", "!=", "<", ">", "<=", ">=", "and", "or"]
UNARY = ["not", "neg", "round", "indicator"]


class Maker:
    """A generator of random s-ops and selectors that may reuse earlier ones."""

    def __init__(self, dice: random.Random) -> None:
        self.dice = dice
        self.sops: list[SOp] = [tokens, indices, length, indicator(tokens == "a")]
        self.selectors: list[Selector] = [full_s, select(tokens, tokens, "==")]

    def part(self) -> SOp:
        return self.dice.choice(self.sops)

    def either(self) -> SOp | str | float:
        return self.dice.choice(ATOMS) if self.dice.random() < 0.3 else self.part()

    def add(self) -> None:
        match self.dice.randint(0, 6):
            case 0 | 1:
                self.sops.append(elementwise(self.dice.choice(BINARY), self.part(), self.either()))
            case 2:
                self.sops.append(elementwise(self.dice.choice(UNARY), self.part()))
            case 3:
                self.sops.append(where(self.part() == self.either(), self.either(), self.either()))
            case 4:
                self.selectors.append(select(self.part(), self.part(), self.dice.choice(list(COMPARISONS))))
            case 5:
                one, other = self.dice.choice(self.selectors), self.dice.choice(self.selectors)
                self.selectors.append(self.dice.choice([one & other, one | other, ~one]))
            case _:
                selector = self.dice.choice(self.selectors)
                counted = self.dice.random() < 0.3
                read = aggregate(selector, self.part(), self.dice.choice(ATOMS)) if not counted else None
                self.sops.append(read if read is not None else selector_width(selector))


def program(seed: int) -> tuple[SOp, str, int, bool]:
    """Return an s-op, a vocabulary, a length, and whether to compile it into a decoder."""
    dice = random.Random(seed)
    maker = Maker(dice)
    for _ in range(dice.randint(2, 12)):
        maker.add()
    return maker.sops[-1], "abc"[: dice.randint(1, 3)], dice.randint(1, 6), dice.random() < 0.3


def compile_seed(seed: int) -> str:
    """Compile one program; return "compiled" or "refused"."""
    sop, vocabulary, most, causal = program(seed)
    try:
        compile_rasp(sop, vocabulary, most, causal=causal)
    except CannotCompile:
        return "refused"
    return "compiled"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=180)
    parser.add_argument("--seed", type=int, default=0, help="of the first program")
    parser.add_argument("--only", action="store_true", help="that one alone")
    options = parser.parse_args()
    torch.set_num_threads(1)
    started, seed, counts = time.monotonic(), options.seed, Counter[str]()
    while time.monotonic() - started < options.seconds:
        try:
            counts[compile_seed(seed)] += 1
        except Exception as error:  # any other exception is a finding
            counts["found"] += 1
            print(f"seed {seed}: {type(error).__name__}: {error}")
            if not isinstance(error, RaspError):
                traceback.print_exc(file=sys.stdout)
            sop, vocabulary, most, causal = program(seed)
            print(source({"out": sop}), f"vocabulary {vocabulary}, length {most}, causal {causal}", flush=True)
        if options.only:
            break
        seed += 1
    print(f"{seed - options.seed:,} programs: {dict(counts)}")
    return 1 if counts["found"] else 0


if __name__ == "__main__":
    sys.exit(main())
