"""`allyouneed data prepare`: prepare the data of a recipe, in several processes or on several machines."""

from pathlib import Path
from typing import Annotated

import typer

from allyouneed.cli.terminal import note
from allyouneed.cli.train import Files, ModelType, RecipeName, Seed, Sets, Task, chosen_recipe, default_folder
from allyouneed.words import printable


def command(
    recipe: RecipeName = None,
    task: Task = None,
    model: ModelType = None,
    start: Annotated[
        str | None, typer.Option("--from", help="Use the tokenizers of this model folder, as `train --from` does.")
    ] = None,
    train: Files = None,
    valid: Files = None,
    test: Files = None,
    out: Annotated[Path | None, typer.Option(help="Run folder.", show_default="runs/NAME")] = None,
    processes: Annotated[int, typer.Option(min=1, max=256, help="Processes that share the work.")] = 1,
    sets: Sets = None,
    seed: Seed = None,
) -> None:
    """Prepare the data of a run before it is trained. After an interruption, the same command continues.

    The same command on other machines with the same folder shares the work, too. `train --out FOLDER` trains on the
    data; `train --prepared FOLDER` uses it for other runs.
    """
    from allyouneed.tasks.meter import reporting_to
    from allyouneed.training.preparing import DATA, prepare
    from allyouneed.training.progress_display import show_progress
    from allyouneed.training.recipe_files import require_effective_if_new

    files = {"train": train, "valid": valid, "test": test}
    whole = chosen_recipe(recipe, task, model, start, files, {}, seed, sets or [])
    folder = out or default_folder(recipe, whole)
    require_effective_if_new(whole, folder)
    with show_progress("") as display, reporting_to(display.preparing):
        data = prepare(whole, folder, processes, note)
    for line in data.notes:
        print(printable(line))
    print(f"data: {folder / DATA}")
