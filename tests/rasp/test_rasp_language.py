"""Semantics of the language: precedence, types, functions, loops, environments."""

import re

import pytest
from repl_transcript import answer, transcript

from allyouneed.rasp.errors import RaspError, RaspSyntaxError
from allyouneed.rasp.interpreter import Interpreter
from allyouneed.rasp.loading import parse_program
from allyouneed.rasp.syntax import Unfinished, parse
from allyouneed.rasp.tree import Expression
from allyouneed.rasp.values import Dict, List, NamedNode, Value

pytestmark = pytest.mark.no_shapes  # no tensors here


def value(text: str, before: str = "", compat: bool = False) -> object:
    """Return the value of an expression as plain Python."""
    interpreter = Interpreter(compat)
    for sentence in parse(before, compat) if before else ():
        interpreter.execute(sentence, interpreter.console)  # type: ignore[arg-type]
    (statement,) = parse(f"{text};", compat)
    assert isinstance(statement, Expression)
    return plain(interpreter.evaluate(statement.expr, interpreter.console))


def plain(one: Value) -> object:
    if isinstance(one, List):
        return [plain(item) for item in one]
    if isinstance(one, Dict):
        return {key: plain(item) for key, item in one.items.items()}
    return one.node("hello") if isinstance(one, NamedNode) else one


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2^3^2", 64),
        ("-2^2", 4),
        ("2^-1", 0.5),
        ("5 % 3 * 2", 5),
        ("7 - 2 - 1", 4),
        ("8 / 2 / 2", 2.0),
        ("1 + 2 * 3", 7),
        ("1 < 2 < 3", True),
        ("3 > 2 > 1", False),
        ("True or True and False", False),
        ("1 == 1 and 2 == 2", True),
        ('"p" if True else "q" if False else "r"', "r"),
        ("not 1 == 2", False),
        ("not (1 == 2)", True),
        ("not 1 in [False]", True),
        ("True and 3 in [3]", True),
        ("1 if False else 2 in [1]", False),
        ("1 if 2 in [2] else 3", 1),
        ("- - 1", 1),
        ("+1", 1),
        ("not not 3", True),
        ("-[1,2][0]", -1),
        ("[[1,2],[3]][0][1]", 2),
        ("round(2.5)", 2),
        ("round(3.5) + 1", 5),
        ("1+1 == 2", True),
        ("{1:2}[1] ^ 3", 8),
    ],
)
def test_precedence(text, expected):
    result = value(text)
    assert result == expected
    assert type(result) is type(expected)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("7/7", 1.0),
        ("True + True", 2),
        ('"ab" * 2', "abab"),
        ('"ab" + "c"', "abc"),
        ('"a" < "b"', True),
        ("True and 3", 3),
        ("0 or 4", 4),
        ("[1,2] + [3]", [1, 2, 3]),
        ("2 * [1]", [1, 1]),
        ("[1,[2]] == [1,[2]]", True),
        ("[1,2] < [1,3]", True),
        ("len([1,2])", 2),
        ('len("abc")', 3),
        ("len({1:2, True:3})", 1),
        ("{1:2, True:3}", {1: 3}),
        ("range(3)", [0, 1, 2]),
        ("range(1,6,2)", [1, 3, 5]),
        ('zip([1,2],["a","b"])', [[1, "a"], [2, "b"]]),
        ("zip({1:5,2:6},[3,4,5])", [[1, 3], [2, 4]]),
        ("[x*x for x in range(4)]", [0, 1, 4, 9]),
        ('{k : v+1 for k,v in [["a",1],["b",2]]}', {"a": 2, "b": 3}),
        ("[k for k in {1:2,3:4}]", [1, 3]),
        ("2 in [1,2]", True),
        ("[1] in [[1]]", True),
        ("1 in {1:2}", True),
        ('"b" in "abc"', True),
        ("[1,2][-1]", 2),
        ('"abc"[1]', "b"),
        ("not []", True),
        ("[]", []),
        ("{}", {}),
        ("len([])", 0),
    ],
)
def test_atoms_lists_and_dicts(text, expected):
    result = value(text)
    assert result == expected
    assert type(result) is type(expected)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("indices", [0, 1, 2, 3, 4]),
        ("tokens", list("hello")),
        ("length", [5] * 5),
        ("indices + 1", [1, 2, 3, 4, 5]),
        ('tokens == "l" and indices > 2', [False, False, False, True, False]),
        ("indices or 0", [False, True, True, True, True]),
        ("not indices", [True, False, False, False, False]),
        ("indicator(indices > 3)", [0, 0, 0, 0, 1]),
        ('"x" if indices % 2 == 1 else tokens', ["h", "x", "l", "x", "o"]),
        ("indices[2]", [2] * 5),
        ("tokens[-1]", ["o"] * 5),
        ("indices[9]", [0] * 5),
        ('"e" in tokens', [True] * 5),
        ('"z" in tokens', [False] * 5),
        ('tokens in ["h", "o"]', [True, False, False, False, True]),
        ('tokens in {"h" : 1}', [True, False, False, False, False]),
        ('tokens in "ho"', [True, False, False, False, True]),
        ("[5,6,7,8,9][indices]", [5, 6, 7, 8, 9]),
        ('"abcde"[indices]', list("abcde")),
        ('{"h":1,"e":2,"l":3,"o":4}[tokens]', [1, 2, 3, 3, 4]),
        ('aggregate(select(indices, indices - 1, ==), tokens, "-")', list("-hell")),
        ("aggregate(full_s, indices)", [2.0] * 5),
        ("aggregate(full_s, 3)", [3.0] * 5),
        ("aggregate(select(indices,0,==), True)", [True] * 5),
        ("select(indices, indices, <)", [[j < i for j in range(5)] for i in range(5)]),
        ("select(indices, 2, !=)", [[j != 2 for j in range(5)] for i in range(5)]),
        ("select(tokens, 1, ==)", [[False] * 5] * 5),
        ("not full_s or select(1,2,==)", [[False] * 5] * 5),
        ("round(indices / 3)", [0, 0, 1, 1, 1]),
        ("tokens_bool", [True] * 5),
        ("tokens_asis", list("hello")),
        ("select (1, 1, ==)", [[True] * 5] * 5),
        ("s-op", [-1, 0, 1, 2, 3]),
        ('indices("abc")', [0, 1, 2]),
        ('select(indices,indices,==)("ab")', [[True, False], [False, True]]),
        ('len(tokens("abc"))', 3),
    ],
)
def test_sops_and_selectors(text, expected):
    assert value(text, "s = indices; op = 1;") == expected


