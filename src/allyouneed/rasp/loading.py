"""RASP files: read sentence by sentence, loaded by other files, or read as a whole program.

A file sees the base names only, not those of the file that loads it. It exports its names without a leading _.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from allyouneed.rasp import limits
from allyouneed.rasp.errors import RaspError, RaspFailure, RaspLimitError
from allyouneed.rasp.graph import Node, Selector, SOp
from allyouneed.rasp.interpreter import DrawHook, Interpreter, Result, refuse_load
from allyouneed.rasp.syntax import Reader, Unfinished
from allyouneed.rasp.tree import Leave, Sentence, Statement
from allyouneed.rasp.values import Environment, NamedNode, Value

STATEMENTS = Statement.__args__


class Loader:
    """Runs files in an interpreter. Callbacks receive results, errors and commands."""

    def __init__(self, interpreter: Interpreter) -> None:
        self.interpreter = interpreter
        self.on_results: Callable[[Iterable[Result]], None] = lambda results: None
        self.on_command: Callable[[Sentence, Environment], None] = lambda sentence, where: None
        self.on_error: Callable[[RaspError, str], None] = _raise
        self.depth = 0
        interpreter.on_load = self.load

    def load(self, path: str, where: Environment) -> None:
        """Run `load "path";`: read path.rasp from the current folder. The suffix is optional."""
        path = path.removesuffix(".rasp")
        if self.depth >= limits.LOADS:
            raise RaspLimitError(f"more than {limits.LOADS} files that load each other: does {path} load itself?")
        text = read_text(Path(f"{path}.rasp"))
        self.interpreter.step(1 + len(text) // 10)
        inside = self.interpreter.new_file(path)
        self.depth += 1
        try:
            self.run(text, inside)
        finally:
            self.depth -= 1
        for name, value in inside.public().items():
            where[name] = value

    def run(self, text: str, where: Environment) -> None:
        """Run all sentences of a text, each as soon as it is complete."""
        reader = Reader(self.interpreter.compat)
        begin = 0
        for number, line in enumerate(text.split("\n"), start=1):
            begin = begin if reader.begun else number
            try:
                for sentence in self.sentences(reader, line):
                    if isinstance(sentence, Leave):
                        return
                    self.execute(sentence, where)
            except RaspError as error:
                self.on_error(error, f"{where.title}.rasp:{begin}")
        if reader.begun:
            self.on_error(Unfinished("unexpected end of the text"), f"{where.title}.rasp:{begin}")

    def sentences(self, reader: Reader, line: str) -> Iterable[Sentence]:
        """Return the sentences that a line completes. The published language allows one a line."""
        sentences = reader.feed(line) or ()
        if self.interpreter.compat and len(sentences) > 1:
            raise RaspFailure("")
        return sentences

    def execute(self, sentence: Sentence, where: Environment) -> None:
        """Run one sentence and pass its results, or the command itself, to the callbacks."""
        if isinstance(sentence, STATEMENTS):
            self.on_results(self.interpreter.execute(sentence, where))
        else:
            self.on_command(sentence, where)


def _raise(error: RaspError, place: str) -> None:
    raise type(error)(f"{place}: {error}") from error


def read_text(path: Path) -> str:
    """Return the text of a file. Raise RaspError if it is missing, too large or not UTF-8."""
    # A path from a program may hold any character; a NUL raises ValueError, not OSError.
    try:
        if not path.is_file():
            raise RaspError(f"could not find file: {path}")
        if path.stat().st_size > limits.FILE:
            raise RaspLimitError(f"file of more than {limits.FILE} bytes: {path}")
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise RaspError(f"not UTF-8 text: {path}") from error
    except (OSError, ValueError) as error:
        raise RaspError(f"could not find file: {path}") from error


@dataclass(frozen=True)
class Program:
    """The names of a file and their values, in order of assignment."""

    title: str
    values: dict[str, Value]
    names: dict[Node, str] = field(default_factory=dict, repr=False)  # of all named nodes, private ones included

    @property
    def sops(self) -> dict[str, SOp]:
        """The public s-ops of the file."""
        return {name: node for name, node in self._nodes().items() if isinstance(node, SOp)}

    @property
    def selectors(self) -> dict[str, Selector]:
        return {name: node for name, node in self._nodes().items() if isinstance(node, Selector)}

    def _nodes(self) -> dict[str, SOp | Selector]:
        return {name: value.node for name, value in self.values.items() if isinstance(value, NamedNode)}

    def sop(self, name: str | None = None) -> SOp:
        """Return an s-op by name; by default the last one."""
        sops = self.sops
        if not sops:
            raise RaspError(f"{self.title}: defines no public s-op (names that start with _ are private)")
        if name is None:
            return list(sops.values())[-1]
        if name not in sops:
            raise RaspError(f"{self.title}: no s-op {name!r}; it defines {', '.join(sops)}")
        return sops[name]


def read_program(path: str | Path, compat: bool = False, on_draw: DrawHook | None = None) -> Program:
    """Read a .rasp file as a program, without a running example. Raise the first error, with its line.

    `on_draw` is called for each draw statement; by default they do nothing.
    """
    path = Path(path)
    return parse_program(read_text(path), str(path).removesuffix(".rasp"), compat, on_draw)


def parse_program(
    text: str, title: str = "program", compat: bool = False, on_draw: DrawHook | None = None, loads: bool = True
) -> Program:
    """Run a text as a program. `loads`: allow it to load files."""
    loader = Loader(Interpreter(compat))
    if not loads:
        loader.interpreter.on_load = refuse_load
    if on_draw is not None:
        loader.interpreter.on_draw = on_draw
    where = loader.interpreter.new_file(title)
    with loader.interpreter.budget():
        loader.run(text, where)
    return Program(title, where.public(), loader.interpreter.names)
