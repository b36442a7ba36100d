"""No program crashes or hangs: each limit ends in a message; random text and random programs terminate."""

import contextlib
import random

import pytest
from fuzz_programs import NASTY, program, soup
from repl_transcript import answer

from allyouneed.rasp import limits
from allyouneed.rasp.errors import RaspError, RaspLimitError
from allyouneed.rasp.loading import parse_program
from allyouneed.rasp.repl import Session

pytestmark = pytest.mark.no_shapes  # no tensors here

LONG = {
    "2^99999999;": "integer of more than 4096 bits",
    "2^4095 * 2^4095;": "integer of more than 4096 bits",
    "x = 2; for i in range(99) { x = x*x; }": "integer of more than 4096 bits",
    "9" * 5_000 + ";": "integer of 5000 digits",
    '"a" * 99999999;': "string of more than 10000 characters",
    '99999999 * "a";': "string of more than 10000 characters",
    'x = "a"; for i in range(99) { x = x + x; }': "string of more than 10000 characters",
    '"' + "a" * 20_000 + '";': "string of more than 10000 characters",
    "tokens * 99999999;": "string of more than 10000 characters",
    "indices ^ 99999999;": "integer of more than 4096 bits",
    "[1] * 99999999;": "list of more than 100000 values",
    "range(10^30);": "range of 100000 numbers or more",
    "x = [1]; for i in range(99) { x = x + x; }": "list or dict of more than 100000 values",
    "x = [1]; for i in range(99) { x = [x,x]; }": "list or dict of more than 100000 values",
    "x = 1; for i in range(999) { x = [x]; }": "more than 100 lists inside each other",
    "x = 1; for i in range(999) { x = {1:x}; }": "more than 100 lists inside each other",
    "def f(x) { return f(x+1); } f(1);": "more than 1000 functions inside each other: does f end?",
    "def f(n) { return f(n-1) + f(n-1) if n > 0 else 1; } f(99);": "this takes more than 200000 steps",
    "for i in range(9999) { for j in range(9999) { x = 1; } }": "this takes more than 200000 steps",
    "for i in range(9999) { for j in range(9999) { } }": "this takes more than 200000 steps",
    "[[1 for i in range(9999)] for j in range(9999)];": "this takes more than 200000 steps",
    "x = range(50000); for i in range(999) { y = x == range(50000); }": "this takes more than 200000 steps",
    "x = range(50000); for i in range(9999) { y = 0-1 in x; }": "this takes more than 200000 steps",
    "1" + "+1" * 20_001 + ";": "more than 20000 expressions inside each other",
    "-" * 20_001 + "1;": "more than 20000 expressions inside each other",
    "x" + "[0]" * 20_001 + ";": "more than 20000 expressions inside each other",
    "[" * 300 + "]" * 300 + ";": "more than 100 lists inside each other",
    "1;" * 60_000: "sentence of more than 100000 characters",
    'indices("a" * 9999 + "aa");': "string of more than 10000 characters",
    "indices(range(10001));": "input of 10001 elements; at most 10000 are computed",
    "set example range(10001)": "input of 10001 elements; at most 10000 are computed",
    'select(indices,indices,<)("a" * 9999);': "this takes more than 20000000 steps on an input of 9999 elements",
    '(tokens * 9999)("a" * 9999);': "this takes more than 20000000 steps on an input of 9999 elements",
}


@pytest.mark.parametrize("text", LONG, ids=lambda text: text[:40])
def test_programs_beyond_a_limit_are_refused(text):
    printed = answer(text)
    assert "\t\t!!ignoring input:\n\t " in printed
    assert LONG[text] in printed


@pytest.mark.slow
def test_a_program_has_one_budget():
    """Many sentences, each within the limits, could otherwise run for hours in total."""
    busy = "for i in range(9999) { x = i + i; }\n"
    assert parse_program("x = 0;\n" + busy * 3).values["x"] == 2 * 9998
    with pytest.raises(RaspLimitError, match=r"program.rasp:\d+: this takes more than 200000 steps"):
        parse_program("x = 0;\n" + busy * 99)


@pytest.mark.slow
def test_a_line_has_one_budget():
    busy = "for i in range(9999) { x = i + i; }"
    assert "more than 200000 steps" in answer("x = 0; " + busy * 9)
    assert answer("x = 0;", *[busy] * 9, "x;") == "    value: x =  19996\n"


def test_a_failed_sentence_does_not_use_up_the_limits_of_the_next(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    fails = "def f(n) { return 1 + f(n - 1) if n > 0 else nothing; }\n" + "f(400);\n" * 5
    (tmp_path / "a.rasp").write_text(fails + 'x = indices / 0 ("a");\nx = tokens;\n')
    printed = answer('load "a";')
    assert printed.count("Undefined variable: nothing") == 5
    assert "functions inside each other" not in printed


@pytest.mark.slow
def test_a_sentence_shares_its_budget_with_the_files_it_loads(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.rasp").write_text("x = 0;\n" + "for i in range(100) { x = x + i; }\n" * 3)
    assert answer('load "a";') == "    value: x =  14850\n"
    assert "more than 200000 steps" in answer('for i in range(9999) { load "a"; }')
    for loop in ("x = select(indices,indices,<);", "select(indices,indices,<)(range(1000));"):
        printed = answer("set example range(1000)", f"for i in range(99) {{ {loop} }}")
        assert "this takes more than 20000000 steps on an input of 1000 elements" in printed


def test_long_programs_within_the_limits_pass():
    assert parse_program("x = " + "(" * 5_000 + "1" + ")" * 5_000 + ";").values["x"] == 1
    assert parse_program("x = 1" + "+1" * 5_000 + ";").values["x"] == 5_001
    assert parse_program("def f(n) { return 0 if n == 0 else 1 + f(n-1); } x = f(900);").values["x"] == 900
    deep = parse_program("x = indices; for i in range(5000) { x = x + 1; }").sop()
    assert deep("abc") == [5_000, 5_001, 5_002]


def test_long_values_are_cut_when_shown():
    assert len(answer('set example "a" * 9999', "tokens;")) < 2 * limits.SHOWN
    assert "(9999 x 9999: not shown)" in answer('set selector example "a" * 9999', "full_s;")
    assert len(answer("x = [[i,[i]] for i in range(10000)];")) < 2 * limits.SHOWN
    assert len(answer("x = range(50000);")) < 2 * limits.SHOWN
    printed = answer("def f(x,y) { return x+y; } x = indices; for i in range(50) { x = f(x,x); }", "[x,[1]];")
    assert len(printed) < 1_000


@pytest.mark.parametrize("compat", [False, True])
@pytest.mark.parametrize("text", NASTY, ids=lambda text: text[:30])
def test_hostile_text_ends_in_a_message(text, compat):
    session = Session(lambda line: None, compat)
    for line in text.split("\n"):
        session.feed(line)


@pytest.mark.parametrize("seed", range(100))
def test_random_programs_end_in_values_or_messages(seed):
    """Uses plain seeds rather than shrinking, because each example is a whole session."""
    source = random.Random(seed)
    printed: list[str] = []
    session = Session(printed.append, compat=seed % 2 == 1)
    for _ in range(10):
        text = program(source) if source.random() < 0.7 else soup(source)
        if "load" not in text:
            for line in text.split("\n"):
                session.feed(line)
    assert printed
    assert all(isinstance(line, str) for line in printed)


def test_random_programs_mostly_have_values():
    """A generator whose programs all fail would test nothing."""
    source = random.Random(0)
    good = 0
    for _ in range(100):
        with contextlib.suppress(RaspError):
            parse_program(program(source))
            good += 1
    assert good > 15
