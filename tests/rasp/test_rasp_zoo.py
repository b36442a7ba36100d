"""Every program in recipes/rasp against a plain Python function."""

import re
from collections.abc import Callable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from allyouneed.rasp.formatting import sequence
from allyouneed.rasp.loading import read_program
from allyouneed.rasp.repl import Session

pytestmark = pytest.mark.no_shapes  # no tensors here
FOLDER = Path(__file__).parents[2] / "recipes" / "rasp"


def prefixes(judge: Callable[[str], Any]) -> Callable[[str], list[Any]]:
    return lambda word: [judge(word[: end + 1]) for end in range(len(word))]


def everywhere(judge: Callable[[str], Any]) -> Callable[[str], list[Any]]:
    return lambda word: [judge(word)] * len(word)


def nests(word: str, pairs: Sequence[str]) -> str:
    """Return T (balanced), P (the start of a balanced word) or F (neither), computed with a stack."""
    stack: list[str] = []
    for letter in word:
        for opening, closing in pairs:
            if letter == opening:
                stack.append(closing)
            elif letter == closing and (not stack or stack.pop() != closing):
                return "F"
    return "P" if stack else "T"


def shuffles(word: str, pairs: Sequence[str]) -> bool:
    return all(nests("".join(letter for letter in word if letter in pair), [pair]) == "T" for pair in pairs)


def distinct(word: str) -> list[str]:
    seen = list(dict.fromkeys(word))
    return seen + ["§"] * (len(word) - len(seen))


def most_frequent(word: str) -> list[str]:
    seen = sorted(dict.fromkeys(word), key=lambda letter: -word.count(letter))
    return seen + ["§"] * (len(word) - len(seen))


def induction(word: str) -> list[str]:
    places = [word.rfind(letter, 0, place) for place, letter in enumerate(word)]
    return [word[place + 1] if place >= 0 else "?" for place in places]


def addition(word: str) -> list[int]:
    return [int(digit) for digit in str(sum(map(int, word.split("+")))).zfill(len(word))]


def caesar(word: str) -> list[str]:
    return [chr((ord(letter) - 97 + 3) % 26 + 97) if "a" <= letter <= "z" else letter for letter in word]


ORACLES: dict[str, tuple[str, Callable[[str], list[Any]]]] = {
    "reverse": ("reverse", lambda word: list(reversed(word))),
    "histogram": ("histogram", lambda word: [word.count(letter) for letter in word]),
    "double_histogram": (
        "double_histogram",
        lambda word: [sum(word.count(other) == word.count(letter) for other in set(word)) for letter in word],
    ),
    "sort": ("sorted", sorted),
    "sort_by_frequency": ("sorted_by_frequency", lambda word: sorted(word, key=lambda letter: -word.count(letter))),
    "most_frequent": ("most_frequent", most_frequent),
    "distinct": ("distinct", distinct),
    "dyck1": ("dyck1", prefixes(lambda word: nests(word, ["()"]))),
    "dyck2": ("dyck2", prefixes(lambda word: nests(word, ["()", "{}"]))),
    "shuffle_dyck1": ("shuffle_dyck1", everywhere(lambda word: shuffles(word, ["()"]))),
    "shuffle_dyck2": ("shuffle_dyck2", everywhere(lambda word: shuffles(word, ["()", "{}"]))),
    "long_addition": ("long_addition", addition),
    "induction": ("induction", induction),
    "caesar": ("caesar", caesar),
    "palindrome": ("palindrome", everywhere(lambda word: word == word[::-1])),
    "count_less_frequent": (
        "count_less_frequent",
        lambda word: [sum(word.count(other) < word.count(letter) for other in word) for letter in word],
    ),
    "fraction_previous": ("fraction_previous", prefixes(lambda word: word.count("x") / len(word))),
    "pair_balance": ("pair_balance", prefixes(lambda word: word.count("(") / len(word) - word.count(")") / len(word))),
    "detect_abc": ("detect_abc", prefixes(lambda word: word.endswith("abc"))),
    "is_sorted": ("is_sorted", everywhere(lambda word: list(word) == sorted(word))),
    "count_so_far": ("count_so_far", prefixes(lambda word: word.count(word[-1]))),
    "rotate": ("rotate", lambda word: list(word[-1] + word[:-1])),
    "majority": ("majority", everywhere(lambda word: 2 * word.count("x") > len(word))),
    "parity": ("parity", everywhere(lambda word: word.count("1") % 2 == 1)),
    "depth": ("depth", prefixes(lambda word: word.count("(") - word.count(")"))),
    "run_length": (
        "run_length",
        lambda word: [len(run) for _, group in groupby(word) for run in [list(group)] for _ in run],
    ),
}


