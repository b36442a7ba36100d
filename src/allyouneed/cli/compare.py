"""`allyouneed compare`: several models, or one part varied, at an equal budget; an answer with error bars."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from allyouneed.cli.jobs_progress import Cores, On, Workers, show_jobs
from allyouneed.cli.terminal import note, text_table, typed
from allyouneed.errors import TrainingError
from allyouneed.words import counted, printable

if TYPE_CHECKING:
    from allyouneed.lab.compare.comparison import Comparison


def command(
    recipes: Annotated[
        list[str],
        typer.Argument(help="Recipes of one task; the first is the baseline. Or one, with --vary or --model."),
    ],
    vary: Annotated[
        list[str] | None,
        typer.Option(
            help="A setting and its values: --vary model.norm=pre,post. Each is tried on its own, tables such as "
            '{type="window",window=16} too. May be repeated. table3: the variations of the 2017 paper.'
        ),
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(help="The recipe with another model: that of a recipe, a type, or a table. May be repeated."),
    ] = None,
    tasks: Annotated[str, typer.Option(help="Recipes of further tasks, with commas: sort,addition.")] = "",
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each, with seeds 1, 2, ...")] = 3,
    minutes: Annotated[
        float | None,
        typer.Option(
            help="Budget of a run: minutes of wall clock. What fits in depends on the machine and on --workers."
        ),
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Budget of a run: updates of the weights.")] = None,
    tokens: Annotated[int | None, typer.Option(help="Budget of a run: predicted tokens.")] = None,
    flops: Annotated[float | None, typer.Option(help="Budget of a run: floating point operations.")] = None,
    equal: Annotated[
        Literal["parameters"] | None, typer.Option(help="Adjust widths until all have the baseline's parameters.")
    ] = None,
    metric: Annotated[
        str | None, typer.Option(help="The score that decides: exact, loss, bleu ...", show_default="the task's first")
    ] = None,
    sets: Annotated[
        list[str] | None,
        typer.Option("--set", help="Any setting, for all runs: --set task.pairs=2000. May be repeated."),
    ] = None,
    on: On = "local",
    workers: Workers = 0,
    cores: Cores = 1,
    test: Annotated[
        bool, typer.Option("--test", help="At the end, score the test split too. It decides nothing.")
    ] = False,
    out: Annotated[Path, typer.Option(help="Folder for the runs and the report.")] = Path("runs/compare"),
) -> None:
    """Compare models, or the values of a setting, over seeds. Killed or stopped, the same command line goes on.

    All runs have the same budget (default: the first recipe's); parameters, FLOPs, tokens and minutes are reported.
    """
    from allyouneed.lab.compare.comparison import compare, look_at_test_split, summary
    from allyouneed.lab.compare.page import cost_table, result_table, words_of, write_comparison
    from allyouneed.lab.compare.plan import Question, make_plan
    from allyouneed.lab.report import require_own
    from allyouneed.training.api import one_budget
    from allyouneed.training.recipe_files import find_recipe

    budget = {"minutes": minutes, "steps": steps, "tokens": tokens, "flops": flops}
    given = one_budget(budget)
    further = [name.strip() for name in tasks.split(",") if name.strip()]
    question = Question(
        recipes, vary or [], model or [], further, sets or [], seeds, given, equal == "parameters", metric
    )
    find_recipe(recipes[0])  # a name that is none is told before whose the folder is
    require_own(out, question.words)  # before data is prepared, which may take long
    plan = make_plan(question, out / "data")
    for line in plan.notes:
        note(line)
    jobs = plan.jobs()
    sides = (len(plan.systems), "system"), (len(plan.tasks), "task"), (seeds, "seed")
    note(f"{counted(len(jobs), 'run')}: {' x '.join(counted(*side) for side in sides)}, in {out / 'runs'}")
    try:
        with show_jobs(len(jobs)) as watch:
            comparison = compare(plan, out / "runs", workers=workers, cores=cores, on=on, watch=watch)
    except KeyboardInterrupt:
        note("stopped; what was finished is kept, and the same command goes on from there")
        raise
    if test:
        note("measuring the test split")
        comparison = look_at_test_split(comparison, out / "runs")
    for task in plan.tasks:
        print(f"\n{printable(task.name)}")
        print(text_table(result_table(comparison, task)))
        print()
        print(text_table(cost_table(comparison, task)))
    print()
    for words in words_of(comparison):
        print(printable(words))
    print(printable(summary(comparison)))
    page = write_comparison(comparison, out, typed())
    print(f"report: {page}")
    _complain_of_failures(comparison)


def _complain_of_failures(comparison: "Comparison") -> None:
    failed = comparison.failures()
    if failed:
        raise TrainingError(
            f"{counted(len(failed), 'run')} failed; the first: {failed[0].name}: {failed[0].error} "
            "(the same command tries again)"
        )
