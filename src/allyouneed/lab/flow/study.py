"""Gradient norms against distance: of single layers, and of whole models before and after training.

    layers    one layer of each mechanism with random weights
    before    a small decoder with each mechanism, at its initial weights
    after     the same decoder after a short training to copy a sequence of symbols

For given model folders: before (the architecture with new random weights) and after. Runs are stored in the report's
folder, so that a killed study resumes.
"""

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from allyouneed.config import parse
from allyouneed.errors import ConfigError, FolderError, unknown_name
from allyouneed.evaluation.measure import task_data
from allyouneed.evaluation.settings import recipe_of
from allyouneed.folder import Bundle, load_folder
from allyouneed.lab.charts import Chart, Curve, save_chart
from allyouneed.lab.flow.gradients import FACTOR, HELD, Flow, flow_of, gradient_by_distance, model_gradient_by_distance
from allyouneed.lab.jobs import Job, Outcome, RunProgress
from allyouneed.lab.report import Code, Heading, Note, Part, Table, Verdict, write_report
from allyouneed.lab.runs import run_all
from allyouneed.mixers import MIXERS
from allyouneed.models import Model
from allyouneed.training import Recipe

ReportProgress = Callable[[float, str], None]
USUAL = ("rnn", "lstm", "gru", "convolution", "softmax")


def silent(fraction: float, words: str) -> None:
    """Ignore progress."""


@dataclass(frozen=True)
class FlowSettings:
    """The layers and models of a flow study."""

    mixers: tuple[str, ...] = USUAL
    length: int = 256  # sequence length of single layers
    width: int = 64
    draws: int = 8
    symbols: int = 24  # symbols to copy, which is also the distance to the needed input
    steps: int = 300
    seed: int = 1

    def __post_init__(self) -> None:
        for name in self.mixers:
            if name not in MIXERS:
                raise ConfigError(f"--mixer: {unknown_name(name, MIXERS)}")
            if "causal" not in MIXERS[name].roles:
                raise ConfigError(f"--mixer: {name!r} is not causal, so it cannot be used in a decoder")
        if self.length < 3:
            raise ConfigError(f"--length {self.length}: should be 3 or more; a rate needs at least two distances")
        if not 0 <= self.seed < 1 << 63:
            raise ConfigError(f"--seed {self.seed}: should be an integer from 0 to 2^63 - 1")
        if self.width % 16:
            raise ConfigError(f"--width {self.width}: should be a multiple of 16, the width of a head")


@dataclass(frozen=True)
class FlowStudy:
    """Gradient flows by mechanism or folder."""

    layers: Sequence[Flow]
    before: Sequence[Flow]
    after: Sequence[Flow]
    scores: dict[str, str]  # of the trained models


def study_layers(settings: FlowSettings, report: ReportProgress = silent) -> list[Flow]:
    """Measure single layers with random weights."""
    layers = []
    for number, name in enumerate(settings.mixers):
        report(number / len(settings.mixers), f"one layer of {name}")
        config = parse(MIXERS[name], _mixer(name, settings))
        points = gradient_by_distance(config, settings.length, settings.width, draws=settings.draws, seed=settings.seed)
        layers.append(flow_of(name, points))
    return layers


def train_models(settings: FlowSettings, out: Path, progress: RunProgress | None = None) -> list[Outcome]:
    """Train the decoders; finished runs in the folder are reused."""
    return run_all([Job(name, recipe(name, settings)) for name in settings.mixers], out / "runs", progress=progress)


def study_models(
    layers: Sequence[Flow], outcomes: Sequence[Outcome], out: Path, seed: int, report: ReportProgress = silent
) -> FlowStudy:
    """Measure the decoders before and after training, and combine them with the given single layers."""
    before, after, scores = [], [], {}
    for number, outcome in enumerate(outcomes):
        report(number / len(outcomes), f"the model of {outcome.name}, before and after")
        if outcome.failed:
            scores[outcome.name] = f"failed: {outcome.error}"
            continue
        one, other = _both(load_folder(out / "runs" / outcome.name), outcome.name, seed)
        before.append(one)
        after.append(other)
        scores[outcome.name] = ", ".join(f"{name} {value:.3f}" for name, value in outcome.scores.items())
    return FlowStudy(layers, before, after, scores)


def study_folders(folders: Sequence[str], report: ReportProgress = silent) -> FlowStudy:
    """Measure trained models from folders."""
    before, after = [], []
    short = [Path(folder).resolve().name for folder in folders]
    names = short if len(set(short)) == len(short) else list(folders)
    for number, folder in enumerate(folders):
        report(number / len(folders), folder)
        one, other = _both(load_folder(folder), names[number], 1)
        before.append(one)
        after.append(other)
    return FlowStudy([], before, after, {})


