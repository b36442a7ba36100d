"""Prepare a large synthetic parallel corpus: time, memory of all processes, disk, and what a kill costs.

    python benchmarks/prepare_scale.py --pairs 5000000
    python benchmarks/prepare_scale.py --pairs 300000 --task language --out result.json

Pairs are sentences of invented words whose frequencies follow Zipf's law, about 260 bytes a pair. The corpus is written
once and prepared by a process of its own, as `allyouneed train` does it. Memory is what all its processes together have
allocated (anonymous pages), sampled ten times a second; pages of mapped files are counted apart. Then the same
preparation is killed (SIGKILL) a few times and continued. What a kill costs is the time from the last sealed stage (or
the start) to the kill. The result must be the same bytes.
"""

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path

import numpy as np

from allyouneed.storage import read_manifest

ROOT = Path(__file__).resolve().parents[1]
PREPARE = """
import sys, time, json
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
        print(json.dumps([time.monotonic(), what]), flush=True)
with reporting_to(report):
    data = task.prepare(Path(sys.argv[1]), 1)
print(json.dumps([time.monotonic(), "opening"]), flush=True)
data.batch(1, 0)
print(json.dumps([time.monotonic(), "end"]), flush=True)
"""
TYPES, WORDS = 200_000, 1 << 20  # invented words of each language; words drawn at once
HELD_OUT = 1000


@dataclass
class Usage:
    """What a preparation used."""

    seconds: float = 0.0
    cpu_seconds: float = 0.0
    stages: dict[str, float] = field(default_factory=dict)
    peak_mib: float = 0.0  # allocated by all processes together
    peak_with_files_mib: float = 0.0  # the same, with mapped files


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
    parents: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                fields = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            parents.setdefault(int(fields[1]), []).append(int(name))
    found, waiting = [], [root]
    while waiting:
        one = waiting.pop()
        found.append(one)
        waiting += parents.get(one, [])
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


def start(folder: Path, out: str, task: dict[str, object], log: Path) -> subprocess.Popen[bytes]:
    """Start a preparation."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-c", PREPARE, out, json.dumps(task)]
    with log.open("wb") as file:
        return subprocess.Popen(command, cwd=folder, env=environment, stdout=file)


def measure(folder: Path, out: str, task: dict[str, object]) -> Usage:
    """Prepare to the end; return what it took."""
    usage, log = Usage(), folder / "log"
    began = time.monotonic()
    process = start(folder, out, task, log)
    while True:
        ended, status, used = os.wait4(process.pid, os.WNOHANG)
        if ended:
            process.returncode = os.waitstatus_to_exitcode(status)
            break
        own, whole = memory_of(tree_of(process.pid))
        usage.peak_mib, usage.peak_with_files_mib = max(usage.peak_mib, own), max(usage.peak_with_files_mib, whole)
        time.sleep(0.1)
    if process.returncode:
        sys.exit(f"preparation ended with status {process.returncode}")
    usage.seconds = time.monotonic() - began
    usage.cpu_seconds = used.ru_utime + used.ru_stime
    events = [(began, "start"), *map(tuple, map(json.loads, log.read_text().splitlines()))]
    for (since, what), (until, _) in pairwise(events):
        usage.stages[what] = usage.stages.get(what, 0.0) + until - since
    return usage


def kill_and_continue(
    folder: Path, task: dict[str, object], seconds: float, kills: int, choose: random.Random
) -> tuple[float, bool]:
    """Kill a preparation at random moments; return the most time that a kill lost, and if the result is the same."""
    lost = 0.0
    for _ in range(kills):
        began = time.time()
        process = start(folder, "killed", task, folder / "log")
        time.sleep(choose.uniform(0.1, 0.9) * seconds / max(1, kills - 1))
        process.kill()
        process.wait()
        if (folder / "killed" / "prepared").exists():
            break
        sealed = [path.stat().st_mtime for path in (folder / "killed").glob("preparing/*/manifest.json")]
        lost = max(lost, time.time() - max([began, *sealed]))
    measure(folder, "killed", task)
    same = read_manifest(folder / "whole" / "prepared") == read_manifest(folder / "killed" / "prepared")
    return lost, same


def folder_size(folder: Path) -> int:
    """Return the bytes of all files in a folder."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def main() -> int:
    """Write, prepare, kill, report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=300_000)
    parser.add_argument("--task", choices=["translation", "language"], default="translation")
    parser.add_argument("--size", type=int, default=8000, help="ids of the tokeniser")
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="where to work; a temporary folder by default")
    parser.add_argument("--out", type=Path, help="write the numbers as JSON")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as temporary:
        folder = Path(temporary)
        began = time.monotonic()
        size = write_corpus(folder, options.pairs)
        print(f"{options.pairs:,} pairs, {size / 1e6:,.0f} MB, written in {time.monotonic() - began:.0f} s", flush=True)
        task = settings(options.task, options.size)
        usage = measure(folder, "whole", task)
        disk = folder_size(folder / "whole")
        print(
            f"prepared in {usage.seconds:.1f} s ({options.pairs / usage.seconds:,.0f} pairs a second), "
            f"{usage.cpu_seconds / usage.seconds:.2f} of {os.cpu_count()} cores busy, "
            f"{usage.peak_mib:,.0f} MiB ({usage.peak_with_files_mib:,.0f} with mapped files), "
            f"{disk / 1e6:,.0f} MB on disk"
        )
        for what, seconds in usage.stages.items():
            print(f"  {what:32} {seconds:8.1f} s", flush=True)
        choose = random.Random(1)
        lost, same = (
            kill_and_continue(folder, task, usage.seconds, options.kills, choose) if options.kills else (0, True)
        )
        print(f"kills: at most {lost:.1f} s lost; {'the same bytes' if same else 'OTHER BYTES'}")
        if options.out:
            found = {"pairs": options.pairs, "bytes": size, "task": options.task, "disk": disk, "lost": lost}
            options.out.write_text(json.dumps({**found, **asdict(usage)}, indent=1) + "\n")
        shutil.rmtree(folder / "whole")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
