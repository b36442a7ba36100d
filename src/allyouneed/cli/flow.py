"""`allyouneed flow`: gradient norms against distance, before and after training."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from allyouneed.errors import ConfigError
from allyouneed.words import counted

if TYPE_CHECKING:
    from allyouneed.lab.flow.study import FlowSettings, FlowStudy

Models = Annotated[
    list[str] | None,
    typer.Argument(help="Model folders or run folders. By default, small models are trained.", show_default=False),
]
Names = Annotated[
    list[str] | None,
    typer.Option(
        "--mixer", help="Mixer to measure. May be repeated.", show_default="rnn, lstm, gru, convolution, softmax"
    ),
]
Length = Annotated[int, typer.Option(help="Sequence length for single layers.", min=3)]
Width = Annotated[int, typer.Option(help="Width of layers and models.", min=16)]
Symbols = Annotated[int, typer.Option(help="Number of symbols that the models learn to copy.", min=1)]
Steps = Annotated[int, typer.Option(help="Training steps of the models.", min=1)]
Out = Annotated[Path, typer.Option(help="Folder for the report and the runs.")]
Seed = Annotated[int, typer.Option(help="Random seed.")]


def command(
    context: typer.Context,
    models: Models = None,
    mixers: Names = None,
    length: Length = 256,
    width: Width = 64,
    symbols: Symbols = 24,
    steps: Steps = 300,
    out: Out = Path("runs/flow"),
    seed: Seed = 1,
) -> None:
    """Measure how gradients decay with distance.

    Without MODELS, measures one layer of each mixer with random weights, and small models before and after a short
    training. With MODELS, compares each model with random weights. The rate per position shows whether gradients
    vanish, explode or stay constant. The reach is the effective receptive field.
    """
    from allyouneed.cli.progress import progress
    from allyouneed.cli.terminal import typed
    from allyouneed.lab.flow.study import USUAL, FlowSettings, study_folders, write_flow_report
    from allyouneed.lab.report import require_same_experiment

    if models:
        _refuse_settings(context)
    require_same_experiment(out, "flow")
    if models:
        with progress() as report:
            study = study_folders(models, report)
    else:
        settings = FlowSettings(tuple(mixers or USUAL), length, width, symbols=symbols, steps=steps, seed=seed)
        study = _study_mixers(settings, out)
    _print_study(study)
    print(f"report: {write_flow_report(study, out, typed())}")


def _study_mixers(settings: "FlowSettings", out: Path) -> "FlowStudy":
    from allyouneed.cli.jobs_progress import show_jobs
    from allyouneed.cli.progress import progress
    from allyouneed.cli.terminal import note
    from allyouneed.lab.flow.study import study_layers, study_models, train_models

    with progress() as report:
        layers = study_layers(settings, report)
    count = len(settings.mixers)
    note(f"training {counted(count, 'model')} for {counted(settings.steps, 'step')}, in {out / 'runs'}")
    with show_jobs(count) as job_progress:
        outcomes = train_models(settings, out, job_progress)
    with progress() as report:
        return study_models(layers, outcomes, out, settings.seed, report)


def _print_study(study: "FlowStudy") -> None:
    from allyouneed.cli.terminal import text_table
    from allyouneed.lab.charts import text_chart
    from allyouneed.lab.flow.study import flow_chart, flow_table, sections

    for title, flows in sections(study):
        print(f"{title}\n\n{text_table(flow_table(flows), ruled=True)}\n\n{text_chart(flow_chart(title, flows))}\n")
    for name, scores in study.scores.items():
        print(f"{name} after training: {scores}")


def _refuse_settings(context: typer.Context) -> None:
    """Raise ConfigError for training options, which have no effect on given models."""
    options = {"mixers": "--mixer"} | {name: f"--{name}" for name in ("length", "width", "symbols", "steps", "seed")}
    for name, option in options.items():
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            raise ConfigError(f"{option}: has no effect on given folders; use it without folders")
