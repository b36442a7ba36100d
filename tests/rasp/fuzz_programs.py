"""Random RASP: sentences of the grammar, and token soup. Used by the tests and by tests/faults/fuzz_rasp.py."""

from collections.abc import Callable
from random import Random

NAMES = [
    "a",
    "b",
    "c",
    "tokens",
    "indices",
    "length",
    "full_s",
    "f",
    "selector_width",
    "sort",
    "True",
    "out",
    "x_1",
    "_p",
]
ATOMS = ["0", "1", "2", "7", "0.5", '"a"', '""', '"hello"', "True", "False", "99", "1000000"]
OPERATORS = ["+", "-", "*", "/", "%", "^", "==", "<", ">", "<=", ">=", "and", "or", "in"]
COMPARISONS = ["==", "!=", "<", ">", "<=", ">="]
WORDS = [
    *NAMES,
    *ATOMS,
    *OPERATORS,
    *COMPARISONS,
    *"()[]{},;:=",
    *[
        "if",
        "else",
        "not",
        "for",
        "def",
        "return",
        "round",
        "indicator",
        "set",
        "show",
        "example",
        "examples",
        "on",
        "off",
    ],
    "s-op",
    *[
        "selector",
        "draw",
        "exit",
        "select(",
        "aggregate(",
        "range(",
        "zip(",
        "len(",
        "full seq display",
        "#",
        '"',
        "\n",
    ],
    *["\t", "§", "\x00", "1.", ".5", "'", "\\", "@", "!=", "s-", "-op", "9" * 50, "exit()", "quit"],
]
NASTY = [
    "(" * 20_000,
    "[" * 20_000,
    "{1:" * 5_000,
    "not " * 5_000 + "1;",
    "f(" * 9_000 + ";",
    "1 if " * 5_000 + "1;",
    "def f() { " * 3_000,
    "for i in [1] { " * 2_000 + "}" * 2_000,
    "(\n" * 5_000,
    "a=1;\n" * 500,
    '"' * 9_999,
    "#" * 99_999,
    "\n" * 2_000,
    "\x00\x01\x02\ud800;",
    "\u202eindices;",
    "x" * 99_998 + ";",
    "x = " + "1," * 5_000 + "1;",
    "a" + ",a" * 5_000 + " = 1;",
    "f(" + "1," * 5_000 + "1);",
    'x = "' + "é" * 9_000 + '"; tokens(x);',
    "a = indices; for i in range(1000) { a = a + a; }",
    "a = indices; for i in range(1000) { a = a * 1.5; }",
    "a = full_s; for i in range(1000) { a = a and not a; }",
    "def f(g) { return g(g); } f(f);",
    "f = 1; def f() { return f; } a = f(); a = a(); a();",
    "x = {i : {j : i*j for j in range(100)} for i in range(100)}; x;",
    "x = [indices + i for i in range(300)]; x;",
    'tokens_int("9" * 4000);',
    'tokens_int(["9" * 4000]);',
    'tokens_float(["9" * 4000, "nan", "inf"]); tokens_int(["nan"]);',
    'a = tokens_float(["nan", "inf", "-inf"]); a; a[0] < a[1]; round(a[1]); {a[0] : 1}[a[0]];',
    'b = tokens_float; (b * 0)(["inf"]); sort(b,b)(["nan","1","nan"]); round(b)(["nan"]);',
    "set example [True, 1, 1.0, 0]\ntokens_asis; select(tokens_asis,tokens_asis,==);",
    "full seq display on\nset example [1.5,True]\ntokens_asis == 1; tokens_asis;",
    "0^-1; 0.0^-1; (-1)^0.5; 10.0^10.0^10.0; 1/0; 1%0; 5.5%0; (2^4000)/1.5; (2^4000)*1.5;",
    "round(10.0^300)*round(10.0^300)*round(10.0^300)*round(10.0^300)*round(10.0^300);",
    '2^0.5^2^-3; True^True; -True; +True; round(True); not ""; [1]*-5; "a"*-5; range(5,0); range(0,5,0);',
    "aggregate(full_s, 2^4000); aggregate(full_s, (2^4000)*indices);",
    '[x for x in [1] + [[2]]]; [x for x,y in zip([1],[2])]; zip(); len({}); {}[1]; [][0]; ""[0]; {}(1); [](1);',
    "exit\nexit()\nquit\n1;",
    "show example\nshow selector example\nexamples on\nselector examples on\nset selector example [1]\nfull_s;",
]