def recipe(name: str, settings: FlowSettings) -> Recipe:
    """Return the recipe of a small decoder with this mixer that learns to copy."""
    length = settings.symbols
    return parse(
        Recipe,
        {
            "about": f"lab: gradients of {name}",
            "seed": settings.seed,
            "task": {"type": "copy", "lengths": [length, length], "batch": 32, "valid": 100, "test": 100},
            "model": {
                "type": "decoder",
                "width": settings.width,
                "hidden": 2 * settings.width,
                "layers": 2,
                "norm": "pre",
                "dropout": 0.0,
                "mixer": _mixer(name, settings),
            },
            "train": {
                "budget": {"steps": settings.steps},
                "label_smoothing": 0.0,
                "evaluate_every": 0.5,
                "optimizer": {"type": "muon", "lr": 4e-3, "matrix_lr": 0.02},
                "schedule": {"type": "stable-decay", "warmup": 0.05, "decay": 0.5},
                "average": {"type": "ema", "decay": 0.98},
            },
        },
    )


def _mixer(name: str, settings: FlowSettings) -> dict[str, Any]:
    mixer: dict[str, Any] = {"type": name}
    if "heads" in MIXERS[name].model_fields:
        mixer["heads"] = settings.width // 16
    if name == "convolution":  # two layers of it see 16 positions back
        mixer["kernel"] = 9
    return mixer


def _both(bundle: Bundle, name: str, seed: int) -> tuple[Flow, Flow]:
    """Measure a model with new random weights and as trained, on the same held-out texts."""
    if bundle.model.kind == "encoder":
        raise FolderError(f"{bundle.path}: flow needs a model that generates tokens; this one is an encoder")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        built: Any = bundle.model
        fresh: Model = recipe_of(bundle).model.build(built.sizes)
    with tempfile.TemporaryDirectory(prefix="allyouneed-") as temporary:
        data = task_data(bundle, Path(temporary))
        points = [model_gradient_by_distance(model, data.held_out("valid")) for model in (fresh, bundle.model)]
    return flow_of(name, points[0]), flow_of(name, points[1])


# --- report ----------------------------------------------------------------------------------------------------------


def flow_table(flows: Sequence[Flow]) -> Table:
    """Build a table with one row for each flow."""
    columns = ["name", "per position", "gradient", "at distance 1", "farthest", "reach (95 %)"]
    rows = []
    for flow in flows:
        near = next((norm for distance, norm in flow.points if distance == 1), 0.0)
        last = flow.points[-1]
        texts = [f"× {flow.rate:.3f} ± {flow.rate_error:.3f}", flow.description(), f"{near:.2g}"]
        rows.append([flow.name, *texts, f"{last[1]:.2g} at {last[0]}", str(flow.reach)])
    return Table(columns, rows)


def sections(study: FlowStudy) -> list[tuple[str, Sequence[Flow]]]:
    """Return the non-empty sections of the study with their titles."""
    parts = [
        ("One layer, random weights", study.layers),
        ("The model before training", study.before),
        ("The model after training", study.after),
    ]
    return [(title, flows) for title, flows in parts if flows]


def flow_chart(title: str, flows: Sequence[Flow]) -> Chart:
    """Draw norms over distances; a curve ends where its gradient becomes zero."""
    curves = []
    for flow in flows:
        seen = [(distance, norm) for distance, norm in flow.points if norm > FLOOR]
        curves.append(Curve(flow.name, [float(distance) for distance, _ in seen], [norm for _, norm in seen]))
    note = f"A curve ends where the norm is below {FLOOR:g}."
    return Chart(f"Gradient against distance: {title.lower()}", "distance", "norm", curves, log_y=True, note=note)


FLOOR = 1e-12  # smallest drawn norm; an axis down to 1e-50 would hide everything else


def verdicts(study: FlowStudy) -> list[str]:
    """Return the results as sentences."""
    sentences = []
    for title, flows in sections(study):
        kinds = [f"{flow.name} {flow.description()}" for flow in flows]
        sentences.append(f"{title}: {'; '.join(kinds)}.")
    return sentences


def write_flow_report(study: FlowStudy, out: Path, command: str) -> Path:
    """Write report.html, report.json and the charts."""
    parts: list[Part] = [Verdict(sentence) for sentence in verdicts(study)]
    pictures = {}
    for number, (title, flows) in enumerate(sections(study), start=1):
        chart = flow_chart(title, flows)
        pictures[out / f"flow-{number}.png"] = chart
        parts += [Heading(title), flow_table(flows), chart]
    if study.scores:
        parts.append(Heading("Scores of the trained models"))
        parts.append(Table(["model", "scores after training"], [[name, text] for name, text in study.scores.items()]))
    parts += [
        Note(
            "The norm of the gradient of the output at a late position, in a random direction, with respect to the "
            "vector of every earlier position; the mean of logarithms over draws or held-out texts. Per position: the "
            "rate of an exponential fit with its standard error. Vanishing or exploding: the fit changes by more than "
            f"a factor of {FACTOR:g} over all distances. Reach: the distance that contains {HELD:.0%} of the sum of "
            "all norms."
        ),
        Code(command),
    ]
    data = {
        name: [vars(flow) | {"points": flow.points} for flow in flows]
        for name, flows in (("layers", study.layers), ("before", study.before), ("after", study.after))
    }
    page = write_report(out, "flow", "Gradients against distance", parts, data | {"scores": study.scores})
    for path, chart in pictures.items():
        save_chart(chart, path)
    return page
