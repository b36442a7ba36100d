"""Prepare a large synthetic parallel corpus: time, memory of all processes, disk, and what a kill costs.

    python benchmarks/prepare_scale.py --pairs 5000000
    python benchmarks/prepare_scale.py --pairs 5000000 --processes 2
    python benchmarks/prepare_scale.py --pairs 300000 --task language --out result.json

Pairs are sentences of invented words whose frequencies follow Zipf's law, about 260 bytes a pair. The corpus is written
once and prepared by processes of their own, as `allyouneed data prepare --processes` does it. Memory is what all its
processes together have allocated (anonymous pages), sampled ten times a second; pages of mapped files are counted
apart. Then the same preparation is killed (SIGKILL) a few times and continued. What a kill costs is the time from the
last sealed stage (or the start) to the kill. With several processes, one of them is killed and the others go on. The
result must be the same bytes as that of one undisturbed process. All is written into a temporary folder of `--folder`,
which needs about 800 bytes a pair and is removed at the end.
"""

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path

import numpy as np

from allyouneed.storage import read_manifest

ROOT = Path(__file__).resolve().parents[1]
PREPARE = """
import sys, time, json, os
from pathlib import Path
from allyouneed.tasks import TASKS
from allyouneed.tasks.meter import reporting_to
settings = json.loads(sys.argv[2])
task = TASKS[settings.pop("type")].model_validate(settings)
last = ""
def report(text, fraction):
    global last
    what = text.partition(":")[0]
    if what != last:
        last = what
        now(what)
def now(what):
    print(json.dumps([time.monotonic(), sum(os.times()[:4]), what]), flush=True)
with reporting_to(report):
    data = task.prepare(Path(sys.argv[1]), 1)
now("opening")
data.batch(1, 0)
now("end")
"""
BYTES_A_PAIR = 800  # on the disk, at most: the corpus, prepared data, and as much again twice while it is prepared
TYPES, WORDS = 200_000, 1 << 20  # invented words of each language; words drawn at once
HELD_OUT = 1000
STARTED: list[subprocess.Popen[bytes]] = []


@dataclass
class Usage:
    """What a preparation used."""

    seconds: float = 0.0
    cpu_seconds: float = 0.0
    load: float = 0.0  # average number of processes that wanted a core, in the last minute of it
    stages: dict[str, tuple[float, float]] = field(default_factory=dict)  # seconds and CPU seconds of the first process
    peak_mib: float = 0.0  # allocated by all processes together
    peaks_mib: list[float] = field(default_factory=list)  # of each with its children; the first one usually leads
    peak_with_files_mib: float = 0.0  # by all, with mapped files
    peak_disk: int = 0  # bytes, without the corpus


def sentences(seed: int, count: int) -> Iterator[str]:
    """Yield sentences of invented words, of 6 to 23 words."""
    numbers = np.random.default_rng(seed)
    letters = np.array(list("etaoinshrdlucmfwypvbgkqjxz"))
    lengths = numbers.integers(2, 12, TYPES)
    words = ["".join(letters[np.minimum(numbers.geometric(0.12, length) - 1, 25)]) for length in lengths]
    odds = np.cumsum(1 / np.arange(2, TYPES + 2))
    done = 0
    while done < count:
        drawn = np.searchsorted(odds, numbers.random(WORDS) * odds[-1])
        start = 0
        while start < WORDS - 40 and done < count:
            length = 6 + (start * 7919 + seed) % 18
            yield " ".join([words[index] for index in drawn[start : start + length]])
            start, done = start + length, done + 1


def write_corpus(folder: Path, pairs: int) -> int:
    """Write training and validation files; return the bytes of the training files."""
    for seed, side in enumerate(("en", "de"), start=1):
        for name, count, own in (("train", pairs, seed), ("valid", HELD_OUT, seed + 10)):
            with (folder / f"{name}.{side}").open("w", encoding="utf-8") as file:
                for sentence in sentences(own, count):
                    file.write(sentence + "\n")
    return sum((folder / f"train.{side}").stat().st_size for side in ("en", "de"))


def settings(task: str, size: int) -> dict[str, object]:
    """Return the task."""
    tokenizer = {"kind": "bpe", "size": size}
    if task == "language":
        return {"type": task, "train": "train.en", "valid": "valid.en", "tokenizer": tokenizer}
    files = {"train": ["train.en", "train.de"], "valid": ["valid.en", "valid.de"]}
    return {"type": task, **files, "tokenizer": tokenizer, "max_length": 128}


