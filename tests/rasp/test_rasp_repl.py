"""The exact output of the REPL, and the quirks of the published REPL that --compat keeps."""

import pytest
from repl_transcript import answer, transcript

from allyouneed.rasp.graph import SOp
from allyouneed.rasp.repl import Session, error_message, run
from allyouneed.rasp.syntax import Reader

pytestmark = pytest.mark.no_shapes  # no tensors here
HELLO = ' \t Example: {name}("hello") = {values}\n'


def sop(name: str, values: str) -> str:
    return f"     s-op: {name}\n" + HELLO.format(name=name, values=values)


# --- values ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compat", [False, True])
@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("indices;", sop("indices", "[0, 1, 2, 3, 4] (ints)")),
        ("tokens;", sop("tokens", "[h, e, l, l, o] (strings)")),
        ("length;", sop("length", "[5]*5 (ints)")),
        ("indices+1;", sop("out", "[1, 2, 3, 4, 5] (ints)")),
        ("x = indices+1;", sop("x", "[1, 2, 3, 4, 5] (ints)")),
        ("indices/3;", sop("out", "[0.0, 0.333, 0.667, 1.0, 1.333] (floats)")),
        ("1 if indices == 0 else 0.5;", sop("out", "[1, 0.5, 0.5, 0.5, 0.5] (floats)")),
        ('tokens == "l";', sop("out", "[F, F, T, T, F] (bools)")),
        ("tokens == tokens;", sop("out", "[T]*5 (bools)")),
        ("selector_width(select(tokens,tokens,==));", sop("out", "[1, 1, 2, 2, 1] (ints)")),
        ("3;", "    value: out =  3\n"),
        ('a = "x";', '    value: a =  "x"\n'),
        ("True;", "    value: True =  True\n"),
        ("1/3;", f"    value: out =  {1 / 3}\n"),
        ("a,b = 1,indices;", "    value: a =  1\n" + sop("b", "[0, 1, 2, 3, 4] (ints)")),
        ('[1,"a",True];', "     list: out = [1, 'a', True]\n"),
        ("a = [];", "     list: a = []\n"),
        ('{"a":1};', "     dict: out = {'a': 1}\n"),
        ("def f(a, b) { return a; }", "     console function: f(a, b)\n"),
        ("def f() { return 1; }", "     console function: f()\n"),
        ('indices("ab");', "\t =  [0, 1] (ints)\n"),
        ('indices(["ab", "c"]);', "\t =  [0, 1] (ints)\n"),
        ('tokens({"k":1, "l":2});', "\t =  [k, l] (strings)\n"),
        ('indices("a");', "\t =  [0] (ints)\n"),
        ('full_s("ab");', "\t = \n \t\t\t     a b\n \t\t\t a | 1 1\n \t\t\t b | 1 1\n"),
        ("draw(indices);", "\t =  [0, 1, 2, 3, 4] (ints)\n"),
        ('draw(indices,"ab");', "\t =  [0, 1] (ints)\n"),
        (
            "select(indices,indices,<);",
            "     selector: out\n \t Example:\n \t\t\t     h e l l o\n \t\t\t h |          \n \t\t\t e | 1        \n"
            " \t\t\t l | 1 1      \n \t\t\t l | 1 1 1    \n \t\t\t o | 1 1 1 1  \n",
        ),
        ("for i in [1,2] { x = i; x; }", ""),
        ("[indices, 1, f];", "\t\t!!ignoring input:\n\t Error: Undefined variable: f\n"),
    ],
)
def test_a_value_is_printed_as_published(text, printed, compat):
    assert answer(text, compat=compat) == printed


