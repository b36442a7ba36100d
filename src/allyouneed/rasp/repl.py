"""The REPL: reads lines, runs sentences, prints what the published REPL prints.

Errors use the published messages, by family (`errors.py`):

    name, type, value, limit    "!!ignoring input:" and the message
    Python cannot compute it    "something went wrong: " and the message
    not a sentence              "!! antlr exception: " and our parser's message, "-- ignoring input"
    a call of a non-function    "not implemented this command yet! ignoring"
    fails while displayed       "!!statement executed, but result fails on evaluation:" and the message

Differs from the published REPL: a line may hold several sentences, a comment ends with its line, and the parser's
messages are our own (`compat` keeps the first two as published).
"""

import sys
from collections.abc import Callable, Iterable
from typing import Any

from allyouneed.rasp import formatting, limits
from allyouneed.rasp import tree as s
from allyouneed.rasp.errors import RaspError, RaspFailure, RaspLimitError, RaspSyntaxError, RaspUnsupported
from allyouneed.rasp.evaluate import Evaluation
from allyouneed.rasp.graph import Input, SOp
from allyouneed.rasp.interpreter import Applied, Assigned, DrawHook, Interpreter, Result
from allyouneed.rasp.loading import Loader
from allyouneed.rasp.syntax import Reader
from allyouneed.rasp.values import Environment, NamedNode, Value, as_input

VERSION = "RASP 0.1"
EXAMPLE = "hello"
KINDS = ("s-op", "selector")


