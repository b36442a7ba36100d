"""The report of a scaling study: tables, isoflop curves, and the prediction next to the measurement."""

import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from allyouneed.lab.charts import Chart, Curve, save_chart
from allyouneed.lab.report import Code, Heading, Note, Paragraph, Part, Table, Verdict, write_report
from allyouneed.lab.scaling.plan import short
from allyouneed.lab.scaling.study import NEAR, ScalingRun, ScalingStudy, best_exponents, best_sizes
from allyouneed.words import counted

SHOWN = 60  # points of a drawn curve
METHOD = (
    "N counts trained parameters without embeddings and output projection. C is the FLOP count declared by the "
    "model, forward and backward. D counts predicted tokens, including repeated ones. Every run completes its own "
    "schedule and is evaluated once, at its end. Fits: Huber loss (delta 0.01) of log L, L-BFGS from many starts. "
    "Intervals: parametric bootstrap with the noise of the residuals. The interval of the prediction includes the "
    "noise of one run, and is valid only if the form of the law is."
)


def write_study(found: ScalingStudy, folder: Path, command: str = "") -> Path:
    """Write report.html, report.json and the charts."""
    charts = [chart for chart in (isoflop_chart(found), compute_chart(found)) if chart is not None]
    parts: list[Part] = [*[Verdict(line) for line in verdicts(found)]]
    parts += [Code(command)] if command else []
    parts += [Heading("The prediction"), charts[-1], Paragraph(prediction_text(found))]
    parts += [Heading("The best size for a compute budget"), *charts[:-1], optimum_table(found)]
    parts += [Heading("The laws"), law_table(found), Note(METHOD)]
    parts += [Heading("The runs"), run_table(found)]
    page = write_report(folder, found.plan.question, f"Scaling of {found.plan.recipe}", parts, as_data(found))
    for chart, name in zip(charts[::-1], ("compute.png", "isoflop.png"), strict=False):
        save_chart(chart, folder / name)
    return page


def verdicts(found: ScalingStudy) -> list[str]:
    """Return the results as sentences."""
    predicted, measured = found.prediction, found.measured
    lines = []
    if measured is not None:
        inside = predicted.loss.low <= measured.loss <= predicted.loss.high
        near = abs(found.error) <= NEAR
        lines.append(
            f"measured {measured.loss:.4f}, predicted {predicted.loss.value:.4f} ({predicted.loss.low:.4f} to "
            f"{predicted.loss.high:.4f}): {'inside' if inside else 'outside'} its interval, "
            f"{abs(found.error):.2%} off, "
            f"{'within' if near else 'not within'} {NEAR:.0%}"
        )
    if found.backtest is not None:
        errors = [abs(error) for error in found.backtest.errors.values()]
        lines.append(
            f"the largest budget, predicted from the smaller ones: {found.backtest.inside} of "
            f"{counted(len(errors), 'run')} inside their interval, {max(errors):.2%} off at most"
        )
    return lines + _caveats(found)


def _caveats(found: ScalingStudy) -> list[str]:
    """Return warnings about the validity of the numbers."""
    lines = []
    if found.failed:
        names = ", ".join(outcome.name for outcome in found.failed)
        lines.append(f"{counted(len(found.failed), 'run')} failed and left out: {names}")
    law = found.best_fit.law.named
    if law["E"] < 0.02 * min(run.loss for run in found.runs):
        lines.append("E is about zero: the runs are too small to show the irreducible loss")
    epochs = max([run.epochs for run in found.runs] + [found.prediction.tokens * _epochs_per_token(found)])
    if epochs > 2:
        lines.append(f"up to {epochs:.1f} epochs: D counts repeated text as new, although less is learnt from it")
    if found.iso is not None and len(found.iso.minima) < len(found.iso.valleys):
        missed = [short(valley.flops) for valley in found.iso.valleys if not valley.inside]
        lines.append(f"no minimum within the sizes at {', '.join(missed)} FLOPs: widen --sizes")
    if found.iso is not None and len(found.iso.minima) > 1 and found.iso.size_exponent is None:
        lines.append("the minima of the parabolas are too uncertain for an exponent of N*: add sizes or seeds")
    return lines


def prediction_text(found: ScalingStudy) -> str:
    """Describe the prediction in a sentence."""
    one = found.prediction
    others = ", ".join(f"{name} {loss.text(4)}" for name, loss in one.others.items())
    return (
        f"Size {one.size} (N = {one.parameters:,}) with {short(one.flops)} FLOPs, {one.times:g} times the largest "
        f"budget of the grid ({one.tokens:,.0f} tokens): {one.loss.value:.4f} nats, 95 % interval {one.loss.low:.4f} "
        f"to {one.loss.high:.4f} ({one.form} form; {others})."
    )


def run_table(found: ScalingStudy) -> Table:
    """Build the table of all runs, the predicted one last."""
    rows = [_row(run, found) for run in found.runs] + ([_row(found.measured, found)] if found.measured else [])
    return Table(["run", "N", "FLOPs", "tokens", "epochs", "seconds", "loss", "fit"], rows)


def _row(run: ScalingRun, found: ScalingStudy) -> list[str]:
    law = found.best_fit.law.loss(run.parameters, run.tokens)
    epochs = "–" if math.isnan(run.epochs) else f"{run.epochs:.2f}"
    cells = [run.name, f"{run.parameters:,}", short(run.flops), f"{run.tokens:,}", epochs, f"{run.seconds:.0f}"]
    return [*cells, f"{run.loss:.4f}", f"{law:.4f}"]


