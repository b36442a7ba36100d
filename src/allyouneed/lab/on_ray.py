"""Runs as tasks of a Ray cluster: the one that RAY_ADDRESS names, or one on this machine. Extra `ray`."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from allyouneed.config import parse
from allyouneed.errors import ConfigError, UserError
from allyouneed.lab.runs import Job, Outcome, failure, outcome_of, run_job
from allyouneed.train import Recipe


def run_on_ray(jobs: Sequence[Job], folder: Path, cores: int) -> Iterator[Outcome]:
    """The outcomes, as they come. `folder` lies on a file system that all machines share."""
    try:
        import ray
    except ImportError:
        raise ConfigError("--on ray needs Ray: pip install 'allyouneed[ray]'") from None
    begun = not ray.is_initialized()
    if begun:
        ray.init(address=os.environ.get("RAY_ADDRESS"), include_dashboard=False, log_to_driver=False)
    try:
        remote = ray.remote(num_cpus=cores, max_retries=2)(_task)
        waiting: dict[Any, Job] = {}
        for job in jobs:
            told = job.recipe.model_dump(mode="json")
            waiting[remote.remote(told, str((folder / job.name).resolve()), cores)] = job
        while waiting:
            (ready, *_), _ = ray.wait(list(waiting), num_returns=1)
            job = waiting.pop(ready)
            yield _result(job, folder / job.name, ray, ready)
    finally:
        if begun:
            ray.shutdown()


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
