"""`allyouneed distill`: train a smaller model on the outputs of a larger one."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from allyouneed.cli.model_options import Device, Int8, open_model
from allyouneed.errors import ConfigError


def command(
    teacher: Annotated[str, typer.Argument(help="Model folder or run folder of the teacher.")],
    student: Annotated[str, typer.Argument(help="Recipe of the student: a .toml file, or a built-in name.")],
    out: Annotated[Path | None, typer.Option(help="Run folder of the student.", show_default="runs/STUDENT")] = None,
    choose: Annotated[
        Literal["best", "nearest"],
        typer.Option(help="Output of the teacher to learn: the most probable, or the nearest to the reference."),
    ] = "best",
    references: Annotated[bool, typer.Option("--references", help="Train on the references as well.")] = False,
    beam: Annotated[int | None, typer.Option(help="Beam size of the teacher.", show_default="from its recipe")] = None,
    int8: Int8 = False,
    minutes: Annotated[float | None, typer.Option(help="Budget of the student: minutes of wall-clock time.")] = None,
    steps: Annotated[int | None, typer.Option(help="Budget: optimizer steps.")] = None,
    tokens: Annotated[int | None, typer.Option(help="Budget: predicted tokens.")] = None,
    flops: Annotated[float | None, typer.Option(help="Budget: floating-point operations.")] = None,
    sets: Annotated[
        list[str] | None, typer.Option("--set", help="Override a setting of the student's recipe. May be repeated.")
    ] = None,
    device: Device = "cpu",
    seed: Annotated[int | None, typer.Option(help="Random seed.")] = None,
) -> None:
    """Train a student on the outputs of a teacher.

    The teacher translates the student's training texts, and the student learns these translations. `--int8` affects
    only the teacher. After an interruption, the same command resumes.
    """
    from allyouneed.cli.progress import progress
    from allyouneed.cli.train import print_scores
    from allyouneed.evaluation.settings import require_source, search_config
    from allyouneed.tasks.translation import TranslationConfig
    from allyouneed.training import load_recipe
    from allyouneed.training.api import changes, train_with_progress
    from allyouneed.training.distil import Lesson, teach

    budget = {"minutes": minutes, "steps": steps, "tokens": tokens, "flops": flops}
    recipe = load_recipe(student, changes(budget, seed), sets)
    if not isinstance(recipe.task, TranslationConfig):
        raise ConfigError(
            f"{student}: task {recipe.task.type!r} has no texts to translate; a student needs task 'translation'"
        )
    folder = out or Path("runs") / Path(student).stem
    bundle = open_model(teacher, device, int8=int8)
    require_source(bundle, "teach with")
    lesson = Lesson(search=search_config(bundle, {"beam": beam}), choose=choose, references=references, int8=int8)
    with progress() as report:

        def translated(done: int, count: int) -> None:
            report(done / count, f"{done:,} of {count:,} texts translated by the teacher")

        task = teach(bundle, recipe.task, lesson, folder / "distilled", translated)
    finished = train_with_progress(recipe.model_copy(update={"task": task}), folder, device)
    print_scores(finished)
    print(f"model: {finished}")
