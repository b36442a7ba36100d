"""The plan of a comparison: systems x tasks x seeds, everything else equal.

    several recipes     each keeps its model and training settings; task, budget, evaluations and search are those of
                        the first recipe (or of each of `tasks`)
    variations, models  the recipe of each task with one change; nothing else differs

The first system is the baseline for all others.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from allyouneed.config import Tree, override, parse
from allyouneed.errors import ConfigError, UserError, unknown_name
from allyouneed.lab.compare.equal_size import WIDTHS, count_parameters, with_parameters
from allyouneed.lab.compare.variations import SHARED_TRAINING, read_variations, require_not_held
from allyouneed.lab.jobs import Job
from allyouneed.sizes import Sizes
from allyouneed.training import Recipe, load_recipe
from allyouneed.training.evaluate import names_of_scores
from allyouneed.training.recipe_files import find_recipe

EVALUATIONS = 0.1  # of the budget between evaluations: ten points on a learning curve
BASELINE = "baseline"  # name of the varied recipe, which differs between tasks


@dataclass(frozen=True)
class CompareOptions:
    """The options of `allyouneed compare`."""

    recipes: Sequence[str]
    vary: Sequence[str] = ()
    models: Sequence[str] = ()
    tasks: Sequence[str] = ()
    sets: Sequence[str] = ()
    seeds: int = 3
    budget: Mapping[str, float] = field(default_factory=dict)
    equal_parameters: bool = False
    metric: str | None = None  # default: the first score of each task

    @property
    def question(self) -> str:
        """Identify the folder's purpose: seeds, systems and tasks can be added, but the first task is fixed."""
        return f"compare {_stem(self.recipes[0])}"


@dataclass(frozen=True)
class TaskFacts:
    """A task with its baseline recipe and its metric."""

    name: str
    baseline: Recipe
    sizes: Sizes
    metric: str
    higher_is_better: bool
    grain: float  # the share of one held-out item, the smallest step of scores that count items
    data: Path | None = None  # where its data is prepared, for all runs


@dataclass(frozen=True)
class System:
    """A system to compare, on each task on which it differs from the baseline."""

    name: str
    recipes: Mapping[str, Recipe]
    varied: bool = False  # True if it is the baseline with one variation


@dataclass(frozen=True)
class ComparisonPlan:
    """All runs of a comparison."""

    tasks: Sequence[TaskFacts]
    systems: Sequence[System]  # the baseline first
    seeds: Sequence[int]
    notes: Sequence[str]

    @property
    def question(self) -> str:
        """Identify the folder's purpose: see `CompareOptions.question`."""
        return f"compare {self.tasks[0].name}"

    @property
    def baseline(self) -> System:
        """Return the system that all others are compared with."""
        return self.systems[0]

    def jobs(self) -> list[Job]:
        """Return all runs, seed by seed, so that every system has one result before any has two."""
        return [
            Job(job_name(task.name, system.name, seed), with_seed(system.recipes[task.name], seed), task.data)
            for task in self.tasks
            for seed in self.seeds
            for system in self.systems
            if task.name in system.recipes
        ]


def job_name(task: str, system: str, seed: int) -> str:
    """Return the name of a run's folder."""
    return f"{slug(task)}.{slug(system)}.seed-{seed}"


def with_seed(recipe: Recipe, seed: int) -> Recipe:
    """Return the recipe with another seed."""
    return recipe.model_copy(update={"seed": seed})


def make_plan(question: CompareOptions, folder: Path) -> ComparisonPlan:
    """Read and check all recipes, and prepare the data of the tasks. Raise ConfigError if anything cannot be run."""
    base = _load(question, question.recipes[0])
    names = [_stem(name) for name in (question.recipes[0], *question.tasks)]
    _require_once(names, "task")
    baselines = dict(zip(names, [base, *(_load(question, name) for name in question.tasks)], strict=True))
    systems, notes = _systems(question, base, baselines)
    _require_once([slug(system.name) for system in systems], "system")
    _require_buildable(systems)
    tasks = [_facts(name, recipe, question.metric, folder / slug(name)) for name, recipe in baselines.items()]
    if question.equal_parameters:
        systems = [systems[0], *(_as_large(system, systems[0], tasks) for system in systems[1:])]
    seeds = range(1, question.seeds + 1)
    return ComparisonPlan(tasks, systems, list(seeds), notes)


def _load(question: CompareOptions, name: str) -> Recipe:
    train: Tree = {"evaluate_every": EVALUATIONS}
    if question.budget:
        train["budget"] = dict(question.budget)
    return load_recipe(name, {"train": train}, list(question.sets))


def _systems(question: CompareOptions, base: Recipe, baselines: Mapping[str, Recipe]) -> tuple[list[System], list[str]]:
    if len(question.recipes) > 1:
        if question.vary or question.models:
            raise ConfigError("--vary and --model change one recipe, but several were given")
        return _from_recipes(question, baselines)
    varied = {variation.name: _changer(variation.sets) for variation in read_variations(question.vary, base)}
    changes = varied | {_stem(model): _replacer(model) for model in question.models}
    found, notes = [System(BASELINE, baselines)], []
    for name, change in changes.items():
        made = {task: _called(f"{name} on {task}", change, recipe) for task, recipe in baselines.items()}
        other = {task: recipe for task, recipe in made.items() if recipe != baselines[task]}
        changed = {key for task, recipe in other.items() for key in settings_that_differ(recipe, baselines[task])}
        require_not_held(name, sorted(changed))
        if of_task := sorted(key for key in changed if key.startswith("task.")):
            notes.append(f"{name}: changes {', '.join(of_task)}: it may be scored on other items than the baseline")
        if len(other) < len(made):
            same = ", ".join(task for task in made if task not in other)
            notes.append(f"{name}: already the setting of {same}")
        if other:
            found.append(System(name, other, varied=name in varied))
    if len(found) < 2:
        known = f": {'; '.join(notes)}" if notes else ": give several recipes, or --vary, or --model"
        raise ConfigError(f"nothing to compare{known}")
    return found, notes


