"""Parses RASP text into a tree of sentences. The grammar is `grammar.lark`; `_TreeBuilder` converts its rules.

The parser keeps its own stack, so brackets may be nested arbitrarily deep. Text arrives line by line, as in a REPL:
after each line the sentence is complete, unfinished or wrong.

Differs from the published language: `select (` may have a space, and s-op is s minus op unless "example" follows. With
`compat` both are single tokens, as published.
"""

import re
from collections.abc import Sequence
from copy import copy
from functools import cache
from importlib.resources import files
from typing import Any, Final

from lark import Lark, Token, Transformer, UnexpectedCharacters, UnexpectedInput, UnexpectedToken, v_args
from lark.parsers.lalr_interactive_parser import InteractiveParser

from allyouneed.rasp import limits
from allyouneed.rasp import tree as t
from allyouneed.rasp.errors import RaspLimitError, RaspSyntaxError


class Unfinished(RaspSyntaxError):
    """The text ends inside a sentence."""


_SIGNS: Final = {"-": "neg", "+": "pos"}


@v_args(inline=True)
class _TreeBuilder(Transformer[Token, Any]):
    """Builds the tree bottom-up: the parser calls it for each rule as soon as that is complete."""

    @v_args(inline=False)
    def start(self, sentences: list[Any]) -> list[t.Sentence]:
        return [sentence for sentence in sentences if sentence is not None]

    @v_args(inline=False)
    def several(self, parts: list[Any]) -> tuple[Any, ...]:
        return tuple(parts)

    block = exprs = pairs = pair = several

    @v_args(inline=False)
    def names(self, parts: list[Token]) -> tuple[str, ...]:
        return tuple(map(str, parts))

    expression, assign, loop, draw = t.Expression, t.Assign, t.Loop, t.Draw

    def define(
        self, name: Token, parameters: tuple[str, ...] | None, body: tuple[t.Statement, ...], results: t.Exprs
    ) -> t.Define:
        return t.Define(str(name), parameters or (), body, results)

    def load(self, path: Token) -> t.Load:
        return t.Load(path[1:-1])

    def set_example(self, which: Token | None, expr: t.Expr) -> t.SetExample:
        return t.SetExample(which and str(which), expr)

    def show_example(self, which: Token | None) -> t.ShowExample:
        return t.ShowExample(which and str(which))

    def examples(self, which: Token | None, switch: Token) -> t.Examples:
        return t.Examples(which and str(which), switch == "on")

    def full_display(self, _: Token, switch: Token) -> t.FullDisplay:
        return t.FullDisplay(switch == "on")

    def leave(self, *_: Token) -> t.Leave:
        return t.Leave()

    contained, ternary, index = t.Contained, t.Ternary, t.Index

    def binary(self, left: t.Expr, operator: Token, right: t.Expr) -> t.Binary:
        return t.Binary(str(operator), left, right)

    def unary(self, operator: Token, operand: t.Expr) -> t.Unary:
        return t.Unary(_SIGNS.get(operator, str(operator)), operand)

    def call(self, of: t.Expr, arguments: t.Exprs | None) -> t.Call:
        return t.Call(of, arguments or ())

    def name(self, name: Token) -> t.Name:
        return t.Name(str(name))

    def integer(self, digits: Token) -> t.Literal:
        # 10 digits take 33 bits; Python itself refuses to parse numbers of several thousand digits.
        if len(digits) * 3 > limits.BITS:
            raise RaspLimitError(f"integer of {len(digits)} digits")
        return t.Literal(int(digits))

    def real(self, digits: Token) -> t.Literal:
        return t.Literal(float(digits))

    def string(self, quoted: Token) -> t.Literal:
        if len(quoted) > limits.TEXT:
            raise RaspLimitError(f"string of more than {limits.TEXT} characters")
        return t.Literal(quoted[1:-1])

    def list(self, items: t.Exprs | None) -> t.ListOf:
        return t.ListOf(items or ())

    def dict(self, pairs: tuple[tuple[t.Expr, t.Expr], ...] | None) -> t.DictOf:
        return t.DictOf(pairs or ())

    def list_comprehension(self, value: t.Expr, names: tuple[str, ...], source: t.Expr) -> t.Comprehension:
        return t.Comprehension(None, value, names, source)

    def dict_comprehension(self, key: t.Expr, value: t.Expr, names: tuple[str, ...], source: t.Expr) -> t.Comprehension:
        return t.Comprehension(key, value, names, source)

    def select(self, _: Token, keys: t.Expr, queries: t.Expr, comparison: Token) -> t.SelectOf:
        return t.SelectOf(keys, queries, str(comparison))

    def aggregate(self, _: Token, selector: t.Expr, value: t.Expr, default: t.Expr | None) -> t.AggregateOf:
        return t.AggregateOf(selector, value, default)

    def builtin(self, name: Token, arguments: t.Exprs | None) -> t.Builtin:
        return t.Builtin(name[:-1].rstrip(), arguments or ())


