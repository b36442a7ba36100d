"""Cells measured side by side, each kept as soon as it is known.

A process is started for each core and measures one cell after the other: most cells take a few seconds, and a process
of its own for each would spend as long on importing torch. Kept cells are not measured again; a killed call loses the
cells that it was at, and nothing else.
"""

import hashlib
import inspect
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import torch

from allyouneed.errors import ConfigError
from allyouneed.lab.claims import CLAIMS, sentences, trial
from allyouneed.lab.claims.base import Effort, Numbers
from allyouneed.lab.report import to_json
from allyouneed.storage import lock, write_atomic, writing
from allyouneed.training.workers import usable_cores
from allyouneed.version import __version__


@dataclass(frozen=True)
class Cell:
    """One arm of a claim with one seed."""

    claim: str
    arm: str
    seed: int
    effort: Effort

    def path(self, folder: Path) -> Path:
        """Where its numbers are kept."""
        return folder / self.effort / self.claim / f"{self.arm.replace(' ', '-').replace('/', '-')}-{self.seed}.json"


@dataclass(frozen=True)
class Measured:
    """What became of a cell."""

    cell: Cell
    numbers: Numbers
    seconds: float  # of the processor
    error: str = ""


class Watch(Protocol):
    """Whoever watches."""

    def kept(self, count: int) -> None: ...
    def done(self, measured: Measured) -> None: ...


@cache
def made_with(claim: str) -> dict[str, str]:
    """What the numbers of a claim depend on besides their cell: versions, and the text of the protocol as code."""
    modules = [trial, sentences]
    if claim in CLAIMS and (own := inspect.getmodule(type(CLAIMS[claim]))) is not None:
        modules.append(own)
    source = "\0".join(inspect.getsource(module) for module in modules)
    protocol = hashlib.blake2b(source.encode(), digest_size=16).hexdigest()
    return {"allyouneed": __version__, "torch": torch.__version__, "protocol": protocol}


def kept(cell: Cell, folder: Path) -> Measured | None:
    """A cell that was measured before, by this version and this protocol."""
    try:
        found = json.loads(cell.path(folder).read_text(encoding="utf-8"))
        if found["made with"] != made_with(cell.claim) or found["cell"] != asdict(cell):
            return None
        numbers = {name: float("nan") if value is None else float(value) for name, value in found["numbers"].items()}
        return Measured(cell, numbers, float(found["seconds"]))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None  # not there, or not whole: it is measured again


def keep(measured: Measured, folder: Path) -> None:
    """Writes the numbers of a cell."""
    path = measured.cell.path(folder)
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    about = {"made with": made_with(measured.cell.claim), "cell": asdict(measured.cell)}
    write_atomic(path, to_json({**about, "numbers": measured.numbers, "seconds": measured.seconds}))


def measure_all(
    cells: Sequence[Cell], folder: Path, workers: int = 0, watch: Watch | None = None
) -> dict[Cell, Measured]:
    """All cells: those kept in the folder, and the others measured now. One that fails stops no other.

    `workers`: processes at a time; 0: as many as cores. A second call for the same folder is refused meanwhile.
    """
    if workers < 0:
        raise ConfigError(f"--workers {workers}: should be 1 or more, or 0: as many as there are cores")
    found = {cell: known for cell in cells if (known := kept(cell, folder)) is not None}
    left = [cell for cell in cells if cell not in found]
    if watch is not None:
        watch.kept(len(found))
    if not left:
        return found
    with lock(folder), Crew() as crew, ThreadPoolExecutor(workers or usable_cores()) as pool:
        try:
            for future in as_completed([pool.submit(crew.measure, cell) for cell in left]):
                measured = future.result()
                if not measured.error:
                    keep(measured, folder)
                found[measured.cell] = measured
                if watch is not None:
                    watch.done(measured)
        finally:  # interrupted: what waits never begins
            pool.shutdown(wait=False, cancel_futures=True)
            crew.close()
    return found


class Crew:
    """The processes: one for each thread that asks."""

    def __init__(self) -> None:
        self._own = threading.local()
        self._scratch = tempfile.TemporaryDirectory(prefix="allyouneed-claims-")
        self._all: list[subprocess.Popen[str]] = []

    def __enter__(self) -> "Crew":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends them."""
        for child in self._all:
            child.kill()
            with suppress(BrokenPipeError), child:  # closes its pipes and waits; what was not yet sent is lost
                pass
        self._scratch.cleanup()

    def measure(self, cell: Cell) -> Measured:
        """One cell, in the process of this thread."""
        child = self._child()
        assert child.stdin is not None
        assert child.stdout is not None
        try:
            child.stdin.write(json.dumps(asdict(cell)) + "\n")
            child.stdin.flush()
            line = child.stdout.readline()
        except OSError:
            line = ""
        if not line:
            self._own.child = None
            return Measured(cell, {}, 0.0, f"its process ended with status {child.wait()}")
        answer: Mapping[str, Any] = json.loads(line)
        return Measured(cell, answer.get("numbers", {}), answer.get("seconds", 0.0), answer.get("error", ""))

    def _child(self) -> "subprocess.Popen[str]":
        child: subprocess.Popen[str] | None = getattr(self._own, "child", None)
        if child is None:
            child = subprocess.Popen(
                [sys.executable, "-m", "allyouneed.lab.claims.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                encoding="utf-8",
                env=os.environ | {"OMP_NUM_THREADS": "1", "TMPDIR": self._scratch.name},
            )
            self._own.child = child
            self._all.append(child)
        return child
