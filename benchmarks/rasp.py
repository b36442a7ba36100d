"""Compare compiled RASP programs with Tracr: layers, heads, width, parameters, compile and forward time, exactness.

The programs are those of Tracr's library (Lindner et al. 2023, arXiv:2301.05062), rewritten. Its numbers, in brackets,
were measured once (vocabulary 4, sort_unique: L, its default exactness) and are printed next to ours, not measured
again. Its warm compile time was about 200 ms at L = 20. Inputs are random, of all lengths; half of those of the Dyck
languages are balanced.

    python benchmarks/rasp.py [--lengths 5,10,20] [--inputs 400] [--programs hist,sort]
    python benchmarks/rasp.py --zoo [--lengths 10] [--inputs 3000]      recipes/rasp against the interpreter
"""

import argparse
import platform
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from allyouneed.rasp.api import (
    aggregate,
    full_s,
    indicator,
    indices,
    length,
    select,
    selector_width,
    tokens,
)
from allyouneed.rasp.compiler import CompiledProgram, compile_rasp, equal, verify
from allyouneed.rasp.graph import SOp
from allyouneed.rasp.loading import read_program
from allyouneed.training import recipe_folder
from allyouneed.version import __version__

LETTERS = "abcdefghijklmnopqrstuvwxyz"
# Tracr at L = 5, 10, 20: layers, most heads per layer, width, parameters (thousands), exact of 160 (Dyck-1: of 60).
TRACR: dict[str, tuple[int, int, tuple[int, int, int], tuple[float, float, float], str]] = {
    "length": (1, 1, (19, 29, 49), (1.2, 2.6, 6.8), "160/140/66"),
    "hist": (1, 1, (19, 29, 49), (1.2, 2.6, 6.8), "160/160/159"),
    "count": (1, 1, (19, 29, 49), (1.2, 2.6, 6.8), "all"),
    "count_less_freq": (2, 1, (26, 41, 71), (3.4, 8.9, 27), "all"),
    "reverse": (4, 1, (43, 73, 133), (20, 92, 543), "160/140/66"),
    "shift_by_1": (1, 1, (16, 21, 31), (0.7, 1.5, 3.8), "all"),
    "sort_unique": (2, 1, (25, 45, 85), (3.1, 9.6, 33), "160/160/87"),
    "sort": (3, 1, (43, 73, 133), (18, 56, 200), "160/160/97"),
    "sort_freq": (5, 1, (66, 166, 516), (64, 561, 6500), "160/160/82"),
    "frac_prevs": (2, 1, (14, 19, 29), (1.1, 2.4, 6.3), "all"),
    "pair_balance": (2, 2, (17, 22, 32), (2.5, 5.2, 13), "all"),
    "shuffle_dyck1": (6, 2, (38, 53, 83), (65, 293, 1600), "60/47/0"),
    "shuffle_dyck2": (8, 4, (55, 70, 100), (247, 1000, 5300), "160/160/159"),
    "detect_abc": (3, 2, (26, 31, 41), (5.9, 11, 25), "all"),
}
MEASURED = (5, 10, 20)


def histogram() -> SOp:
    return selector_width(select(tokens, tokens, "=="))


def sort(values: SOp, keys: SOp) -> SOp:
    """Sort stably, in ascending order."""
    before = select(keys, keys, "<") | (select(keys, keys, "==") & select(indices, indices, "<"))
    return aggregate(select(selector_width(before), indices, "=="), values, "-")


def sort_unique() -> SOp:
    smaller = selector_width(select(tokens, tokens, "<"))
    return aggregate(select(smaller, indices, "=="), tokens, "-")


def fraction_before(condition: SOp) -> SOp:
    return aggregate(select(indices, indices, "<="), indicator(condition))


def balance(pair: str) -> SOp:
    return fraction_before(tokens == pair[0]) - fraction_before(tokens == pair[1])


def shuffle_dyck(pairs: list[str]) -> SOp:
    """Return whether every kind of parenthesis is balanced on its own."""
    balances = [balance(pair) for pair in pairs]
    negative, zero = balances[0] < 0, balances[0] == 0
    for one in balances[1:]:
        negative, zero = negative | (one < 0), zero & (one == 0)
    ever = aggregate(full_s, indicator(negative)) > 0
    last = aggregate(select(indices, length - 1, "=="), zero, False)
    return last & ~ever


def shifted(by: int) -> SOp:
    return aggregate(select(indices, indices - by, "=="), tokens, "-")


@dataclass(frozen=True)
class Case:
    """A program with its inputs."""

    make: Callable[[], SOp]
    vocabulary: Callable[[int], str] = lambda most: LETTERS[:4]
    distinct: bool = False  # inputs without repetition
    balanced: bool = False  # half of the inputs are balanced


CASES: dict[str, Case] = {
    "length": Case(lambda: length),
    "hist": Case(histogram),
    "count": Case(lambda: selector_width(select(tokens, "a", "=="))),
    "count_less_freq": Case(lambda: selector_width(select(histogram(), 2, "<="))),
    "reverse": Case(lambda: aggregate(select(indices, length - indices - 1, "=="), tokens, "-")),
    "shift_by_1": Case(lambda: shifted(1)),
    "sort_unique": Case(sort_unique, vocabulary=lambda most: LETTERS[:most], distinct=True),
    "sort": Case(lambda: sort(tokens, tokens)),
    "sort_freq": Case(lambda: sort(tokens, -histogram())),
    "frac_prevs": Case(lambda: fraction_before(tokens == "a")),
    "pair_balance": Case(lambda: balance("()"), vocabulary=lambda most: "()ab"),
    "shuffle_dyck1": Case(lambda: shuffle_dyck(["()"]), vocabulary=lambda most: "()", balanced=True),
    "shuffle_dyck2": Case(lambda: shuffle_dyck(["()", "{}"]), vocabulary=lambda most: "(){}", balanced=True),
    "detect_abc": Case(lambda: (shifted(2) == "a") & (shifted(1) == "b") & (tokens == "c")),
}