def tree_of(root: int) -> list[int]:
    """Return the process and all its descendants."""
    found, waiting = [], [root]
    while waiting:
        one = waiting.pop()
        found.append(one)
        for file in Path(f"/proc/{one}/task").glob("*/children"):
            with suppress(OSError):
                waiting += map(int, file.read_text().split())
    return found


def memory_of(processes: list[int]) -> tuple[float, float]:
    """Return the MiB that processes have allocated, and with the files that they have mapped."""
    own = files = 0
    for process in processes:
        try:
            lines = Path(f"/proc/{process}/status").read_text().splitlines()
        except OSError:
            continue
        values = {line.split(":")[0]: int(line.split()[1]) for line in lines if line.startswith("Rss")}
        own += values.get("RssAnon", 0) + values.get("RssShmem", 0)
        files += values.get("RssFile", 0)
    return own / 1024, (own + files) / 1024


def start(folder: Path, out: str, task: dict[str, object], count: int) -> list[subprocess.Popen[bytes]]:
    """Start a preparation by several processes."""
    command = [sys.executable, "-c", PREPARE, out, json.dumps(task)]
    found = []
    for number in range(count):
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
        if number:  # as `data prepare --processes` does
            environment["RAYON_NUM_THREADS"] = str(max(1, (os.cpu_count() or 1) // count))
        with (folder / f"log{number}").open("wb") as file:
            found.append(subprocess.Popen(command, cwd=folder, env=environment, stdout=file))
    STARTED.extend(found)
    return found


def finish(folder: Path, out: str, processes: list[subprocess.Popen[bytes]], usage: Usage) -> None:
    """Wait for all processes, and add what they use. A killed one is no error."""
    running, peaks = list(processes), dict.fromkeys((process.pid for process in processes), 0.0)
    while running:
        for process in list(running):
            ended, status, used = os.wait4(process.pid, os.WNOHANG)
            if ended:
                running.remove(process)
                process.returncode = os.waitstatus_to_exitcode(status)
                if process.returncode not in (0, -signal.SIGKILL):
                    sys.exit(f"preparation ended with status {process.returncode}")
                usage.cpu_seconds += used.ru_utime + used.ru_stime
        memory = {process.pid: memory_of(tree_of(process.pid)) for process in running}
        peaks |= {process: max(peaks[process], own) for process, (own, _) in memory.items()}
        usage.peak_mib = max(usage.peak_mib, sum(own for own, _ in memory.values()))
        usage.peak_with_files_mib = max(usage.peak_with_files_mib, sum(whole for _, whole in memory.values()))
        usage.peak_disk = max(usage.peak_disk, folder_size(folder / out))
        time.sleep(0.1)
    usage.peaks_mib = list(peaks.values())


def stop(*_: object) -> None:
    """End all processes and this one, which removes its folder."""
    for process in STARTED:
        process.kill()
    sys.exit("stopped")


def measure(folder: Path, out: str, task: dict[str, object], count: int) -> Usage:
    """Prepare to the end; return what it took."""
    usage, began = Usage(), time.monotonic()
    finish(folder, out, start(folder, out, task, count), usage)
    usage.seconds, usage.load = time.monotonic() - began, os.getloadavg()[0]
    events = [(began, 0.0, "start"), *map(tuple, map(json.loads, (folder / "log0").read_text().splitlines()))]
    for (since, cpu, what), (until, cpu_until, _) in pairwise(events):
        seconds, used = usage.stages.get(what, (0.0, 0.0))
        usage.stages[what] = seconds + until - since, used + cpu_until - cpu
    return usage


def kill_and_continue(
    folder: Path, task: dict[str, object], seconds: float, kills: int, choose: random.Random
) -> tuple[float, bool]:
    """Kill a preparation at random moments; return the most time that a kill lost, and if the result is the same."""
    lost = 0.0
    for _ in range(kills):
        began = time.time()
        (process,) = start(folder, "killed", task, 1)
        time.sleep(choose.uniform(0.1, 0.9) * seconds / max(1, kills - 1))
        process.kill()
        process.wait()
        if (folder / "killed" / "prepared").exists():
            break
        sealed = [path.stat().st_mtime for path in (folder / "killed").glob("preparing/*/manifest.json")]
        lost = max(lost, time.time() - max([began, *sealed]))
    measure(folder, "killed", task, 1)
    return lost, is_same(folder, "whole", "killed")


def kill_one_of(
    folder: Path, task: dict[str, object], seconds: float, count: int, kills: int, choose: random.Random
) -> bool:
    """Kill one of several processes, the leading one or another, a few times; return if the result is the same."""
    same = True
    for _ in range(kills):
        processes = start(folder, "killed", task, count)
        time.sleep(choose.uniform(0.2, 0.9) * seconds)
        victim = choose.choice(processes)
        victim.kill()
        finish(folder, "killed", processes, Usage())
        same = same and is_same(folder, "whole", "killed")
        shutil.rmtree(folder / "killed")
    return same


def is_same(folder: Path, one: str, other: str) -> bool:
    """Return whether two preparations gave the same bytes."""
    return read_manifest(folder / one / "prepared") == read_manifest(folder / other / "prepared")


def folder_size(folder: Path) -> int:
    """Return the bytes of all files in a folder that may be changing."""
    size = 0
    for path in folder.rglob("*"):
        with suppress(OSError):
            size += path.stat().st_size if path.is_file() else 0
    return size


def show(usage: Usage, pairs: int, disk: int, what: str) -> None:
    """Print what a preparation used."""
    each = ", ".join(f"{one:,.0f}" for one in usage.peaks_mib)
    print(
        f"{what}: prepared in {usage.seconds:.1f} s ({pairs / usage.seconds:,.0f} pairs a second; load "
        f"{usage.load:.1f}), {usage.cpu_seconds:.1f} CPU seconds: {usage.cpu_seconds / usage.seconds:.2f} of "
        f"{os.cpu_count()} cores busy, {usage.peak_mib:,.0f} MiB ({each}; "
        f"{usage.peak_with_files_mib:,.0f} with mapped files), {disk / 1e6:,.0f} MB on disk "
        f"(at most {usage.peak_disk / 1e6:,.0f})"
    )
    for stage, (seconds, cpu) in usage.stages.items():
        print(f"  {stage:48} {seconds:8.1f} s {cpu:8.1f} CPU seconds", flush=True)


def parsed() -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=300_000)
    parser.add_argument("--task", choices=["translation", "language"], default="translation")
    parser.add_argument("--size", type=int, default=8000, help="ids of the tokeniser")
    parser.add_argument("--processes", type=int, default=1, help="measure as many processes beside one alone")
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="where to work; a temporary folder by default")
    parser.add_argument("--out", type=Path, help="write the numbers as JSON")
    return parser.parse_args()


