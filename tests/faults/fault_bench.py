"""A bench for faults: start runs, disturb them, and compare them with an undisturbed one."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kill import ROOT, ForkedRun, Process, compare, outcome, temporaries, wait, write_recipe

from allyouneed.storage import verify
from allyouneed.storage.checkpoints import checkpoint_paths

STEPS = 60
WIDE = ("width = 16\nhidden = 24", "width = 112\nhidden = 256")  # checkpoints of about 5 MB
MOST_SECONDS = 10.0
FORKS = False  # set by `allow_forks`, where it is safe: in a process with one thread


def allow_forks() -> None:
    """Fork runs from this process, which has one thread, instead of starting an interpreter for each."""
    global FORKS
    FORKS = True


class Skipped(Exception):
    """This machine does not allow the fault."""


@dataclass
class Bench:
    """A folder for runs: a recipe, the outcome of its undisturbed run, and the problems found so far."""

    folder: Path
    recipe: Path
    arguments: list[str] = field(default_factory=list)  # instead of the recipe
    expected: dict[str, object] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    started: int = 0

    def start(self, run: Path, *options: str, **how: Any) -> Process:
        """Start `allyouneed train` in a new process; `how` is passed to `subprocess`."""
        arguments = [*(self.arguments or [str(self.recipe)]), "--out", str(run), *options]
        if FORKS and not how:
            self.started += 1
            return ForkedRun(*arguments, errors=self.folder / f"errors.{self.started}")
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1", **how.pop("env", {})}
        how = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "env": environment, **how}
        return subprocess.Popen([sys.executable, "-m", "allyouneed", "train", *arguments], **how)

    def require(self, holds: bool, what: str) -> None:
        if not holds:
            self.problems.append(what)

    def fails(self, process: Process, *parts: str, status: int = 1) -> str:
        """Wait for an exit with one error line that contains all of these parts, and return the line."""
        output = process.communicate()[1].decode(errors="replace")
        lines = [line for line in output.splitlines() if line.startswith("error: ")]
        self.require(process.returncode == status, f"status {process.returncode}, not {status}: {output[-400:]}")
        self.require(len(lines) == 1 and "Traceback" not in output, f"not one line: {output[-400:]}")
        line = lines[0] if lines else output[-200:]
        for part in parts:
            self.require(part in line, f"{line!r} does not contain {part!r}")
        return line.removeprefix("error: ")

    def intact(self, run: Path, least: int = 1) -> None:
        """Require at least `least` checkpoints, all of them complete."""
        paths = checkpoint_paths(run / "checkpoints")
        self.require(len(paths) >= least, f"only {len(paths)} checkpoints")
        for path in paths:
            verify(path)

    def ends_well(self, run: Path, **how: Any) -> None:
        """Run the same command to its end, and require the same bits."""
        wait(self.start(run, **how))
        self.require(not temporaries(run), "unfinished files were left behind")
        for name in compare(run, self.expected):
            self.problems.append(f"{name} differs from the undisturbed run")


def bench(folder: Path, *changes: tuple[str, str], kind: str = "translation") -> Bench:
    """Write a recipe with some changes, and train an undisturbed run."""
    made = Bench(folder, write_recipe(folder, kind))
    text = made.recipe.read_text().replace("steps = 200", f"steps = {STEPS}")
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    made.recipe.write_text(text)
    wait(made.start(folder / "undisturbed"))
    made.expected = outcome(folder / "undisturbed")
    return made


def until(process: Process, condition: Callable[[], bool]) -> None:
    """Wait for a condition while a run continues."""
    while not condition():
        if process.poll() is not None:
            raise SystemExit(f"the run ended too early: {process.communicate()[1].decode(errors='replace')}")
        time.sleep(0.001)


def saved(run: Path, count: int = 1) -> Callable[[], bool]:
    return lambda: len(checkpoint_paths(run / "checkpoints")) >= count


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Path]:
    disk = folder / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(disk)], capture_output=True)
    if mounted.returncode:
        raise Skipped(mounted.stderr.decode().strip())
    try:
        yield disk
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def read_text(path: Path) -> str:
    return path.read_text() if path.exists() else ""
