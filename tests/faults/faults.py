"""Faults of disks, clocks, signals and numbers, each caused for real while `allyouneed train` runs.

    python tests/faults/faults.py [--only NAME]

Each time: the run ends with one clear line (or goes on, where that is right), what was saved before is intact, and once
the fault is over the same command ends in the bits of an undisturbed run. Mounting needs root; what cannot be done here
is said to be skipped.
"""

import argparse
import errno
import json
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from kill import ROOT, Life, Process, compare, outcome, temporaries, wait, write_recipe
from safetensors.torch import load_file, save_file
from shim import build

from allyouneed.storage import verify
from allyouneed.storage.manifest import write_manifest
from allyouneed.training.checkpoint import checkpoint_paths

STEPS = 60
WIDE = ("width = 16\nhidden = 24", "width = 112\nhidden = 256")  # checkpoints of about 5 MB
MOST_SECONDS = 10.0
FORKS = False  # set where it is safe: a process with one thread


class Skipped(Exception):
    """This machine does not let us do that."""


@dataclass
class Bench:
    """A place to make runs: a recipe, what its undisturbed run gives, and what went wrong so far."""

    folder: Path
    recipe: Path
    arguments: list[str] = field(default_factory=list)  # instead of the recipe
    expected: dict[str, object] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    lives: int = 0

    def start(self, run: Path, *options: str, **how: Any) -> Process:
        """The command line in a process of its own; `how` is for `subprocess`."""
        arguments = [*(self.arguments or [str(self.recipe)]), "--out", str(run), *options]
        if FORKS and not how:
            self.lives += 1
            return Life(*arguments, errors=self.folder / f"errors.{self.lives}")
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1", **how.pop("env", {})}
        how = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "env": environment, **how}
        return subprocess.Popen([sys.executable, "-m", "allyouneed", "train", *arguments], **how)

    def require(self, holds: bool, what: str) -> None:
        if not holds:
            self.problems.append(what)

    def fails(self, process: Process, *parts: str, status: int = 1) -> str:
        """Waits for an end with one line of error that says all of this; gives the line."""
        said = process.communicate()[1].decode(errors="replace")
        lines = [line for line in said.splitlines() if line.startswith("error: ")]
        self.require(process.returncode == status, f"status {process.returncode}, not {status}: {said[-400:]}")
        self.require(len(lines) == 1 and "Traceback" not in said, f"not one line: {said[-400:]}")
        line = lines[0] if lines else said[-200:]
        for part in parts:
            self.require(part in line, f"{line!r} does not say {part!r}")
        return line.removeprefix("error: ")

    def intact(self, run: Path, least: int = 1) -> None:
        """All checkpoints are whole, and there are some."""
        paths = checkpoint_paths(run / "checkpoints")
        self.require(len(paths) >= least, f"only {len(paths)} checkpoints")
        for path in paths:
            verify(path)

    def ends_well(self, run: Path, **how: Any) -> None:
        """The same command ends in the same bits."""
        wait(self.start(run, **how))
        self.require(not temporaries(run), "unfinished files were left behind")
        for name in compare(run, self.expected):
            self.problems.append(f"{name} differs from the undisturbed run")


def bench(folder: Path, *changes: tuple[str, str], kind: str = "translation") -> Bench:
    """A recipe with something changed, and its undisturbed run."""
    made = Bench(folder, write_recipe(folder, kind))
    text = made.recipe.read_text().replace("steps = 200", f"steps = {STEPS}")
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    made.recipe.write_text(text)
    wait(made.start(folder / "calm"))
    made.expected = outcome(folder / "calm")
    return made


def until(process: Process, condition: Callable[[], bool]) -> None:
    """Waits for something to happen in a run that goes on."""
    while not condition():
        if process.poll() is not None:
            raise SystemExit(f"the run ended too soon: {process.communicate()[1].decode(errors='replace')}")
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


# --- disks -----------------------------------------------------------------------------------------------------------


