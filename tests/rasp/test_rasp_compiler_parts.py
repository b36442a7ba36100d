"""Units of the compiler: selectors, steps, refusals, causality, the text of a program."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from allyouneed.errors import ConfigError, DataError
from allyouneed.rasp.api import (
    aggregate,
    full_s,
    indices,
    is_in,
    length,
    lookup,
    select,
    selector_width,
    tokens,
    tokens_float,
    tokens_int,
    where,
)
from allyouneed.rasp.causal import seen_causally
from allyouneed.rasp.compiler import CannotCompile, NotExact, compile_rasp, selectors, verify
from allyouneed.rasp.compiler.domains import Bounds, means
from allyouneed.rasp.compiler.elementwise import plan_of_variable, steps
from allyouneed.rasp.compiler.ir import Condition, variable
from allyouneed.rasp.compiler.source import source
from allyouneed.rasp.errors import RaspError
from allyouneed.rasp.graph import Function, Map, same
from allyouneed.rasp.loading import parse_program

pytestmark = pytest.mark.no_shapes
BOUNDS = Bounds(4, causal=False)
SIDES = [variable("token", name, range(size)) for name, size in (("x", 2), ("y", 3))]
PAIRS = [(a, b) for a in SIDES for b in SIDES]


@st.composite
def formulas(draw, depth=3):
    """Draw a selector over four pairs of sides, as terms and as a function of the values of keys and queries."""
    kind = draw(st.sampled_from(["compare", "and", "or", "not"] if depth else ["compare"]))
    if kind == "compare":
        number = draw(st.integers(0, 3))
        keys, queries = PAIRS[number]
        shape = (len(keys.values), len(queries.values))
        bits = np.array(draw(st.lists(st.booleans(), min_size=6 * 6, max_size=6 * 6)))[: shape[0] * shape[1]]
        relation = np.resize(bits, shape)
        terms = selectors.simplify((Condition(keys, queries, relation),), BOUNDS)
        at = (SIDES.index(keys), SIDES.index(queries))
        return terms, lambda key, query: bool(relation[key[at[0]], query[at[1]]])
    left, means_left = draw(formulas(depth=depth - 1))
    if kind == "not":
        return selectors.complement(left, BOUNDS), lambda key, query: not means_left(key, query)
    right, means_right = draw(formulas(depth=depth - 1))
    if kind == "and":
        return selectors.conjunction(left, right, BOUNDS), lambda k, q: means_left(k, q) and means_right(k, q)
    return selectors.disjunction(left, right, BOUNDS), lambda k, q: means_left(k, q) or means_right(k, q)


@given(formulas())
def test_terms_are_disjoint_and_equal_their_formula(formula):
    terms, meaning = formula
    for key in np.ndindex(2, 3):
        for query in np.ndindex(2, 3):
            holding = sum(
                all(one.relation[key[SIDES.index(one.keys)], query[SIDES.index(one.queries)]] for one in term)
                for term in terms
            )
            assert holding == meaning(key, query)


@pytest.mark.parametrize(("order", "total"), [("<", True), (">", True), ("==", False), ("<=", False), ("!=", False)])
def test_ranks_are_permutations(order, total):
    index = variable("index", "indices", range(4), permutes=True)
    terms = selectors.compare(index, index, order, BOUNDS)
    assert selectors.is_total_order(terms) == total


def test_ties_and_cycles_are_not_total_orders():
    x, index = variable("token", "x", range(3)), variable("index", "indices", range(4), permutes=True)
    below, equal, before = (
        selectors.compare(side, side, how, BOUNDS) for side, how in ((x, "<"), (x, "=="), (index, "<"))
    )
    stable = selectors.disjunction(below, selectors.conjunction(equal, before, BOUNDS), BOUNDS)
    assert selectors.is_total_order(stable)
    assert not selectors.is_total_order(below)
    assert not selectors.is_total_order(selectors.disjunction(below, before, BOUNDS))  # a cycle


@given(st.integers(1, 60), st.lists(st.integers(-5, 5), min_size=61, max_size=61), st.floats(-0.2, 0.2))
def test_steps_give_any_function_of_a_count_in_float32(most, heights, wrong):
    count = variable("width", "count", range(most + 1))
    count.layer = 1
    outputs = np.array(heights[: most + 1], dtype=float)[:, None]
    made = steps(plan_of_variable(count, outputs), outputs)
    plan = plan_of_variable(count, outputs)
    exact = 1 / (np.arange(most + 1) + 1.0)
    z = (exact + plan.constant + wrong / ((most + 1) * (most + 2))).astype(np.float32)  # a fifth of the least gap
    hidden = np.maximum(z[:, None] * made.slopes_N.astype(np.float32) + made.offsets_N.astype(np.float32), 0)
    found = hidden @ made.outputs_NR.astype(np.float32) + made.base_R.astype(np.float32)
    assert np.abs(found - outputs).max() < 0.02


def test_means_are_exact_rationals():
    assert means((0, 1), None, 3) == (0, 1 / 3, 0.5, 2 / 3, 1)
    assert means((0, 1), -1, 2) == (-1, 0, 0.5, 1)
    thirds = means((1 / 3, 0.5), None, 2)
    assert thirds == (1 / 3, 5 / 12, 0.5), "no two of them a last digit apart"


def test_the_mean_of_values_that_are_sometimes_text_is_refused():
    """Strings have no mean but numbers do, so a model built for the former would be wrong on the latter."""
    mixed = where(tokens[0] == "a", indices, "s")
    before = select(indices, indices, "<=")
    with pytest.raises(CannotCompile, match="strings on some inputs and numbers on others"):
        compile_rasp(aggregate(before, mixed), "abc", 6)
    alone = aggregate(select(indices, indices, "=="), mixed)
    assert compile_rasp(alone, "abc", 4)("abc") == [0, 1, 2]


def test_numbers_beyond_exact_ones_are_refused():
    with pytest.raises(CannotCompile, match="can represent exactly"):
        compile_rasp(indices * 2**1100 > 5, "ab", 4)
    with pytest.raises(CannotCompile, match="for exact sums"):
        compile_rasp(aggregate(full_s, tokens_float), ["0.0001234567", "1000.1234567", "3.7654321"], 6)


def test_every_reason_is_listed():
    numbers = aggregate(full_s, aggregate(full_s, aggregate(full_s, indices * indices) * indices) * indices)
    outputs = {"words": aggregate(full_s, tokens_int), "large": numbers, "fine": tokens}
    with pytest.raises(CannotCompile) as refused:
        compile_rasp(outputs, "abc", 20)
    assert len(refused.value.reasons) == 2
    assert "tokens_int: fails on every input" in refused.value.reasons
    assert any("different means of up to 20 values" in reason for reason in refused.value.reasons)
    assert "for 2 reasons" in str(refused.value)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"vocabulary": ""}, "vocabulary is empty"),
        ({"vocabulary": "aa"}, "twice"),
        ({"length": 0}, "length 0"),
        ({"outputs": {}}, "no outputs"),
    ],
)
def test_invalid_arguments_are_refused(change, words):
    with pytest.raises(ConfigError, match=words):
        compile_rasp(**({"outputs": tokens, "vocabulary": "ab", "length": 3} | change))


def test_inputs_outside_the_compiled_range_are_refused():
    compiled = compile_rasp(tokens, "ab", 3)
    with pytest.raises(DataError, match="'c' is not in the program's vocabulary"):
        compiled.run(["abc"])
    with pytest.raises(DataError, match="4 tokens"):
        compiled.run(["abab"])


def test_verification_detects_a_wrong_weight():
    program = {"output": selector_width(select(tokens, tokens, "=="))}
    compiled = compile_rasp(program, "ab", 4)
    compiled.model.encoder.blocks[0].feedforward.outer.bias.data += 0.3
    with pytest.raises(NotExact, match="output: on"):
        verify(compiled, program)


def test_padding_and_other_rows_change_nothing():
    program = aggregate(select(indices, length - 1 - indices, "=="), tokens)
    compiled = compile_rasp(program, "abc", 9)
    words = ["a", "abcabcabc", "bc", "ccc"]
    assert [found["output"] for found in compiled.run(words)] == [list(reversed(word)) for word in words]


def test_the_report_names_slots_heads_and_neurons():
    same_token = select(tokens, tokens, "==")
    program = selector_width(same_token)
    report = compile_rasp(program, "abc", 5, names={program: "hist", same_token: "same"}).report
    assert report.heads == [1]
    assert report.layers[0].heads[0].selector == "same"
    assert report.layers[0].heads[0].counts
    slot = report.slots[report.layers[0].heads[0].slots[0]]
    assert slot.name == "hist"
    assert list(slot.numbers) == [1, 2, 3, 4, 5]
    assert report.layers[0].functions[0].neurons == 2 * 4
    assert "head same: counts into" in str(report)
    assert report.width == len(report.slots)


def test_heads_are_shared():
    same_token = select(tokens, tokens, "==")
    again = select(tokens, tokens, "==")
    outputs = {
        "a": aggregate(same_token, indices),
        "b": aggregate(again, indices * indices),
        "c": selector_width(again),
    }
    report = compile_rasp(outputs, "abc", 5).report
    assert report.heads == [2], "one for the means, one for the count"


def test_a_causal_program_reads_only_earlier_positions():
    seen = seen_causally(length)
    assert seen("abcd") == [1, 2, 3, 4]
    assert seen_causally(aggregate(full_s, indices))("abc") == [0, 0.5, 1]
    compiled = compile_rasp({"length": length, "mean": aggregate(full_s, indices)}, "ab", 5, causal=True)
    assert compiled.run(["abba"])[0] == {"length": [1, 2, 3, 4], "mean": [0, 0.5, 1, 1.5]}


def test_a_decoder_outputs_the_same_token_by_token():
    program = {"output": selector_width(select(tokens, tokens, "=="))}
    compiled = compile_rasp(program, "abc", 6, causal=True)
    ids_BT, _ = compiled.encode(["abcaab"])
    state = compiled.model.start()
    output, classes = compiled.outputs[0], []
    for column in range(ids_BT.shape[1]):
        logits_BV, state = compiled.model.advance(ids_BT[:, column], state)
        classes.append(int(logits_BV[0].argmax()) - output.begin)
    assert [output.values[number] for number in classes[1:]] == [1, 1, 1, 2, 3, 2]


def test_the_text_of_a_program_is_the_program():
    outputs = {
        "sum": lookup({"a": 1, "b": -2.5}, tokens) + indices % 3,
        "word": aggregate(select(indices, length - 1 - indices, "==") & ~select(tokens, "a", "=="), tokens, "-"),
        "member": is_in(tokens, ["a", "x"]) & (lookup(["p", "q"], indices % 2) == "p"),
        "far": selector_width(select(tokens, tokens, "<") | select(indices, 1, ">=")) != 2,
    }
    program = parse_program(source(outputs))
    for name, sop in outputs.items():
        if name != "far":  # the language has no != between s-ops
            assert same(program.sop(name), sop), name
        assert program.sop(name)("abba") == sop("abba")


def test_a_function_without_a_name_in_the_language_has_no_text():
    with pytest.raises(RaspError, match="'secret' has no notation"):
        source({"x": Map(Function("secret", lambda x: x), (tokens,))})
