"""The syntax tree of RASP: expressions, statements, and REPL commands."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from allyouneed.rasp.atoms import Atom

# --- expressions -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Literal:
    value: Atom


@dataclass(frozen=True, slots=True, eq=False)
class Name:
    name: str


@dataclass(frozen=True, slots=True, eq=False)
class ListOf:
    items: Exprs


@dataclass(frozen=True, slots=True, eq=False)
class DictOf:
    pairs: tuple[tuple[Expr, Expr], ...]


@dataclass(frozen=True, slots=True, eq=False)
class Comprehension:
    """[value for names in source], {key : value for names in source}."""

    key: Expr | None
    value: Expr
    names: tuple[str, ...]
    source: Expr


@dataclass(frozen=True, slots=True, eq=False)
class Unary:
    operator: str  # not, neg, pos, round, indicator
    operand: Expr


@dataclass(frozen=True, slots=True, eq=False)
class Binary:
    operator: str
    left: Expr
    right: Expr


@dataclass(frozen=True, slots=True, eq=False)
class Contained:
    element: Expr
    within: Expr


@dataclass(frozen=True, slots=True, eq=False)
class Ternary:
    yes: Expr
    condition: Expr
    no: Expr


@dataclass(frozen=True, slots=True, eq=False)
class Index:
    of: Expr
    index: Expr


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    of: Expr
    arguments: Exprs


@dataclass(frozen=True, slots=True, eq=False)
class SelectOf:
    keys: Expr
    queries: Expr
    comparison: str


@dataclass(frozen=True, slots=True, eq=False)
class AggregateOf:
    selector: Expr
    value: Expr
    default: Expr | None


@dataclass(frozen=True, slots=True, eq=False)
class Builtin:
    name: str  # range, zip, len
    arguments: Exprs


Expr: TypeAlias = (
    Literal
    | Name
    | ListOf
    | DictOf
    | Comprehension
    | Unary
    | Binary
    | Contained
    | Ternary
    | Index
    | Call
    | SelectOf
    | AggregateOf
    | Builtin
)
Exprs: TypeAlias = tuple[Expr, ...]

# --- statements ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Expression:
    expr: Expr


@dataclass(frozen=True, slots=True, eq=False)
class Assign:
    names: tuple[str, ...]
    exprs: Exprs


@dataclass(frozen=True, slots=True, eq=False)
class Define:
    name: str
    parameters: tuple[str, ...]
    body: tuple[Statement, ...]
    results: Exprs


@dataclass(frozen=True, slots=True, eq=False)
class Loop:
    names: tuple[str, ...]
    source: Expr
    body: tuple[Statement, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Draw:
    expr: Expr
    given: Expr | None


@dataclass(frozen=True, slots=True, eq=False)
class Load:
    path: str


Statement: TypeAlias = Expression | Assign | Define | Loop | Draw | Load


@dataclass(frozen=True, slots=True, eq=False)
class SetExample:
    which: str | None  # "s-op" or "selector"; None: both
    expr: Expr


@dataclass(frozen=True, slots=True, eq=False)
class ShowExample:
    which: str | None


@dataclass(frozen=True, slots=True, eq=False)
class Examples:
    which: str | None
    on: bool


@dataclass(frozen=True, slots=True, eq=False)
class FullDisplay:
    on: bool


@dataclass(frozen=True, slots=True, eq=False)
class Leave:
    pass


Sentence: TypeAlias = Statement | SetExample | ShowExample | Examples | FullDisplay | Leave
