"""Many runs: each in a process of its own, so many at a time, each on as many cores as the others.

    outcomes = run_all([Job("lstm-1", recipe), ...], folder, workers=2)

A job is a recipe, its run is the folder of its name, and its outcome is read from that run's log. So nothing is lost
when this process is killed: the same call finds finished runs finished, and begun ones go on from their checkpoints,
to the same bits. Children end with their parent: they watch a pipe that closes when it dies.

On a Ray cluster (`on="ray"`) the same jobs are Ray tasks; `folder` then has to lie on a file system that all machines
share. The number of cores of a run is fixed by the caller, so it computes the same numbers here and there.
"""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from allyouneed.errors import ConfigError
from allyouneed.storage import is_locked, lock
from allyouneed.training import Recipe, train
from allyouneed.training.log import read_log
from allyouneed.training.progress import ProgressListener
from allyouneed.training.recipe_files import require_same_recipe
from allyouneed.training.workers import shares, usable_cores
from allyouneed.words import counted

ORPHAN_SECONDS = 60.0
Place = Literal["local", "ray"]


@dataclass(frozen=True)
class Job:
    """One run to be made."""

    name: str  # of its folder
    recipe: Recipe


@dataclass(frozen=True)
class Point:
    """What an evaluation on the way found, and what had been spent by then."""

    steps: int
    tokens: int
    flops: float
    seconds: float
    scores: Mapping[str, float]


@dataclass(frozen=True)
class Outcome:
    """What became of a job."""

    name: str
    parameters: int
    steps: int
    tokens: int
    flops: float
    seconds: float
    scores: Mapping[str, float]  # of the best weights, on the validation split
    curve: Sequence[Point] = field(default=(), repr=False)
    error: str = ""  # why there is no result: everything else is then empty

    @property
    def failed(self) -> bool:
        """Whether there is no result."""
        return bool(self.error)


class Watch(Protocol):
    """Whoever watches jobs. Called from several threads, one at a time."""

    def kept(self, outcomes: Sequence[Outcome]) -> None: ...
    def progress(self, job: str, fraction: float, record: Mapping[str, Any]) -> None: ...
    def done(self, outcome: Outcome) -> None: ...


class Nobody:
    """Watches nothing."""

    def kept(self, outcomes: Sequence[Outcome]) -> None: ...
    def progress(self, job: str, fraction: float, record: Mapping[str, Any]) -> None: ...
    def done(self, outcome: Outcome) -> None: ...


def run_all(
    jobs: Sequence[Job],
    folder: Path,
    *,
    workers: int = 0,
    cores: int = 1,
    on: Place = "local",
    watch: Watch | None = None,
) -> list[Outcome]:
    """The outcomes of all jobs, in their order. A run that fails is an outcome too; it stops no other.

    The folder is locked meanwhile: two that make the same runs would wait for each other's, and fail.
    `workers`: runs at a time (0: as many as there are cores for); `cores`: of each run.
    """
    names = [job.name for job in jobs]
    if len(set(names)) < len(names):
        raise ValueError(f"two jobs of one name: {sorted(names)}")
    with lock(folder):
        return _run_all(jobs, folder, workers, cores, on, watch or Nobody())


