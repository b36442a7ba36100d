"""Random programs, written twice: with Python's operators and as text. Graph and values are the same."""

from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from allyouneed.rasp import api
from allyouneed.rasp.api import evaluate
from allyouneed.rasp.errors import RaspError
from allyouneed.rasp.graph import Selector, SOp, elementwise, same
from allyouneed.rasp.loading import parse_program
from allyouneed.rasp.values import NamedNode

pytestmark = pytest.mark.no_shapes  # no tensors here


@dataclass(frozen=True)
class Twice:
    """The text of an expression, and the node that Python's operators built for it."""

    text: str
    node: object


ATOMS = st.one_of(
    st.integers(0, 4).map(lambda number: Twice(str(number), number)),
    st.sampled_from([0.5, 2.25]).map(lambda number: Twice(str(number), number)),
    st.sampled_from(["a", "b", ""]).map(lambda text: Twice(f'"{text}"', text)),
    st.booleans().map(lambda truth: Twice(str(truth), truth)),
)
BASE = st.sampled_from(
    [Twice(name, getattr(api, name)) for name in ("tokens", "indices", "length", "tokens_bool", "tokens_asis")]
)
PYTHON = {"^": "**", "and": "&", "or": "|"}
OPERATORS = ["+", "-", "*", "/", "%", "^", "==", "<", ">", "<=", ">=", "and", "or"]


def binary(operator: str, a: Twice, b: Twice) -> Twice:
    node = eval(f"a {PYTHON.get(operator, operator)} b", {"a": a.node, "b": b.node})
    return Twice(f"({a.text} {operator} {b.text})", node)


@st.composite
def sops(draw, depth: int = 3):
    """Draw an s-op. At least one operand is an s-op, since Python's operators on plain values are not RASP."""
    if depth == 0:
        return draw(BASE)
    smaller = sops(depth - 1)
    a, b = draw(smaller), draw(smaller | ATOMS)
    operator = draw(st.sampled_from(OPERATORS))
    selector = selectors(depth - 1)
    value: Twice
    match draw(st.integers(0, 10)):
        case 0 | 1:
            value = binary(operator, a, b)
        case 2:
            # Python turns 1 < x into x > 1, and formats "a" % x itself, before the s-op's operator is called.
            own = operator in ("==", "<", ">", "<=", ">=") or (operator == "%" and isinstance(b.node, str))
            value = binary(operator, a, b) if own else binary(operator, b, a)
        case 3:
            value = Twice(f"(-{a.text})", -a.node)
        case 4:
            value = Twice(f"(not {a.text})", ~a.node)
        case 5:
            value = Twice(f"round({a.text})", round(a.node))
        case 6:
            value = Twice(f"indicator({a.text})", api.indicator(a.node))
        case 7:
            c = draw(smaller | ATOMS)
            value = Twice(f"({b.text} if {a.text} else {c.text})", api.where(a.node, b.node, c.node))
        case 8:
            place = draw(st.integers(-4, 4))
            value = Twice(f"{a.text}[{place}]", a.node[place])
        case 9:
            chosen = draw(selector)
            value = Twice(f"selector_width({chosen.text})", api.selector_width(chosen.node))
        case _:
            chosen, default = draw(selector), draw(ATOMS)
            value = Twice(
                f"aggregate({chosen.text}, {b.text}, {default.text})",
                api.aggregate(chosen.node, b.node, default.node),
            )
    return value


@st.composite
def selectors(draw, depth: int = 2):
    if depth <= 0 or draw(st.booleans()):
        keys, queries = draw(sops(max(depth - 1, 0)) | ATOMS), draw(sops(max(depth - 1, 0)) | ATOMS)
        comparison = draw(st.sampled_from(["==", "!=", "<", ">", "<=", ">="]))
        return Twice(
            f"select({keys.text}, {queries.text}, {comparison})", api.select(keys.node, queries.node, comparison)
        )
    a, b = draw(selectors(depth - 1)), draw(selectors(depth - 1))
    match draw(st.integers(0, 2)):
        case 0:
            return Twice(f"({a.text} and {b.text})", a.node & b.node)
        case 1:
            return Twice(f"({a.text} or {b.text})", a.node | b.node)
        case _:
            return Twice(f"(not {a.text})", ~a.node)


def outcome(node: SOp | Selector, inputs: list[object]) -> object:
    try:
        values = evaluate(node, inputs)  # type: ignore[type-var, arg-type]
    except RaspError as error:
        return type(error), str(error)
    return [(type(value), repr(value)) for value in values]


@settings(max_examples=300)
@given(
    sops() | selectors(),
    st.lists(st.sampled_from(["a", "b", "c"]), min_size=1, max_size=6)
    | st.lists(st.integers(-2, 2), min_size=1, max_size=6),
)
def test_text_and_operators_are_the_same_program(program, inputs):
    value = parse_program(f"result = {program.text};").values["result"]
    assert isinstance(value, NamedNode)
    assert isinstance(program.node, SOp | Selector)
    assert same(value.node, program.node)
    assert outcome(value.node, inputs) == outcome(program.node, inputs)


def test_unequal_can_be_evaluated_although_it_has_no_text():
    assert (api.tokens != "a")("ab") == (~(api.tokens == "a"))("ab")
    assert same(api.tokens != "a", elementwise("!=", api.tokens, "a"))


@given(st.lists(st.sampled_from(OPERATORS[:5]), min_size=1, max_size=8), st.data())
def test_chains_without_brackets_follow_the_precedence_table(operators, data):
    """Python's parser is the oracle, except for %, which binds less tightly than * and / in RASP."""
    operators = [operator for operator in operators if operator != "%"] or ["+"]
    numbers = [data.draw(st.integers(1, 9)) for _ in range(len(operators) + 1)]
    text = str(numbers[0]) + "".join(f" {op} {n}" for op, n in zip(operators, numbers[1:], strict=True))
    value = parse_program(f"x = {text};").values["x"]
    assert value == eval(text)


@given(st.lists(st.sampled_from(["and", "or"]), min_size=1, max_size=8), st.data())
def test_and_or_have_one_precedence_and_associate_left(operators, data):
    truths = [data.draw(st.booleans()) for _ in range(len(operators) + 1)]
    expected = truths[0]
    for operator, truth in zip(operators, truths[1:], strict=True):
        expected = expected and truth if operator == "and" else expected or truth
    text = str(truths[0]) + "".join(f" {op} {t}" for op, t in zip(operators, truths[1:], strict=True))
    assert parse_program(f"x = {text};").values["x"] is expected
