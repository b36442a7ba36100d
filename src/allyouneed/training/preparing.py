"""The data of a run: prepared by the run itself, or before it, by several processes.

Processes that prepare the same data in the same folder share the work, on one machine or on several with a shared file
system (tasks/preparation.py). `prepare` starts some on this machine; on others, the same command does.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path

from allyouneed.errors import ConfigError, DataError, MissingFileError
from allyouneed.storage import refuse_foreign, refuse_links
from allyouneed.tasks import TaskData
from allyouneed.tasks.prepared import reusing
from allyouneed.training.recipe import Recipe
from allyouneed.training.recipe_files import read_stored_recipe
from allyouneed.training.stopping import Interrupted, stop_signals
from allyouneed.training.workers import usable_cores

DATA = "data"  # the folder of a run that holds its prepared data


def run_data(recipe: Recipe, run: Path) -> TaskData:
    """Return the data of a run. It is prepared, if it is not there."""
    try:
        if recipe.start is not None:
            return recipe.start.prepare(recipe.task, run, recipe.seed)
        return recipe.task.prepare(run / DATA, recipe.seed)
    except MissingFileError as error:
        start = "--train and --valid, or " if recipe.start is not None else ""
        raise DataError(f"{error}; state files of yours: {start}--set task.train=... and task.valid=...") from None


def prepare(recipe: Recipe, run: Path, processes: int = 1, note: Callable[[str], None] = print) -> TaskData:
    """Prepare the data of a run in this process and `processes - 1` others. `note` receives messages.

    A signal raises Interrupted: what is prepared already is kept.
    """
    if (run / "recipe.toml").exists() and read_stored_recipe(run / "recipe.toml").task != recipe.task:
        raise ConfigError(f"{run}: holds a run with another task, or other settings of it; choose another --out")
    refuse_foreign(run, "a run folder", ("recipe.toml",), (DATA, "lock"))
    run.mkdir(parents=True, exist_ok=True)
    refuse_links(run, (DATA,))
    with stop_signals(_stop), _helpers(recipe, run, processes, note):
        return run_data(recipe, run)


def reusing_data_of(run: Path | None) -> AbstractContextManager[None]:
    """Let runs in this block use the prepared data of another run; None: they prepare their own."""
    return nullcontext() if run is None else reusing(run / DATA)


def _stop() -> None:
    raise Interrupted("stopped while preparing the data; the same command continues from there")


@contextmanager
def _helpers(recipe: Recipe, run: Path, processes: int, note: Callable[[str], None]) -> Iterator[None]:
    """Start the other processes, and wait for their end; kill them after an error. They divide the cores."""
    request = json.dumps({"recipe": recipe.model_dump(mode="json"), "run": str(run)})
    environment = {"RAYON_NUM_THREADS": str(max(1, usable_cores() // processes)), **os.environ}
    helpers: list[subprocess.Popen[str]] = []
    try:
        helpers += [_start(request, environment) for _ in range(processes - 1)]
        yield
        for helper in helpers:
            assert helper.stderr is not None
            errors = helper.stderr.read().splitlines()
            if status := helper.wait():
                note(f"another process ended with status {status}: {errors[-1] if errors else 'no message'}")
    finally:
        for helper in helpers:
            helper.kill()
            with suppress(BrokenPipeError), helper:  # close its pipes
                pass


def _start(request: str, environment: dict[str, str]) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "allyouneed.training.prepare_process"]
    # In a process group of its own: Ctrl-C reaches this process alone, which then stops the others.
    helper = subprocess.Popen(
        command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, process_group=0
    )
    assert helper.stdin is not None
    with suppress(BrokenPipeError):  # it has ended already
        helper.stdin.write(request + "\n")
        helper.stdin.flush()  # the pipe stays open: it closes when this process ends
    return helper