def balanced(pairs: list[str]) -> st.SearchStrategy[str]:
    """Generate balanced brackets: random ones almost never balance, which would hide failures."""
    return st.recursive(
        st.just(""),
        lambda inner: st.builds(lambda pair, a, b: pair[0] + a + pair[1] + b, st.sampled_from(pairs), inner, inner),
        max_leaves=8,
    ).filter(bool)


def interleaved(a: str, b: str, order: list[bool]) -> str:
    result = ""
    for first in order:
        if first and a:
            result, a = result + a[0], a[1:]
        elif b:
            result, b = result + b[0], b[1:]
    return result + a + b


words = st.text("abc", min_size=1, max_size=12)
number = st.text("0123456789", min_size=1, max_size=7) | st.text("9", min_size=1, max_size=6)
INPUTS: dict[str, st.SearchStrategy[str]] = {
    "long_addition": st.builds(lambda a, b: f"{a}+{b}", number, number),
    "caesar": st.text("abcxyz! Z", min_size=1, max_size=12),
    "fraction_previous": st.text("xab", min_size=1, max_size=12),
    "majority": st.text("xa", min_size=1, max_size=12),
    "parity": st.text("01", min_size=1, max_size=12),
    "palindrome": words | words.map(lambda word: word + word[::-1]),
    "is_sorted": words | words.map(lambda word: "".join(sorted(word))),
    "detect_abc": st.text("abc", min_size=1, max_size=20) | words.map(lambda word: f"{word}abc{word}"),
    "dyck1": balanced(["()"]) | st.text("()", min_size=1, max_size=12),
    "dyck2": balanced(["()", "{}"])
    | st.text("(){}", min_size=1, max_size=12)
    | st.text("(){}a", min_size=1, max_size=9),
    "shuffle_dyck1": balanced(["()"]) | st.text("()a", min_size=1, max_size=12),
    "shuffle_dyck2": st.builds(interleaved, balanced(["()"]), balanced(["{}"]), st.lists(st.booleans(), max_size=20))
    | st.text("(){}", min_size=1, max_size=8),
    "depth": st.text("()a", min_size=1, max_size=12),
    "pair_balance": st.text("()a", min_size=1, max_size=12),
}


def test_every_file_has_an_oracle():
    assert {path.stem for path in FOLDER.glob("*.rasp")} == set(ORACLES)


@pytest.mark.parametrize("name", sorted(ORACLES))
def test_a_program_equals_its_oracle(name):
    result, oracle = ORACLES[name]
    program = read_program(FOLDER / f"{name}.rasp")
    assert list(program.values) == [result], "one clearly named result"
    sop = program.sop()

    @settings(max_examples=100)
    @given(INPUTS.get(name, words))
    def agrees(word):
        expected = oracle(word)
        computed = sop(word)
        assert computed == expected
        assert set(map(type, computed)) <= {*map(type, expected), int} or type(expected[0]) is bool

    agrees()


@pytest.mark.parametrize("name", sorted(ORACLES))
def test_the_first_line_has_an_example_that_holds(name):
    line = (FOLDER / f"{name}.rasp").read_text(encoding="utf-8").splitlines()[0]
    example = re.fullmatch(r"# .*: (\S+) -> (.+?)(, .*| \(.*)?\.", line)
    assert example is not None, line
    shown = example[2].removesuffix(" everywhere")
    values = read_program(FOLDER / f"{name}.rasp").sop()(example[1])
    text = sequence(values)
    if shown != example[2]:
        assert text.startswith(f"[{shown}]*{len(values)} ")
    else:
        expected = shown.split() if " " in shown else list(shown)
        assert [float(one) if one[0].isdigit() else one for one in expected] == [
            round(one, 3) if isinstance(one, float | int) and not isinstance(one, bool) else sequence([one])[1]
            for one in values
        ]


@pytest.mark.parametrize("name", sorted(ORACLES))
def test_a_program_loads_into_a_repl(name, monkeypatch):
    monkeypatch.chdir(FOLDER)
    printed: list[str] = []
    session = Session(printed.append)
    session.feed(f'load "{name}";')
    assert printed == [f"     s-op: {ORACLES[name][0]}"]