def test_nested_lists_and_dicts_are_printed_one_item_a_line():
    assert answer('{"a" : select(1,1,==), "b" : indices};') == (
        '     dict: out =  {\n\t\t\t "a" :     selector: plain select\n\t\t\t "b" :     s-op: indices\n'
        "                 }\n"
    )
    before = "def found(item, how) { return indices; }"
    assert answer(before, 'd = {k : found(k, "<") for k in ["a","b"]};') == (
        '     dict: d =  {\n\t\t\t "a" :     s-op: found("a" , "<")\n\t\t\t "b" :     s-op: found("b" , "<")\n'
        "               }\n"
    )
    assert answer(
        "x = [indices + 1, [1, 2], [[3], found], {1:2}, 5];",
    ).startswith("\t\t!!ignoring")
    assert answer(before, "x = [indices + 1, [1, 2], [[3], found], {1:2}, 5];") == (
        "     list: x =  [\n\t\t     s-op: s-op\n\t\t [1, 2]\n\t\t [\n\t\t\t\t [3]\n"
        "\t\t\t\t     console function: found(item, how)\n\t\t ]\n\t\t {1: 2}\n\t\t 5\n               ]\n"
    )


def test_wide_tokens_keep_the_columns():
    assert answer('select(tokens,tokens,==)(["ab","c"]);') == (
        "\t = \n \t\t\t      ab  c\n \t\t\t ab |  1   \n \t\t\t  c |     1\n"
    )


def test_full_seq_display():
    on = "full seq display on"
    assert answer(on, 'tokens("ab");') == "\t = \n \t\tinput:   a b \t (strings)\n \t\toutput:  a b \t (strings)\n"
    assert answer(on, 'length("ab");') == "\t =   [2]*2 (ints) [skipped full display: identical values]\n"
    assert answer(on, 'indices("a");') == "\t =   [0] (ints) [skipped full display: identical values]\n"
    assert answer(on, '(tokens == "a")("abc");').endswith(" \t\toutput:  T     \t (bools)\n")
    assert answer(on, '(tokens == "a")("aac");').endswith(" \t\toutput:      F \t (bools)\n")
    assert answer(on, '(tokens == "a")("ac");').endswith(" \t\toutput:  T F \t (bools)\n")
    assert answer(on, "(indices+9)([1,2]);") == "\t = \n \t\tinput:    1  2 \t (ints)\n \t\toutput:   9 10 \t (ints)\n"
    assert answer(on, 'indices(["a",3]);').startswith("\t = \n \t\tinput:   a 3 \t (mixed)\n")
    assert answer(on, "indices;").startswith('     s-op: indices\n \t Example: indices("hello") = \n \t\tinput:   h e')
    assert answer(on, "full seq display off", 'indices("ab");') == "\t =  [0, 1] (ints)\n"


# --- commands --------------------------------------------------------------------------------------------------------


def test_the_banner():
    printed: list[str] = []
    run(Session(printed.append), lambda prompt: "exit")
    assert printed == ["RASP 0.1", "running example is: hello"]


@pytest.mark.parametrize("word", ["exit", "quit", "exit()", "quit()"])
def test_words_that_exit(word):
    assert transcript("1;", word, "2;") == ">>     value: out =  1\n>> "


def test_examples():
    assert answer("examples off", "indices;") == "     s-op: indices\n"
    assert answer("examples off", "full_s;") == "     selector: full_s\n"
    assert answer("examples off", "examples on", "indices;") == sop("indices", "[0, 1, 2, 3, 4] (ints)")
    assert answer("selector examples off", "full_s;") == "     selector: full_s\n"
    assert answer("selector examples off", "length;") == sop("length", "[5]*5 (ints)")
    assert answer("s-op examples off", "length;") == "     s-op: length\n"
    assert answer('set example "ab"', "length;") == '     s-op: length\n \t Example: length("ab") = [2]*2 (ints)\n'
    assert (
        answer("set example [1, 2]", "indices;") == "     s-op: indices\n \t Example: indices([1, 2]) = [0, 1] (ints)\n"
    )
    assert answer('set selector example "ab"', "length;") == sop("length", "[5]*5 (ints)")
    assert answer('set selector example "ab"', "full_s;").count("|") == 2
    assert answer('set s-op example "ab"', "full_s;").count("|") == 5
    assert (
        answer('set s-op example "ab"', "show example") == '     s-op example: "ab"\n     selector example: "hello"\n'
    )
    assert answer("show s-op example") == '     s-op example: "hello"\n'
    assert answer('set example ""').endswith("RASP sequences/selectors expect non-empty iterables, got: \n")
    assert answer("set example 3").endswith("RASP sequences/selectors expect non-empty iterables, got: 3\n")
    assert answer('x = "abc";', 'set example x + "d"', "length;").endswith('length("abcd") = [4]*4 (ints)\n')


