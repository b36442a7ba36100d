"""Measure cells in parallel worker processes, and store each result immediately.

Each worker process measures one cell after another: most cells take a few seconds, about as long as importing torch.
Stored cells are not measured again; a killed call loses only the cells in progress.
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
from allyouneed.lab.claims import CLAIMS, small_runs, small_tasks
from allyouneed.lab.claims.base import Effort, Numbers
from allyouneed.lab.report import to_json
from allyouneed.storage import lock, write_atomic, writing
from allyouneed.training.workers import usable_cores
from allyouneed.version import __version__


@dataclass(frozen=True)
class ClaimCell:
    """An arm of a claim with one seed."""

    claim: str
    arm: str
    seed: int
    effort: Effort

    def path(self, folder: Path) -> Path:
        """Return the file of its numbers."""
        return folder / self.effort / self.claim / f"{self.arm.replace(' ', '-').replace('/', '-')}-{self.seed}.json"


@dataclass(frozen=True)
class CellResult:
    """The measured numbers of a cell, or an error."""

    cell: ClaimCell
    numbers: Numbers
    seconds: float  # CPU time
    error: str = ""


class CellProgress(Protocol):
    """Callbacks that receive the progress of measurements."""

    def kept(self, count: int) -> None: ...
    def done(self, measured: CellResult) -> None: ...


@cache
def provenance(claim: str) -> dict[str, str]:
    """Return what the numbers of a claim depend on besides the cell: versions, and a hash of the protocol's code."""
    modules = [small_runs, small_tasks]
    if claim in CLAIMS and (own := inspect.getmodule(type(CLAIMS[claim]))) is not None:
        modules.append(own)
    source = "\0".join(inspect.getsource(module) for module in modules)
    protocol = hashlib.blake2b(source.encode(), digest_size=16).hexdigest()
    return {"allyouneed": __version__, "torch": torch.__version__, "protocol": protocol}


def stored_result(cell: ClaimCell, folder: Path) -> CellResult | None:
    """Return the stored result of a cell, if it was measured with the same versions and protocol."""
    try:
        found = json.loads(cell.path(folder).read_text(encoding="utf-8"))
        if found["made with"] != provenance(cell.claim) or found["cell"] != asdict(cell):
            return None
        numbers = {name: float("nan") if value is None else float(value) for name, value in found["numbers"].items()}
        return CellResult(cell, numbers, float(found["seconds"]))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None  # missing or damaged: measure it again


def store_result(measured: CellResult, folder: Path) -> None:
    """Store the numbers of a cell."""
    path = measured.cell.path(folder)
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    about = {"made with": provenance(measured.cell.claim), "cell": asdict(measured.cell)}
    write_atomic(path, to_json({**about, "numbers": measured.numbers, "seconds": measured.seconds}))


def measure_all(
    cells: Sequence[ClaimCell], folder: Path, workers: int = 0, progress: CellProgress | None = None
) -> dict[ClaimCell, CellResult]:
    """Return the results of all cells, measuring those that are not stored. A failed cell does not stop the others.

    `workers`: number of processes; 0: one per core. A concurrent call for the same folder is refused.
    """
    if workers < 0:
        raise ConfigError(f"--workers {workers}: should be 1 or more, or 0 for one per core")
    found = {cell: known for cell in cells if (known := stored_result(cell, folder)) is not None}
    left = [cell for cell in cells if cell not in found]
    if progress is not None:
        progress.kept(len(found))
    if not left:
        return found
    with lock(folder), WorkerPool() as crew, ThreadPoolExecutor(workers or usable_cores()) as pool:
        try:
            for future in as_completed([pool.submit(crew.measure, cell) for cell in left]):
                measured = future.result()
                if not measured.error:
                    store_result(measured, folder)
                found[measured.cell] = measured
                if progress is not None:
                    progress.done(measured)
        finally:  # on interruption, waiting cells never start
            pool.shutdown(wait=False, cancel_futures=True)
            crew.close()
    return found


class WorkerPool:
    """Worker processes, one for each calling thread."""

    def __init__(self) -> None:
        self._own = threading.local()
        self._scratch = tempfile.TemporaryDirectory(prefix="allyouneed-claims-")
        self._all: list[subprocess.Popen[str]] = []

    def __enter__(self) -> "WorkerPool":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """Kill all worker processes."""
        for child in self._all:
            child.kill()
            with suppress(BrokenPipeError), child:  # closes its pipes and waits
                pass
        self._scratch.cleanup()

    def measure(self, cell: ClaimCell) -> CellResult:
        """Measure a cell in the worker process of this thread."""
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
            return CellResult(cell, {}, 0.0, f"its process exited with status {child.wait()}")
        answer: Mapping[str, Any] = json.loads(line)
        return CellResult(cell, answer.get("numbers", {}), answer.get("seconds", 0.0), answer.get("error", ""))

    def _child(self) -> "subprocess.Popen[str]":
        child: subprocess.Popen[str] | None = getattr(self._own, "child", None)
        if child is None:
            child = subprocess.Popen(
                [sys.executable, "-m", "allyouneed.lab.claims.cell_process"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                encoding="utf-8",
                env=os.environ | {"OMP_NUM_THREADS": "1", "TMPDIR": self._scratch.name},
            )
            self._own.child = child
            self._all.append(child)
        return child
