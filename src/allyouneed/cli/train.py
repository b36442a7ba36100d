"""`allyouneed train`: a recipe, or a task and a model, becomes a model folder. The same command line goes on."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from allyouneed.cli.model_options import Device, check_device
from allyouneed.errors import ConfigError


def command(
    recipe: Annotated[
        str | None, typer.Argument(help="A .toml file, or the name of a built-in recipe (allyouneed list recipes).")
    ] = None,
    task: Annotated[str | None, typer.Option(help="Instead of a recipe: a task (allyouneed list tasks).")] = None,
    model: Annotated[str | None, typer.Option(help="Instead of a recipe: a model (allyouneed list models).")] = None,
    start: Annotated[
        str | None,
        typer.Option("--from", help="Begin with the weights of this model folder; its recipe is the recipe."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Run folder.", show_default="runs/NAME")] = None,
    minutes: Annotated[float | None, typer.Option(help="Budget: minutes of wall clock.")] = None,
    steps: Annotated[int | None, typer.Option(help="Budget: updates of the weights.")] = None,
    tokens: Annotated[int | None, typer.Option(help="Budget: predicted tokens.")] = None,
    flops: Annotated[float | None, typer.Option(help="Budget: floating point operations.")] = None,
    sets: Annotated[
        list[str] | None,
        typer.Option("--set", help="Any setting of the recipe: --set model.layers=3. May be repeated."),
    ] = None,
    resume: Annotated[
        Literal["auto", "never", "must"], typer.Option(help="Whether to go on with a run that is in the folder.")
    ] = "auto",
    device: Device = "cpu",
    deterministic: Annotated[
        bool,
        typer.Option("--deterministic", help="The same bits on the same machine and number of threads, or a refusal."),
    ] = False,
    seed: Annotated[int | None, typer.Option(help="Everything random follows from it.")] = None,
) -> None:
    """Train a model. Killed or stopped, the same command line goes on where it was."""
    from allyouneed.cli.train_progress import watching
    from allyouneed.training import load_recipe
    from allyouneed.training import train as run
    from allyouneed.training.process_group import is_first, said_once

    budget = {"minutes": minutes, "steps": steps, "tokens": tokens, "flops": flops}
    with said_once():
        base = base_tree(recipe or start, task, model, budget, seed)
        if start is not None:
            base = _of_folder(start, recipe, task, model, base)
        whole = load_recipe(recipe, base, [*(sets or []), *["train.deterministic=true"] * deterministic])
        folder = out or Path("runs") / (Path(recipe).stem if recipe else f"{whole.task.type}-{whole.model.type}")
        _check_resume(folder, resume)
    check_device(device)
    if not is_first():  # of several processes, one talks
        run(whole, folder, device=device)
        return
    with watching(whole.train.metric) as watcher:
        finished = run(whole, folder, watcher, device)
    print_scores(finished)
    print(f"model: {finished}")


def _of_folder(
    start: str, recipe: str | None, task: str | None, model: str | None, base: dict[str, Any]
) -> dict[str, Any]:
    """The recipe of a model folder with what the options lay over it."""
    from allyouneed.config import merge
    from allyouneed.folder import folder_recipe

    if recipe is not None or task is not None or model is not None:
        raise ConfigError("--from takes its task and model from the folder; drop the recipe, --task and --model")
    own, sha256 = folder_recipe(start)
    tree = {**_without_none(own), "start": {"folder": start, "sha256": sha256}}
    if "budget" in base.get("train", {}):
        tree.get("train", {}).pop("budget", None)  # one budget takes the place of another
    return merge(tree, base)


def _without_none(tree: dict[str, Any]) -> dict[str, Any]:
    """Settings that were left open are left out."""
    kept = {name: value for name, value in tree.items() if value is not None}
    return {name: _without_none(value) if isinstance(value, dict) else value for name, value in kept.items()}


def print_scores(folder: Path) -> None:
    """The scores of a finished model with their signatures, as its card states them."""
    from allyouneed.folder import load_folder

    card = load_folder(folder).card
    for line in card.partition("\n## Scores\n")[2].partition("\n## ")[0].splitlines():
        if line.startswith("- "):
            print(line.removeprefix("- ").replace("`", " ").rstrip())


def one_budget(asked: Mapping[str, float | None]) -> dict[str, float]:
    """The one option of a budget that was given, if any."""
    given = {name: value for name, value in asked.items() if value is not None}
    if len(given) > 1:
        raise ConfigError(f"give one budget; found {' and '.join(f'--{name}' for name in given)}")
    return given


def base_tree(
    recipe: str | None, task: str | None, model: str | None, budget: Mapping[str, float | None], seed: int | None
) -> dict[str, Any]:
    """What the options lay over the recipe."""
    if recipe is None and (task is None or model is None):
        raise ConfigError("nothing to train: give a recipe, or --task and --model; `allyouneed list` shows them")
    given = one_budget(budget)
    base: dict[str, Any] = {}
    base |= {"task": {"type": task}} if task is not None else {}
    base |= {"model": {"type": model}} if model is not None else {}
    base |= {"train": {"budget": given}} if given else {}
    base |= {"seed": seed} if seed is not None else {}
    return base


def _check_resume(folder: Path, resume: str) -> None:
    begun = (folder / "recipe.toml").exists()
    if resume == "never" and begun:
        raise ConfigError(f"{folder}: holds a run already; choose another --out, or go on with it: --resume auto")
    if resume == "must" and not begun:
        raise ConfigError(f"{folder}: holds no run to go on with; is --out right?")