def main() -> int:
    """Write, prepare, kill, report."""
    options = parsed()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    free = shutil.disk_usage(options.folder or tempfile.gettempdir()).free
    if free < options.pairs * BYTES_A_PAIR:
        sys.exit(f"{free / 1e9:.1f} GB are free; {options.pairs * BYTES_A_PAIR / 1e9:.1f} GB are needed: --folder")
    choose = random.Random(1)
    with tempfile.TemporaryDirectory(dir=options.folder) as temporary:
        folder = Path(temporary)
        began = time.monotonic()
        size = write_corpus(folder, options.pairs)
        print(f"{options.pairs:,} pairs, {size / 1e6:,.0f} MB, written in {time.monotonic() - began:.0f} s", flush=True)
        task = settings(options.task, options.size)
        usage = measure(folder, "whole", task, 1)
        disk = folder_size(folder / "whole")
        found = {"pairs": options.pairs, "bytes": size, "task": options.task, "cores": os.cpu_count(), "disk": disk}
        found["one"] = asdict(usage)
        show(usage, options.pairs, disk, "1 process")
        same = True
        if options.processes > 1:
            together = measure(folder, "together", task, options.processes)
            show(together, options.pairs, disk, f"{options.processes} processes")
            same = is_same(folder, "whole", "together")
            shutil.rmtree(folder / "together")
            same &= kill_one_of(folder, task, together.seconds, options.processes, options.kills, choose)
            print(
                f"{options.kills} times, one of them killed: {'the same bytes' if same else 'OTHER BYTES'}", flush=True
            )
            found |= {"processes": options.processes, "together": asdict(together)}
        if options.kills:
            lost, also = kill_and_continue(folder, task, usage.seconds, options.kills, choose)
            same &= also
            found["lost"] = lost
            print(f"kills: at most {lost:.1f} s lost; {'the same bytes' if same else 'OTHER BYTES'}")
        if options.out:
            options.out.write_text(json.dumps(found, indent=1) + "\n")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