def disk_full(folder: Path) -> tuple[Bench, str]:
    """tmpfs of 12 MB that the third checkpoint of 5 MB overfills."""
    made = bench(folder, WIDE)
    with small_disk(folder, "12m") as disk:
        line = made.fails(made.start(disk / "run"), "disk full while writing", "intact")
        made.intact(disk / "run", 2)
        made.require(not temporaries(disk / "run"), "unfinished files fill the disk")
        again = made.fails(made.start(disk / "run"), "disk full")
        made.intact(disk / "run", 2)
        subprocess.run(["mount", "-o", "remount,size=64m", str(disk)], check=True)
        made.ends_well(disk / "run")
    return made, f"{line} (and again: {again[:9]}); with room it goes on"


def read_only(folder: Path) -> tuple[Bench, str]:
    """A disk that is mounted read-only between two lives of a run."""
    made = bench(folder)
    with small_disk(folder, "64m") as disk:
        process = made.start(disk / "run")
        until(process, saved(disk / "run", 2))
        process.send_signal(signal.SIGTERM)
        made.fails(process, "stopped and saved", status=130)
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        line = made.fails(made.start(disk / "run"), "file system is read-only")
        made.intact(disk / "run", 2)
        subprocess.run(["mount", "-o", "remount,rw", str(disk)], check=True)
        made.ends_well(disk / "run")
    return made, line


def no_permission(folder: Path) -> tuple[Bench, str]:
    """A folder in which nobody may write, not even root: `chattr +i`."""
    theirs = folder / "theirs"
    theirs.mkdir()
    if subprocess.run(["chattr", "+i", str(theirs)], capture_output=True, check=False).returncode:
        raise Skipped("chattr +i is not possible here")
    try:
        made = bench(folder)
        line = made.fails(made.start(theirs / "run"), "ot permitted")
    finally:
        subprocess.run(["chattr", "-i", str(theirs)], check=True)
    made.ends_well(theirs / "run")
    return made, line


def file_size_limit(folder: Path) -> tuple[Bench, str]:
    """ulimit -f: no file may be longer than 40 kB."""
    made = bench(folder)

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, 40_000))

    line = made.fails(made.start(folder / "run", preexec_fn=limit), "file size limit reached")
    made.ends_well(folder / "run")
    return made, line


def io_error(folder: Path, call: str) -> tuple[Bench, str]:
    """The disk reports an error from some checkpoint on."""
    made, flag = bench(folder), folder / "flag"
    fault = {"LD_PRELOAD": str(build(folder)), "FAULT_FLAG": str(flag), call: str(errno.EIO)}
    process = made.start(folder / "run", env=fault)
    until(process, saved(folder / "run", 2))
    flag.touch()
    line = made.fails(process, "the disk reports an input/output error", "intact")
    made.intact(folder / "run", 2)
    made.require(not temporaries(folder / "run"), "unfinished files were left behind")
    made.fails(made.start(folder / "run", env=fault), "input/output error")
    flag.unlink()
    made.ends_well(folder / "run", env=fault)
    return made, line


def second_writer(folder: Path) -> tuple[Bench, str]:
    """Two processes, one folder."""
    made = bench(folder)
    first = made.start(folder / "run")
    until(first, saved(folder / "run"))
    first.send_signal(signal.SIGSTOP)
    line = made.fails(made.start(folder / "run"), f"process {first.pid} is writing to this folder")
    first.send_signal(signal.SIGCONT)
    wait(first)
    made.ends_well(folder / "run")
    return made, line


def stale(folder: Path) -> tuple[Bench, str]:
    """What killed writers left: in the run folder, among the checkpoints, and an old folder moved aside."""
    made = bench(folder)
    process = made.start(folder / "run")
    until(process, saved(folder / "run", 2))
    process.kill()
    process.communicate()
    last = checkpoint_paths(folder / "run" / "checkpoints")[-1]
    for name in (".tmp-model-0123", "checkpoints/.tmp-step-00000001-abc"):
        (folder / "run" / name).mkdir()
        (folder / "run" / name / "half").write_bytes(bytes(1000))
    (folder / "run" / ".tmp-log.jsonl-77").write_bytes(b"half")
    last.rename(last.with_name(f".old-{last.name}"))  # killed between two renames: this is the only copy
    made.ends_well(folder / "run")
    made.require(not list((folder / "run").rglob(".old-*")), "a folder is still aside")
    return made, "3 temporaries swept, a folder that stood aside brought back"


