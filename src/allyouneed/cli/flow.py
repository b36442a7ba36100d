"""`allyouneed flow`: gradients against distance, before and after training."""

from pathlib import Path
from typing import Annotated

import typer

from allyouneed.errors import ConfigError
from allyouneed.words import counted


def command(
    context: typer.Context,
    models: Annotated[
        list[str] | None,
        typer.Argument(help="Model or run folders; none: small models are trained.", show_default=False),
    ] = None,
    mixers: Annotated[
        list[str] | None,
        typer.Option("--mixer", help="May be repeated.", show_default="rnn, lstm, gru, convolution, softmax"),
    ] = None,
    length: Annotated[int, typer.Option(help="Positions that a single layer reads.", min=3)] = 256,
    width: Annotated[int, typer.Option(help="Of layers and models.", min=16)] = 64,
    symbols: Annotated[int, typer.Option(help="The models learn to say so many symbols again.", min=1)] = 24,
    steps: Annotated[int, typer.Option(help="Of their training.", min=1)] = 300,
    out: Annotated[Path, typer.Option(help="Folder of the report and the runs.")] = Path("runs/flow"),
    seed: Annotated[int, typer.Option(help="Everything random follows from it.")] = 1,
) -> None:
    """Do gradients vanish? The norm of the gradient against the distance it came.

    Of one layer of each mechanism with random weights, and of small models before and after a short training; or of
    the given models, against the same architectures with random weights. A fitted rate per step says whether they
    vanish, explode or stay; the reach is the effective receptive field.
    """
    from allyouneed.cli.jobs_progress import show_jobs
    from allyouneed.cli.progress import progress
    from allyouneed.cli.terminal import note, text_table, typed
    from allyouneed.lab.charts import text_chart
    from allyouneed.lab.flow.study import (
        USUAL,
        FlowSettings,
        flow_chart,
        flow_table,
        parts_of,
        study_folders,
        study_layers,
        study_models,
        train_models,
        write_flow_report,
    )
    from allyouneed.lab.report import require_own

    if models:
        _refuse_settings(context)
    require_own(out, "flow")
    if models:
        with progress() as report:
            study = study_folders(models, report)
    else:
        settings = FlowSettings(tuple(mixers or USUAL), length, width, symbols=symbols, steps=steps, seed=seed)
        with progress() as report:
            layers = study_layers(settings, report)
        note(f"training {counted(len(settings.mixers), 'model')} for {counted(steps, 'step')}, in {out / 'runs'}")
        with show_jobs(len(settings.mixers)) as watch:
            outcomes = train_models(settings, out, watch)
        with progress() as report:
            study = study_models(layers, outcomes, out, seed, report)
    for title, flows in parts_of(study):
        print(f"{title}\n\n{text_table(flow_table(flows), ruled=True)}\n\n{text_chart(flow_chart(title, flows))}\n")
    for name, words in study.scores.items():
        print(f"{name} after training: {words}")
    print(f"report: {write_flow_report(study, out, typed())}")


def _refuse_settings(context: typer.Context) -> None:
    """What says how models are trained means nothing where trained ones are given."""
    options = {"mixers": "--mixer"} | {name: f"--{name}" for name in ("length", "width", "symbols", "steps", "seed")}
    for name, option in options.items():
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            raise ConfigError(f"{option}: is for models that are trained here; give folders, or this")
