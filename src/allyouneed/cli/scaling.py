"""`allyouneed scaling`: fit a law to small runs, predict a larger run, and train it."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from allyouneed.cli.jobs_progress import Cores, On, Workers, show_jobs
from allyouneed.cli.terminal import note, text_table, typed
from allyouneed.errors import ConfigError
from allyouneed.words import printable

if TYPE_CHECKING:
    from allyouneed.lab.scaling.study import ScalingStudy

RecipeName = Annotated[
    str, typer.Argument(help="A .toml file, or the name of a built-in recipe (allyouneed list recipes).")
]
Sizes = Annotated[
    str,
    typer.Option(
        help="Comma-separated model sizes: widths (32,48,64; layers and hidden sizes scale along), width x layers "
        "(32x2,48x2,64x2), or settings ('model.width=32 model.layers=2,model.width=64 model.layers=2')."
    ),
]
Budgets = Annotated[
    str, typer.Option(help="Comma-separated budgets: 1e11,2e11,4e11. Every size is trained once with each.")
]
Unit = Annotated[Literal["flops", "tokens"], typer.Option(help="Unit of --budgets. Isoflop curves need FLOPs.")]
Seeds = Annotated[int, typer.Option(min=1, help="Number of seeds for each size and budget.")]
Predict = Annotated[float, typer.Option(help="Compute of the predicted run, as a multiple of the largest run's.")]
At = Annotated[
    str | None,
    typer.Option(help="Size of the predicted run, written as in --sizes.", show_default="the optimum of the fit"),
]
Verify = Annotated[bool, typer.Option("--verify", help="Train the predicted run, and compare it with the prediction.")]
LrPower = Annotated[
    float,
    typer.Option(help="Scale the learning rate by (width of the recipe / width)^POWER; 0 keeps it constant."),
]
Sets = Annotated[
    list[str] | None,
    typer.Option("--set", help="A setting for all runs: --set task.batch=16. May be repeated."),
]
Out = Annotated[Path, typer.Option(help="Folder for the runs and the report.")]


def command(
    recipe: RecipeName = "scaling-shakespeare",
    sizes: Sizes = "16x2,24x2,32x2,48x2,64x2",
    budgets: Budgets = "1e11,2e11,4e11",
    unit: Unit = "flops",
    seeds: Seeds = 1,
    predict: Predict = 6.0,
    at: At = None,
    verify: Verify = False,
    lr_power: LrPower = 0.5,
    sets: Sets = None,
    on: On = "local",
    workers: Workers = 0,
    cores: Cores = 1,
    out: Out = Path("runs/scaling"),
) -> None:
    """Fit a scaling law to small runs and predict a larger run.

    The command writes the prediction to OUT/prediction.json before the larger run starts, and never changes it
    afterwards. After an interruption, the same command resumes.
    """
    from allyouneed.lab.report import require_same_experiment
    from allyouneed.lab.scaling.plan import ScalingPlan
    from allyouneed.lab.scaling.report import prediction_text, write_study
    from allyouneed.lab.scaling.study import RunOptions, study
    from allyouneed.lab.scaling.study import verify as train_predicted

    amounts = _numbers(budgets)
    plan = ScalingPlan(recipe, sizes, amounts, unit, tuple(range(1, seeds + 1)), tuple(sets or ()), lr_power)
    total = len([size for size in sizes.split(",") if size.strip()]) * len(amounts) * seeds
    require_same_experiment(out, plan.question)
    with show_jobs(total) as progress:
        found = study(plan, out, predict, at, RunOptions(workers, cores, on, progress))
    page = write_study(found, out, typed())
    note(f"prediction written to {out / 'prediction.json'}: {prediction_text(found)}")
    if verify:
        with show_jobs(1) as progress:
            found = train_predicted(found, out, RunOptions(workers, cores, on, progress))
        page = write_study(found, out, typed())
    _print_study(found)
    print(f"written: {out / 'prediction.json'}\nreport: {page}")


def _print_study(found: "ScalingStudy") -> None:
    from allyouneed.lab.scaling.report import law_table, optimum_table, prediction_text, run_table, verdicts

    for table in (run_table(found), law_table(found), optimum_table(found)):
        print(text_table(table) + "\n")
    print(f"prediction: {printable(prediction_text(found))}")
    for line in verdicts(found):
        print(printable(line))


def _numbers(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(",") if part.strip())
    except ValueError:
        raise ConfigError(f"--budgets {text!r}: should be comma-separated numbers: 1e11,2e11,4e11") from None
