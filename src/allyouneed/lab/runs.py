"""Run many training jobs in separate processes, several at once, each on the same number of cores.

    outcomes = run_all([Job("lstm-1", recipe), ...], folder, workers=2)

A job is a recipe. Its run folder has the job's name, and its outcome is read from that run's log. Killing this process
loses nothing: the same call skips finished runs and resumes the others from their checkpoints, bit for bit. Child
processes stop with their parent: they watch a pipe that closes when the parent dies.

On a Ray cluster (`on="ray"`) the same jobs become Ray tasks; `folder` must then be on a file system shared by all
machines. The caller fixes the number of cores of a run, so that results are the same locally and on the cluster.
"""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from allyouneed.lab.jobs import (
    Backend,
    Job,
    NoProgress,
    Outcome,
    RunProgress,
    failure,
    finished,
    outcome_of,
    require_same_cores,
)
from allyouneed.lab.ray_jobs import run_on_ray
from allyouneed.storage import lock
from allyouneed.training.workers import usable_cores


def run_all(
    jobs: Sequence[Job],
    folder: Path,
    *,
    workers: int = 0,
    cores: int = 1,
    on: Backend = "local",
    progress: RunProgress | None = None,
) -> list[Outcome]:
    """Return the outcomes of all jobs, in order. A failed run is an outcome too and does not stop the others.

    The folder is locked meanwhile: two calls executing the same runs would wait for each other and fail.
    `workers`: number of concurrent runs (0: as many as the cores allow); `cores`: cores per run.
    """
    names = [job.name for job in jobs]
    if len(set(names)) < len(names):
        raise ValueError(f"duplicate job names: {sorted(names)}")
    with lock(folder):
        return _run_all(jobs, folder, workers, cores, on, progress or NoProgress())


def _run_all(
    jobs: Sequence[Job], folder: Path, workers: int, cores: int, on: Backend, progress: RunProgress
) -> list[Outcome]:
    for job in jobs:
        require_same_cores(folder / job.name, job.recipe, cores)
    found = {job.name: outcome for job in jobs if (outcome := finished(folder / job.name, job.recipe)) is not None}
    progress.kept(list(found.values()))
    left = [job for job in jobs if job.name not in found]
    if left and on == "ray":
        made: Iterator[Outcome] = run_on_ray(left, folder, cores, workers)
    else:
        made = _run_here(left, folder, workers or max(1, usable_cores() // cores), cores, progress)
    for outcome in made:
        found[outcome.name] = outcome
        progress.done(outcome)
    return [found[job.name] for job in jobs]


# --- local processes -------------------------------------------------------------------------------------------------


def _run_here(jobs: Sequence[Job], folder: Path, workers: int, cores: int, progress: RunProgress) -> Iterator[Outcome]:
    guard = threading.Lock()
    children: set[subprocess.Popen[str]] = set()

    def report(name: str, line: str) -> None:
        message = json.loads(line)
        with guard:
            progress.progress(name, message["fraction"], message["record"])

    with ThreadPoolExecutor(workers) as pool:
        futures = [pool.submit(_run_child, job, folder, cores, report, children) for job in jobs]
        try:
            for future in as_completed(futures):
                yield future.result()
        finally:  # on interruption, running children save a checkpoint and stop; waiting jobs never start
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
    recipe = job.recipe.model_dump(mode="json")
    places = {"folder": str(folder / job.name), "prepared": job.prepared and str(job.prepared)}
    request = json.dumps({"recipe": recipe, **places, "cores": cores})
    environment = os.environ | dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(cores))
    with subprocess.Popen(
        [sys.executable, "-m", "allyouneed.lab.job_process"],
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
        stderr_reader = threading.Thread(target=lambda pipe: errors.extend(pipe), args=(child.stderr,), daemon=True)
        stderr_reader.start()
        child.stdin.write(request + "\n")
        child.stdin.flush()  # the pipe stays open: it closes when this process dies
        for line in child.stdout:
            report(job.name, line)
        status = child.wait()
        stderr_reader.join()
        children.discard(child)
    outcome = outcome_of(folder / job.name) if status == 0 else None
    if outcome is None:
        messages = [line.strip() for line in errors if line.strip()]
        return failure(job.name, messages[-1] if messages else f"exited with status {status}")
    return outcome