def test_a_selector_that_fails_only_when_shown():
    lines = ('set s-op example "12"', 'set selector example ["a", 3]', "select(tokens_asis, 1, ==);")
    assert answer(*lines) == (
        "     selector: out\n\t!!statement executed, but result fails on evaluation:\n"
        "\t\t attempted to create sequence with vals of different types:\n\t\t ['a', 3]\n"
    )


def test_prompts():
    assert transcript("", "1;") == ">> .. " + "    value: out =  1\n>> \n"
    assert transcript("# nothing", "", "1;") == ">> .. .. " + "    value: out =  1\n>> \n"
    assert transcript("indices+", "", "4;") == ">> .. .. " + sop("out", "[4, 5, 6, 7, 8] (ints)") + ">> \n"
    assert transcript("def f(a) {", "def g(b) {", "return b; }", "return g(a); }") == (
        ">> ..   ..     ..          console function: f(a)\n>> \n"
    )
    assert transcript("for i in [1] {", "x = i;", "}") == ">> .. .. >> \n"
    assert transcript("x = 1 +", "if;", "x;").count("!!") == 2


def test_interrupting_drops_the_sentence():
    printed: list[str] = []
    lines = iter(["def f() {", KeyboardInterrupt, "1;", "exit"])

    def read(prompt: str) -> str:
        printed.append(prompt)
        line = next(lines)
        if not isinstance(line, str):
            raise line
        return line

    run(Session(printed.append), read)
    assert printed[2:] == [">> ", "..   ", "", ">> ", "    value: out =  1", ">> "]


def test_several_sentences_on_a_line():
    assert answer("a = 1; b = 2;") == "    value: a =  1\n    value: b =  2\n"
    assert answer("a = 1;; b = 2;").startswith("\t!! antlr exception: mismatched input ';'")
    assert answer("a = 1;; b = 2;", "a;").endswith("Undefined variable: a\n")


# --- files -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def write(**files: str) -> None:
        for name, text in files.items():
            (tmp_path / f"{name}.rasp").write_text(text, encoding="utf-8")

    return write


def test_loading_prints_each_name_once_in_the_order_of_last_assignment(folder):
    folder(a='x=4;\nx=x+5;\n_p=1; y=3;\nx=x+y+_p;\nx(1);\ndef f(n) { return _p+n; }\nz = indices;\nz("ab"); z;')
    assert answer('load "a";') == (
        "    value: y =  3\n    value: x =  13\nnot implemented this command yet! ignoring\n"
        "     a function: f(n)\n     s-op: z\n"
    )
    assert answer('load "a";', "f(1);") == "    value: out =  2\n"
    assert answer('load "a";', "_p;").endswith("Undefined variable: _p\n")


def test_files_do_not_see_other_names_and_continue_after_errors(folder):
    folder(a='a=f;\na=3;\nload "b";\nc=b;\nd=_b;\n_a=4;\ne=_a;', b="g=f;\n# nothing\nb=7;\n_b = 8;\n_c=a;\nx = 1 +")
    undefined = "\t\t!!ignoring input:\n\t Error: Undefined variable: {}\n"
    assert answer("f=10;", 'load "a";') == (
        undefined.format("f")
        + "    value: a =  3\n"
        + undefined.format("f")
        + "    value: b =  7\n"
        + undefined.format("a")
        + "\t!! antlr exception: unexpected end of the text \t-- ignoring input\n    value: c =  7\n"
        + undefined.format("_b")
        + "    value: e =  4\n"
    )


def test_commands_in_files(folder):
    folder(a='set example "ab"\nexamples off\nx = indices;\nexit\ny = 1;', b='def f() { load "a"; return x; }')
    assert answer('load "a";', "length;") == '     s-op: length\n \t Example: length("ab") = [2]*2 (ints)\n'
    assert answer('load "a";', "y;").endswith("Undefined variable: y\n")
    assert answer('load "b";', "f();").endswith('out("ab") = [0, 1] (ints)\n')


