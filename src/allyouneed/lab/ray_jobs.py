"""Training runs as Ray tasks, on the cluster at RAY_ADDRESS or on a local one. Needs the extra `ray`.

At most `workers` runs execute at once; a local cluster is started with the cores they need.
"""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from allyouneed.config import parse
from allyouneed.errors import ConfigError, UserError
from allyouneed.lab.jobs import Job, Outcome, failure, outcome_of, run_job
from allyouneed.training import Recipe

ATTEMPTS = 3  # to start a local cluster: a busy machine may exceed Ray's startup timeout


def run_on_ray(jobs: Sequence[Job], folder: Path, cores: int, workers: int = 0) -> Iterator[Outcome]:
    """Yield outcomes as runs finish. `folder` must be on a shared file system; `workers` 0: no limit."""
    try:
        import ray
    except ImportError:
        raise ConfigError("--on ray needs Ray: pip install 'allyouneed[ray]'") from None
    started = not ray.is_initialized()
    if started:
        _start(ray, cores * workers or None)
    try:
        remote = ray.remote(num_cpus=cores, max_retries=2)(_task)
        waiting: dict[Any, Job] = {}
        left = list(jobs)[::-1]
        while left or waiting:
            while left and (not workers or len(waiting) < workers):
                job = left.pop()
                recipe = job.recipe.model_dump(mode="json")
                prepared = job.prepared and str(job.prepared.resolve())
                waiting[remote.remote(recipe, str((folder / job.name).resolve()), cores, prepared)] = job
            (ready, *_), _ = ray.wait(list(waiting), num_returns=1)
            job = waiting.pop(ready)
            yield _result(job, folder / job.name, ray, ready)
    finally:
        if started:
            ray.shutdown()


def _start(ray: Any, cores: int | None) -> None:
    address = os.environ.get("RAY_ADDRESS")
    # Without a GPU, Ray would print a warning about a future change in how it hides GPUs.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    for attempt in range(1, ATTEMPTS + 1):
        try:
            ray.init(
                address=address,
                num_cpus=None if address else cores,  # only a cluster started here can be sized
                include_dashboard=False,
                log_to_driver=False,
                logging_level="error",
            )
            return
        except Exception as error:  # Ray raises a bare Exception if its processes do not start within 30 seconds
            ray.shutdown()
            if attempt == ATTEMPTS or address:
                raise ConfigError(f"--on ray: no cluster: {str(error).strip().splitlines()[0]}") from None


def _task(recipe: dict[str, Any], folder: str, cores: int, prepared: str | None) -> str:
    """Train on a Ray worker. Return a UserError as text: our exceptions may not survive Ray's pickling."""
    try:
        run_job(parse(Recipe, recipe), Path(folder), cores, prepared=prepared)
    except UserError as error:
        return str(error)
    return ""


def _result(job: Job, folder: Path, ray: Any, ready: Any) -> Outcome:
    try:
        error = ray.get(ready)
    except ray.exceptions.RayError as problem:
        error = f"{type(problem).__name__}: {problem}".splitlines()[0]
    outcome = None if error else outcome_of(folder)
    return outcome or failure(job.name, error or f"{folder}: no end record in its log; is it on a shared file system?")
