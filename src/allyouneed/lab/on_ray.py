"""Runs as tasks of a Ray cluster: the one that RAY_ADDRESS names, or one on this machine. Extra `ray`.

At most `workers` runs are under way at a time; a cluster of our own has as many cores as they need.
"""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from allyouneed.config import parse
from allyouneed.errors import ConfigError, UserError
from allyouneed.lab.runs import Job, Outcome, failure, outcome_of, run_job
from allyouneed.training import Recipe

ATTEMPTS = 3  # to start a cluster here: a busy machine may be too slow for Ray's patience


def run_on_ray(jobs: Sequence[Job], folder: Path, cores: int, workers: int = 0) -> Iterator[Outcome]:
    """The outcomes, as they come. `folder` lies on a file system that all machines share; `workers` 0: any number."""
    try:
        import ray
    except ImportError:
        raise ConfigError("--on ray needs Ray: pip install 'allyouneed[ray]'") from None
    begun = not ray.is_initialized()
    if begun:
        _begin(ray, cores * workers or None)
    try:
        remote = ray.remote(num_cpus=cores, max_retries=2)(_task)
        waiting: dict[Any, Job] = {}
        left = list(jobs)[::-1]
        while left or waiting:
            while left and (not workers or len(waiting) < workers):
                job = left.pop()
                told = job.recipe.model_dump(mode="json")
                waiting[remote.remote(told, str((folder / job.name).resolve()), cores)] = job
            (ready, *_), _ = ray.wait(list(waiting), num_returns=1)
            job = waiting.pop(ready)
            yield _result(job, folder / job.name, ray, ready)
    finally:
        if begun:
            ray.shutdown()


def _begin(ray: Any, cores: int | None) -> None:
    address = os.environ.get("RAY_ADDRESS")
    # Without a GPU Ray would warn of a change to come in how it hides them.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    for attempt in range(1, ATTEMPTS + 1):
        try:
            ray.init(
                address=address,
                num_cpus=None if address else cores,  # a cluster that runs has the cores that it has
                include_dashboard=False,
                log_to_driver=False,
                logging_level="error",
            )
            return
        except Exception as error:  # Ray raises a bare one where its own processes do not start within 30 seconds
            ray.shutdown()
            if attempt == ATTEMPTS or address:
                raise ConfigError(f"--on ray: no cluster: {str(error).strip().splitlines()[0]}") from None


def _task(recipe: dict[str, Any], folder: str, cores: int) -> str:
    """Runs on a worker. What a user can mend comes back as a text: errors of ours may not pass through Ray's."""
    try:
        run_job(parse(Recipe, recipe), Path(folder), cores)
    except UserError as error:
        return str(error)
    return ""


def _result(job: Job, folder: Path, ray: Any, ready: Any) -> Outcome:
    try:
        error = ray.get(ready)
    except ray.exceptions.RayError as problem:
        error = f"{type(problem).__name__}: {problem}".splitlines()[0]
    outcome = None if error else outcome_of(folder)
    return outcome or failure(job.name, error or f"{folder}: its log holds no end: is it on a shared file system?")