# --- clocks and signals ----------------------------------------------------------------------------------------------


def clock_jumps(folder: Path) -> tuple[Bench, str]:
    """The clock on the wall jumps by two days each second: with a budget in steps, and with one in minutes."""
    made = bench(folder)
    fault = {"LD_PRELOAD": str(build(folder)), "FAULT_CLOCK": "1"}
    made.ends_well(folder / "run", env=fault)
    probe = [sys.executable, "-c", "import time; a = time.time(); time.sleep(1); print(time.time() - a)"]
    jumped = abs(float(subprocess.run(probe, env={**os.environ, **fault}, capture_output=True, check=True).stdout))
    made.require(jumped > 80_000, f"the clock did not jump ({jumped} s): this shows nothing")
    wait(made.start(folder / "minutes", "--minutes", "0.1", env=fault))
    records = [json.loads(line) for line in (folder / "minutes" / "log.jsonl").read_text().splitlines()]
    seconds = records[-1]["seconds"]
    made.require(6 <= seconds < 600, f"a budget of 6 s took {seconds} s")
    steps = [record["seconds"] for record in records if "seconds" in record]
    made.require(steps == sorted(steps), "time went backwards in the log")
    return made, f"the same bits; a budget of 6.0 s spent {seconds:.1f} s (with its last evaluation)"


def stopped(folder: Path, number: signal.Signals, times: int = 8) -> tuple[Bench, str]:
    """A signal at random instants: saved and gone within 10 s, and the same bits in the end.

    A quarter come before the first step: there is nothing to save yet, and the process just ends.
    """
    made, dice, slowest, statuses = bench(folder), random.Random(3), 0.0, list[int]()
    for life in range(times):
        run = folder / f"run-{statuses.count(0)}"
        process, log = made.start(run), _read(run / "log.jsonl")
        while life % 4 and _read(run / "log.jsonl") == log and process.poll() is None:
            time.sleep(0.001)
        time.sleep(dice.uniform(0, 1))
        process.send_signal(number)
        began = time.monotonic()
        said = process.communicate()[1].decode(errors="replace")
        slowest = max(slowest, time.monotonic() - began)
        statuses.append(process.returncode)
        made.require("Traceback" not in said, f"a traceback: {said[-300:]}")
    made.require(slowest < MOST_SECONDS, f"took {slowest:.1f} s to stop")
    made.require(130 in statuses and set(statuses) <= {0, 130, -number}, f"statuses {statuses}")
    for run in folder.glob("run-*[0-9]"):
        made.ends_well(run)
    return (
        made,
        f"{times} signals, the slowest end after {slowest:.1f} s, statuses {sorted(set(statuses))}; the same bits",
    )


def stopped_while_evaluating(folder: Path) -> tuple[Bench, str]:
    """An evaluation that takes minutes is given up, and made when the run goes on."""
    made = Bench(folder, write_recipe(folder, "language"))
    (folder / "text").write_text((folder / "text").read_text() * 300)
    run = folder / "run"
    process = made.start(run)
    until(process, lambda: '"step": 14' in _read(run / "log.jsonl"))
    time.sleep(5)  # the first evaluation begins after step 20
    made.require('"evaluation"' not in _read(run / "log.jsonl"), "the evaluation is too short to show something")
    process.send_signal(signal.SIGTERM)
    began = time.monotonic()
    line = made.fails(process, "stopped and saved at step 20", status=130)
    took = time.monotonic() - began
    made.require(took < MOST_SECONDS, f"took {took:.1f} s")
    return made, f"{line}, after {took:.1f} s"


def _read(path: Path) -> str:
    return path.read_text() if path.exists() else ""


# --- numbers ---------------------------------------------------------------------------------------------------------


def spikes(folder: Path) -> tuple[Bench, str]:
    """Gradients above 1.05 times their mean are skipped; killed and replayed, the same ones are skipped again."""
    made = bench(folder, ("[train]\n", "[train]\nspike = 1.05\n"), (f"steps = {STEPS}", "steps = 160"))
    skipped = _skips(folder / "calm")
    made.require(len(skipped) > 3, f"only {len(skipped)} steps were skipped: this shows nothing")
    _torment_skips(made, folder / "run")
    made.require(_skips(folder / "run") == skipped, "other steps were skipped")
    return made, f"{len(skipped)} steps skipped, the same ones after 3 kills; the same bits"


