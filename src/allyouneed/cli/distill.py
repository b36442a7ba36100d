"""`allyouneed distill`: a smaller model learns from what a larger one says."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from allyouneed.cli.model_options import Device, Int8, check_device, open_model
from allyouneed.errors import ConfigError


def command(
    teacher: Annotated[str, typer.Argument(help="The model that teaches: a model folder, or a run folder.")],
    student: Annotated[str, typer.Argument(help="The recipe of the student: a .toml file, or a built-in name.")],
    out: Annotated[Path | None, typer.Option(help="Run folder of the student.", show_default="runs/STUDENT")] = None,
    choose: Annotated[
        Literal["best", "nearest"],
        typer.Option(help="Of what the teacher says: the most probable, or the nearest to the reference."),
    ] = "best",
    references: Annotated[bool, typer.Option("--references", help="Learn from the references, too.")] = False,
    beam: Annotated[int | None, typer.Option(help="Of the teacher.", show_default="its recipe's")] = None,
    int8: Int8 = False,
    minutes: Annotated[float | None, typer.Option(help="Budget of the student: minutes of wall clock.")] = None,
    steps: Annotated[int | None, typer.Option(help="Budget: updates of the weights.")] = None,
    tokens: Annotated[int | None, typer.Option(help="Budget: predicted tokens.")] = None,
    flops: Annotated[float | None, typer.Option(help="Budget: floating point operations.")] = None,
    sets: Annotated[
        list[str] | None, typer.Option("--set", help="Any setting of the student's recipe. May be repeated.")
    ] = None,
    device: Device = "cpu",
    seed: Annotated[int | None, typer.Option(help="Everything random follows from it.")] = None,
) -> None:
    """Train a student on what a teacher says to the student's training texts. The same command line goes on.

    With `--int8` the teacher translates in bytes; the student is trained as ever.
    """
    from allyouneed.cli.progress import progress
    from allyouneed.cli.train import base_tree, print_scores
    from allyouneed.cli.train_progress import watching
    from allyouneed.evaluation.measure import require_source, search_config
    from allyouneed.tasks.translation import TranslationConfig
    from allyouneed.training import load_recipe, train
    from allyouneed.training.distil import Lesson, teach

    budget = {"minutes": minutes, "steps": steps, "tokens": tokens, "flops": flops}
    recipe = load_recipe(student, base_tree(student, None, None, budget, seed), sets)
    if not isinstance(recipe.task, TranslationConfig):
        raise ConfigError(
            f"{student}: task {recipe.task.type!r} has no texts to translate; a student needs task 'translation'"
        )
    check_device(device)
    folder = out or Path("runs") / Path(student).stem
    bundle = open_model(teacher, device, int8=int8)
    require_source(bundle, "teach with")
    lesson = Lesson(search=search_config(bundle, {"beam": beam}), choose=choose, references=references, int8=int8)
    with progress() as tell:

        def translated(done: int, count: int) -> None:
            tell(done / count, f"{done:,} of {count:,} texts translated by the teacher")

        task = teach(bundle, recipe.task, lesson, folder / "distilled", translated)
    with watching(recipe.train.metric) as watcher:
        finished = train(recipe.model_copy(update={"task": task}), folder, watcher, device)
    print_scores(finished)
    print(f"model: {finished}")
