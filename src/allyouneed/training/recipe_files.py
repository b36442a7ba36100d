"""Recipes as files: find, load and override them, and compare them with the recipe of a run folder."""

from collections.abc import Sequence
from pathlib import Path

from allyouneed.config import Tree, merge, override, parse, read_recipe
from allyouneed.errors import ConfigError, unknown_name
from allyouneed.training.effects import require_effective
from allyouneed.training.former import without_former_settings
from allyouneed.training.recipe import Precision, Recipe
from allyouneed.training.start import describe_start

MAX_DIFFERENCES = 3  # in an error message


def recipe_folder() -> Path:
    """Return the folder of the built-in recipes: in the source tree, or inside the installed package."""
    package = Path(__file__).resolve().parents[1]
    tree = package.parents[1] / "recipes"
    return tree if tree.is_dir() else package / "recipes"


def find_recipe(name: str) -> Path:
    """Return the path of a recipe, given as a path or as the name of a built-in recipe."""
    path = Path(name)
    if path.suffix == ".toml" or path.exists():
        return path
    known = {file.stem: file for file in recipe_folder().glob("*.toml")}
    if name not in known:
        raise ConfigError(f"recipe: {unknown_name(name, known)}; or give the path of a .toml file")
    return known[name]


def load_recipe(
    source: str | Path | Recipe | Tree | None, base: Tree | None = None, sets: Sequence[str] | None = None
) -> Recipe:
    """Return a recipe, overridden by `base` and then by the dotted `sets`. Refuse settings without effect.

    `source`: a file, a built-in name, a Recipe, or the values of a stored one.
    """
    recipe = resolve_recipe(source, base, sets)
    require_effective(recipe)
    return recipe


def resolve_recipe(
    source: str | Path | Recipe | Tree | None, base: Tree | None = None, sets: Sequence[str] | None = None
) -> Recipe:
    """Return a recipe like `load_recipe`, but accept settings without effect: an earlier version may have run it."""
    tree: Tree = {}
    if isinstance(source, Recipe):
        tree = source.model_dump(mode="json", exclude_none=True)
    elif isinstance(source, dict):
        tree = without_former_settings(source)
    elif source is not None:
        path = find_recipe(str(source))
        tree = without_former_settings(read_recipe(path))
        parse(Recipe, tree, str(path))  # report mistakes in the file before it is overridden
    budget = _given_budget(base or {}, override({}, sets or []))
    tree = override(merge(tree, base or {}), sets or [])
    if budget:  # it replaces the file's, whatever its unit
        tree = {**tree, "train": {**tree["train"], "budget": budget}}
    from_file = isinstance(source, str | Path) and not sets and not base
    return parse(Recipe, tree, str(source) if from_file else "")


def _given_budget(base: Tree, above: Tree) -> Tree:
    """Return the budget that overrides give, if any. Raise ConfigError if they give several."""
    found = [part["train"].get("budget") for part in (base, above) if isinstance(part.get("train"), dict)]
    budgets = [budget for budget in found if isinstance(budget, dict) and budget]
    given = [f"{unit}={amount}" for budget in budgets for unit, amount in budget.items()]
    if len(given) > 1:
        raise ConfigError(f"train.budget: given as {' and as '.join(given)}; give one of them")
    return budgets[0] if budgets else {}


def require_effective_if_new(recipe: Recipe, folder: Path) -> None:
    """Refuse settings without effect, unless the folder holds a run, which an earlier version may have started."""
    if not (folder / "recipe.toml").exists():
        require_effective(recipe)


def read_stored_recipe(file: Path) -> Recipe:
    """Return the recipe of a run folder. It was checked when the run was started."""
    return parse(Recipe, without_former_settings(read_recipe(file)), str(file))


def precision_of_run(file: Path) -> Precision:
    """Return the precision of the run with this recipe. Earlier versions, which did not state it, had float32."""
    return with_precision(read_stored_recipe(file), "float32").train.precision


def with_precision(recipe: Recipe, precision: Precision) -> Recipe:
    """Return the recipe with this precision, if it leaves it open."""
    if recipe.train.precision != "auto":
        return recipe
    return recipe.model_copy(update={"train": recipe.train.model_copy(update={"precision": precision})})


def require_same_recipe(folder: Path, recipe: Recipe, *, or_larger: bool = False) -> None:
    """Raise ConfigError, naming the differences, if a run folder was started with another recipe.

    `or_larger`: accept a larger budget of the same unit.
    """
    file = folder / "recipe.toml"
    if not file.exists():
        return
    began, advice = read_stored_recipe(file), f"choose another run folder, or remove {folder}"
    began, recipe = (with_precision(one, precision_of_run(file)) for one in (began, recipe))
    # Initial weights are identified by their hash, wherever they are stored.
    if (began.start and began.start.sha256) != (recipe.start and recipe.start.sha256):
        was, is_now = describe_start(began.start), describe_start(recipe.start)
        raise ConfigError(f"{file}: this run started from {was}, not from {is_now}; {advice}")
    old, new = began.train.budget, recipe.train.budget
    if or_larger and old.unit == new.unit and old.amount < new.amount:
        began = began.model_copy(update={"train": began.train.model_copy(update={"budget": new})})
    differing = differences(_comparable(began), _comparable(recipe))
    if or_larger and differing and all(line.startswith("train.budget.") for line in differing):
        advice = f"give the same {old.unit} to resume it, or more of them; or choose another run folder"
        raise ConfigError(f"{file}: the budget of this run is {old}, not {new}; {advice}")
    if differing:
        what = "; ".join(differing[:MAX_DIFFERENCES])
        more = f"; and {len(differing) - MAX_DIFFERENCES} more" if len(differing) > MAX_DIFFERENCES else ""
        raise ConfigError(f"{file}: this run was started with another recipe: {what}{more}; {advice}")


def _comparable(recipe: Recipe) -> Recipe:
    """Return the recipe without what may differ on resume: description, path of initial weights, processes."""
    train = recipe.train.model_copy(update={"parallel": "none"})
    return recipe.model_copy(update={"about": "", "start": None, "train": train})


def differences(began: Recipe, now: Recipe) -> list[str]:
    """Describe the settings in which two recipes differ, one line each."""
    old, new = _flat(began.model_dump(mode="json")), _flat(now.model_dump(mode="json"))
    return [
        f"{name} is {_shown(old.get(name))} there, {_shown(new.get(name))} now"
        for name in dict.fromkeys([*old, *new])
        if old.get(name) != new.get(name)
    ]


def _flat(tree: object, path: str = "") -> dict[str, object]:
    """Return the settings by their dotted names, without those that are None."""
    if not isinstance(tree, dict):
        return {} if tree is None else {path: tree}
    found: dict[str, object] = {}
    for name, value in tree.items():
        found |= _flat(value, f"{path}.{name}" if path else name)
    return found


def _shown(value: object) -> str:
    return "not set" if value is None else repr(value)
