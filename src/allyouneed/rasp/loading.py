"""RASP files: read sentence by sentence, loaded by other files, or read as a whole program.

A file sees the base only, never the names of who loads it; of its own names, those without _ in front are passed on.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from allyouneed.rasp import limits
from allyouneed.rasp.drawing.draw import into_folder
from allyouneed.rasp.errors import RaspError, RaspFailure, RaspLimitError
from allyouneed.rasp.graph import Node, Selector, SOp
from allyouneed.rasp.interpreter import Interpreter, Result, no_files
from allyouneed.rasp.syntax import Reader, Unfinished
from allyouneed.rasp.tree import Leave, Sentence, Statement
from allyouneed.rasp.values import Environment, Flow, Value

STATEMENTS = Statement.__args__
Drawn: TypeAlias = Callable[[Path], object]


class Loader:
    """Runs files in an interpreter. What becomes of results, errors and commands is up to whoever owns it."""

    def __init__(self, interpreter: Interpreter) -> None:
        self.interpreter = interpreter
        self.on_results: Callable[[Iterable[Result]], None] = lambda results: None
        self.on_command: Callable[[Sentence, Environment], None] = lambda sentence, where: None
        self.on_error: Callable[[RaspError, str], None] = _raise
        self.depth = 0
        interpreter.on_load = self.load

    def load(self, path: str, where: Environment) -> None:
        """What `load "path";` does: path.rasp, from the current folder. The suffix may be there."""
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
        """All sentences of a text, each as soon as it is complete."""
        reader = Reader(self.interpreter.compat)
        begin = 0
        for number, line in enumerate(text.split("\n"), start=1):
            begin = begin if reader.begun else number
            try:
                for sentence in self.sentences(reader, line):
                    if isinstance(sentence, Leave):
                        return
                    self.do(sentence, where)
            except RaspError as error:
                self.on_error(error, f"{where.title}.rasp:{begin}")
        if reader.begun:
            self.on_error(Unfinished("unexpected end of the text"), f"{where.title}.rasp:{begin}")

    def sentences(self, reader: Reader, line: str) -> Iterable[Sentence]:
        """What a line completes; the published language has one sentence a line."""
        sentences = reader.feed(line) or ()
        if self.interpreter.compat and len(sentences) > 1:
            raise RaspFailure("")
        return sentences

    def do(self, sentence: Sentence, where: Environment) -> None:
        if isinstance(sentence, STATEMENTS):
            self.on_results(self.interpreter.execute(sentence, where))
        else:
            self.on_command(sentence, where)


def _raise(error: RaspError, place: str) -> None:
    raise type(error)(f"{place}: {error}") from error


def read_text(path: Path) -> str:
    """A file's text, if it is one of reasonable size."""
    # A path may hold anything that a string can: a NUL is no OSError.
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
    """The names of a file and their values, in the order in which they got them."""

    title: str
    values: dict[str, Value]
    names: dict[Node, str] = field(default_factory=dict, repr=False)  # of every node that has one, private ones too

    @property
    def sops(self) -> dict[str, SOp]:
        """The s-ops that the file offers."""
        return {name: node for name, node in self._nodes().items() if isinstance(node, SOp)}

    @property
    def selectors(self) -> dict[str, Selector]:
        return {name: node for name, node in self._nodes().items() if isinstance(node, Selector)}

    def _nodes(self) -> dict[str, SOp | Selector]:
        return {name: value.node for name, value in self.values.items() if isinstance(value, Flow)}

    def sop(self, name: str | None = None) -> SOp:
        """One of them: the last one, unless named."""
        sops = self.sops
        if not sops:
            raise RaspError(f"{self.title}: no s-op is defined here (names that begin with _ are private)")
        if name is None:
            return list(sops.values())[-1]
        if name not in sops:
            raise RaspError(f"{self.title}: no s-op {name!r}; it has {', '.join(sops)}")
        return sops[name]


def read_program(path: str | Path, compat: bool = False, drawn: Drawn | None = None) -> Program:
    """A .rasp file as a program. Nothing is tried on an example; the first error is raised, with its line.

    `drawn`: its draw statements write their pictures, and this hears of each.
    """
    path = Path(path)
    return program_of(read_text(path), str(path).removesuffix(".rasp"), compat, drawn)


def program_of(
    text: str, title: str = "program", compat: bool = False, drawn: Drawn | None = None, loads: bool = True
) -> Program:
    """A text as a program. `loads`: whether it may load files."""
    loader = Loader(Interpreter(compat))
    if not loads:
        loader.interpreter.on_load = no_files
    if drawn is not None:
        loader.interpreter.on_draw = into_folder(loader.interpreter.names, drawn)
    where = loader.interpreter.new_file(title)
    with loader.interpreter.budget():
        loader.run(text, where)
    return Program(title, where.public(), loader.interpreter.names)
