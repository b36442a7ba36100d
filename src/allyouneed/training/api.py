"""What `allyouneed.train` and the commands share: settings laid over a recipe, and a run with its progress shown."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from allyouneed.config import Tree
from allyouneed.devices import check_device
from allyouneed.errors import ConfigError
from allyouneed.tasks.meter import reporting_to
from allyouneed.training.loop import train
from allyouneed.training.process_group import is_rank0
from allyouneed.training.progress_display import show_progress
from allyouneed.training.recipe import Recipe
from allyouneed.training.recipe_files import require_effective_if_new, resolve_recipe
from allyouneed.training.tuning import tuning_recipe

Budget = Mapping[str, float | None]  # of steps, tokens, minutes, flops


def train_recipe(
    recipe: str | Path | Recipe | None,
    folder: str | Path,
    given: Tree,
    sets: Sequence[str] = (),
    device: str = "cpu",
    progress: bool = True,
    start: str | Path | None = None,
) -> Path:
    """Train a recipe with the `given` values and the `sets` laid over it; return the finished model folder.

    `start`: a model folder whose weights the run starts from. A recipe is then not needed.
    """
    if not isinstance(recipe, str | Path | Recipe) and (recipe is not None or start is None):
        raise ConfigError(
            f"recipe: of type {type(recipe).__name__}; should be a path, the name of a built-in recipe, or a Recipe"
            + ("; None needs start" if recipe is None else "")
        )
    for what, path in (("run folder", folder), ("start", start)):
        if not isinstance(path, str | Path) and (what != "start" or path is not None):
            raise ConfigError(f"{what}: of type {type(path).__name__}; should be a path")
    source = recipe if start is None else tuning_recipe(str(start), recipe, given, sets)
    whole = resolve_recipe(source, given, sets)
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


def task_changes(kind: str | None, files: Mapping[str, Any]) -> Tree:
    """Return the settings that a type of task and the files of its splits change in a recipe."""
    task = {name: _plain(value) for name, value in files.items() if value is not None}
    task |= {} if kind is None else {"type": kind}
    return {"task": task} if task else {}


def _plain(value: Any) -> Any:
    """Return corpora as a recipe has them: paths as texts."""
    if isinstance(value, Mapping):
        return {name: _plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return str(value) if isinstance(value, Path) else value


def one_budget(budget: Budget) -> dict[str, float]:
    """Return the one budget that is set, if any. Raise ConfigError if there are several."""
    given = {name: value for name, value in budget.items() if value is not None}
    if len(given) > 1:
        raise ConfigError(f"give one budget; found {' and '.join(given)}")
    return given
