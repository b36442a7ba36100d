"""`allyouneed cost`: table 1 of the 2017 paper for every mixer, stated, counted and measured here."""

from pathlib import Path
from typing import Annotated

import typer

Names = Annotated[list[str] | None, typer.Option("--mixer", help="Only this one; may be repeated.", show_default="all")]
Lengths = Annotated[
    list[int] | None,
    typer.Option("--length", help="Instead of 1024, 2048, 4096, 8192; may be repeated.", show_default=False),
]
Widths = Annotated[
    list[int] | None, typer.Option("--width", help="Instead of 128, 256, 512; may be repeated.", show_default=False)
]


def command(
    mixers: Names = None,
    lengths: Lengths = None,
    widths: Widths = None,
    full: Annotated[
        bool, typer.Option("--full/--quick", help="Longer and wider, five repetitions: 10 minutes and more.")
    ] = False,
    out: Annotated[Path, typer.Option(help="Folder of the report; the same command goes on there.")] = Path(
        "runs/cost"
    ),
) -> None:
    """What does a layer cost? Table 1 of "Attention is all you need", for every mixer, on this machine.

    The formula; FLOPs as stated and as counted; seconds and memory measured over lengths and widths, with fitted
    exponents; sequential steps; path lengths found by following influence; where recurrence becomes cheaper.
    Two minutes on an idle core. What was measured is kept: killed, the same command goes on.
    """
    from dataclasses import replace

    from allyouneed.cli.progress import progress
    from allyouneed.cli.terminal import text_table, typed
    from allyouneed.lab.charts import Chart, text_chart
    from allyouneed.lab.cost.measure import FULL, CostSettings, study_cost
    from allyouneed.lab.cost.report import (
        charts,
        crossing_table,
        formulas_table,
        measured_table,
        path_table,
        verdicts,
        write_cost_report,
    )
    from allyouneed.lab.report import require_own

    require_own(out, "cost")
    settings = replace(FULL if full else CostSettings(), mixers=tuple(mixers or ()))
    settings = replace(settings, lengths=tuple(sorted(set(lengths)))) if lengths else settings
    settings = replace(settings, widths=tuple(sorted(set(widths)))) if widths else settings
    with progress() as report:
        study = study_cost(settings, out, report)
    for title, table in (
        ("FLOPs of one layer", formulas_table(study)),
        (f"over lengths, d = {settings.width}", measured_table(study, "n")),
        (f"over widths, n = {settings.length}", measured_table(study, "d")),
        ("sequential steps and path length", path_table(study)),
        ("where self-attention begins to cost more than recurrence", crossing_table(study)),
    ):
        if table.rows:
            print(f"{title}\n\n{text_table(table, ruled=True)}\n")
    for name, chart in charts(study).items():
        if name.startswith("crossover") and isinstance(chart, Chart):
            print(f"{text_chart(chart)}\n")
    for words in verdicts(study):
        print(words)
    page = write_cost_report(study, out, typed())
    print(f"report: {page}")
