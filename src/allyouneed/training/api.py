"""What `allyouneed.train` and the commands share: settings laid over a recipe, and a run with its progress shown."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from allyouneed.devices import check_device
from allyouneed.errors import ConfigError
from allyouneed.tasks.meter import reporting_to
from allyouneed.training.loop import train
from allyouneed.training.process_group import is_rank0
from allyouneed.training.progress_display import show_progress
from allyouneed.training.recipe import Recipe
from allyouneed.training.recipe_files import require_effective_if_new, resolve_recipe

Budget = Mapping[str, float | None]  # of steps, tokens, minutes, flops


def train_recipe(
    recipe: str | Path | Recipe,
    folder: str | Path,
    budget: Budget,
    seed: int | None = None,
    sets: Sequence[str] = (),
    device: str = "cpu",
    progress: bool = True,
) -> Path:
    """Train a recipe with these settings laid over it; return the finished model folder."""
    if not isinstance(recipe, str | Path | Recipe):
        raise ConfigError(
            f"recipe: of type {type(recipe).__name__}; should be a path, the name of a built-in recipe, or a Recipe"
        )
    if not isinstance(folder, str | Path):
        raise ConfigError(f"run folder: of type {type(folder).__name__}; should be a path")
    whole = resolve_recipe(recipe, changes(budget, seed), sets)
    require_effective_if_new(whole, Path(folder))
    return train_with_progress(whole, Path(folder), device, progress)


def train_with_progress(
    recipe: Recipe, folder: Path, device: str = "cpu", progress: bool = True, began: float | None = None
) -> Path:
    """Train, or resume, in a run folder; rank 0 shows the progress on standard error. `began`: as in `train`."""
    check_device(device)
    if not progress or not is_rank0():
        return train(recipe, folder, None, device, began=began)
    with show_progress(recipe.train.metric) as listener, reporting_to(listener.preparing):
        return train(recipe, folder, listener, device, began=began)


def changes(budget: Budget, seed: int | None = None) -> dict[str, Any]:
    """Return the settings that a budget and a seed change in a recipe."""
    given = one_budget(budget)
    tree: dict[str, Any] = {"train": {"budget": given}} if given else {}
    return tree | ({"seed": seed} if seed is not None else {})


def one_budget(budget: Budget) -> dict[str, float]:
    """Return the one budget that is set, if any. Raise ConfigError if there are several."""
    given = {name: value for name, value in budget.items() if value is not None}
    if len(given) > 1:
        raise ConfigError(f"give one budget; found {' and '.join(given)}")
    return given
