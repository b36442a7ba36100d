"""`allyouneed scaling`: small runs become a law, the law predicts a larger run, and that run is made."""

import os
from pathlib import Path
from typing import Annotated, Literal

import typer

from allyouneed.cli.jobs_progress import Cores, On, Workers, show_jobs
from allyouneed.cli.terminal import note, text_table, typed
from allyouneed.errors import ConfigError
from allyouneed.words import printable


def command(
    recipe: Annotated[
        str, typer.Argument(help="A .toml file, or the name of a built-in recipe (allyouneed list recipes).")
    ] = "scaling-shakespeare",
    sizes: Annotated[
        str,
        typer.Option(
            help="Sizes of the model, with commas: widths at the recipe's aspect (32,48,64), width x layers "
            "(32x2,48x2,64x2), or settings ('model.width=32 model.layers=2,model.width=64 model.layers=2')."
        ),
    ] = "16x2,24x2,32x2,48x2,64x2",
    budgets: Annotated[
        str, typer.Option(help="What every size may spend, with commas: 1e11,2e11,4e11. Each is a run of its own.")
    ] = "1e11,2e11,4e11",
    unit: Annotated[
        Literal["flops", "tokens"], typer.Option(help="Of the budgets. Isoflop curves need FLOPs.")
    ] = "flops",
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each, with seeds 1, 2, ...")] = 1,
    predict: Annotated[float, typer.Option(help="Predict a run of so many times the largest compute.")] = 6.0,
    at: Annotated[
        str | None, typer.Option(help="Its size, written as in --sizes.", show_default="the best by the fit")
    ] = None,
    verify: Annotated[bool, typer.Option("--verify", help="Make the predicted run too, and compare.")] = False,
    lr_power: Annotated[
        float,
        typer.Option(help="Multiply train.optimizer.lr by (recipe's width / width) to this power: 0 leaves it."),
    ] = 0.5,
    sets: Annotated[
        list[str] | None,
        typer.Option("--set", help="Any setting, for all runs: --set task.batch=16. May be repeated."),
    ] = None,
    on: On = "local",
    workers: Workers = 0,
    cores: Cores = 1,
    out: Annotated[Path, typer.Option(help="Folder for the runs and the report.")] = Path("runs/scaling"),
) -> None:
    """Fit a law of scaling to small runs, predict a larger one, and check. Killed, the same command line goes on.

    The prediction is in OUT/prediction.json before the larger run begins, and is not changed afterwards.
    """
    # Fits solve thousands of systems of a few equations: shared among threads, that takes up to 50 times as long.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # read when numpy is imported

    from allyouneed.lab.report import require_own
    from allyouneed.lab.scaling.plan import Plan
    from allyouneed.lab.scaling.report import (
        law_table,
        optimum_table,
        prediction_text,
        run_table,
        verdicts,
        write_study,
    )
    from allyouneed.lab.scaling.study import How, study
    from allyouneed.lab.scaling.study import verify as make_predicted

    amounts = _numbers(budgets)
    plan = Plan(recipe, sizes, amounts, unit, tuple(range(1, seeds + 1)), tuple(sets or ()), lr_power)
    total = len([size for size in sizes.split(",") if size.strip()]) * len(amounts) * seeds
    require_own(out, plan.question)
    with show_jobs(total) as watch:
        found = study(plan, out, predict, at, How(workers, cores, on, watch))
    page = write_study(found, out, typed())
    note(f"predicted, and written to {out / 'prediction.json'}: {prediction_text(found)}")
    if verify:
        with show_jobs(1) as watch:
            found = make_predicted(found, out, How(workers, cores, on, watch))
        page = write_study(found, out, typed())
    for table in (run_table(found), law_table(found), optimum_table(found)):
        print(text_table(table) + "\n")
    print(f"prediction: {printable(prediction_text(found))}")
    for line in verdicts(found):
        print(printable(line))
    print(f"written: {out / 'prediction.json'}\nreport: {page}")


def _numbers(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(",") if part.strip())
    except ValueError:
        raise ConfigError(f"--budgets {text!r}: should be numbers with commas: 1e11,2e11,4e11") from None
