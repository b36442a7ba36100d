"""Kill a training run with SIGKILL at random instants, restart the same command each time, and compare the results.

    python tests/faults/kill.py --kind language|translation|bfloat16|xl|ddp --kills 50

A third of the kills are near the start, a third while a checkpoint is being written, a third at any time. At the end
the model, every tensor of the last checkpoint and the logged losses must equal an undisturbed run bit for bit. Of two
processes (ddp), the first, the second or both are killed; a remaining process must exit on SIGTERM, as under torchrun.
"""

import argparse
import json
import os
import random
import signal
import socket
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

import allyouneed.cli
import allyouneed.training

ROOT = Path(__file__).resolve().parents[2]
WAYS = ("start", "save", "any")

WORDS = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve")

LANGUAGE = """
[task]
type = "language"
train = "FOLDER/text"
split = [0.8, 0.2]
tokenizer = { kind = "characters" }
context = 32
batch = 4

[model]
type = "decoder"
width = 16
hidden = 24
layers = 2
dropout = 0.1
mixer = { type = "softmax", heads = 2 }
"""
TRANSLATION = """
[task]
type = "translation"
train = ["FOLDER/source", "FOLDER/target"]
valid = ["FOLDER/source.valid", "FOLDER/target.valid"]
tokenizer = { kind = "bpe", size = 300, dropout = 0.1 }
max_length = 64
batch_tokens = 128

[model]
type = "encoder-decoder"
width = 16
hidden = 24
encoder_layers = 1
decoder_layers = 1
mixer = { type = "softmax", heads = 2 }
dropout = 0.1
"""
XL = LANGUAGE.replace("context = 32", "context = 48\nsegment = 16").replace(
    '"softmax", heads = 2', '"xl", heads = 2, memory = 16, stretch = true'
)
DDP = TRANSLATION  # with two processes
BFLOAT16 = TRANSLATION  # with products in bfloat16
KINDS = {"language": LANGUAGE, "translation": TRANSLATION, "bfloat16": BFLOAT16, "xl": XL, "ddp": DDP}
ALONE = (5.0, 60.0)  # seconds after the exit of one process: SIGTERM to the other, and its deadline
TRAINING = """
[train]
budget = { steps = 200 }
accumulate = 2
evaluate_every = 0.1
save_minutes = 0.005
log_every = 7
average = { type = "ema", decay = 0.9 }

[decode]
beam = 2
"""


def write_recipe(folder: Path, kind: str) -> Path:
    """Write the recipe of a small run and the texts that it reads."""
    dice = random.Random(1)
    rows = [[dice.choice(WORDS) for _ in range(dice.randint(1, 7))] for _ in range(240)]
    for name, part in (("", rows[:220]), (".valid", rows[220:])):
        (folder / f"source{name}").write_text("".join(" ".join(row) + "\n" for row in part))
        (folder / f"target{name}").write_text("".join(" ".join(reversed(row)) + "\n" for row in part))
    (folder / "text").write_text("".join(" ".join(row) + "\n" for row in rows[:100]))
    recipe = folder / "recipe.toml"
    setting = {"ddp": 'parallel = "ddp"', "bfloat16": 'precision = "bfloat16"'}.get(kind, "")
    training = TRAINING.replace("[train]", f"[train]\n{setting}")
    recipe.write_text("seed = 7\n" + KINDS[kind].replace("FOLDER", str(folder)) + training)
    return recipe


@dataclass
class Kill:
    """One kill and the files it left."""

    way: str
    seconds: float
    checkpoint: str
    temporaries: int


class ForkedRun:
    """`allyouneed train` in a forked process, so that torch is imported once, not once per kill."""

    def __init__(self, *arguments: str, errors: Path, environment: dict[str, str] | None = None) -> None:
        self.returncode: int | None = None
        self._errors = errors
        sys.stdout.flush()
        self.pid = os.fork()
        if self.pid == 0:
            os.environ.update(environment or {})
            self._train(["train", *arguments])

    def _train(self, arguments: list[str]) -> None:
        status = 1
        try:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            os.dup2(os.open(self._errors, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), 2)
            sys.argv = ["allyouneed", *arguments]
            status = allyouneed.cli.run(arguments)
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            sys.stderr.flush()
            os._exit(status)

    def poll(self) -> int | None:
        if self.returncode is None:
            ended, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if ended else None
        return self.returncode

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def communicate(self) -> tuple[bytes, bytes]:
        while self.poll() is None:
            time.sleep(0.01)
        return b"", self._errors.read_bytes()


def start_run(recipe: Path, run: Path, environment: dict[str, str] | None = None) -> ForkedRun:
    """Start the command, which is the same each time."""
    errors = run.with_suffix(f".errors{(environment or {}).get('RANK', '')}")
    return ForkedRun(str(recipe), "--out", str(run), errors=errors, environment=environment)