def test_the_order_of_select_is_key_query():
    assert value('aggregate(select(indices, indices + 1, ==), tokens, "-")') == list("ello-")


@pytest.mark.parametrize(
    ("before", "text", "expected"),
    [
        ("a,b = 1,2;", "[a,b]", [1, 2]),
        ("a = 1,2;", "a", [1, 2]),
        ("a,b = [1,2];", "b", 2),
        ("a,b = b_,a_; ", "a", None),
        ("a=1; b=a; a=2;", "[a,b]", [2, 1]),
        ("def f(a,b) { return a-b; }", "f(3,1)", 2),
        ("def f() { return 1,2; } x,y = f();", "[x,y,f()]", [1, 2, [1, 2]]),
        ("def f(n) { return 1 if n == 0 else n * f(n-1); }", "f(10)", 3628800),
        ("def f() { return later; } later = 5;", "f()", 5),
        ("x = 1; def f() { x = 2; return x; } y = f();", "[x,y]", [1, 2]),
        ("def f(g,x) { return g(g(x)); } def h(x) { return x*2; }", "f(h,3)", 12),
        ("def f(x) { def g(y) { return x+y; } return g; } g = f(1);", "g(2)", 3),
        ("def f(length, tokens) { return length + tokens; }", "f(1,2)", 3),
        ("a = 0; for i in range(5) { a = a + i; }", "[a,i]", [10, 4]),
        ("a = []; for k,v in [[1,2],[3,4]] { a = a + [v,k]; }", "a", [2, 1, 4, 3]),
        ("a = 0; for k in {3:1, 4:1} { for j in [1,2] { a = a + k*j; } }", "a", 21),
        ("x = 7; y = [x for x in range(3)];", "x", 7),
        ("x = 3 + 4;", "out", 7),
        ("x = 3; x; 1 + 1; y = out;", "y", 2),
        ("tokens = tokens_asis;", "tokens", list("hello")),
        ("x = True if 1 < 2 else nonsense;", "x", True),
        ("a = 1; # a comment; b = 2;\nb = 3;", "[a,b]", [1, 3]),
        ("a = 1 + # a comment\n2;", "a", 3),
        ('a = "# no comment";', "a", "# no comment"),
    ],
)
def test_statements(before, text, expected):
    if expected is None:
        with pytest.raises(RaspError, match="Undefined variable: b_"):
            value(text, before)
    else:
        assert value(text, before) == expected


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x", "Error: Undefined variable: x"),
        ("out", "Error: Undefined variable: out"),
        ("f(1)", "wrong number of args for f- expected: 2, got: 1."),
        ("f(1,2,3)", "wrong number of args for f- expected: 2, got: 3."),
        ("indices(1,2)", "wrong number of args for indices- expected: 1, got: 2."),
        ("aggregate(tokens, tokens)", "Expected selector, got: tokens"),
        ("aggregate(3, tokens)", "Expected selector, got: 3"),
        ("aggregate(full_s, full_s)", "Expected s-op or atom, got: full_s"),
        ("aggregate(full_s, tokens, tokens)", "Expected atom, got: tokens"),
        ("select(full_s, 1, ==)", "Expected s-op or atom, got: full_s"),
        ("full_s + 1", "Cannot apply + to selector(s)"),
        ("1 == full_s", "Cannot apply == to selector(s)"),
        ("-full_s", "Cannot apply - to selector(s)"),
        ("round(full_s)", "Cannot apply round to selector(s)"),
        ("full_s and tokens", "Cannot apply and/or between selector and non-selector"),
        ("indicator(3)", "Expected s-op, got: 3"),
        ("indices + [1]", "Expected s-op or atom, got: (list)"),
        ("{[1] : 2}", "Expected atom, got: (list)"),
        ("tokens[indices]", "index into sequence has to be integer, got: indices"),
        ('tokens["a"]', 'index into sequence has to be integer, got: "a"'),
        ("[1][1]", "index 1 out of range for list of length 1"),
        ('"a"[-2]', "index -2 out of range for string of length 1"),
        ("[1][indices]", "index 1 out of range for list of length 1"),
        ("{1:2}[3]", "index [ 3 ] not in dict."),
        ("{1:f}[indices]", "Expected atom, got: f"),
        ("[f][indices]", "Expected atom, got: f"),
        ("f[0]", "Expected s-op, list, dict or string before [], got: f"),
        ("full_s[0]", "Cannot apply [] to selector(s), got: full_s"),
        ("tokens in tokens", "Expected atom, got: tokens"),
        ("tokens in 3", "Expected list or dict, got: 3"),
        ("1 in f", "Expected s-op, list or dict, got: f"),
        ("1 if full_s else 2", "Expected atom or s-op as a condition, got: full_s"),
        ("[x for x in 3]", "for loop needs to iterate over a list or dict, but got: 3"),
        ("[x for x,y in [[1,2,3]]]", "expected 2 values, but got: 3"),
        ("[x for x,y in [1]]", "expected 2 values, but got: 1"),
        ("[x for indices in [1]]", "Error: Cannot set reserved name: indices"),
        ('tokens("")', "RASP sequences/selectors expect non-empty iterables, got: "),
        ("tokens([])", "RASP sequences/selectors expect non-empty iterables, got: []"),
        ("tokens(3)", "RASP sequences/selectors expect non-empty iterables, got: 3"),
        ("tokens(f)", "RASP sequences/selectors expect non-empty iterables, got: f"),
        ("len(1,2)", "wrong number of args for len- expected: 1, got: 2."),
        ("tokens_asis([[1,2]])", "vals must be bool, float, int or string"),
        ('1 if indices == 1 else "a"', "attempted to create sequence with vals of different types:"),
    ],
)
def test_a_mistake_is_named(text, words):
    printed = answer("def f(a,b) { return a; }", f"{text};")
    assert printed.startswith("\t\t!!ignoring input:\n\t ")
    assert words in printed


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("1/0", "division by zero"),
        ("1/indices", "division by zero"),
        ('1 + "a"', "unsupported operand type(s) for +: 'int' and 'str'"),
        ("range(7)+6", 'can only concatenate list (not "int") to list'),
        ("6+range(7)", "unsupported operand type(s) for +: 'int' and 'list'"),
        ("[1] - [1]", "unsupported operand type(s) for -: 'list' and 'list'"),
        ("[1] < 2", "'<' not supported between instances of 'list' and 'int'"),
        ('1 < "a"', "'<' not supported between instances of 'int' and 'str'"),
        ("len(1)", "object of type 'int' has no len()"),
        ("range(1.5)", "'float' object cannot be interpreted as an integer"),
        ("range()", "range expected at least 1 argument, got 0"),
        ("zip(1)", "'int' object is not iterable"),
        ("-[1]", "bad operand type for unary -: 'list'"),
        ("round(f)", "bad operand type for round: 'function'"),
        ('-"a"', "bad operand type for unary -: 'str'"),
        ("f + 1", "unsupported operand type(s) for +: 'function' and 'int'"),
        (
            "aggregate(full_s, tokens)",
            "asked to average multiple values, but they are non-numbers: ['h', 'e', 'l', 'l', 'o']",
        ),
        ("select(tokens, 1, <)", "'<' not supported between instances of 'str' and 'int'"),
        ("tokens_int", "invalid literal for int() with base 10: 'h'"),
        ("1 in 2", "argument of type 'int' is not iterable"),
        ('"%s" % 1', "unsupported operand type(s) for %: 'str' and 'int'"),
        ("(-8)^0.5", "-8 ^ 0.5 is not a real number"),
        ("10.0^400", "(34, 'Numerical result out of range')"),
    ],
)
def test_operations_that_fail_in_python_are_refused(text, words):
    assert answer("def f(a,b) { return a; }", f"{text};") == f"something went wrong: {words}\n"