def _run_all(jobs: Sequence[Job], folder: Path, workers: int, cores: int, on: Place, watch: Watch) -> list[Outcome]:
    for job in jobs:
        require_same_cores(folder / job.name, job.recipe, cores)
    found = {job.name: outcome for job in jobs if (outcome := finished(folder / job.name, job.recipe)) is not None}
    watch.kept(list(found.values()))
    left = [job for job in jobs if job.name not in found]
    if left and on == "ray":
        from allyouneed.lab.on_ray import run_on_ray

        made: Iterator[Outcome] = run_on_ray(left, folder, cores, workers)
    else:
        made = _run_here(left, folder, workers or max(1, usable_cores() // cores), cores, watch)
    for outcome in made:
        found[outcome.name] = outcome
        watch.done(outcome)
    return [found[job.name] for job in jobs]


def finished(folder: Path, recipe: Recipe) -> Outcome | None:
    """The outcome of a finished run of this very recipe; None if it is still to be made."""
    require_same_recipe(folder, recipe)
    if not (folder / "model" / "manifest.json").exists():
        return None
    return outcome_of(folder)


def require_same_cores(folder: Path, recipe: Recipe, cores: int) -> None:
    """Refuses a run that was made, or begun, on another number of cores: its numbers are not those of the others."""
    wanted = shares(cores, recipe.train.workers, recipe.train.accumulate)
    log = folder / "log.jsonl"
    for record in read_log(log) if log.exists() else ():
        if record.get("kind") != "start" or not {"workers", "threads"} <= record.keys():
            continue
        count, threads = record["workers"], record["threads"]
        # On a GPU there is one worker, whatever the recipe says, and cores do not matter.
        if (count, threads) not in (wanted, (1, cores)):
            raise ConfigError(
                f"{folder}: was made on {counted(count * threads, 'core')} ({counted(count, 'worker')} x "
                f"{counted(threads, 'thread')}), not on --cores {cores}, and the numbers depend on it; "
                "give the same --cores, choose another --out, or remove it"
            )


def outcome_of(folder: Path) -> Outcome | None:
    """What a run's log says of it; None if it does not say that the run has ended."""
    records = read_log(folder / "log.jsonl")
    ends = [record for record in records if record.get("kind") == "end"]
    starts = [record for record in records if record.get("kind") == "start"]
    if not ends or not starts:
        return None
    spent = {name: ends[-1][name] for name in ("steps", "tokens", "flops", "seconds")}
    points = [
        Point(record["step"], record["tokens"], record["flops"], record["seconds"], _scores(record))
        for record in records
        if record.get("kind") == "evaluation"
    ]
    return Outcome(folder.name, starts[-1]["parameters"], **spent, scores=_scores(ends[-1]), curve=points)


_NO_SCORES = {"kind", "step", "chosen", "steps", "tokens", "flops", "seconds", "best"}


def _scores(record: Mapping[str, Any]) -> dict[str, float]:
    return {name: value for name, value in record.items() if name not in _NO_SCORES}


def failure(name: str, error: str) -> Outcome:
    """The outcome of a run that could not be made."""
    return Outcome(name, 0, 0, 0, 0.0, 0.0, {}, (), error)


# --- processes here --------------------------------------------------------------------------------------------------


def _run_here(jobs: Sequence[Job], folder: Path, workers: int, cores: int, watch: Watch) -> Iterator[Outcome]:
    guard = threading.Lock()
    children: set[subprocess.Popen[str]] = set()

    def report(name: str, line: str) -> None:
        message = json.loads(line)
        with guard:
            watch.progress(name, message["fraction"], message["record"])

    with ThreadPoolExecutor(workers) as pool:
        futures = [pool.submit(_run_child, job, folder, cores, report, children) for job in jobs]
        try:
            for future in as_completed(futures):
                yield future.result()
        finally:  # interrupted: what runs is asked to save itself, what waits never begins
            pool.shutdown(wait=False, cancel_futures=True)
            for child in list(children):
                child.terminate()


def _run_child(
    job: Job,
    folder: Path,
    cores: int,
    report: Callable[[str, str], None],
    children: "set[subprocess.Popen[str]]",
) -> Outcome:
    told = json.dumps({"recipe": job.recipe.model_dump(mode="json"), "folder": str(folder / job.name), "cores": cores})
    environment = os.environ | dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(cores))
    with subprocess.Popen(
        [sys.executable, "-m", "allyouneed.lab.job"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        env=environment,
    ) as child:
        children.add(child)
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stderr is not None
        errors: list[str] = []
        listening = threading.Thread(target=lambda pipe: errors.extend(pipe), args=(child.stderr,), daemon=True)
        listening.start()
        child.stdin.write(told + "\n")
        child.stdin.flush()  # and stays open: it closes when this process dies
        for line in child.stdout:
            report(job.name, line)
        status = child.wait()
        listening.join()
        children.discard(child)
    outcome = outcome_of(folder / job.name) if status == 0 else None
    if outcome is None:
        words = [line.strip() for line in errors if line.strip()]
        return failure(job.name, words[-1] if words else f"ended with status {status}")
    return outcome


def run_job(recipe: Recipe, folder: Path, cores: int, listener: ProgressListener | None = None) -> None:
    """One run, in this process. Where the run of a killed parent is still saving itself, it is waited for."""
    end = time.monotonic() + ORPHAN_SECONDS
    while is_locked(folder) and time.monotonic() < end:
        time.sleep(0.1)
    train(recipe, folder, listener, cores=cores)
