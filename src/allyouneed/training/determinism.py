"""Determinism: what the bits of a run depend on, and how to exclude everything else.

Batches, masks and initial weights follow from (seed, step); gradients are added in the order of the workers. What
remains is how torch sums: the number of threads, the processor, the algorithm. `deterministic = true` selects
algorithms with a fixed order of summation and refuses what cannot be repeated: a budget in minutes, another number of
threads after an interruption. The log and the model card record the conditions.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from allyouneed.errors import ConfigError, TrainingError
from allyouneed.training.log import Record
from allyouneed.training.recipe import Recipe
from allyouneed.version import __version__

# The libraries read these when they are first called. A program that called them earlier must set these itself.
ENVIRONMENT = {"MKL_CBWR": "AUTO", "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
# What must be equal for equal bits; names of fields in the log's `start` records.
SAME = (
    "allyouneed",
    "torch",
    "processor",
    "device",
    "workers",
    "threads",
    "evaluation_threads",
    "processes",
    "parallel",
)


@contextmanager
def deterministic(wanted: bool) -> Iterator[None]:
    """Restrict torch to algorithms with a fixed order of summation while this context is open."""
    if not wanted:
        yield
        return
    before = torch.are_deterministic_algorithms_enabled()
    added = {name: value for name, value in ENVIRONMENT.items() if name not in os.environ}
    os.environ.update(added)
    torch.use_deterministic_algorithms(True)
    try:
        yield
    except RuntimeError as error:
        if "deterministic" not in str(error):
            raise
        raise TrainingError(f"train.deterministic: {str(error).splitlines()[0]}") from error
    finally:
        torch.use_deterministic_algorithms(before)
        for name in added:  # later children of this process are not part of the run
            os.environ.pop(name, None)


def conditions(
    device: torch.device, workers: int, threads: int, evaluation_threads: int, processes: int, parallel: str
) -> Record:
    """Return what the bits of a run depend on besides its recipe."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else torch.backends.cpu.get_cpu_capability()
    return {
        "allyouneed": __version__,
        "torch": torch.__version__,
        "processor": name,
        "device": device.type,
        "workers": workers,
        "threads": threads,
        "evaluation_threads": evaluation_threads,
        "processes": processes,
        "parallel": parallel if processes > 1 else "none",
    }


def require_same_conditions(records: list[Record], now: Mapping[str, Any]) -> None:
    """Raise ConfigError if a deterministic run would resume under conditions that change its bits."""
    starts = [record for record in records if record.get("kind") == "start"]
    for name in SAME if starts else ():
        was, is_now = starts[0].get(name), now[name]
        if was is not None and was != is_now:
            raise ConfigError(
                f"train.deterministic: this run began with {name}={was}, now it is {is_now}; use the same "
                "(taskset and OMP_NUM_THREADS set cores and threads), or start a new run"
            )


def not_repeatable(recipe: Recipe, records: list[Record]) -> list[str]:
    """Return the reasons why another run of the same recipe may end in other bits."""
    reasons = []
    if recipe.train.budget.minutes is not None:
        reasons.append("the budget is in minutes: the number of steps depends on the load of the machine")
    for record in records:
        if record.get("kind") == "extension":
            raised = f"from {record['from']:,.12g} to {record['to']:,.12g} {record['unit']} at step {record['step']:,}"
            reasons.append(f"its budget was raised {raised}; the warm-up is that of the first budget")
    starts = [record for record in records if record.get("kind") == "start"]
    for name in SAME:
        seen = list(dict.fromkeys(str(record[name]) for record in starts if name in record))
        if len(seen) > 1:
            reasons.append(f"it was interrupted and resumed with another {name}: {', then '.join(seen)}")
    if not recipe.train.deterministic:
        reasons.append("torch chose its algorithms freely (train.deterministic was not set)")
    return reasons


def determinism_lines(recipe: Recipe, records: list[Record]) -> list[str]:
    """Return the section of the model card."""
    starts = [record for record in records if record.get("kind") == "start"]
    facts = ", ".join(f"{name.replace('_', ' ')} {starts[-1][name]}" for name in SAME if starts and name in starts[-1])
    reasons = not_repeatable(recipe, records)
    if not reasons:
        return [f"Deterministic: the same recipe gives the same bits under the same conditions: {facts}."]
    why = [f"- {reason}" for reason in reasons]
    return [f"Trained under these conditions: {facts}.", "", "Not guaranteed to repeat to the bit:", "", *why]
