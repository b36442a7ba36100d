"""Whole programs: those that Tracr compiles and some that it refuses, the zoo, and random ones."""

import importlib.util
import random
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from allyouneed.rasp.api import (
    aggregate,
    full_s,
    indicator,
    indices,
    length,
    lookup,
    select,
    selector_width,
    tokens,
    where,
)
from allyouneed.rasp.compiler import CannotCompile, NotExact, compile_rasp, equal, verify
from allyouneed.rasp.graph import SOp, elementwise
from allyouneed.rasp.loading import read_program

pytestmark = pytest.mark.no_shapes
ZOO = Path(__file__).parents[2] / "recipes" / "rasp"
SAME = select(tokens, tokens, "==")
HISTOGRAM = selector_width(SAME)


def benchmark():
    """Import benchmarks/rasp.py, which has the programs of Tracr's library and their measured sizes."""
    path = Path(__file__).parents[2] / "benchmarks" / "rasp.py"
    found = importlib.util.spec_from_file_location("rasp_benchmark", path)
    module = importlib.util.module_from_spec(found)
    sys.modules[found.name] = module  # dataclasses look up their module
    found.loader.exec_module(module)
    return module


BENCHMARK = benchmark()
# Layers and width at most: Tracr's at length 10.
TRACR = {
    name: (case.make(), case.vocabulary(10), BENCHMARK.TRACR[name][0], BENCHMARK.TRACR[name][2][1])
    for name, case in BENCHMARK.CASES.items()
}
# RASP's own layers, and heads of each layer where they are reached too.
DEPTHS = {
    "length": [1],
    "hist": [1],
    "reverse": [1, 1],
    "sort": [2, 1],
    "sort_freq": [1, 2, 1],
    "frac_prevs": [1],
    "shift_by_1": [1],
    "shuffle_dyck1": [2, 2],
}


@pytest.mark.parametrize("name", TRACR)
def test_no_more_layers_and_less_width_than_tracr(name):
    program, vocabulary, layers, width = TRACR[name]
    compiled = compile_rasp(program, vocabulary, 10, verified=False)
    verify(compiled, {"output": program}, most=150)
    assert len(compiled.report.layers) <= layers
    assert compiled.report.width < width
    if name in DEPTHS:
        assert compiled.report.heads == DEPTHS[name]


@pytest.mark.parametrize("size", [20, 40])
@pytest.mark.parametrize("name", ["hist", "reverse", "sort", "sort_freq"])
def test_long_inputs(name, size):
    """Tracr's default exactness is wrong from length 10 on."""
    program, vocabulary, *_ = TRACR[name]
    verify(compile_rasp(program, vocabulary, size, verified=False), {"output": program}, most=60)


def test_balanced_brackets_are_found():
    """Random brackets almost never balance, which would hide failures."""
    program = BENCHMARK.shuffle_dyck(["()", "{}"])
    compiled = compile_rasp(program, "(){}", 12, verified=False)
    words = ["()", "({)}", "((((()))))", "{}{}{}{}", "({()}{)}", "()()()()()()", "({{((()))}})", "((({}{})))"]
    words += [word[:-1] for word in words] + [word + "}" for word in words if len(word) < 12]
    for word, found in zip(words, compiled.run(words), strict=True):
        assert found["output"] == program(word), word
    assert any(program(word)[0] for word in words)


def test_long_brackets():
    program = BENCHMARK.shuffle_dyck(["()"])
    compiled = compile_rasp(program, "()", 20, verified=False)
    words = ["(" * n + ")" * n for n in range(1, 11)] + ["()" * n for n in range(1, 11)] + ["(()" * 6 + "))"]
    for word, found in zip(words, compiled.run(words), strict=True):
        assert found["output"] == program(word), word


VOCABULARIES = {
    "caesar": "abcxyz! Z",
    "long_addition": "0123456789+",
    "fraction_previous": "xab",
    "majority": "xa",
    "parity": "01",
    "dyck1": "()",
    "dyck2": "(){}",
    "shuffle_dyck1": "()a",
    "shuffle_dyck2": "(){}",
    "depth": "()a",
    "pair_balance": "()a",
}


