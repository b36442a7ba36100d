"""`allyouneed train`: train a recipe, or a task with a model. The same command line resumes the run."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from allyouneed.cli.model_options import Device, corpora_of
from allyouneed.errors import ConfigError

if TYPE_CHECKING:
    from allyouneed.training.api import Budget
    from allyouneed.training.recipe import Recipe

Files = Annotated[
    list[str] | None,
    typer.Option(
        help="Data of the task. Twice for source and target: --train a.en --train a.de. A file, a pattern, or a "
        "table as in a recipe (docs/data.md)."
    ),
]


RecipeName = Annotated[
    str | None, typer.Argument(help="A .toml file, or the name of a built-in recipe (allyouneed list recipes).")
]
Task = Annotated[str | None, typer.Option(help="Instead of a recipe: a task (allyouneed list tasks).")]
ModelType = Annotated[str | None, typer.Option(help="Instead of a recipe: a model (allyouneed list models).")]
Sets = Annotated[
    list[str] | None,
    typer.Option("--set", help="Override a setting of the recipe: --set model.layers=3. May be repeated."),
]
Seed = Annotated[int | None, typer.Option(help="Random seed.")]


def command(
    recipe: RecipeName = None,
    task: Task = None,
    model: ModelType = None,
    start: Annotated[
        str | None,
        typer.Option(
            "--from",
            help="Start from the weights of this model folder, with its model, tokenizers and recipe; on other data "
            "with --train and --valid, or a recipe, whose model section is not needed (docs/tuning.md).",
        ),
    ] = None,
    train: Files = None,
    valid: Files = None,
    test: Files = None,
    out: Annotated[Path | None, typer.Option(help="Run folder.", show_default="runs/NAME")] = None,
    minutes: Annotated[float | None, typer.Option(help="Budget: minutes of wall-clock time, to the end.")] = None,
    steps: Annotated[int | None, typer.Option(help="Budget: optimizer steps.")] = None,
    tokens: Annotated[int | None, typer.Option(help="Budget: predicted tokens.")] = None,
    flops: Annotated[float | None, typer.Option(help="Budget: floating-point operations.")] = None,
    sets: Sets = None,
    resume: Annotated[
        Literal["auto", "never", "must"],
        typer.Option(help="never: fail if the folder holds a run. must: fail if it does not."),
    ] = "auto",
    device: Device = "cpu",
    deterministic: Annotated[
        bool,
        typer.Option(
            "--deterministic", help="Bit-identical results on the same machine and thread count; fail if impossible."
        ),
    ] = False,
    seed: Seed = None,
    prepared: Annotated[
        Path | None,
        typer.Option(help="A run folder, or a folder of `data prepare`, whose prepared data is used here, too."),
    ] = None,
) -> None:
    """Train a model. After an interruption, the same command resumes."""
    began = time.monotonic()  # a budget in minutes also counts the imports below
    from allyouneed.training.api import train_with_progress
    from allyouneed.training.preparing import reusing_data_of
    from allyouneed.training.process_group import is_rank0, report_once
    from allyouneed.training.recipe_files import require_effective_if_new

    budget = {"minutes": minutes, "steps": steps, "tokens": tokens, "flops": flops}
    with report_once():
        files = {"train": train, "valid": valid, "test": test}
        chosen = [*(sets or []), *["train.deterministic=true"] * deterministic]
        whole = chosen_recipe(recipe, task, model, start, files, budget, seed, chosen)
        folder = out or default_folder(recipe, whole)
        _check_resume(folder, resume)
        require_effective_if_new(whole, folder)
    with reusing_data_of(prepared):
        finished = train_with_progress(whole, folder, device, began=began)
    if is_rank0():
        print_scores(finished)
        print(f"model: {finished}")


def chosen_recipe(
    recipe: str | None,
    task: str | None,
    model: str | None,
    start: str | None,
    files: dict[str, list[str] | None],
    budget: "Budget",
    seed: int | None,
    sets: list[str],
) -> "Recipe":
    """Return the recipe that the arguments of a command choose."""
    from allyouneed.training.api import changes, task_changes
    from allyouneed.training.recipe_files import resolve_recipe
    from allyouneed.training.tuning import tuning_recipe

    if recipe is None and start is None and (task is None or model is None):
        raise ConfigError("no recipe: give one, or --task and --model; `allyouneed list` shows them")
    if start is not None and model is not None:
        raise ConfigError("--from takes its model from the folder; drop --model")
    base = changes(budget, seed) | task_changes(
        task, {split: _corpora(names) for split, names in files.items() if names}
    )
    base |= {} if model is None else {"model": {"type": model}}
    return resolve_recipe(recipe if start is None else tuning_recipe(start, recipe, base, sets), base, sets)


def default_folder(recipe: str | None, whole: "Recipe") -> Path:
    """Return the run folder of a recipe, if none is given."""
    return Path("runs") / (Path(recipe).stem if recipe else f"{whole.task.type}-{whole.model.type}")


def _corpora(names: list[str]) -> Any:
    """Return the corpora of --train, --valid or --test: names, or tables and lists as a recipe has them."""
    found = [corpora_of(name) if name.startswith(("[", "{")) else name for name in names]
    return found[0] if len(found) == 1 else found


def print_scores(folder: Path) -> None:
    """Print the scores of a finished model with their signatures, as its model card states them."""
    from allyouneed.folder import CARD
    from allyouneed.storage import open_folder

    for line in open_folder(folder).read_text(CARD).partition("\n## Scores\n")[2].partition("\n## ")[0].splitlines():
        if line.startswith("- "):
            print(line.removeprefix("- ").replace("`", " ").rstrip())


def _check_resume(folder: Path, resume: str) -> None:
    exists = (folder / "recipe.toml").exists()
    if resume == "never" and exists:
        raise ConfigError(f"{folder}: already holds a run; choose another --out, or resume it: --resume auto")
    if resume == "must" and not exists:
        raise ConfigError(f"{folder}: holds no run to resume; is --out right?")