class Session:
    """The state of a REPL. `write` receives every line of output."""

    def __init__(
        self, write: Callable[[str], object] = print, compat: bool = False, draw: DrawHook | None = None
    ) -> None:
        self.write = write
        self.compat = compat
        self.interpreter = Interpreter(compat)
        if draw is not None:
            self.interpreter.on_draw = draw
        self.loader = Loader(self.interpreter)
        self.interpreter.on_load = self._load
        self.loader.on_results = self._results
        self.loader.on_command = self._command
        self.loader.on_error = lambda error, place: self._report_error(error)
        self.reader = Reader(compat, joins=compat)
        self.examples: dict[str, Input] = dict.fromkeys(KINDS, EXAMPLE)
        self.shows = dict.fromkeys(KINDS, True)
        self.full = False
        self._continues = False
        self._loaded: dict[str, Value] = {}
        self.interpreter.set_example(EXAMPLE)

    def greet(self) -> None:
        """Write the version and the running example."""
        self.write(VERSION)
        self.write(f"running example is: {EXAMPLE}")

    @property
    def prompt(self) -> str:
        return ".. " + "  " * self.reader.definitions if self._continues else ">> "

    def discard(self) -> None:
        """Drop an unfinished sentence."""
        self.reader.restart()
        self._continues = False

    def feed(self, line: str) -> bool:
        """Process one line of input. Return False if it ends the session."""
        try:
            sentences = self.reader.feed(line)
            self._continues = sentences is None
            if self.compat and sentences is not None and len(sentences) > 1:
                raise RaspFailure("")
            with self.interpreter.budget():
                for sentence in sentences or ():
                    if isinstance(sentence, s.Leave):
                        return False
                    self.loader.execute(sentence, self.interpreter.console)
        except RaspError as error:
            self._continues = False
            self._report_error(error)
        return True

    def _load(self, path: str, where: Environment) -> None:
        shows = dict(self.shows)
        try:
            self.loader.load(path, where)
            # A loop, which reports nothing, may have reassigned a name that a statement had reported.
            self._loaded = {name: where.names.get(name, value) for name, value in self._loaded.items()}
        finally:
            self.shows = shows  # switching examples inside a file affects that file only
            if not self.loader.depth:
                self._flush()

    # --- results -----------------------------------------------------------------------------------------------------

    def _results(self, results: Iterable[Result]) -> None:
        for result in results:
            if self.loader.depth:
                self._collect(result)
            elif isinstance(result, Applied):
                self._show_application(result)
            else:
                try:
                    self._show(result.name, result.value)
                except (RaspFailure, RaspLimitError):
                    raise
                except RaspError as error:
                    self.write(f"\t!!statement executed, but result fails on evaluation:\n\t\t {error}")

    def _collect(self, result: Result) -> None:
        """Collect the names of a file. They are printed at its end, once each, ordered by last assignment."""
        if isinstance(result, Assigned) and result.loud and not result.name.startswith("_"):
            self._loaded.pop(result.name, None)
            self._loaded[result.name] = result.value

    def _flush(self) -> None:
        loaded, self._loaded = self._loaded, {}
        for name, value in loaded.items():
            for line in formatting.value_lines(name, value):
                self.write(line)

    def _show(self, name: str, value: Value) -> None:
        for line in formatting.value_lines(name, value):
            self.write(line)
        if not isinstance(value, NamedNode):
            return
        kind = "s-op" if isinstance(value.node, SOp) else "selector"
        if not self.shows[kind]:
            return
        given = self.examples[kind]
        if isinstance(value.node, SOp):
            values = self.interpreter.apply(value, given)
            lines = self._sequence(f" \t Example: {name}({formatting.given_text(given)}) = ", given, values)
        else:
            lines = [" \t Example:", *self._grid(value, given)]
        for line in lines:
            self.write(line)

    def _grid(self, flow: NamedNode, given: Input) -> list[str]:
        if len(given) > limits.GRID:
            return [f" \t\t\t ({len(given)} x {len(given)}: not shown)"]
        return formatting.grid(given, self.interpreter.apply(flow, given))

    def _show_application(self, result: Applied) -> None:
        if isinstance(result.flow.node, SOp):
            lines = self._sequence("\t =  ", result.given, self.interpreter.apply(result.flow, result.given))
        else:
            lines = ["\t = ", *self._grid(result.flow, result.given)]
        for line in lines:
            self.write(line)

    def _sequence(self, start: str, given: Input, values: list[Any]) -> list[str]:
        text = formatting.sequence(values, self.compat)
        if not self.full:
            return [f"{start}{text}"]
        if all(value == values[0] for value in values):
            return [f"{start} {text} [skipped full display: identical values]"]
        return [start.rstrip(" ") + " ", *formatting.full(given, values, self.compat)]

    # --- commands and errors -----------------------------------------------------------------------------------------

    def _command(self, sentence: s.Sentence, where: Environment) -> None:
        match sentence:
            case s.SetExample(which, expr):
                given = as_input(self.interpreter.evaluate(expr, where))
                Evaluation(given)  # raises if the example is too long
                for kind in KINDS if which is None else (which,):
                    self.examples[kind] = given
                self.interpreter.set_example(self.examples["s-op"])
            case s.ShowExample(which):
                for kind in KINDS if which is None else (which,):
                    self.write(f"     {kind} example: {formatting.given_text(self.examples[kind])}")
            case s.Examples(which, on):
                for kind in KINDS if which is None else (which,):
                    self.shows[kind] = on
            case s.FullDisplay(on):
                self.full = on

    def _report_error(self, error: RaspError) -> None:
        self._flush()
        self.write(error_message(error))


def error_message(error: RaspError) -> str:
    """Return the published REPL's message for an error."""
    if isinstance(error, RaspSyntaxError):
        return f"\t!! antlr exception: {error} \t-- ignoring input"
    if isinstance(error, RaspUnsupported):
        return "not implemented this command yet! ignoring"
    if isinstance(error, RaspFailure):
        return f"something went wrong: {error}"
    return f"\t\t!!ignoring input:\n\t {error}"


def run(session: Session, read: Callable[[str], str]) -> None:
    """Run a session. `read` shows the prompt and returns a line, or raises EOFError."""
    session.greet()
    while True:
        try:
            if not session.feed(read(session.prompt)):
                return
        except EOFError:
            session.write("")
            return
        except KeyboardInterrupt:
            session.write("")
            session.discard()


def read_line(prompt: str) -> str:
    """Read a line from standard input, with history and editing on a terminal."""
    if sys.stdin.isatty():
        import readline  # noqa: F401 - importing it enables line editing in input()

        return input(prompt)
    sys.stdout.write(prompt)
    sys.stdout.flush()
    line = sys.stdin.readline()
    if not line:
        raise EOFError
    return line.rstrip("\n")
