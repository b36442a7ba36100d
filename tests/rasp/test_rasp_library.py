"""The library, written in RASP, against one line of Python for each function, and against the Python API."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allyouneed.rasp import api
from allyouneed.rasp.errors import RaspError
from allyouneed.rasp.graph import same
from allyouneed.rasp.interpreter import Interpreter
from allyouneed.rasp.loading import parse_program
from allyouneed.rasp.values import NamedNode

pytestmark = pytest.mark.no_shapes  # no tensors here

words = st.text("abc", min_size=1, max_size=10)
numbers = st.lists(st.integers(-3, 3), min_size=1, max_size=10)


def last(places: list[int]) -> list[int]:
    return places[-1:]


SEQUENCES: dict[str, Callable[[str], list[Any]]] = {
    "length": lambda w: [len(w)] * len(w),
    "selector_width(select(tokens, tokens, ==))": lambda w: [w.count(c) for c in w],
    "selector_width(select(indices, indices, >))": lambda w: list(range(len(w)))[::-1],
    "has_focus(select(indices, indices, <))": lambda w: [i > 0 for i in range(len(w))],
    'has_focus(select(tokens, "a", ==))': lambda w: ["a" in w] * len(w),
    'count(tokens, "a")': lambda w: [w.count("a")] * len(w),
    'contains(tokens, "a")': lambda w: ["a" in w] * len(w),
    "max(indices, 2)": lambda w: [max(i, 2) for i in range(len(w))],
    "min(indices, 2)": lambda w: [min(i, 2) for i in range(len(w))],
    "max(indices, length - indices)": lambda w: [max(i, len(w) - i) for i in range(len(w))],
    "average(indices)": lambda w: [(len(w) - 1) / 2 if len(w) > 1 else 0] * len(w),
    "load_from_location(tokens, length - indices - 1)": lambda w: list(w[::-1]),
    'shift(tokens, 2, "-")': lambda w: list(("--" + w)[: len(w)]),
    'shift(tokens, -2, "-")': lambda w: list((w + "--")[2:]),
    'mark_last_instance(tokens, "a")': lambda w: [i == w.rfind("a") for i in range(len(w))],
    'mark_first_instance(tokens, "a")': lambda w: [i == w.find("a") for i in range(len(w))],
    "sort(tokens, tokens)": sorted,
    "sort(indices, tokens)": lambda w: sorted(range(len(w)), key=lambda i: w[i]),
    "sort(tokens, -indices)": lambda w: list(w[::-1]),
}
SELECTORS: dict[str, Callable[[str, int], list[int]]] = {
    "full_s": lambda w, i: list(range(len(w))),
    'select_from_last(tokens, "a")': lambda w, i: [p for p in range(len(w)) if p == w.rfind("a")],
    'select_from_first(tokens, "a")': lambda w, i: [p for p in range(len(w)) if p == w.find("a")],
    "select_next_identical(tokens)": lambda w, i: [p for p in range(i + 1, len(w)) if w[p] == w[i]][:1],
}


@pytest.mark.parametrize("text", SEQUENCES)
def test_sequences(text):
    sop = parse_program(f"x = {text};").sop()

    @given(words)
    def agrees(word):
        assert sop(word) == SEQUENCES[text](word)

    agrees()


@pytest.mark.parametrize("text", SELECTORS)
def test_selectors(text):
    selector = parse_program(f"x = {text};").selectors["x"]

    @given(words)
    def agrees(word):
        chosen = [[place for place, bit in enumerate(row) if bit] for row in selector(word)]
        assert chosen == [SELECTORS[text](word, place) for place in range(len(word))]

    agrees()


@given(numbers)
def test_sorting_numbers_is_stable(values):
    program = parse_program("x = sort(indices, tokens_int);")
    assert program.sop()(values) == sorted(range(len(values)), key=lambda i: values[i])


@given(numbers)
def test_a_missing_string_is_the_number_zero(values):
    sop = parse_program("x = load_from_location(tokens, indices + 1);").sop()
    if len(values) == 1:
        assert sop(values) == [0]
    else:
        with pytest.raises(RaspError, match="different types"):
            sop(values)


def test_every_published_name_exists():
    names = set(Interpreter().base.names) - {"True", "False", "indices", "tokens"}
    names -= {f"tokens_{kind}" for kind in ("asis", "str", "int", "float", "bool")}
    published = "full_s length selector_width has_focus count contains max min average load_from_location shift"
    published += " mark_last_instance mark_first_instance select_from_last select_from_first sort select_next_identical"
    assert names == set(published.split())


@pytest.mark.parametrize(
    ("text", "node"),
    [
        ("length", api.length),
        ("full_s", api.full_s),
        ("selector_width(select(tokens, indices, !=))", api.selector_width(api.select(api.tokens, api.indices, "!="))),
        ('contains(tokens, "a")', api.contains(api.tokens, "a")),
        ('"a" in tokens', api.contains(api.tokens, "a")),
        ('tokens in ["a", 1]', api.is_in(api.tokens, ["a", 1])),
        ("tokens[2]", api.tokens[2]),
        ("tokens[-2]", api.tokens[-2]),
        ("[1, 2][indices]", api.lookup([1, 2], api.indices)),
        ('"ab"[indices]', api.lookup("ab", api.indices)),
        ('{"a" : 1}[tokens]', api.lookup({"a": 1}, api.tokens)),
        ("1 if tokens else 2", api.where(api.tokens, 1, 2)),
        ("indicator(tokens)", api.indicator(api.tokens)),
        ("round(indices / 2)", round(api.indices / 2)),
        ("tokens_float ^ 2", api.tokens_float**2),
    ],
)
def test_the_language_and_python_build_the_same_graph(text, node):
    value = parse_program(f"x = {text};").values["x"]
    assert isinstance(value, NamedNode)
    assert same(value.node, node)