@pytest.mark.parametrize("name", sorted(path.stem for path in ZOO.glob("*.rasp")))
def test_the_zoo(name):
    sop = read_program(ZOO / f"{name}.rasp").sop()
    compiled = compile_rasp(sop, VOCABULARIES.get(name, "abc"), 7, verified=False)
    verify(compiled, {"output": sop}, most=120)


def test_a_compiled_addition_adds():
    """Random inputs are hardly ever sums."""
    sop = read_program(ZOO / "long_addition.rasp").sop()
    compiled = compile_rasp(sop, "0123456789+", 9, verified=False)
    dice = random.Random(0)
    pairs = [(dice.randrange(10**4), dice.randrange(10**4)) for _ in range(40)] + [(9999, 1), (0, 0), (9, 9991)]
    texts = [f"{a}+{b}" for a, b in pairs]
    for (a, b), text, found in zip(pairs, texts, compiled.run(texts), strict=True):
        written = int("".join(map(str, found["output"])))
        assert written == (a + b) % 10 ** len(text), text


def test_layers_of_the_published_programs():
    """Weiss et al. 2021: two layers for Dyck-1 (prefixes distinguished from failures), four for Dyck-2."""
    found = {
        name: compile_rasp(read_program(ZOO / f"{name}.rasp").sop(), vocabulary, 7, verified=False).report.heads
        for name, vocabulary in (("dyck1", "()"), ("dyck2", "(){}"))
    }
    assert found == {"dyck1": [2, 1], "dyck2": [2, 1, 1, 1]}


# --- random programs ---------------------------------------------------------------------------------------------


class Programs:
    """A generator of random programs that use all operations."""

    def __init__(self, dice: random.Random) -> None:
        self.dice = dice

    def number(self, depth: int) -> SOp:
        dice = self.dice
        below = depth - 1
        choice = dice.randrange(9 if depth else 3)
        if choice < 2:
            return (indices, length)[choice]
        if choice == 2:
            table = dice.choice([{"a": 1, "b": -2, "c": 3}, {"a": 0.5, "b": 0, "c": 0.25}])
            return dice.choice([indicator(tokens == "b"), lookup(table, tokens), lookup([3, 1, 4, 1, 5], indices % 5)])
        if choice < 5:
            right = self.number(below) if choice == 3 else dice.randint(-2, 3)
            return elementwise(dice.choice("+-*"), self.number(below), right)
        if choice == 5:
            return selector_width(self.selector(below))
        if choice == 6:
            return aggregate(self.selector(below), self.number(below), dice.choice([0, -1, 2]))
        if choice == 7:
            return where(self.truth(below), self.number(below), self.number(below))
        return indicator(self.truth(below))

    def truth(self, depth: int) -> SOp:
        dice = self.dice
        choice = dice.randrange(5 if depth else 2)
        if choice < 2:
            return (tokens == dice.choice("abc"), indices % 2 == 0)[choice]
        if choice == 2:
            comparison = dice.choice(["==", "<", ">", "<=", ">=", "!="])
            return elementwise(comparison, self.number(depth - 1), self.number(depth - 1))
        if choice == 3:
            return elementwise(dice.choice(["and", "or"]), self.truth(depth - 1), self.truth(depth - 1))
        return ~self.truth(depth - 1)

    def text(self, depth: int) -> SOp:
        dice = self.dice
        choice = dice.randrange(3 if depth else 1)
        if choice == 0:
            return tokens
        if choice == 1:
            return where(self.truth(depth - 1), self.text(depth - 1), dice.choice("abx"))
        place = select(indices, self.number(depth - 1), "==")
        return aggregate(place, self.text(depth - 1), dice.choice("a-"))

    def selector(self, depth: int):
        dice = self.dice
        comparison = dice.choice(["==", "!=", "<", ">", "<=", ">="])
        choice = dice.randrange(6 if depth else 2)
        if choice < 2:
            side = (tokens, indices)[choice]
            return select(side, side, comparison)
        if choice == 2:
            return select(self.number(depth - 1), self.number(depth - 1), comparison)
        if choice == 3:
            return self.selector(depth - 1) & self.selector(depth - 1)
        if choice == 4:
            return self.selector(depth - 1) | self.selector(depth - 1)
        return ~self.selector(depth - 1)


