"""Values of s-ops and selectors, against loops written from the definition."""

import operator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allyouneed.rasp import api, limits
from allyouneed.rasp.api import (
    aggregate,
    contains,
    evaluate,
    evaluate_all,
    full_s,
    indicator,
    indices,
    is_in,
    length,
    lookup,
    select,
    selector_width,
    tokens,
    tokens_asis,
    tokens_bool,
    tokens_float,
    tokens_int,
    where,
)
from allyouneed.rasp.atoms import COMPARISONS
from allyouneed.rasp.errors import RaspError, RaspFailure, RaspLimitError
from allyouneed.rasp.evaluate import Evaluation
from allyouneed.rasp.graph import SOp, same

pytestmark = pytest.mark.no_shapes  # no tensors here
words = st.text("abc", min_size=1, max_size=9)
numbers = st.lists(st.integers(-3, 3), min_size=1, max_size=9)


@given(numbers, st.sampled_from(sorted(COMPARISONS)))
def test_the_first_argument_of_select_is_the_key(values, comparison):
    compare = COMPARISONS[comparison]
    rows = select(tokens_int, tokens_int * 2, comparison)(values)
    assert rows == [[compare(key, 2 * query) for key in values] for query in values]


@given(numbers, st.sampled_from(sorted(COMPARISONS)), st.integers(-9, 9))
def test_aggregate_is_the_only_value_the_mean_or_the_default(values, comparison, default):
    selector = select(tokens_int, 1, comparison) & ~select(indices, indices, ">")
    for row, result in zip(selector(values), aggregate(selector, indices, default)(values), strict=True):
        chosen = [place for place, bit in enumerate(row) if bit]
        expected = default if not chosen else chosen[0] if len(chosen) == 1 else sum(chosen) / len(chosen)
        assert result == expected
        assert type(result) is type(expected)


@given(words)
def test_selectors_combine_like_bools(word):
    a, b = select(tokens, tokens, "=="), select(indices, indices, "<")
    rows_a, rows_b = a(word), b(word)
    for combined, how in ((a & b, operator.and_), (a | b, operator.or_), (a & ~b, lambda x, y: x and not y)):
        expected = [[how(x, y) for x, y in zip(one, two, strict=True)] for one, two in zip(rows_a, rows_b, strict=True)]
        assert combined(word) == expected


@given(words)
def test_widths_and_lengths(word):
    assert length(word) == [len(word)] * len(word)
    assert selector_width(select(tokens, tokens, "=="))(word) == [word.count(letter) for letter in word]
    assert selector_width(select(indices, indices, ">"))(word) == list(range(len(word)))[::-1]


@pytest.mark.parametrize(
    ("program", "expected"),
    [
        (indices + 1, [1, 2, 3]),
        (10 - indices, [10, 9, 8]),
        (2**indices, [1, 2, 4]),
        (indices / 2, [0.0, 0.5, 1.0]),
        (indices % 2, [0, 1, 0]),
        (7 % (indices + 1), [0, 1, 1]),
        (-indices, [0, -1, -2]),
        (+indices, [0, 1, 2]),
        (round(indices / 2), [0, 0, 1]),
        (tokens + "!", ["a!", "b!", "a!"]),
        ("<" + tokens, ["<a", "<b", "<a"]),
        (tokens * indices, ["", "b", "aa"]),
        (tokens == "a", [True, False, True]),
        (tokens != "a", [False, True, False]),
        (indices < 1, [True, False, False]),
        (indices > 1, [False, False, True]),
        (indices & 1, [False, True, True]),
        (0 | indices, [False, True, True]),
        (~indices, [True, False, False]),
        (indicator(indices > 0), [0, 1, 1]),
        (where(tokens == "a", tokens, "-"), ["a", "-", "a"]),
        (tokens[1], ["b"] * 3),
        (tokens[-3], ["a"] * 3),
        (indices[7], [0] * 3),
        (indices[-7], [0] * 3),
        (contains(tokens, "b"), [True] * 3),
        (contains(tokens, "c"), [False] * 3),
        (is_in(tokens, ["b", 1]), [False, True, False]),
        (lookup("xyz", indices), ["x", "y", "z"]),
        (lookup([5, 6, 7], -indices), [5, 7, 6]),
        (lookup({"a": 1, "b": 2}, tokens), [1, 2, 1]),
        (tokens_bool, [True] * 3),
    ],
)
def test_elementwise(program: SOp, expected):
    assert program("aba") == expected


