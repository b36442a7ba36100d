"""Training jobs of an experiment: the recipe, its execution in a run folder, and the outcome read from its log."""

import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from allyouneed.errors import ConfigError
from allyouneed.storage import is_locked
from allyouneed.tasks.prepared import reusing
from allyouneed.training import Recipe, train
from allyouneed.training.log import read_log
from allyouneed.training.progress import ProgressListener
from allyouneed.training.recipe_files import require_same_recipe, with_precision
from allyouneed.training.workers import shares
from allyouneed.words import counted

ORPHAN_SECONDS = 60.0
Backend = Literal["local", "ray"]


@dataclass(frozen=True)
class Job:
    """A training run to execute. Runs are compared, so all compute in float32, unless their recipes say otherwise."""

    name: str  # name of the run folder
    recipe: Recipe
    prepared: Path | None = None  # a folder with prepared data, which is used if it is that of the recipe

    def __post_init__(self) -> None:
        object.__setattr__(self, "recipe", with_precision(self.recipe, "float32"))


@dataclass(frozen=True)
class Point:
    """The scores of an evaluation during training, and the budget spent up to it."""

    steps: int
    tokens: int
    flops: float
    seconds: float
    scores: Mapping[str, float]


@dataclass(frozen=True)
class Outcome:
    """The result of a job."""

    name: str
    parameters: int
    steps: int
    tokens: int
    flops: float
    seconds: float
    scores: Mapping[str, float]  # best weights, validation split
    curve: Sequence[Point] = field(default=(), repr=False)
    error: str = ""  # why the job failed; all other fields are then empty

    @property
    def failed(self) -> bool:
        """True if there is no result."""
        return bool(self.error)


class RunProgress(Protocol):
    """Callbacks that receive the progress of jobs. Calls come from several threads, never concurrently."""

    def kept(self, outcomes: Sequence[Outcome]) -> None: ...
    def progress(self, job: str, fraction: float, record: Mapping[str, Any]) -> None: ...
    def done(self, outcome: Outcome) -> None: ...


class NoProgress:
    """Ignores all progress."""

    def kept(self, outcomes: Sequence[Outcome]) -> None: ...
    def progress(self, job: str, fraction: float, record: Mapping[str, Any]) -> None: ...
    def done(self, outcome: Outcome) -> None: ...


def finished(folder: Path, recipe: Recipe) -> Outcome | None:
    """Return the outcome of a finished run of exactly this recipe; None if it is not finished."""
    require_same_recipe(folder, recipe)
    if not (folder / "model" / "manifest.json").exists():
        return None
    return outcome_of(folder)


def require_same_cores(folder: Path, recipe: Recipe, cores: int) -> None:
    """Raise ConfigError if the run was started on another number of cores: its results would not be comparable."""
    expected = shares(cores, recipe.train.workers, recipe.train.accumulate)
    log = folder / "log.jsonl"
    for record in read_log(log) if log.exists() else ():
        if record.get("kind") != "start" or not {"workers", "threads"} <= record.keys():
            continue
        count, threads = record["workers"], record["threads"]
        # On a GPU there is always one worker, and the number of cores does not matter.
        if (count, threads) not in (expected, (1, cores)):
            raise ConfigError(
                f"{folder}: was run on {counted(count * threads, 'core')} ({counted(count, 'worker')} x "
                f"{counted(threads, 'thread')}), not on --cores {cores}, and the results depend on it; "
                "use the same --cores, choose another --out, or remove the folder"
            )


def outcome_of(folder: Path) -> Outcome | None:
    """Return the outcome recorded in a run's log; None if the log has no end record."""
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
    """Return the outcome of a job that failed."""
    return Outcome(name, 0, 0, 0, 0.0, 0.0, {}, (), error)


def run_job(
    recipe: Recipe, folder: Path, cores: int, listener: ProgressListener | None = None, prepared: str | None = None
) -> None:
    """Train in this process. First wait for an orphan of a killed parent that is still saving the same run."""
    end = time.monotonic() + ORPHAN_SECONDS
    while is_locked(folder) and time.monotonic() < end:
        time.sleep(0.1)
    with nullcontext() if prepared is None else reusing(Path(prepared), required=False):
        train(recipe, folder, listener, cores=cores)