def balanced(alphabet: str, most: int, dice: random.Random) -> str:
    """Return a random shuffle of balanced words."""
    pairs = [alphabet[i : i + 2] for i in range(0, len(alphabet), 2)]
    opened, text = [0] * len(pairs), ""
    size = 2 * dice.randint(1, most // 2)
    while len(text) < size:
        kind = dice.randrange(len(pairs))
        may_open = len(text) + sum(opened) + 2 <= size
        if opened[kind] and (not may_open or dice.random() < 0.5):
            opened[kind] -= 1
            text += pairs[kind][1]
        elif may_open:
            opened[kind] += 1
            text += pairs[kind][0]
    return text


def inputs_for(case: Case, most: int, count: int) -> list[str]:
    dice, alphabet = random.Random(1), case.vocabulary(most)
    texts = []
    for number in range(count):
        size = dice.randint(1, most)
        if case.balanced and number % 2:
            texts.append(balanced(alphabet, most, dice))
        elif case.distinct:
            texts.append("".join(dice.sample(alphabet, size)))
        else:
            texts.append("".join(dice.choices(alphabet, k=size)))
    return texts


def seconds(call: Callable[[], object], runs: int) -> float:
    """Return the CPU seconds of a call, best of `runs`, which excludes other work on the machine."""
    times = []
    for _ in range(runs):
        start = time.process_time()
        call()
        times.append(time.process_time() - start)
    return min(times)


def exact(compiled: CompiledProgram, program: SOp, texts: list[str]) -> int:
    results = compiled.run(texts)
    return sum(equal(result["output"], program(text)) for result, text in zip(results, texts, strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", default="5,10,20", help="maximum input lengths (default: %(default)s)")
    parser.add_argument("--inputs", type=int, default=400, help="random inputs per program (default: %(default)s)")
    parser.add_argument("--programs", default=",".join(CASES), help="comma-separated programs (default: all)")
    parser.add_argument("--zoo", action="store_true", help="use the programs of recipes/rasp, without Tracr")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(f"allyouneed {__version__}, torch {torch.__version__}, Python {platform.python_version()}, one thread")
    if options.zoo:
        for path in sorted((recipe_folder() / "rasp").glob("*.rasp")):
            for most in map(int, options.lengths.split(",")):
                print(zoo_line(path, most, options.inputs), flush=True)
        return
    print("In brackets: Tracr, measured once, not in this run. Times are CPU times.")
    heading = f"{'program':16} {'L':>4} {'layers':>7} {'heads':>8} {'width':>9} {'parameters':>17} {'compile':>9}"
    print(f"{heading} {'forward':>9} {'exact':>9}   Tracr exact")
    for name in options.programs.split(","):
        for most in map(int, options.lengths.split(",")):
            print(line(name, most, options.inputs), flush=True)


ALPHABETS = {"01": ["parity"], "()": ["dyck1"], "(){}": ["dyck2", "shuffle_dyck2"], "0123456789+": ["long_addition"]}
ALPHABETS |= {"()a": ["shuffle_dyck1", "depth", "pair_balance"], "xab": ["fraction_previous", "majority"]}


def zoo_line(path: Path, most: int, count: int) -> str:
    """Verify a program of the zoo on `count` random inputs and edge cases (raises on failure); return a line."""
    program = read_program(path).sop()
    alphabet = next((letters for letters, names in ALPHABETS.items() if path.stem in names), "abcd")
    began = time.process_time()
    compiled = compile_rasp(program, alphabet, most, verified=False)
    took = time.process_time() - began
    done, report = verify(compiled, {"output": program}, most=count), compiled.report
    return (
        f"{path.stem:20} L {most:3} vocabulary {alphabet:12} layers {len(report.layers)} heads {report.heads} width "
        f"{report.width} parameters {report.parameters:,} compile {took * 1e3:.0f} ms; exact on {done.inputs:,} inputs"
        f"{' (exhaustive)' if done.exhaustive else ''}; the program itself is undefined on {done.undefined:,} of them"
    )


def line(name: str, most: int, count: int) -> str:
    case = CASES[name]
    program, alphabet = case.make(), case.vocabulary(most)
    compile_rasp(program, alphabet, most, verified=False)
    took = seconds(lambda: compile_rasp(case.make(), alphabet, most, verified=False), 15)
    compiled = compile_rasp(program, alphabet, most, verified=False)
    texts = inputs_for(case, most, count)
    correct = exact(compiled, program, texts)
    longest = max(texts, key=len)
    forward = seconds(lambda: compiled.logits([longest]), 20)
    report = compiled.report
    theirs = TRACR[name]
    known = MEASURED.index(most) if most in MEASURED else None
    width = f"{report.width}" + (f" ({theirs[2][known]})" if known is not None else "")
    size = f"{report.parameters}" + (f" ({theirs[3][known]}k)" if known is not None else "")
    heads = max((len(layer.heads) for layer in report.layers), default=0)
    return (
        f"{name:16} {most:4} {len(report.layers):3} ({theirs[0]}) {heads:4} ({theirs[1]}) {width:>9} {size:>17} "
        f"{took * 1e3:6.1f} ms {forward * 1e3:6.2f} ms {correct:4}/{len(texts):<4}   {theirs[4]}"
    )


if __name__ == "__main__":
    main()