@pytest.mark.parametrize("text", ["1(2)", "[1](2)", '"a"("b")', "{}()", "x = 1(2)"])
def test_calling_a_value_that_is_not_a_function_is_refused(text):
    assert answer(f"{text};") == "not implemented this command yet! ignoring\n"


SYNTAX_ERRORS = """
    if;     ;       1 = 2;    x y;         f(;       def f() { x = 1; }    def f() { return 1; x = 2; }
    1.;     .5;     'a';      1e5;         a != b;   select(1,2,in);       for x in [1];    return 1;    def if() {
    x[];    {1};    [1,];     §;           load x;   1 +* 2;               [x for x in y if z];
    on;     a,b;    set = 1;  for 1 in x { draw;     f(a)(;                "a
"""


@pytest.mark.parametrize("text", re.split(r"\s{2,}", SYNTAX_ERRORS.strip()))
def test_syntax_errors_are_ignored_with_a_message(text):
    with pytest.raises(RaspSyntaxError) as caught:
        parse(text)
    assert not isinstance(caught.value, Unfinished)
    printed = transcript(*text.split("\n"))
    assert "\t!! antlr exception: mismatched input " in printed
    assert printed.count(" \t-- ignoring input\n") == printed.count("antlr")


@pytest.mark.parametrize(
    "text", ["", "# c", "1", "1 +", "def f() {", "for x in y { a = 1;", "f(", "x = {", 'load "x"', "set"]
)
def test_incomplete_sentences_wait_for_more(text):
    with pytest.raises(Unfinished):
        parse(text)
    assert transcript(text) == ">> .. " + "  " * text.count("def") + "\n"