@settings(max_examples=80)
@given(seed=st.integers(0, 10**9), depth=st.integers(1, 4), causal=st.booleans())
def test_random_programs(seed, depth, causal):
    dice = random.Random(seed)
    programs = Programs(dice)
    program = dice.choice([programs.number, programs.truth, programs.text])(depth)
    size = dice.randint(1, 6)
    try:
        compiled = compile_rasp(program, "abc", size, causal=causal, verified=False)
    except CannotCompile:
        return
    verify(compiled, {"output": program}, most=60, seed=seed)


def test_most_random_programs_compile():
    """A compiler that refuses everything would pass the test above."""
    compiled = 0
    for seed in range(40):
        programs = Programs(random.Random(seed))
        try:
            compile_rasp(programs.number(3), "abc", 5, verified=False)
            compiled += 1
        except CannotCompile:
            pass
    assert compiled >= 38


def test_equal_distinguishes_values():
    assert equal([1, 0.5], [1.0, 0.5 + 1e-12])
    assert not equal([1, 0.5], [1, 0.5001])
    assert not equal(["a"], ["a", "a"])
    assert not equal(["1"], [1])


@pytest.mark.parametrize("size", [63, 200])
def test_a_function_of_a_mean_takes_a_neuron_for_each_jump(size):
    """Not one for each of its thousands of values, some of which float32 cannot distinguish."""
    program = aggregate(full_s, indicator(tokens == "a")) > 0.5
    compiled = compile_rasp(program, "ab", size, verified=False)
    (layer,) = compiled.report.layers
    assert layer.functions[0].neurons == 3  # a step, and the removal of the mean from the slot
    verify(compiled, {"output": program}, most=40)
    half = ["a", "b"] * (size // 2)
    assert compiled.run([half, [*half[:-1], "a"]])[1]["output"][0] is True
    assert compiled.run([half])[0]["output"][0] is False


@pytest.mark.parametrize(("name", "size", "width"), [("hist", 512, 4), ("reverse", 600, 6)])
def test_hundreds_of_tokens(name, size, width):
    program, vocabulary, *_ = TRACR[name]
    compiled = compile_rasp(program, vocabulary, size, verified=False)
    assert compiled.report.width == width
    dice = random.Random(0)
    inputs = [dice.choices(vocabulary, k=n) for n in (size, size - 1, size // 2, 1)]
    for one, found in zip(inputs, compiled.run(inputs), strict=True):
        assert found["output"] == program(one)


def test_programs_that_fail_on_some_inputs():
    with pytest.raises(CannotCompile, match="fails on every input; on \\['a'\\]: division by zero"):
        compile_rasp(1 / indices, "ab", 5)
    some = compile_rasp(1 / (indices - 3), "ab", 5).verified
    assert (some.inputs, some.undefined, some.exhaustive) == (62, 48, True)
    assert "on 48 others the program itself fails" in str(some)
    assert "division by zero" in str(some)


@pytest.mark.parametrize("token", [float("nan"), float("inf"), 10**400, 2**53 + 2])
def test_tokens_beyond_exact_numbers_are_refused(token):
    with pytest.raises(CannotCompile, match="is not a number up to"):
        compile_rasp(tokens, [1, token], 4)


def test_differences_are_named():
    compiled = compile_rasp(HISTOGRAM, "ab", 4)
    with pytest.raises(NotExact, match="gives 1 at position 0, the program 2, although margins are wide"):
        verify(compiled, {"output": HISTOGRAM + 1})
    with pytest.raises(NotExact, match="the program 9, which the compiler did not expect"):
        verify(compiled, {"output": HISTOGRAM + 8})