def _from_recipes(question: CompareOptions, baselines: Mapping[str, Recipe]) -> tuple[list[System], list[str]]:
    systems, notes = [], []
    (first, home), *_ = baselines.items()
    for name in question.recipes:
        own = _load(question, name)
        if own.task.type != home.task.type:
            raise ConfigError(
                f"{name}: its task is {own.task.type!r}, that of {first} is {home.task.type!r}; recipes must have the "
                "same task (--tasks adds tasks for all of them)"
            )
        made = {task: _called(f"{name} on {task}", partial(_moved, own), recipe) for task, recipe in baselines.items()}
        systems.append(System(_stem(name), made))
        taken = settings_that_differ(own, made[first])
        taken.pop("train.budget", None)
        notes += [f"{_stem(name)}: {key} is {new}, as in {first} (its own: {old})" for key, (old, new) in taken.items()]
    return systems, notes


def _moved(recipe: Recipe, home: Recipe) -> Recipe:
    """Combine a recipe's model and training with the task, search and shared settings of another."""
    tree, other = recipe.model_dump(mode="json"), home.model_dump(mode="json")
    train = tree["train"] | {name: other["train"][name] for name in SHARED_TRAINING}
    return parse(Recipe, {**tree, "task": other["task"], "decode": other["decode"], "train": train})


def _changer(sets: Sequence[str]) -> Callable[[Recipe], Recipe]:
    return lambda recipe: parse(Recipe, override(_tree(recipe), sets))


def _replacer(model: str) -> Callable[[Recipe], Recipe]:
    """Replace the model of a recipe: by that of another recipe, a type with default settings, or an inline table."""
    try:
        find_recipe(model)
    except ConfigError:
        tree = override({}, [f"model={model}"])["model"]
    else:
        tree = load_recipe(model).model.model_dump(mode="json")
    return lambda recipe: parse(Recipe, {**_tree(recipe), "model": tree})


def _called(what: str, change: Callable[[Recipe], Recipe], recipe: Recipe) -> Recipe:
    try:
        return change(recipe)
    except UserError as error:
        raise ConfigError(f"{what}: {error}") from None


def _tree(recipe: Recipe) -> Tree:
    """Return plain values without unset ones, so that another mechanism can replace them."""
    return recipe.model_dump(mode="json", exclude_none=True)


def _require_buildable(systems: Sequence[System]) -> None:
    """Raise ConfigError for impossible sizes before any data is read."""
    for system in systems:
        for task, recipe in system.recipes.items():
            try:
                with torch.device("meta"):
                    recipe.model.build(Sizes(8, 8, shared=True))
            except UserError as error:
                raise ConfigError(f"{system.name} on {task}: {error}") from None


def _require_once(names: Sequence[str], what: str) -> None:
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigError(f"{', '.join(twice)}: named twice; each {what} needs a unique name")


def _facts(name: str, recipe: Recipe, metric: str | None, folder: Path) -> TaskFacts:
    data = recipe.task.prepare(folder, 1)
    known = names_of_scores(data, recipe.model.kind)
    chosen = metric or next(iter(known))
    if chosen not in known:
        raise ConfigError(f"--metric: {name}: {unknown_name(chosen, known)}")
    grain = 1 / max(1, len(data.examples("valid")))
    return TaskFacts(name, recipe, data.sizes, chosen, known[chosen], grain, folder)


def _as_large(system: System, baseline: System, tasks: Sequence[TaskFacts]) -> System:
    recipes = {}
    for task in tasks:
        if task.name not in system.recipes:
            continue
        own, other = system.recipes[task.name], baseline.recipes[task.name]
        wanted = count_parameters(other, task.sizes)
        held = _changed_widths(own, other) if system.varied else frozenset()
        recipes[task.name] = with_parameters(own, wanted, task.sizes, f"{system.name} on {task.name}", held)
    return replace(system, recipes=recipes)


def _changed_widths(own: Recipe, other: Recipe) -> frozenset[str]:
    ours, theirs = own.model.model_dump(), other.model.model_dump()
    return frozenset(name for name in WIDTHS.get(own.model.type, ()) if ours[name] != theirs.get(name, ours[name]))


def settings_that_differ(ours: Recipe, theirs: Recipe) -> dict[str, tuple[Any, Any]]:
    """Return the dotted names of all settings in which two recipes differ, with both values."""
    one, two = _flat(_tree(ours)), _flat(_tree(theirs))
    names = [name for name in {**one, **two} if name not in ("about", "seed")]
    return {name: (one.get(name), two.get(name)) for name in names if one.get(name) != two.get(name)}


def _flat(tree: Any, prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in tree.items():
        path = f"{prefix}{name}"
        flat |= _flat(value, f"{path}.") if isinstance(value, Mapping) and value else {path: value}
    return flat


def _stem(name: str) -> str:
    return Path(name).stem if name.endswith(".toml") else name


def slug(name: str) -> str:
    """Return a name that is safe in file names."""
    return re.sub(r"[^A-Za-z0-9=.+_-]+", "-", name).strip("-.")