def test_missing_and_unreadable_files_are_reported(folder, tmp_path):
    folder(a='load "a";', c="x = 1;")
    (tmp_path / "d.rasp").mkdir()
    (tmp_path / "e.rasp").write_bytes(b"\xff\xfe")
    missing = "\t\t!!ignoring input:\n\t could not find file: {}.rasp\n"
    for name in ("nix", "d", "\0", "x" * 5000):
        assert answer(f'load "{name}";') == missing.format(name)
    assert "more than 20 files that load each other: does a load itself?" in answer('load "a";')
    assert "not UTF-8 text: e.rasp" in answer('load "e";')
    (tmp_path / "f.rasp").write_text("#" * 600_000)
    assert "file of more than 500000 bytes: f.rasp" in answer('load "f";')


# --- quirks of --compat -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lines", "fixed", "published"),
    [
        (["select (1,1,==);"], "     selector: out\n \t Example:", "\t!! antlr exception: mismatched input '=="),
        (["s,op = 5,3;", "x = s-op;"], "    value: x =  2\n", "\t!! antlr exception: mismatched input 's-op'"),
        (["a = 1; b = 2;"], "    value: a =  1\n    value: b =  2\n", "something went wrong: \n"),
        (["True if indices == 0 else 2;"], sop("out", "[1, 2, 2, 2, 2] (ints)"), sop("out", "[T, 2, 2, 2, 2] (ints)")),
        (['x = indices("ab");'], "     list: x = [0, 1]\n", "not implemented this command yet! ignoring\n"),
        (["tokens_asis([1]);", "tokens_asis([True]);"], "\t =  [T] (bools)\n", "\t =  [1] (ints)\n"),
        (
            ["a = indices;", "[indices, [1]];"],
            "     list: out =  [\n\t\t     s-op: indices\n",
            "     list: out =  [\n\t\t     s-op: a\n",
        ),
        (["x = 1 + # one", "2;"], "    value: x =  3\n", ".. "),
        (
            ["selector_width;"],
            "     rasplib function: selector_width(sel)\n",
            "     RASP_support/rasplib function: selector_width",
        ),
        (
            ["full seq display on", "indices([5,6]);"],
            "\t = \n \t\tinput:   5 6 \t (ints)",
            "\t = \n \t\tinput:   5 6 \t (strings)",
        ),
    ],
)
def test_published_quirks(lines, fixed, published):
    assert answer(*lines).startswith(fixed)
    assert answer(*lines, compat=True).startswith(published)


def test_in_files_a_comment_never_hides_the_next_line(folder):
    folder(a="x = 1 + # one\n2;")
    assert answer('load "a";', compat=True) == "    value: x =  3\n"


def test_whole_comment_lines_are_ignored_with_compat():
    assert answer("# one", "x = 1;", compat=True) == "    value: x =  1\n"
    assert answer("x = 1 +", "# one", "2;", compat=True) == answer("x = 1 +", "2;")


# --- hooks -----------------------------------------------------------------------------------------------------------


def test_draw_calls_its_hook():
    drawn: list[object] = []
    session = Session(drawn.append, draw=lambda named, inputs, names: drawn.append((named.title, named.node, inputs)))
    session.feed('x = indices + 1; draw(x, "ab");')
    (title, node, inputs), line = drawn[-2:]  # type: ignore[misc]
    assert (title, inputs, line) == ("x", "ab", "\t =  [1, 2] (ints)")
    assert isinstance(node, SOp)


def test_every_line_is_read_once():
    reader = Reader()
    assert reader.feed("def f() {") is None
    for _ in range(2_000):
        assert reader.feed("x = 1;") is None
    (definition,) = reader.feed("return x; }") or ()
    assert len(definition.body) == 2_000  # type: ignore[union-attr]


def test_every_error_has_a_message():
    from allyouneed.rasp import errors

    assert error_message(errors.RaspError("m")) == "\t\t!!ignoring input:\n\t m"
    assert error_message(errors.RaspLimitError("m")) == "\t\t!!ignoring input:\n\t m"
    assert error_message(errors.RaspFailure("m")) == "something went wrong: m"
    assert error_message(errors.RaspSyntaxError("m")) == "\t!! antlr exception: m \t-- ignoring input"
    assert error_message(errors.RaspUnsupported("m")) == "not implemented this command yet! ignoring"