def test_tokens_are_converted_like_python_does():
    assert tokens_int(["1", 2, 3.7, True]) == [1, 2, 3, 1]
    assert tokens_float(["1", 2]) == [1.0, 2.0]
    assert tokens([1, "a", True]) == ["1", "a", "True"]
    assert tokens_asis([1, 2.5]) == [1, 2.5]
    with pytest.raises(RaspFailure, match=r"invalid literal for int\(\) with base 10: 'a'"):
        tokens_int("a")


@pytest.mark.parametrize(
    ("program", "error", "words"),
    [
        (tokens_asis, RaspError, r"vals of different types:\n\t\t \['a', 3\]"),
        (aggregate(select(indices, 0, "==") & select(indices, indices, "=="), tokens), RaspError, "different types"),
        (aggregate(full_s, tokens), RaspFailure, r"non-numbers: \['a', '3'\]"),
        (aggregate(full_s, indices == 0), RaspFailure, r"non-numbers: \[True, False\]"),
        (1 / indices, RaspFailure, "division by zero"),
        (1 + tokens, RaspFailure, "unsupported operand"),
        (tokens < 1, RaspFailure, "'<' not supported"),
        (select(tokens, 1, "<"), RaspFailure, "'<' not supported"),
        (tokens % 1, RaspFailure, "unsupported operand"),
        ((indices - 1) ** 0.5, RaspFailure, "not a real number"),
        (lookup("x", indices), RaspError, "index 1 out of range for string of length 1"),
        (lookup([1], tokens), RaspError, "has to be integer"),
        (lookup({0: "a"}, indices), RaspError, r"index \[ 1 \] not in dict\."),
        ((indices + 2) ** 5_000, RaspLimitError, "bits"),
        (((indices + 2) ** 4_000) * ((indices + 2) ** 4_000), RaspLimitError, "bits"),
        (tokens * 10**9, RaspLimitError, "characters"),
    ],
)
def test_refusals_state_the_reason(program, error, words):
    with pytest.raises(error, match=words):
        program(["a", 3])


def test_equal_strings_are_not_averaged():
    with pytest.raises(RaspFailure, match="non-numbers"):
        aggregate(full_s, tokens)("aa")


@pytest.mark.parametrize("empty", ["", [], 3, None])
def test_an_empty_input_is_refused(empty):
    with pytest.raises(RaspError, match="expect non-empty iterables, got: "):
        indices(empty)


def test_inputs_beyond_a_limit_are_refused():
    assert length("a" * limits.INPUT)[0] == limits.INPUT
    with pytest.raises(RaspLimitError):
        length("a" * (limits.INPUT + 1))
    with pytest.raises(RaspLimitError, match="steps"):
        select(indices, indices, "<")("a" * limits.INPUT)


def test_a_graph_may_be_deep_and_wide():
    sop: SOp = indices
    for _ in range(20_000):
        sop = sop + sop - sop  # 3^20000 paths
    assert sop("abc") == [0, 1, 2]


def test_bools_beside_numbers_are_numbers():
    assert where(indices == 0, True, 2)("ab") == [True, 2]
    assert where(indices == 0, 1, 2.5)("ab") == [1, 2.5]


def test_nodes_have_no_truth_value_and_no_elements():
    for misuse in (
        lambda: bool(tokens == "a"),
        lambda: tokens in [indices],
        lambda: "a" in tokens,
        lambda: list(tokens),
        lambda: tokens and indices,
        lambda: tokens == [1],
        lambda: aggregate(tokens, tokens),  # type: ignore[arg-type]
        lambda: aggregate(full_s, tokens, tokens),  # type: ignore[arg-type]
        lambda: select(tokens, tokens, "in"),
        lambda: tokens[indices],  # type: ignore[index]
        lambda: full_s & tokens,  # type: ignore[operator]
        lambda: is_in(tokens, [tokens]),  # type: ignore[list-item]
    ):
        with pytest.raises(RaspError):
            misuse()
    assert len({tokens, indices, tokens}) == 2
    assert {tokens: 1}[tokens] == 1


def test_same_compares_structure_and_types():
    assert same(tokens == "a", tokens == "a")
    assert not same(tokens == "a", tokens == "b")
    assert not same(indices + 1, indices + True)
    assert not same(indices + 1, 1 + indices)
    assert not same(is_in(indices, [1]), is_in(indices, [1.0]))
    assert same(api.selector_width(full_s), api.selector_width(select(1, 1, "==")))


@given(words)
def test_shared_nodes_are_computed_once_and_results_are_copies(word):
    histogram = selector_width(select(tokens, tokens, "=="))
    assert evaluate_all([histogram, histogram * 2], word) == [evaluate(histogram, word), (histogram * 2)(word)]
    run = Evaluation(word)
    run.sequence(histogram).clear()
    assert run.sequence(histogram) == histogram(word)
