"""Runs sentences: expressions to values, assignments, functions, loops, files.

Functions see the names of the scope in which they were defined, as they are at the time of the call, and change none of
them. Loops run when they are read: a program is unrolled into a graph. A conditional on an atom is lazy, so that
recursion ends; a conditional on an s-op puts both branches into the graph.

If there is a running example, every s-op or selector is evaluated on it as soon as an expression gives one. If that
fails, the sentence is refused and nothing is assigned. Nothing here recurses (`trampoline.py`).

Differs from the published interpreter: an s-op may be called inside an expression and gives a list, naming an s-op does
not rename equal ones, and [1] is not taken for [True] (`compat` keeps all three).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

from allyouneed.rasp import limits, operations
from allyouneed.rasp import tree as s
from allyouneed.rasp.errors import RaspError, RaspLimitError, RaspUnsupported
from allyouneed.rasp.evaluate import Evaluation
from allyouneed.rasp.graph import Input, Node, Selector, SOp
from allyouneed.rasp.prelude import base_names, library
from allyouneed.rasp.trampoline import Task, run_task
from allyouneed.rasp.values import (
    CONSTANTS,
    WORDS,
    Dict,
    Environment,
    List,
    NamedNode,
    Procedure,
    Value,
    as_input,
    as_list,
    describe,
    elements,
    unpacked,
)


@dataclass(frozen=True, slots=True)
class Assigned:
    """A name and the value assigned to it; "out" for a value without a name."""

    name: str
    value: Value
    loud: bool = True  # an assignment or definition, which loading a file reports


@dataclass(frozen=True, slots=True)
class Applied:
    """An s-op or selector, and the input that it was called on."""

    flow: NamedNode
    given: Input


Result: TypeAlias = Assigned | Applied
DrawHook: TypeAlias = Callable[[NamedNode, Input, Mapping[Node, str]], None]  # node, input, names of all nodes
LoadHook: TypeAlias = Callable[[str, Environment], None]  # path, where its names go


class Interpreter:
    """Environments and limits. `base` holds the built-in names and the library, `console` the user's names."""

    def __init__(self, compat: bool = False) -> None:
        self.compat = compat
        self.example: Input | None = None
        self.trial: Evaluation | None = None  # values on the running example
        self.on_load: LoadHook = refuse_load
        self.on_draw: DrawHook = lambda named, given, names: None
        self.names: dict[Node, str] = {}  # names that programs gave, inside functions too; drawings use them
        self._last: tuple[Input, Evaluation] | None = None
        self._inside = False
        self._left: int = limits.WORK
        self._calls, self._tries = 0, True
        self._restart()
        self.base = Environment("base", names=base_names())
        self._read_library()
        self.console = self.new_file("console")

    def _read_library(self) -> None:
        scope = Environment("RASP_support/rasplib" if self.compat else "rasplib", self.base)
        for statement in library(self.compat):
            self.execute(statement, scope)
        self.base.names.update(scope.public())

    def new_file(self, title: str) -> Environment:
        """Return an environment above the base whose names it may not redefine, except `tokens`."""
        defined = frozenset(self.base.names) - {"tokens"}
        return Environment(title, self.base, reserved=CONSTANTS | WORDS | defined)

    def set_example(self, given: Input | None) -> None:
        self.trial = None if given is None else Evaluation(given)
        self.example = given

    def execute(self, statement: s.Statement, where: Environment) -> list[Result]:
        """Run one statement. If it raises, it has assigned nothing (except in completed rounds of a loop)."""
        return self._budgeted(self._statement(statement, where))

    def evaluate(self, expr: s.Expr, where: Environment) -> Value:
        """Return the value of one expression."""
        return self._budgeted(self._expr(expr, where))

    @contextmanager
    def budget(self) -> Iterator[None]:
        """Share one set of limits among the sentences of a program, a line at the prompt or a loaded file."""
        if self._inside:
            yield
            return
        self._restart()
        self._inside = True
        try:
            yield
        finally:
            self._inside = False

    def _budgeted(self, task: Task) -> Any:
        calls, tries = self._calls, self._tries
        try:
            with self.budget():
                return run_task(task)
        except RaspError:
            self._calls, self._tries = calls, tries  # later sentences start without open calls
            raise

    def apply(self, flow: NamedNode, given: Input) -> list[Any]:
        """Return the value of an s-op or selector on an input."""
        run = self._computed(flow, given)
        return run.sequence(flow.node) if isinstance(flow.node, SOp) else run.rows(flow.node)

    def _computed(self, flow: NamedNode, given: Input) -> Evaluation:
        """Compute a node on an input. All inputs of a sentence except the running example share its limits."""
        run = self._run_on(given)
        if run is not self.trial:
            run.left = self._left
        try:
            run.compute(flow.node)
        finally:
            if run is not self.trial:
                self._left = run.left
        return run

    def _run_on(self, given: Input) -> Evaluation:
        if self.trial is not None and given is self.example:
            return self.trial
        if self._last is None or given is not self._last[0]:
            run = Evaluation(given)
            if not (self.compat and self._last is not None and self._last[1].given == run.given):
                self._last = given, run
        assert self._last is not None
        return self._last[1]

    def _restart(self) -> None:
        self._steps = self._calls = 0
        self._left = limits.WORK
        self._tries = True
        if self.trial is not None:
            self.trial.renew()

    # --- statements --------------------------------------------------------------------------------------------------

    def _statement(self, statement: s.Statement, where: Environment) -> Task:
        match statement:
            case s.Expression(expr):
                return (yield self._alone(expr, where))
            case s.Assign(names, exprs):
                return (yield self._assign(names, exprs, where))
            case s.Define(name, parameters, body, results):
                where.check([name])
                Environment("").check(parameters)
                where[name] = Procedure(name, parameters, body, results, where)
                return [Assigned(name, where[name])]
            case s.Loop(names, source, body):
                yield self._loop(names, source, body, where)
            case s.Draw(expr, given):
                return (yield self._draw(expr, given, where))
            case s.Load(path):
                self.on_load(path, where)
        return []

    def _alone(self, expr: s.Expr, where: Environment) -> Task:
        """Run an expression statement: a value, or an s-op applied to an input."""
        if not isinstance(expr, s.Call):
            value = yield self._expr(expr, where)
            return [Assigned(expr.name if isinstance(expr, s.Name) else "out", value, loud=False)]
        called = yield self._untried(expr.of, where)
        if isinstance(called, NamedNode):
            given = yield self._given(called, expr.arguments, where)
            self._computed(called, given)
            return [Applied(called, given)]
        value = yield self._call(called, expr.arguments, where)
        self._keep(value, where)
        return [Assigned("out", value, loud=False)]

    def _untried(self, expr: s.Expr, where: Environment) -> Task:
        """Evaluate an expression without trying it on the example: it is applied to another input."""
        self._tries = False
        value = yield self._expr(expr, where)
        self._tries = True
        return value

    def _assign(self, names: tuple[str, ...], exprs: s.Exprs, where: Environment) -> Task:
        values = []
        for expr in exprs:
            values.append((yield self._expr(expr, where)))
        if len(names) == 1:
            values = [values[0] if len(values) == 1 else List(values)]
        elif len(values) == 1 and isinstance(values[0], List):
            values = list(values[0])
        where.check(names)
        return [Assigned(name, where[name]) for name in self._bind(names, values, where)]

    def _bind(self, names: tuple[str, ...], values: Iterable[Value], where: Environment) -> tuple[str, ...]:
        values = list(values)
        if len(values) != len(names):
            raise RaspError(f"expected {len(names)} values, but got: {len(values)}")
        for name, value in zip(names, values, strict=True):
            where[name] = self._named(value, name)
        return names

    def _named(self, value: Value, name: str) -> Value:
        if not isinstance(value, NamedNode):
            return value
        self._record_name(value.node, name)
        if self.compat:
            value.name = name
            return value
        return NamedNode(value.node, name)

    def _record_name(self, node: SOp | Selector, name: str) -> None:
        """Record a name. The last one counts, as in the published drawings; base s-ops keep theirs."""
        if node.parts:
            self.names[node] = name
            if len(self.names) > limits.NAMES:
                del self.names[next(iter(self.names))]

    def _loop(self, names: tuple[str, ...], source: s.Expr, body: tuple[s.Statement, ...], where: Environment) -> Task:
        collection = yield self._expr(source, where)
        where.check(names)
        for element in elements(collection):
            self.step(1)
            self._bind(names, unpacked(names, element), where)
            for statement in body:
                yield self._statement(statement, where)

    def _draw(self, expr: s.Expr, given: s.Expr | None, where: Environment) -> Task:
        flow = yield self._untried(expr, where)
        if not isinstance(flow, NamedNode):
            raise RaspError(f"Expected s-op, got: {describe(flow)}")
        if given is not None:
            chosen = yield self._given(flow, (given,), where)
        elif self.example is not None:
            chosen = self.example
        else:
            raise RaspError("draw needs an input: there is no running example")
        self._computed(flow, chosen)
        self.on_draw(flow, chosen, self.names)
        return [Applied(flow, chosen)]

    # --- expressions -------------------------------------------------------------------------------------------------

    def step(self, cost: int) -> None:
        self._steps += cost
        if self._steps > limits.STEPS:
            raise RaspLimitError(f"this takes more than {limits.STEPS} steps: does it end?")

    def _keep(self, value: Value, where: Environment) -> None:
        """Count a value against the limits, try it on the example, and store it as the scope's last value."""
        self.step(operations.cost(value))
        if self._tries and self.trial is not None and isinstance(value, NamedNode):
            self.trial.compute(value.node)
        where.out = value

    def _expr(self, expr: s.Expr, where: Environment) -> Task:
        match expr:
            case s.Literal(value):
                result: Value = value
            case s.Name(name):
                result = where[name]
            case s.Unary(operator, operand):
                result = operations.unary(operator, (yield self._expr(operand, where)))
            case s.Binary(operator, left, right):
                first = yield self._expr(left, where)
                result = operations.binary(operator, first, (yield self._expr(right, where)))
            case s.Contained(element, within):
                first = yield self._expr(element, where)
                result = operations.contained(first, (yield self._expr(within, where)))
            case s.Index(of, index):
                first = yield self._expr(of, where)
                result = operations.indexed(first, (yield self._expr(index, where)))
            case s.SelectOf(keys, queries, comparison):
                first = yield self._expr(keys, where)
                result = operations.select(first, (yield self._expr(queries, where)), comparison)
            case _:
                result = yield self._compound(expr, where)
        self._keep(result, where)
        return result

    def _compound(self, expr: s.Expr, where: Environment) -> Task:
        """Evaluate an expression with any number of parts."""
        match expr:
            case s.AggregateOf(selector, value, default):
                values = yield self._all((selector, value, default or s.Literal(0)), where)
                return operations.aggregate(*values)
            case s.Ternary():
                return (yield self._ternary(expr, where))
            case s.ListOf(items):
                return List((yield self._all(items, where)))
            case s.DictOf(pairs):
                keys = yield self._all([key for key, _ in pairs], where)
                values = yield self._all([value for _, value in pairs], where)
                return Dict({operations.as_atom(key): value for key, value in zip(keys, values, strict=True)})
            case s.Comprehension():
                return (yield self._comprehension(expr, where))
            case s.Builtin(name, arguments):
                return operations.BUILTINS[name](*(yield self._all(arguments, where)))
            case s.Call(of, arguments):
                called = yield self._expr(of, where)
                if isinstance(called, NamedNode) and not self.compat:
                    given = yield self._given(called, arguments, where)
                    return as_list(self.apply(called, given))
                return (yield self._call(called, arguments, where))
        raise AssertionError(f"no such expression: {expr!r}")

    def _all(self, exprs: Iterable[s.Expr], where: Environment) -> Task:
        values = []
        for expr in exprs:
            values.append((yield self._expr(expr, where)))
        return values

    def _ternary(self, expr: s.Ternary, where: Environment) -> Task:
        condition = yield self._expr(expr.condition, where)
        if operations.is_sop(condition):
            yes = yield self._expr(expr.yes, where)
            return operations.ternary(condition, yes, (yield self._expr(expr.no, where)))
        return (yield self._expr(expr.yes if operations.truth(condition) else expr.no, where))

    def _comprehension(self, expr: s.Comprehension, where: Environment) -> Task:
        local = Environment(where.title, where)
        source = yield self._expr(expr.source, where)
        local.check(expr.names)
        keys: list[Value] = []
        values: list[Value] = []
        for element in elements(source):
            self.step(1)
            self._bind(expr.names, unpacked(expr.names, element), local)
            if expr.key is not None:
                keys.append(operations.as_atom((yield self._expr(expr.key, local))))
            values.append((yield self._expr(expr.value, local)))
        if expr.key is None:
            return List(values)
        return Dict(dict(zip(keys, values, strict=True)))  # type: ignore[arg-type]

    # --- calls -------------------------------------------------------------------------------------------------------

    def _given(self, flow: NamedNode, arguments: s.Exprs, where: Environment) -> Task:
        """Return the input of an s-op from its call arguments."""
        if len(arguments) != 1:
            raise RaspError(f"wrong number of args for {flow.title}- expected: 1, got: {len(arguments)}.")
        given = yield self._expr(arguments[0], where)
        return as_input(given)

    def _call(self, called: Value, arguments: s.Exprs, where: Environment) -> Task:
        if not isinstance(called, Procedure):
            raise RaspUnsupported(f"{describe(called)} is not a function")
        values = yield self._all(arguments, where)
        if len(values) != len(called.parameters):
            expected = len(called.parameters)
            raise RaspError(f"wrong number of args for {called.name}- expected: {expected}, got: {len(values)}.")
        self._calls += 1
        if self._calls > limits.CALLS:
            raise RaspLimitError(f"more than {limits.CALLS} functions inside each other: does {called.name} end?")
        inside = Environment(called.home.title, called.home, dict(zip(called.parameters, values, strict=True)))
        for statement in called.body:
            yield self._statement(statement, inside)
        results = yield self._all(called.results, inside)
        self._calls -= 1
        title = f"{called.name}({' , '.join(map(describe, values))})"
        results = [NamedNode(result.node, title) if isinstance(result, NamedNode) else result for result in results]
        return results[0] if len(results) == 1 else List(results)


def refuse_load(path: str, where: Environment) -> None:
    """Raise RaspError: the `load` hook where files are not available."""
    raise RaspError(f"files cannot be loaded here: {path}")