@cache
def _parser(compat: bool) -> Lark:
    """Return the parser. The first call takes about 0.2 s."""
    space = "" if compat else r"[ \t]*"
    example = "" if compat else r"(?=[ \t]+examples?(?![A-Za-z_0-9]))"
    terminals = (
        f"SELECT.2: /select{space}\\(/\n"
        f"AGGREGATE.2: /aggregate{space}\\(/\n"
        f"BUILTIN.2: /(?:range|zip|len){space}\\(/\n"
        f"WHICH.2: /selector(?![A-Za-z_0-9])|s-op{example}/\n"
    )
    grammar = files("allyouneed.rasp").joinpath("grammar.lark").read_text(encoding="utf-8")
    return Lark(grammar + terminals, parser="lalr", lexer="basic", transformer=_TreeBuilder(), maybe_placeholders=True)


_OPEN: Final = frozenset({"LPAR", "LSQB", "LBRACE", "SELECT", "AGGREGATE", "BUILTIN"})
_CLOSE: Final = frozenset({"RPAR", "RSQB", "RBRACE"})


class Reader:
    """Collects lines into sentences. Each line is parsed once.

    The published REPL joins lines with spaces, so a comment inside a sentence hides everything after it; `joins` keeps
    that behaviour.
    """

    def __init__(self, compat: bool = False, joins: bool = False) -> None:
        self._lark = _parser(compat)
        self._joins = joins
        self.restart()

    def restart(self) -> None:
        """Drop the unfinished sentence."""
        self._parser = self._lark.parse_interactive("")
        self._size = self._lines = self._open = self.definitions = 0
        self._hidden = False
        self._tokens: list[Token] = []

    @property
    def begun(self) -> bool:
        return self._size > 0

    def feed(self, line: str) -> Sequence[t.Sentence] | None:
        """Return the sentences that this line completes, or None if more input is needed."""
        if self._hidden:
            return None
        try:
            tokens = self._read(line)
            if self._open or not self._is_complete():
                self._hidden = self._joins and tokens > 0 and _has_comment(line)
                return None
            sentences = self._parser.feed_eof()
        except UnexpectedInput as error:
            syntax_error = _syntax_error(error, line, self._lines, self._accepted(error))
            self.restart()
            raise syntax_error from None
        except RaspLimitError:
            self.restart()
            raise
        self.restart()
        return sentences

    def _read(self, line: str) -> int:
        """Parse a line and return its number of tokens."""
        self._lines += 1
        self._size += len(line)
        if self._size > limits.SOURCE:
            raise RaspLimitError(f"sentence of more than {limits.SOURCE} characters")
        before = self._size - len(line)
        self._parser.lexer_thread = self._lark.parse_interactive(line).lexer_thread
        tokens = 0
        for token in self._parser.iter_parse():
            tokens += 1
            self._tokens.append(token)
            self._open += (token.type in _OPEN) - (token.type in _CLOSE)
            self.definitions += token.type == "DEF"
        if not tokens:
            self._size = before  # comments and blank lines do not start a sentence
        return tokens

    def _is_complete(self) -> bool:
        """Return True if the text may end here. Uses a copy without a tree builder, which works in place."""
        if "$END" not in self._parser.choices():
            return False
        trial = _without_builder(self._parser.copy(deepcopy_values=False))
        try:
            trial.feed_eof()
        except UnexpectedToken:
            return False
        return True

    def _accepted(self, error: UnexpectedInput) -> set[str]:
        """Return the tokens acceptable at the error. Replays the tokens: a failed parser may have reduced already."""
        again = _without_builder(self._lark.parse_interactive(""))
        for token in self._tokens[:-1] if isinstance(error, UnexpectedToken) else self._tokens:
            again.feed_token(token)
        return set(again.accepts())


