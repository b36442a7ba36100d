"""Every operation of the language, compiled and compared with the interpreter on every input."""

import pytest

from allyouneed.rasp.api import (
    aggregate,
    contains,
    full_s,
    indicator,
    indices,
    is_in,
    length,
    lookup,
    select,
    selector_width,
    tokens,
    tokens_int,
    where,
)
from allyouneed.rasp.compiler import compile_rasp, verify
from allyouneed.rasp.graph import COMPARISONS, SOp, elementwise

pytestmark = pytest.mark.no_shapes
SAME = select(tokens, tokens, "==")
BEFORE = select(indices, indices, "<")
COUNT = selector_width(SAME)
SHARE = aggregate(select(indices, indices, "<="), indicator(tokens == "a"))


def selected(selector):
    """Combine every use of a selector: the values it selects, their number and their mean."""
    return {
        "width": selector_width(selector),
        "mean": aggregate(selector, indices, -1),
        "share": aggregate(selector, indicator(tokens == "a"), 7),
        "any": aggregate(selector, 1, 0) > 0,
    }


PROGRAMS: dict[str, SOp | dict[str, SOp]] = {
    "tokens": tokens,
    "indices": indices,
    "a constant": elementwise("+", 1, 2),
    "a constant string": where(indices == indices, "x", "y"),
    "arithmetic": {name: elementwise(name, indices, 3) for name in ("+", "-", "*", "/", "%", "^")},
    "arithmetic of two": {name: elementwise(name, COUNT, indices + 1) for name in ("+", "-", "*", "/", "%", "^")},
    "comparisons": {name: elementwise(name, COUNT, indices) for name in COMPARISONS},
    "and, or, not": {"and": (indices > 1) & (tokens == "a"), "or": (COUNT > 1) | (SHARE > 0.5), "not": ~(COUNT == 2)},
    "negative, round, indicator": {"n": -COUNT, "r": round(SHARE * 10), "i": indicator(SHARE)},
    "ternary": {"numbers": where(tokens == "a", indices, COUNT), "strings": where(COUNT > 1, tokens, "x")},
    "dictionary": lookup({"a": 5, "b": -1.5, "c": 0}, tokens),
    "list": lookup(["x", "y", "z", "x"], indices),
    "list by count": lookup([0, 3, 1, 4, 1], COUNT),
    "in": {"list": is_in(tokens, ["a", "c"]), "sequence": contains(tokens, "a")},
    "three s-ops": where((SHARE > 0.3) & (COUNT == 2), indices, length),
    "first and last": {"first": tokens[0], "last": tokens[-1]},
    "length": length,
    "reverse": aggregate(select(indices, length - 1 - indices, "=="), tokens),
    "shift, any default": {
        "string": aggregate(select(indices, indices - 1, "=="), tokens, "none"),
        "number": aggregate(select(indices, indices + 1, "=="), indices, -2.5),
        "bool": aggregate(select(indices, indices + 2, "=="), tokens == "a", True),
    },
    "a mean of means": aggregate(SAME, SHARE),
    "a mean of negative numbers": aggregate(BEFORE, lookup({"a": -3, "b": 0.5, "c": 2}, tokens), 1),
    "a difference of means": aggregate(BEFORE, indices) - aggregate(BEFORE, COUNT, 3),
    "tests of a mean": {"one": SHARE == 1, "third": SHARE == 1 / 3, "less": SHARE < 0.5},
    "a histogram of counts": selector_width(select(COUNT, COUNT, "==")),
    "keys that are means": selector_width(select(SHARE, SHARE, "<")),
    "means of what strings select": aggregate(select(tokens, "b", "=="), indices, 9),
    "a count as a share": round(length * aggregate(full_s, indicator(tokens == "b"))),
    "counts before": round((indices + 1) * aggregate(select(indices, indices, "<="), indicator(tokens == "b"))),
}
SELECTORS = {
    **{f"indices {name}": select(indices, indices, name) for name in COMPARISONS},
    **{f"tokens {name}": select(tokens, tokens, name) for name in COMPARISONS},
    **{f"index {name} count": select(indices, COUNT, name) for name in COMPARISONS},
    **{f"count {name} index": select(COUNT, indices, name) for name in COMPARISONS},
    "everything": full_s,
    "nothing": select(1, 2, "=="),
    "key alone": select(tokens, "a", "=="),
    "query alone": select("a", tokens, "=="),
    "keys and queries": select(tokens == "a", indices > 1, "=="),
    "and": SAME & BEFORE,
    "and of three": SAME & BEFORE & select(indices, 0, ">"),
    "and that cannot be": BEFORE & select(indices, indices, ">"),
    "or of the same s-ops": BEFORE | select(indices, indices, ">"),
    "or of others": SAME | BEFORE,
    "or of disjoint ones": select(tokens, tokens, "<") | (SAME & BEFORE),
    "not": ~SAME,
    "not of an and": ~(SAME & BEFORE),
    "not of an or": ~(SAME | BEFORE),
    "all at once": ~(SAME & ~BEFORE) | select(COUNT, 1, "=="),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_operations_agree_on_every_input(name):
    outputs = PROGRAMS[name]
    compiled = compile_rasp(outputs, "abc", 4, verified=False)
    named = {"output": outputs} if isinstance(outputs, SOp) else outputs
    checked = verify(compiled, named)
    assert checked.exhaustive
    assert checked.inputs == 3 + 9 + 27 + 81
    assert checked.undefined == 0


@pytest.mark.parametrize("name", SELECTORS)
def test_selectors_agree_on_every_input(name):
    outputs = selected(SELECTORS[name])
    assert verify(compile_rasp(outputs, "abc", 4, verified=False), outputs).undefined == 0


@pytest.mark.parametrize("name", [*PROGRAMS, *SELECTORS])
def test_causal_operations_agree_on_every_input(name):
    outputs = PROGRAMS[name] if name in PROGRAMS else selected(SELECTORS[name])
    named = {"output": outputs} if isinstance(outputs, SOp) else outputs
    verify(compile_rasp(named, "ab", 4, causal=True, verified=False), named)


def test_numbers_as_tokens():
    total = aggregate(full_s, tokens_int)
    sort = select(tokens_int, tokens_int, "<") | (select(tokens_int, tokens_int, "==") & BEFORE)
    outputs = {"mean": total, "sorted": aggregate(select(selector_width(sort), indices, "=="), tokens_int)}
    compiled = compile_rasp(outputs, [3, 1, -2], 4)
    assert compiled.run([[3, -2, 1]]) == [{"mean": [2 / 3] * 3, "sorted": [-2, 1, 3]}]
    assert len(compiled.outputs[1].values) == 3, "a sort gives what there was, not means"


def test_inputs_that_fail_in_the_interpreter_are_not_compared():
    program = {"output": 6 / (indices - 1) + indicator(tokens == "a")}
    checked = verify(compile_rasp(program, "ab", 3, verified=False), program)
    assert checked.undefined == 4 + 8
    assert checked.inputs == 2 + 4 + 8