def _torment_skips(made: Bench, run: Path) -> None:
    """Kills a run three times soon after it has skipped a step."""
    for _ in range(3):
        seen = _read(run / "log.jsonl").count('"skip"')
        process = made.start(run)
        while _read(run / "log.jsonl").count('"skip"') <= seen and process.poll() is None:
            time.sleep(0.001)
        process.kill()
        process.communicate()
    made.ends_well(run)


def _skips(run: Path) -> list[tuple[int, str]]:
    records = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    return [(record["step"], record["norm"]) for record in records if record["kind"] == "skip"]


def no_numbers(folder: Path) -> tuple[Bench, str]:
    """One row of the first weights is no number: the steps whose batch meets it are skipped, the others learn."""
    made = Bench(folder, write_recipe(folder, "language"))
    made.recipe.write_text(made.recipe.read_text().replace("layers = 2", "layers = 2\ntied = false"))
    lines = (folder / "text").read_text().splitlines()
    lines[20] += " q"  # the only one of its kind, and not in the held-out part
    (folder / "text").write_text("\n".join(lines) + "\n")
    wait(made.start(folder / "first", "--steps", "1"))
    _spoil(folder / "first" / "model", "q")
    made.arguments = ["--from", str(folder / "first"), "--steps", str(STEPS)]
    wait(made.start(folder / "calm"))
    made.expected, skipped = outcome(folder / "calm"), _skips(folder / "calm")
    made.require(3 < len(skipped) < STEPS // 2, f"{len(skipped)} steps were skipped: this shows nothing")
    made.require({norm for _, norm in skipped} == {"nan"}, "another reason")
    _torment_skips(made, folder / "run")
    made.require(_skips(folder / "run") == skipped, "other steps were skipped")
    return (
        made,
        f"{len(skipped)} of {STEPS} steps had a gradient of nan: skipped, also after 3 kills; the same bits",
    )


def _spoil(model: Path, character: str) -> None:
    tensors = load_file(model / "model.safetensors")
    number = json.loads((model / "tokenizer.json").read_text())["model"]["vocab"][character]
    name = "target.weight_VD"
    tensors[name][number] = float("nan")
    save_file(tensors, model / "model.safetensors")
    write_manifest(model)


SCENARIOS: dict[str, Callable[[Path], tuple[Bench, str]]] = {
    "disk full (tmpfs of 12 MB)": disk_full,
    "read-only file system": read_only,
    "folder that may not be written": no_permission,
    "file size limit": file_size_limit,
    "I/O error in write": lambda folder: io_error(folder, "FAULT_WRITE"),
    "I/O error in fsync": lambda folder: io_error(folder, "FAULT_SYNC"),
    "second writer": second_writer,
    "stale temporaries": stale,
    "clock jumps": clock_jumps,
    "SIGTERM": lambda folder: stopped(folder, signal.SIGTERM),
    "SIGINT": lambda folder: stopped(folder, signal.SIGINT),
    "SIGTERM in a long evaluation": stopped_while_evaluating,
    "loss spikes": spikes,
    "NaN gradients": no_numbers,
}


def tried(name: str) -> tuple[list[str], str]:
    """One fault: what went wrong, and what happened."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            made, told = SCENARIOS[name](Path(folder))
        except Skipped as reason:
            return [], f"skipped: {reason}"
        return made.problems, told.replace(str(folder), "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=SCENARIOS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background ignores it, and so would all lives
    global FORKS
    FORKS = True
    wrong = 0
    for name in SCENARIOS if options.only is None else [options.only]:
        problems, told = tried(name)
        wrong += bool(problems)
        print(f"{'FAILED' if problems else 'ok':6}  {name:30}  {told}", flush=True)
        for problem in problems:
            print(f"        {problem}", flush=True)
    sys.exit(f"{wrong} faults were not survived" if wrong else None)


if __name__ == "__main__":
    main()