def test_reserved_names():
    for name in (
        "indices",
        "tokens_int",
        "True",
        "False",
        "out",
        "range",
        "zip",
        "len",
        "get",
        "length",
        "sort",
        "full_s",
    ):
        assert answer(f"{name} = 1;") == f"\t\t!!ignoring input:\n\t Error: Cannot set reserved name: {name}\n"
        assert answer(f"x,{name} = 1,2;", "x;").endswith("Undefined variable: x\n")
    assert answer("def indices() { return 1; }").endswith("Cannot set reserved name: indices\n")
    assert answer("def f(indices) { return 1; }").endswith("Cannot set reserved name: indices\n")
    assert answer("for out in [1] { x = 1; }").endswith("Cannot set reserved name: out\n")
    assert answer("def f(length) { sort = length; return sort; }", "f(3);") == "    value: out =  3\n"
    assert answer("def f() { indices = 1; return 1; }", "f();").endswith("Cannot set reserved name: indices\n")


def test_values_that_fail_on_the_example_are_not_assigned():
    assert answer("x = 1/indices;", "x;").endswith("Undefined variable: x\n")
    assert answer("x = tokens_int;", "x;").endswith("Undefined variable: x\n")
    assert answer("x = [tokens_int, 1];", "x;").endswith("Undefined variable: x\n")
    assert answer('set example "12"', "x = tokens_int;") == '     s-op: x\n \t Example: x("12") = [1, 2] (ints)\n'
    assert answer('tokens_int("34");') == "\t =  [3, 4] (ints)\n"
    assert answer('(tokens_int + 1)([3,"4"]);') == "\t =  [4, 5] (ints)\n"


