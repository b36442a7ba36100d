"""A run goes on with a larger budget, as if it had begun with it.

Settings that are fractions of the budget would change with it. So a longer run keeps the warm-up that it began with:

    constant, inverse-sqrt   every step is the one of a run that was planned to be longer
    stable-decay             the same, if the learning rate has not begun to fall
    cosine, linear           the learning rate falls with the budget from the end of the warm-up on: refused after that
"""

from contextlib import suppress
from pathlib import Path
from typing import Any

from allyouneed.errors import ConfigError, FolderError
from allyouneed.folder import folder_recipe
from allyouneed.storage import open_folder
from allyouneed.storage.checkpoints import checkpoint_head, checkpoint_paths
from allyouneed.training.budget import BudgetConfig
from allyouneed.training.pace import PROBES
from allyouneed.training.progress import Progress
from allyouneed.training.recipe import Recipe, TrainConfig
from allyouneed.training.schedule import ScheduleConfig


def begin_budget(progress: Progress, budget: BudgetConfig) -> None:
    """Note the budget of a run that begins."""
    progress.first_budget = progress.budget = budget.amount


def schedule_of(progress: Progress, config: TrainConfig) -> ScheduleConfig:
    """Return the schedule as a function of the fraction of the present budget, with the warm-up of the first one."""
    first, now = progress.first_budget, config.budget.amount
    if first == now:
        return config.schedule
    return config.schedule.model_copy(update={"warmup": config.schedule.warmup * first / now})


def extend_budget(progress: Progress, recipe: Recipe, folder: Path) -> dict[str, Any] | None:
    """Let a run that resumes continue with a larger budget; return a log record about it, or None if it is the same.

    Raise ConfigError if its schedule does not allow it.
    """
    config, former = recipe.train, progress.budget
    budget = config.budget
    if budget.amount <= former:
        return None
    minutes = budget.minutes is not None
    old = budget.of(former)
    fraction = progress.pace.fraction if minutes else progress.spent.fraction(old)
    schedule = schedule_of(progress, config.model_copy(update={"budget": old}))
    if not schedule.extends_from(fraction):
        raise ConfigError(
            f"{folder}: cannot go on with a larger budget: its schedule {schedule.type!r} was planned for {old}, and "
            f"the learning rate has begun to fall; {how_to_train_on(folder, budget, former)}"
        )
    progress.budget, progress.since_best = budget.amount, 0
    progress.pace.fraction *= former / budget.amount
    progress.pace.probes = sum(place <= progress.pace.fraction for place in PROBES)
    now = progress.pace.fraction if minutes else progress.spent.fraction(budget)
    progress.evaluations = int(now / config.evaluate_every + 1e-9)
    return {"kind": "extension", "step": progress.spent.steps, "unit": budget.unit, "from": former, "to": budget.amount}


def is_extended(folder: Path, recipe: Recipe) -> bool:
    """Return whether the finished model of a run folder had a smaller budget than this recipe.

    Raise ConfigError if the run cannot go on: its checkpoints are gone, or its schedule does not allow it.
    """
    try:
        stored = folder_recipe(folder / "model")[0]["train"]["budget"][recipe.train.budget.unit]
    except (FolderError, LookupError, TypeError):
        return False
    former = float(stored or 0)
    if not 0 < former < recipe.train.budget.amount:
        return False
    paths = checkpoint_paths(folder / "checkpoints")
    if not paths:
        raise ConfigError(
            f"{folder}: cannot go on with a larger budget: its checkpoints are gone; "
            + how_to_train_on(folder, recipe.train.budget, former)
        )
    with suppress(FolderError, LookupError, TypeError):  # reported when the run resumes
        progress = Progress.from_dict(checkpoint_head(open_folder(paths[-1]))["state"])
        if progress.budget:  # else of an earlier version
            extend_budget(progress, recipe, folder)  # refused before data is prepared; the result is discarded
    return True


def how_to_train_on(folder: Path, budget: BudgetConfig, former: float) -> str:
    """Return the command that starts a new run from the weights of this one, with what the budget was raised by."""
    more = f"--{budget.unit} {budget.amount - former:.12g}"
    return f"to train on from its weights: allyouneed train --from {folder} {more} --out OTHER"