def _without_builder(parser: InteractiveParser) -> InteractiveParser:
    parser.parser_state.parse_conf = copy(parser.parser_state.parse_conf)
    parser.parser_state.parse_conf.callbacks = {}
    return parser


def _has_comment(line: str) -> bool:
    return "#" in re.sub(r'"[^"\n]*"', "", line)


def parse(text: str, compat: bool = False) -> Sequence[t.Sentence]:
    """Return the sentences of a text, at least one. Raise `Unfinished` if the text ends inside a sentence."""
    reader = Reader(compat)
    sentences: list[t.Sentence] = []
    finished = False
    for line in text.split("\n"):
        done = reader.feed(line)
        finished = done is not None or (finished and not reader.begun)
        sentences += done or ()
    if not finished:
        raise Unfinished("unexpected end of the text")
    return sentences


def _syntax_error(error: UnexpectedInput, line: str, number: int, expected: set[str]) -> RaspSyntaxError:
    found = "the end"
    if isinstance(error, UnexpectedCharacters):
        found = repr(line[error.pos_in_stream or 0])
    elif isinstance(error, UnexpectedToken):
        found = f"'{error.token}'"
    where = f" in line {number} of the sentence" if number > 1 else ""
    return RaspSyntaxError(f"mismatched input {found}{where} expecting {{{_expectations(expected)}}}")


def _expectations(expected: set[str]) -> str:
    """Describe the acceptable tokens. Tokens that start or continue any expression are one group."""
    words = []
    for group, names in _GROUPS.items():
        if names <= expected:
            words.append(group)
            expected -= names
    return ", ".join(words + sorted(_WORDS.get(name, f"'{name.lower()}'") for name in expected))


_STARTS: Final = "INT FLOAT STRING NAME LPAR LSQB LBRACE NOT PLUS MINUS ROUND INDICATOR SELECT AGGREGATE BUILTIN"
_OPERATORS: Final = "PLUS MINUS STAR SLASH PERCENT CARET EQUAL ORDER AND OR IF IN"
_GROUPS: Final = {
    "a statement": frozenset(f"{_STARTS} DEF FOR DRAW LOAD".split()),
    "an expression": frozenset(_STARTS.split()),
    "an operator": frozenset(_OPERATORS.split()),
    "a comparison ('==', '!=', '<', '>', '<=', '>=')": frozenset({"EQUAL", "UNEQUAL", "ORDER"}),
}
_WORDS: Final = {
    "INT": "Int",
    "FLOAT": "Float",
    "STRING": "String",
    "NAME": "Name",
    "LPAR": "'('",
    "RPAR": "')'",
    "LSQB": "'['",
    "RSQB": "']'",
    "LBRACE": "'{'",
    "RBRACE": "'}'",
    "COMMA": "','",
    "SEMICOLON": "';'",
    "COLON": "':'",
    "__ANON_0": "'='",
    "EQUAL": "'=='",
    "UNEQUAL": "'!='",
    "ORDER": "'<', '>', '<=', '>='",
    "PLUS": "'+'",
    "MINUS": "'-'",
    "STAR": "'*'",
    "SLASH": "'/'",
    "PERCENT": "'%'",
    "CARET": "'^'",
    "SELECT": "'select('",
    "AGGREGATE": "'aggregate('",
    "BUILTIN": "'range(', 'zip(', 'len('",
    "WHICH": "'s-op', 'selector'",
    "SWITCH": "'on', 'off'",
    "FULL": "'full seq display'",
    "$END": "the end",
}
