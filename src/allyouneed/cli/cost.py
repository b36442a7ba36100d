"""`allyouneed cost`: table 1 of the 2017 paper for every mixer: declared, counted and measured on this machine."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from allyouneed.lab.cost.measure import CostStudy

Names = Annotated[
    list[str] | None, typer.Option("--mixer", help="Measure only this mixer. May be repeated.", show_default="all")
]
Lengths = Annotated[
    list[int] | None,
    typer.Option(
        "--length", help="Sequence length. May be repeated; use at least two.", show_default="1024, 2048, 4096, 8192"
    ),
]
Widths = Annotated[
    list[int] | None,
    typer.Option("--width", help="Layer width. May be repeated; use at least two.", show_default="128, 256, 512"),
]
Full = Annotated[
    bool, typer.Option("--full/--quick", help="--full: more sizes and five repetitions; takes at least 10 minutes.")
]
Out = Annotated[Path, typer.Option(help="Folder for the measurements and the report.")]


def command(
    mixers: Names = None,
    lengths: Lengths = None,
    widths: Widths = None,
    full: Full = False,
    out: Out = Path("runs/cost"),
) -> None:
    """Measure the cost of a layer of every mixer on this machine.

    This is table 1 of "Attention is all you need", measured. For each mixer the report lists the formula, declared and
    counted FLOPs, time and memory over lengths and widths with fitted exponents, sequential steps, and path lengths.
    It also finds the length beyond which recurrence is cheaper than attention. The command takes two minutes on an
    idle core. After an interruption, the same command resumes.
    """
    from dataclasses import replace

    from allyouneed.cli.progress import progress
    from allyouneed.cli.terminal import typed
    from allyouneed.lab.cost.measure import study_cost
    from allyouneed.lab.cost.report import write_cost_report
    from allyouneed.lab.cost.settings import FULL, CostSettings
    from allyouneed.lab.report import require_same_experiment

    require_same_experiment(out, "cost")
    settings = replace(FULL if full else CostSettings(), mixers=tuple(mixers or ()))
    settings = replace(settings, lengths=tuple(sorted(set(lengths)))) if lengths else settings
    settings = replace(settings, widths=tuple(sorted(set(widths)))) if widths else settings
    with progress() as report:
        study = study_cost(settings, out, report)
    _print_study(study)
    page = write_cost_report(study, out, typed())
    print(f"report: {page}")


def _print_study(study: "CostStudy") -> None:
    from allyouneed.cli.terminal import text_table
    from allyouneed.lab.charts import Chart, text_chart
    from allyouneed.lab.cost.report import (
        charts,
        crossing_table,
        formulas_table,
        measured_table,
        path_table,
        verdicts,
    )

    for title, table in (
        ("FLOPs of one layer", formulas_table(study)),
        (f"over lengths, d = {study.settings.width}", measured_table(study, "n")),
        (f"over widths, n = {study.settings.length}", measured_table(study, "d")),
        ("sequential steps and path length", path_table(study)),
        ("where self-attention becomes more expensive than recurrence", crossing_table(study)),
    ):
        if table.rows:
            print(f"{title}\n\n{text_table(table, ruled=True)}\n")
    for name, chart in charts(study).items():
        if name.startswith("crossover") and isinstance(chart, Chart):
            print(f"{text_chart(chart)}\n")
    for line in verdicts(study):
        print(line)
