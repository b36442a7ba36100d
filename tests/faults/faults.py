"""Faults of disks, clocks, signals and numbers, each caused for real while `allyouneed train` runs.

    python tests/faults/faults.py [--only NAME]

Each time, the run ends with one clear line (or continues, where that is right), and what was saved before is intact.
Once the fault is over, the same command ends with the bits of an undisturbed run. Mounting needs root; faults that
cannot be caused on this machine are reported as skipped.
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
from collections.abc import Callable
from pathlib import Path

import torch
from fault_bench import (
    MOST_SECONDS,
    WIDE,
    Bench,
    Skipped,
    allow_forks,
    bench,
    read_text,
    saved,
    small_disk,
    until,
)
from fault_numbers import nan_gradients, spikes
from kill import temporaries, wait, write_recipe
from shim import build

from allyouneed.storage.checkpoints import checkpoint_paths


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
    return made, f"{line} (and again: {again[:9]}); with free space it resumes"


def read_only(folder: Path) -> tuple[Bench, str]:
    """A disk that is mounted read-only between two processes of a run."""
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
    """A folder that not even root may write to: `chattr +i`."""
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
    """The disk reports an error from one checkpoint on."""
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
    """Leftovers of killed writers: in the run folder, among the checkpoints, and an old folder moved aside."""
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


def clock_jumps(folder: Path) -> tuple[Bench, str]:
    """The wall clock jumps by two days each second: with a budget in steps, and with one in minutes."""
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
    """A signal at random instants: the run saves and exits within 10 s, and ends with the same bits.

    A quarter arrive before the first step: there is nothing to save yet, and the process just exits.
    """
    made, dice, slowest, statuses = bench(folder), random.Random(3), 0.0, list[int]()
    for attempt in range(times):
        run = folder / f"run-{statuses.count(0)}"
        process, log = made.start(run), read_text(run / "log.jsonl")
        while attempt % 4 and read_text(run / "log.jsonl") == log and process.poll() is None:
            time.sleep(0.001)
        time.sleep(dice.uniform(0, 1))
        process.send_signal(number)
        started = time.monotonic()
        output = process.communicate()[1].decode(errors="replace")
        slowest = max(slowest, time.monotonic() - started)
        statuses.append(process.returncode)
        made.require("Traceback" not in output, f"a traceback: {output[-300:]}")
    made.require(slowest < MOST_SECONDS, f"took {slowest:.1f} s to stop")
    made.require(130 in statuses and set(statuses) <= {0, 130, -number}, f"statuses {statuses}")
    for run in folder.glob("run-*[0-9]"):
        made.ends_well(run)
    return (
        made,
        f"{times} signals, the slowest end after {slowest:.1f} s, statuses {sorted(set(statuses))}; the same bits",
    )


def stopped_while_evaluating(folder: Path) -> tuple[Bench, str]:
    """An evaluation that takes minutes is abandoned, and repeated when the run resumes."""
    made = Bench(folder, write_recipe(folder, "language"))
    (folder / "text").write_text((folder / "text").read_text() * 300)
    run = folder / "run"
    process = made.start(run)
    until(process, lambda: '"step": 14' in read_text(run / "log.jsonl"))
    time.sleep(5)  # the first evaluation starts after step 20
    made.require('"evaluation"' not in read_text(run / "log.jsonl"), "the evaluation is too short to show something")
    process.send_signal(signal.SIGTERM)
    started = time.monotonic()
    line = made.fails(process, "stopped and saved at step 20", status=130)
    took = time.monotonic() - started
    made.require(took < MOST_SECONDS, f"took {took:.1f} s")
    return made, f"{line}, after {took:.1f} s"


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
    "NaN gradients": nan_gradients,
}


def cause(name: str) -> tuple[list[str], str]:
    """Cause one fault; return the problems, and what happened."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            made, result = SCENARIOS[name](Path(folder))
        except Skipped as reason:
            return [], f"skipped: {reason}"
        return made.problems, result.replace(str(folder), "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=SCENARIOS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a background shell ignores it, and runs inherit that
    allow_forks()
    wrong = 0
    for name in SCENARIOS if options.only is None else [options.only]:
        problems, result = cause(name)
        wrong += bool(problems)
        print(f"{'FAILED' if problems else 'ok':6}  {name:30}  {result}", flush=True)
        for problem in problems:
            print(f"        {problem}", flush=True)
    sys.exit(f"{wrong} faults were not survived" if wrong else None)


if __name__ == "__main__":
    main()