def test_a_program_is_not_run_on_an_example_and_errors_name_their_line():
    program = parse_program('numbers = tokens_int;\n_hidden = 1;\nset example "12"\nnumbers("1");\nlast = numbers * 2;')
    assert list(program.values) == ["numbers", "last"]
    assert program.sop()([3, "4"]) == [6, 8]
    assert program.sop("numbers")("12") == [1, 2]
    for text, words in (
        ("a = 1;\n\nb =\n  c;", r"^program.rasp:3: Error: Undefined variable: c$"),
        ("a = 1;\nb = ;", r"^program.rasp:2: mismatched input ';'"),
        ("a = 1;\n# x\nb = 1 +", r"^program.rasp:3: unexpected end of the text$"),
        ('load "nowhere";', r"^program.rasp:1: could not find file: nowhere.rasp$"),
    ):
        with pytest.raises(RaspError, match=words):
            parse_program(text)
    with pytest.raises(RaspError, match="no s-op 'x'; it defines numbers, last"):
        program.sop("x")
    with pytest.raises(RaspError, match="defines no public s-op"):
        parse_program("a = 1;").sop()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("select(tokens,tokens,=);", "'=' expecting {a comparison ('==', '!=', '<', '>', '<=', '>=')}"),
        ("x = ;", "';' expecting {an expression}"),
        ("x = 1 1;", "'1' expecting {an operator, '(', ',', ';', '['}"),
        ("aggregate(full_s);", "')' expecting {an operator, '(', ',', '['}"),
        ("x = [1,\n2;", "';' in line 2 of the sentence expecting {an operator, '(', ',', '[', ']'}"),
        ("examples up", "'up' expecting {'on', 'off'}"),
        ("tokens $ 1;", "'$' expecting {an operator, '(', ',', ';', '=', '['}"),
        ("def f(x) { return 1 }", "'}' expecting {an operator, '(', ',', ';', '['}"),
    ],
)
def test_a_parser_error_summarizes_what_was_expected(text, expected):
    with pytest.raises(RaspSyntaxError) as caught:
        parse(text)
    assert str(caught.value) == f"mismatched input {expected}"