def program(source: Random) -> str:
    """Return a few random statements of the grammar."""
    return "\n".join(_statement(source, 2) for _ in range(source.randint(1, 4)))


def soup(source: Random) -> str:
    """Return random tokens in any order."""
    return " ".join(source.choice(WORDS) for _ in range(source.randint(1, 40)))


def _statement(source: Random, depth: int) -> str:
    name = source.choice(["a", "b", "c", "x_1", "_p"])
    kinds: list[Callable[[], str]] = [
        lambda: f"{name} = {_expr(source, 3)};",
        lambda: f"{name} = {_sop(source, 3)};",
        lambda: f"{name} = {_selector(source, 2)};",
        lambda: f"{_sop(source, 3)};",
        lambda: f'({_sop(source, 2)})("{source.choice(["ab", "hello", "121"])}");',
    ]
    if depth:
        kinds += [
            lambda: f"a,b = {_expr(source, 2)},{_sop(source, 2)};",
            lambda: f"def f(a,b) {{ {_statement(source, depth - 1)} return {_sop(source, 2)}; }}",
            lambda: f"for a in range({source.randint(0, 5)}) {{ {_statement(source, depth - 1)} }}",
            lambda: f"for a,b in [[1,{_expr(source, 1)}]] {{ {_statement(source, depth - 1)} }}",
            lambda: f"draw({_sop(source, 2)});",
        ]
    return source.choice(kinds)()


def _expr(source: Random, depth: int) -> str:
    """Return a random expression of any type."""
    if depth == 0:
        return source.choice(NAMES + ATOMS)
    inner = depth - 1
    kinds: list[Callable[[], str]] = [
        lambda: f"({_expr(source, inner)} {source.choice(OPERATORS)} {_expr(source, inner)})",
        lambda: f"{_expr(source, inner)} if {_expr(source, inner)} else {_expr(source, inner)}",
        lambda: f"[{_expr(source, inner)},{_expr(source, inner)}]",
        lambda: f"{{{_expr(source, 0)} : {_expr(source, inner)}}}",
        lambda: f"[{_expr(source, inner)} for c in [{_expr(source, inner)}]]",
        lambda: f"({_expr(source, inner)})[{_expr(source, inner)}]",
        lambda: f"{source.choice(NAMES)}({_expr(source, inner)})",
        lambda: f"{source.choice(['-', 'not ', '+'])}{_expr(source, inner)}",
        lambda: f"{source.choice(['round', 'indicator', 'len', 'range', 'zip'])}({_expr(source, inner)})",
        lambda: _sop(source, inner),
        lambda: _selector(source, inner),
    ]
    return source.choice(kinds)()


def _sop(source: Random, depth: int) -> str:
    """Return a random expression that is usually an s-op."""
    if depth == 0:
        return source.choice(["tokens", "indices", "length", "indices", "tokens_asis", "0", "1", '"a"'])
    inner = depth - 1
    kinds: list[Callable[[], str]] = [
        lambda: f"({_sop(source, inner)} {source.choice(OPERATORS[:-1])} {_sop(source, inner)})",
        lambda: f"aggregate({_selector(source, inner)}, {_sop(source, inner)}, {source.choice(ATOMS)})",
        lambda: f"selector_width({_selector(source, inner)})",
        lambda: f"({_sop(source, inner)} if {_sop(source, inner)} else {_sop(source, inner)})",
        lambda: f"indicator({_sop(source, inner)} == {_sop(source, inner)})",
        lambda: f"({_sop(source, inner)})[{source.randint(-3, 3)}]",
        lambda: f"sort({_sop(source, inner)}, indices)",
        lambda: f"(tokens in [{_sop(source, 0)}])",
    ]
    return source.choice(kinds)()


def _selector(source: Random, depth: int) -> str:
    if depth <= 0:
        return f"select({_sop(source, 0)}, {_sop(source, 0)}, {source.choice(COMPARISONS)})"
    if source.random() < 0.5:
        return f"select({_sop(source, depth - 1)}, {_sop(source, depth - 1)}, {source.choice(COMPARISONS)})"
    if source.random() < 0.3:
        return f"(not {_selector(source, depth - 1)})"
    return f"({_selector(source, depth - 1)} {source.choice(['and', 'or'])} {_selector(source, depth - 1)})"
