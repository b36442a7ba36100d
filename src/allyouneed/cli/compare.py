"""`allyouneed compare`: compare several models, or variations of one, at an equal budget over several seeds."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from allyouneed.cli.jobs_progress import Cores, On, Workers, show_jobs
from allyouneed.cli.terminal import note, text_table, typed
from allyouneed.errors import TrainingError
from allyouneed.words import counted, printable

if TYPE_CHECKING:
    from allyouneed.lab.compare.comparison import Comparison
    from allyouneed.lab.compare.plan import ComparisonPlan

Recipes = Annotated[
    list[str],
    typer.Argument(help="Recipes with the same task; the first is the baseline. Or one recipe with --vary or --model."),
]
Vary = Annotated[
    list[str] | None,
    typer.Option(
        help="A setting and its values: --vary model.norm=pre,post. Each value is compared with the unchanged recipe. "
        'Values may be tables: {type="window",window=16}. --vary table3: the variations of table 3 of the 2017 paper. '
        "May be repeated."
    ),
]
Models = Annotated[
    list[str] | None,
    typer.Option(help="Another model: a recipe, a type or an inline table. May be repeated."),
]
Tasks = Annotated[str, typer.Option(help="Comma-separated recipes of further tasks: sort,addition.")]
Seeds = Annotated[int, typer.Option(min=1, help="Number of seeds; use at least 3.")]
Minutes = Annotated[
    float | None,
    typer.Option(help="Budget of a run in minutes. The number of steps then depends on the machine and on --workers."),
]
Steps = Annotated[int | None, typer.Option(help="Budget of a run in optimizer steps.")]
Tokens = Annotated[int | None, typer.Option(help="Budget of a run in predicted tokens.")]
Flops = Annotated[float | None, typer.Option(help="Budget of a run in floating-point operations.")]
Equal = Annotated[
    Literal["parameters"] | None,
    typer.Option(help="Adjust widths so that every model has as many parameters as the baseline, within 5 %."),
]
Metric = Annotated[
    str | None, typer.Option(help="The score to compare: exact, loss, bleu ...", show_default="the task's first")
]
Sets = Annotated[
    list[str] | None,
    typer.Option("--set", help="A setting for all runs: --set task.pairs=2000. May be repeated."),
]
Test = Annotated[
    bool,
    typer.Option("--test", help="Score the test split too, after all runs. Test scores do not affect the verdicts."),
]
Out = Annotated[Path, typer.Option(help="Folder for the runs and the report.")]


def command(
    recipes: Recipes,
    vary: Vary = None,
    model: Models = None,
    tasks: Tasks = "",
    seeds: Seeds = 3,
    minutes: Minutes = None,
    steps: Steps = None,
    tokens: Tokens = None,
    flops: Flops = None,
    equal: Equal = None,
    metric: Metric = None,
    sets: Sets = None,
    on: On = "local",
    workers: Workers = 0,
    cores: Cores = 1,
    test: Test = False,
    out: Out = Path("runs/compare"),
) -> None:
    """Compare models, or the values of a setting, over several seeds.

    All runs have the same budget (default: that of the first recipe). The report lists scores, intervals and verdicts,
    and the parameters, FLOPs, tokens and minutes of each model. After an interruption, the same command resumes.
    """
    from allyouneed.lab.compare.comparison import add_test_scores, compare
    from allyouneed.lab.compare.plan import CompareOptions, make_plan
    from allyouneed.lab.compare.report import write_comparison
    from allyouneed.lab.report import DATA, require_same_experiment
    from allyouneed.storage import refuse_foreign
    from allyouneed.training.api import one_budget
    from allyouneed.training.recipe_files import find_recipe

    budget = one_budget({"minutes": minutes, "steps": steps, "tokens": tokens, "flops": flops})
    further = [name.strip() for name in tasks.split(",") if name.strip()]
    options = CompareOptions(
        recipes, vary or [], model or [], further, sets or [], seeds, budget, equal == "parameters", metric
    )
    find_recipe(recipes[0])  # report an unknown recipe before a conflict with the folder
    refuse_foreign(out, "a folder of a comparison", (DATA,), ("data", "runs"))
    require_same_experiment(out, options.question)  # before data is prepared, which may take long
    plan = make_plan(options, out / "data")
    _print_plan(plan, out)
    try:
        with show_jobs(len(plan.jobs())) as progress:
            comparison = compare(plan, out / "runs", workers=workers, cores=cores, on=on, progress=progress)
    except KeyboardInterrupt:
        note("stopped; finished runs are kept, and the same command resumes")
        raise
    if test:
        note("scoring the test split")
        comparison = add_test_scores(comparison, out / "runs")
    _print_results(comparison)
    page = write_comparison(comparison, out, typed())
    print(f"report: {page}")
    _require_no_failures(comparison)


def _print_plan(plan: "ComparisonPlan", out: Path) -> None:
    for line in plan.notes:
        note(line)
    sides = (len(plan.systems), "system"), (len(plan.tasks), "task"), (len(plan.seeds), "seed")
    note(f"{counted(len(plan.jobs()), 'run')}: {' x '.join(counted(*side) for side in sides)}, in {out / 'runs'}")


def _print_results(comparison: "Comparison") -> None:
    from allyouneed.lab.compare.comparison import summary
    from allyouneed.lab.compare.report import cost_table, result_table, verdict_lines

    for task in comparison.plan.tasks:
        print(f"\n{printable(task.name)}")
        print(text_table(result_table(comparison, task)))
        print()
        print(text_table(cost_table(comparison, task)))
    print()
    for line in verdict_lines(comparison):
        print(printable(line))
    print(printable(summary(comparison)))


def _require_no_failures(comparison: "Comparison") -> None:
    failed = comparison.failures()
    if failed:
        raise TrainingError(
            f"{counted(len(failed), 'run')} failed; the first: {failed[0].name}: {failed[0].error} "
            "(run the same command to retry)"
        )