class PairOfRuns:
    """Two processes that train together. As under torchrun, one receives SIGTERM after the other has exited."""

    def __init__(self, recipe: Path, run: Path, dice: random.Random) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = str(probe.getsockname()[1])
        common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
        self.runs = [start_run(recipe, run, {"RANK": str(r), "LOCAL_RANK": str(r), **common}) for r in range(2)]
        self._dice = dice

    @property
    def returncode(self) -> int | None:
        codes = [run.poll() for run in self.runs]
        return None if None in codes else next(filter(None, codes), 0)

    def poll(self) -> int | None:
        return self.returncode

    def kill(self) -> None:
        for run in self._dice.choice([self.runs[:1], self.runs[1:], self.runs]):
            if run.poll() is None:
                run.kill()

    def communicate(self) -> tuple[bytes, bytes]:
        while self.runs[0].poll() is None and self.runs[1].poll() is None:
            time.sleep(0.01)
        since = time.monotonic()
        while self.returncode is None:
            if time.monotonic() > since + ALONE[0]:
                os.kill(next(run.pid for run in self.runs if run.returncode is None), signal.SIGTERM)
            if time.monotonic() > since + ALONE[1]:
                raise SystemExit(f"one process is gone, and the other still waits for it after {ALONE[1]:.0f} s")
            time.sleep(0.5)
        return b"", b"".join(run.communicate()[1] for run in self.runs)


class Process(Protocol):
    """A forked run, a pair of them, or a process of `subprocess`."""

    pid: int

    @property
    def returncode(self) -> Any: ...
    def poll(self) -> int | None: ...
    def kill(self) -> None: ...
    def send_signal(self, number: int) -> None: ...
    def communicate(self) -> tuple[bytes, bytes]: ...


def wait(process: Process) -> None:
    """Wait for a run to end, and fail if its status is not 0."""
    _, errors = process.communicate()
    if process.returncode:
        raise SystemExit(f"the run failed with status {process.returncode}:\n{errors.decode(errors='replace')}")


def temporaries(run: Path) -> set[Path]:
    """Return the unfinished files and folders of a run folder."""
    return {*run.glob(".tmp-*"), *run.glob("checkpoints/.tmp-*")}


def kill_once(process: ForkedRun | PairOfRuns, run: Path, way: str, dice: random.Random, span: float) -> Kill | None:
    """Wait for an instant of the requested kind and kill the run; return None if it ended before."""
    started, limit = time.monotonic(), dice.uniform(0, span)
    modified, before = newest(run), temporaries(run)
    ready: float | None = None
    while process.poll() is None:
        now = time.monotonic()
        if ready is None and newest(run) != modified:
            ready = now  # it has opened its log
        if way == "start" and now - started > limit:
            break
        if way == "any" and ready is not None and now - ready > limit:
            break
        if way == "save" and ready is not None and now - ready > limit / 2 and temporaries(run):
            time.sleep(dice.uniform(0, 0.004))
            break
        time.sleep(0.0005)
    if process.poll() is not None:
        wait(process)
        return None
    process.kill()
    process.communicate()
    saved = sorted(path.name for path in run.glob("checkpoints/step-*"))
    return Kill(way, time.monotonic() - started, saved[-1] if saved else "none", len(temporaries(run) - before))


def newest(run: Path) -> int:
    """Return the time at which the log of a run was last written."""
    log = run / "log.jsonl"
    return log.stat().st_mtime_ns if log.exists() else 0


def outcome(run: Path) -> dict[str, object]:
    """Return everything that must be equal at the end."""
    last = max(run.glob("checkpoints/step-*"))
    files = [run / "model" / "model.safetensors", *sorted(last.glob("*.safetensors"))]
    found: dict[str, object] = {str(path.relative_to(run)): path.read_bytes() for path in files}
    records = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    found["log.jsonl"] = [(item["step"], item["loss"]) for item in records if item["kind"] in ("step", "evaluation")]
    return found


def compare(run: Path, expected: dict[str, object]) -> list[str]:
    """Return the names of all parts that differ."""
    found = outcome(run)
    return sorted(name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name))


def kill_repeatedly(folder: Path, kind: str, kills: int, seed: int, span: float = 3.0) -> tuple[list[Kill], list[str]]:
    """Make an undisturbed run, then killed ones until there are enough kills; return kills and differences."""
    dice, done, differences, number = random.Random(seed), list[Kill](), list[str](), 0
    recipe = write_recipe(folder, kind)

    def start(run: Path) -> ForkedRun | PairOfRuns:
        return PairOfRuns(recipe, run, dice) if kind == "ddp" else start_run(recipe, run)

    wait(start(folder / "undisturbed"))
    expected = outcome(folder / "undisturbed")
    while len(done) < kills:
        number += 1
        run = folder / f"killed-{number}"
        while len(done) < kills:
            process = start(run)
            kill = kill_once(process, run, WAYS[len(done) % len(WAYS)], dice, span)
            if kill is None:
                break
            done.append(kill)
        wait(start(run))
        differences += [f"{run.name}: {name}" for name in compare(run, expected)]
        if temporaries(run):
            differences.append(f"{run.name}: unfinished files were left behind")
    return done, differences


def main() -> None:
    """Print one line for each kill, then the verdict."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kind", choices=sorted(KINDS), default="translation")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(1)  # forking is safe only with one thread
    with tempfile.TemporaryDirectory() as folder:
        done, differences = kill_repeatedly(Path(folder), options.kind, options.kills, options.seed)
    print(f"{'kill':>4}  {'aimed at':8}  {'seconds':>7}  {'newest checkpoint':17}  unfinished")
    for number, kill in enumerate(done, start=1):
        print(f"{number:4}  {kill.way:8}  {kill.seconds:7.2f}  {kill.checkpoint:17}  {kill.temporaries}")
    print(f"{options.kind}: {len(done)} kills, {sum(kill.temporaries > 0 for kill in done)} of them in mid-write")
    for difference in differences:
        print(f"DIFFERS: {difference}")
    print("all runs resumed" + ("" if differences else "; all ended in the bits of the undisturbed run"))
    sys.exit(f"{len(differences)} differences" if differences else None)


if __name__ == "__main__":
    main()
