"""A recipe: everything a run depends on. Task + model + training + decoding, as a TOML file."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt, model_validator

from allyouneed.config import Config, Tree, merge, override, parse, read_recipe
from allyouneed.decode import SearchConfig
from allyouneed.errors import ConfigError, unknown_name
from allyouneed.models import AnyModel
from allyouneed.tasks import AnyTask
from allyouneed.training.average import AverageConfig
from allyouneed.training.budget import BudgetConfig
from allyouneed.training.optimizer import OptimizerConfig
from allyouneed.training.process_group import Parallel
from allyouneed.training.schedule import ScheduleConfig
from allyouneed.training.start import StartConfig, describe_start

Smoothing = Annotated[float, Field(ge=0, lt=1)]


class TrainConfig(Config):
    """How a model is trained. The defaults are those of the paper, but for the budget."""

    budget: BudgetConfig = BudgetConfig(steps=100_000)
    optimizer: OptimizerConfig = OptimizerConfig()
    schedule: ScheduleConfig = ScheduleConfig()
    average: AverageConfig = AverageConfig()
    label_smoothing: Smoothing = 0.1
    loss_per: Literal["token", "example"] = "token"  # what the gradient is a mean over; example: long ones weigh more
    accumulate: PositiveInt = 1  # batches of the task for one step; on a CPU they run side by side
    workers: NonNegativeInt = 0  # batches at a time; 0: as many as there are cores, at most `accumulate`
    parallel: Parallel = "none"  # how several processes (torchrun) share a step: whole models, or their rows
    clip: NonNegativeFloat = 1.0  # the largest norm of the gradient; 0: any
    spike: NonNegativeFloat = 20.0  # a gradient so many times above its running mean is skipped; 0: none is
    precision: Literal["float32", "bfloat16"] = "float32"  # bfloat16: autocast, for accelerators
    evaluate_every: Annotated[float, Field(gt=0, le=1)] = 0.1  # of the budget
    metric: str = "loss"  # what chooses the best checkpoint: loss, or a score of the task (decoded greedily)
    patience: NonNegativeInt = 0  # evaluations without a new best before the run ends early; 0: never
    # In the first half of the budget: a held-out loss still above this at an evaluation means a beginning from which
    # nothing will come, and the run begins anew with other weights. 0: never.
    restart_above: NonNegativeFloat = 0.0
    # Only algorithms of torch whose sums have one order: the same bits on the same machine and number of threads.
    deterministic: bool = False
    save_minutes: PositiveFloat = 5.0  # between checkpoints; each evaluation saves one too
    log_every: PositiveInt = 10  # steps


class Recipe(Config):
    """The whole run."""

    about: str = ""  # a sentence for people
    seed: Annotated[int, Field(ge=0, lt=1 << 63)] = 1
    task: AnyTask
    model: AnyModel
    train: TrainConfig = TrainConfig()
    decode: SearchConfig = SearchConfig()
    start: StartConfig | None = None  # None: random weights

    @model_validator(mode="after")
    def _fits(self) -> "Recipe":
        if self.model.kind not in self.task.kinds:
            raise ValueError(
                f"task {self.task.type!r} needs a model of kind {' or '.join(sorted(self.task.kinds))}; "
                f"{self.model.type!r} is {self.model.kind}"
            )
        self.model.check_task(self.task.traits())
        if self.train.budget.steps:
            self.model.check_steps(self.train.budget.steps)
        self._check_restart()
        self._check_deterministic()
        return self

    def _check_restart(self) -> None:
        if self.train.restart_above and self.start is not None:
            raise ValueError(
                "train.restart_above begins anew with random weights; this run begins with those of another"
            )

    def _check_deterministic(self) -> None:
        if self.train.deterministic and self.train.budget.minutes is not None:
            raise ValueError(
                "train.deterministic: how many steps a budget in minutes gives depends on what else the machine does; "
                "give the budget in steps, tokens or flops"
            )


def recipe_folder() -> Path:
    """Where the built-in recipes are: in the source tree, or inside the installed package."""
    package = Path(__file__).resolve().parents[1]
    tree = package.parents[1] / "recipes"
    return tree if tree.is_dir() else package / "recipes"


def find_recipe(name: str) -> Path:
    """A file, or the name of a built-in recipe."""
    path = Path(name)
    if path.suffix == ".toml" or path.exists():
        return path
    known = {file.stem: file for file in recipe_folder().glob("*.toml")}
    if name not in known:
        raise ConfigError(f"recipe: {unknown_name(name, known)}; or give the path of a .toml file")
    return known[name]


def load_recipe(source: str | Path | Recipe | None, base: Tree | None = None, sets: list[str] | None = None) -> Recipe:
    """Return a recipe (a file, a built-in name, or a recipe) with `base` and then the dotted `sets` laid over it."""
    tree: Tree = {}
    if isinstance(source, Recipe):
        tree = source.model_dump(mode="json", exclude_none=True)
    elif source is not None:
        path = find_recipe(str(source))
        tree = read_recipe(path)
        parse(Recipe, tree, str(path))  # report mistakes in the file as such, before anything is laid over it
    tree = override(merge(tree, base or {}), sets or [])
    budget = tree.get("train", {}).get("budget", {}) if isinstance(tree.get("train"), dict) else {}
    if isinstance(budget, dict) and len(budget) > 1:  # the newest word counts: --minutes over a file's steps
        newest = list(budget)[-1]
        tree = {**tree, "train": {**tree["train"], "budget": {newest: budget[newest]}}}
    return parse(Recipe, tree, "" if sets or base or isinstance(source, Recipe) else str(source or ""))


def require_same_recipe(folder: Path, recipe: Recipe) -> None:
    """Refuses a run folder that was begun with another recipe, and says what differs. An empty one is welcome."""
    file = folder / "recipe.toml"
    if not file.exists():
        return
    began, advice = load_recipe(str(file)), f"choose another --out, or remove {folder}"
    # Weights to begin with are known by their hash, wherever they lie.
    if (began.start and began.start.sha256) != (recipe.start and recipe.start.sha256):
        old, new = describe_start(began.start), describe_start(recipe.start)
        raise ConfigError(f"{file}: this run started from {old}, not from {new}; {advice}")
    differing = differences(_what_counts(began), _what_counts(recipe))
    if differing:
        what = "; ".join(differing[:MOST_DIFFERENCES])
        more = f"; and {len(differing) - MOST_DIFFERENCES} more" if len(differing) > MOST_DIFFERENCES else ""
        raise ConfigError(f"{file}: this run was started with another recipe: {what}{more}; {advice}")


def _what_counts(recipe: Recipe) -> Recipe:
    """Without where the first weights lie, and where the weights are in training: another team may go on."""
    anywhere = recipe.train.model_copy(update={"parallel": "none"})
    return recipe.model_copy(update={"start": None, "train": anywhere})


MOST_DIFFERENCES = 3  # in one line


def differences(began: Recipe, now: Recipe) -> list[str]:
    """What differs between two recipes, setting by setting."""
    old, new = _flat(began.model_dump(mode="json")), _flat(now.model_dump(mode="json"))
    return [
        f"{name} is {_told(old.get(name))} there, {_told(new.get(name))} now"
        for name in dict.fromkeys([*old, *new])
        if old.get(name) != new.get(name)
    ]


def _flat(tree: object, path: str = "") -> dict[str, object]:
    """Dotted names of what is no table. What is not set is left out, like what a table of another type lacks."""
    if not isinstance(tree, dict):
        return {} if tree is None else {path: tree}
    found: dict[str, object] = {}
    for name, value in tree.items():
        found |= _flat(value, f"{path}.{name}" if path else name)
    return found


def _told(value: object) -> str:
    return "not set" if value is None else repr(value)