def law_table(found: ScalingStudy) -> Table:
    """Build the table of all fits: parameters with intervals, and noise."""
    rows = []
    for name, fit in {**{f"L(N, D), {key}": fit for key, fit in found.fits.items()}, **found.single}.items():
        rows += [[name, key, value.text()] for key, value in fit.estimates().items()]
        rows.append([name, "noise of a run", f"{fit.noise:.2%}"])
    return Table(["law", "parameter", "value (95 %)"], rows + _slices(found))


def _slices(found: ScalingStudy) -> list[list[str]]:
    """Return the limits of the joint fits: L(N) for infinite data and L(D) for an infinite model."""
    c, k = found.fits["Chinchilla"].law.named, found.fits["Kaplan"].law.named
    return [
        ["L(N), D infinite", "Chinchilla", f"{c['E']:.3g} + {c['A']:.3g} / N^{c['alpha']:.3g}"],
        ["L(N), D infinite", "Kaplan", f"({k['N_c']:.3g} / N)^{k['alpha_N']:.3g}"],
        ["L(D), N infinite", "Chinchilla", f"{c['E']:.3g} + {c['B']:.3g} / D^{c['beta']:.3g}"],
        ["L(D), N infinite", "Kaplan", f"({k['D_c']:.3g} / D)^{k['alpha_D']:.3g}"],
    ]


def optimum_table(found: ScalingStudy) -> Table:
    """Build the table of N* and D* by both approaches."""
    budgets = sorted({run.budget for run in found.runs}) if found.plan.unit == "flops" else []
    compute = [*budgets, found.prediction.flops]
    sizes, losses, _, _ = best_sizes(found, compute)
    valleys = {valley.flops: valley for valley in found.iso.minima} if found.iso is not None else {}
    rows = []
    for flops, size, loss in zip(compute, sizes, losses, strict=True):
        valley = valleys.get(flops)
        by_parabola = valley.best.text() if valley is not None else "–"
        tokens = flops / size.flops_per_token
        rows.append([short(flops), by_parabola, f"{size.parameters:,} ({size.name})", f"{tokens:,.0f}", f"{loss:.4f}"])
    exponent = found.iso.size_exponent if found.iso is not None else None
    of_size, of_data = best_exponents(found)
    rows.append(["exponent over C", exponent.text() if exponent else "–", of_size.text(), of_data.text(), ""])
    return Table(["FLOPs", "N* by parabola", "N* by law", "D* by law", "loss by law"], rows)


def isoflop_chart(found: ScalingStudy) -> Chart | None:
    """Draw loss over N for each compute budget, with its parabola and minimum."""
    if found.iso is None or not found.iso.valleys:
        return None
    curves = []
    for number, valley in enumerate(found.iso.valleys):
        curves.append(Curve(f"{short(valley.flops)} FLOPs", valley.sizes, valley.losses, style="points", colour=number))
        size = np.geomspace(min(valley.sizes), max(valley.sizes), SHOWN)
        curves.append(Curve("", size.tolist(), valley.loss(size).tolist(), colour=number))
    minima = found.iso.minima
    best = [valley.best.value for valley in minima]
    curves.append(Curve("minima", best, [valley.least for valley in minima], style="stars", colour=8))
    return Chart(
        "Isoflop curves: the best size for each compute budget",
        "parameters N, without embeddings",
        "held-out loss (nats per token)",
        curves,
        log_x=True,
    )


def compute_chart(found: ScalingStudy) -> Chart:
    """Draw loss over compute: the runs, the law at its best size, the prediction, and the measurement."""
    predicted = found.prediction
    flops = np.geomspace(min(run.flops for run in found.runs), predicted.flops * 1.2, SHOWN)
    _, loss, low, high = best_sizes(found, flops)
    curves = [
        Curve(
            "runs of the grid",
            [run.flops for run in found.runs],
            [run.loss for run in found.runs],
            style="points",
            colour=6,
        ),
        Curve("law, best size", flops.tolist(), loss.tolist(), low.tolist(), high.tolist(), colour=0),
        Curve(
            f"predicted, {predicted.times:g} x compute",
            [predicted.flops],
            [predicted.loss.value],
            [predicted.loss.low],
            [predicted.loss.high],
            style="points",
            colour=1,
        ),
    ]
    if found.measured is not None:
        curves.append(Curve("measured", [found.measured.flops], [found.measured.loss], style="stars", colour=8))
    return Chart(
        "Loss against compute: fitted to small runs, checked on a larger one",
        "compute C (FLOPs)",
        "held-out loss (nats per token)",
        curves,
        log_x=True,
        log_y=False,
    )


def as_data(found: ScalingStudy) -> dict[str, Any]:
    """Return the content of report.json."""
    iso = found.iso
    of_size, of_data = best_exponents(found)
    return {
        "plan": asdict(found.plan),
        "runs": [asdict(run) for run in found.runs],
        "failed": {outcome.name: outcome.error for outcome in found.failed},
        "laws": {
            name: {"noise": fit.noise, **{key: asdict(value) for key, value in fit.estimates().items()}}
            for name, fit in {**found.fits, **found.single}.items()
        },
        "isoflops": None
        if iso is None
        else {
            "minima": [
                {"flops": v.flops, "loss": v.least, "inside": v.inside, "N": asdict(v.best)} for v in iso.valleys
            ],
            "size_exponent": None if iso.size_exponent is None else asdict(iso.size_exponent),
            "data_exponent": None if iso.data_exponent is None else asdict(iso.data_exponent),
        },
        "by_law": {"size_exponent": asdict(of_size), "data_exponent": asdict(of_data)},
        "backtest": None if found.backtest is None else asdict(found.backtest),
        "prediction": asdict(found.prediction),
        "measured": None if found.measured is None else asdict(found.measured),
        "error": found.error,
        "verdicts": verdicts(found),
    }


def _epochs_per_token(found: ScalingStudy) -> float:
    return found.runs[0].epochs / found.runs[0].tokens
