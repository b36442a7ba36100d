"""`allyouneed scaling`: a grid of runs, the laws fitted to it, a prediction, and the run that tests the prediction.

    found = study(plan, folder)             # train the grid (finished runs are skipped), fit, predict
    checked = verify(found, folder)         # train the predicted run, and compare

The prediction is written to `prediction.json` before the predicted run starts (`prediction.py`).
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy.interpolate import PchipInterpolator

from allyouneed.errors import ConfigError, TrainingError
from allyouneed.lab.jobs import Backend, Outcome, RunProgress
from allyouneed.lab.runs import run_all
from allyouneed.lab.scaling.isoflop import Isoflops, isoflops, slope
from allyouneed.lab.scaling.laws import (
    CHINCHILLA,
    DRAWS,
    KAPLAN,
    Array,
    Estimate,
    Fit,
    Form,
    PowerForm,
    estimate,
    fit,
    floored,
)
from allyouneed.lab.scaling.plan import (
    GridJob,
    MeasuredSize,
    ScalingPlan,
    candidates,
    grid,
    job_of,
    measure,
    read_size,
    read_sizes,
    require_budgets,
    short,
)
from allyouneed.lab.scaling.prediction import Prediction, write_prediction
from allyouneed.storage import writing
from allyouneed.words import counted

FORMS: tuple[Form, ...] = (CHINCHILLA, KAPLAN)  # the first one makes the prediction
NEAR = 0.03  # relative error within which a prediction counts as close
BEYOND = 30.0  # the best size by the law is searched up to this factor beyond the given sizes, in both directions
TRIED = 4000  # parameter counts tried in that search


@dataclass(frozen=True)
class ScalingRun:
    """A finished run of the grid; the laws are fitted to these."""

    name: str
    size: str
    parameters: int  # without embeddings and output projection
    budget: float
    flops: float
    tokens: int
    seconds: float
    loss: float  # on held-out text, at the end of its schedule
    epochs: float  # NaN for unlimited data


@dataclass(frozen=True)
class Backtest:
    """The runs of the largest budget, predicted from the others."""

    errors: Mapping[str, float]  # relative, predicted minus measured
    inside: int  # number of runs inside their interval


@dataclass(frozen=True)
class ScalingStudy:
    """The runs, fits and prediction of a scaling study."""

    plan: ScalingPlan
    runs: Sequence[ScalingRun]
    failed: Sequence[Outcome]
    fits: Mapping[str, Fit]  # of L(N, D), by form
    single: Mapping[str, Fit]  # of one variable, if runs share the other: "L(N) at 1e6 tokens"
    iso: Isoflops | None
    sizes: Sequence[MeasuredSize]  # candidate sizes of a larger run
    backtest: Backtest | None
    prediction: Prediction
    job: GridJob  # the predicted run
    measured: ScalingRun | None = None

    @property
    def best_fit(self) -> Fit:
        """Return the fit that makes the prediction."""
        return self.fits[FORMS[0].name]

    @property
    def error(self) -> float:
        """Return the relative error of the prediction; NaN before the run."""
        if self.measured is None:
            return float("nan")
        return self.prediction.loss.value / self.measured.loss - 1


@dataclass(frozen=True)
class RunOptions:
    """How the runs of a study are executed."""

    workers: int = 0
    cores: int = 1
    on: Backend = "local"
    progress: RunProgress | None = None

    def execute(self, jobs: Sequence[GridJob], folder: Path) -> list[Outcome]:
        """Train all jobs and return their outcomes."""
        return run_all(
            [item.job for item in jobs],
            folder / "runs",
            workers=self.workers,
            cores=self.cores,
            on=self.on,
            progress=self.progress,
        )


def study(
    plan: ScalingPlan,
    folder: Path,
    times: float = 6.0,
    at: str | None = None,
    how: RunOptions | None = None,
    draws: int = DRAWS,
) -> ScalingStudy:
    """Train the grid, fit, and predict a run with `times` the largest compute; `at`: its size (default: the best)."""
    if not 1 < times < math.inf:
        raise ConfigError(f"--predict {times:g}: should be above 1; it multiplies the largest compute of the grid")
    recipe = plan.load()
    wanted, sizes = None if at is None else read_size(plan, at), read_sizes(plan)
    require_budgets(plan)
    _require_enough(plan, len(sizes))
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    data = recipe.task.prepare(folder / "data", recipe.seed)
    chosen = None if wanted is None else measure(plan, wanted, data)
    jobs = grid(plan, [measure(plan, size, data) for size in sizes])
    outcomes = (how or RunOptions()).execute(jobs, folder)
    failed = [outcome for outcome in outcomes if outcome.failed]
    unique = float("nan") if data.train_tokens is None else float(data.train_tokens)
    runs = [_run(job, outcome, unique) for job, outcome in zip(jobs, outcomes, strict=True) if not outcome.failed]
    if len(runs) <= len(CHINCHILLA.parameters):
        raise TrainingError(
            f"{len(failed)} of {counted(len(jobs), 'run')} failed; the first: {failed[0].name}: {failed[0].error}"
        )
    fits = {form.name: fit(form, _variables(runs), _losses(runs), draws) for form in FORMS}
    larger = candidates(plan, data)
    prediction, job = _predict(plan, runs, fits, larger if chosen is None else [chosen], times)
    iso = _isoflops(runs, fits[FORMS[0].name], plan, larger)
    found = ScalingStudy(
        plan,
        runs,
        failed,
        fits,
        _single(runs, plan, draws) | _of_compute(iso, draws),
        iso,
        larger,
        _backtest(runs, draws),
        prediction,
        job,
    )
    laws = {name: fitted.law.named for name, fitted in fits.items()}
    write_prediction(folder, prediction, laws, {run.name: run.loss for run in runs})
    return found


def verify(found: ScalingStudy, folder: Path, how: RunOptions | None = None) -> ScalingStudy:
    """Train the predicted run and add its result to the study."""
    (outcome,) = (how or RunOptions()).execute([found.job], folder)
    if outcome.failed:
        raise TrainingError(f"{outcome.name}: {outcome.error}")
    epochs = found.runs[0].epochs / found.runs[0].tokens
    return replace(found, measured=_run(found.job, outcome, 1 / epochs))


def best_sizes(found: ScalingStudy, flops: Any) -> tuple[list[MeasuredSize], Array, Array, Array]:
    """Return the best size for each compute budget by the fit, its loss, and the loss interval without run noise."""
    compute_G1 = np.atleast_1d(np.asarray(flops, dtype=np.float64))[:, None]
    n_M = np.array([size.parameters for size in found.sizes], dtype=np.float64)
    d_GM = compute_G1 / np.array([size.flops_per_token for size in found.sizes])
    loss_GM = found.best_fit.law.loss(n_M, d_GM)
    least_RG = found.best_fit.drawn(n_M, d_GM).min(axis=2)
    low_G, high_G = np.quantile(least_RG, [0.025, 0.975], axis=0)
    return [found.sizes[place] for place in loss_GM.argmin(axis=1)], loss_GM.min(axis=1), low_G, high_G


def best_exponents(found: ScalingStudy) -> tuple[Estimate, Estimate]:
    """Return the exponents of N*(C) and D*(C) by the fit: slopes over the compute of the grid, as for the parabolas.

    Hoffmann's beta / (alpha + beta) holds if C = 6 N D. Here C includes attention and the output projection, so the
    cost of a token grows more slowly than N. N* is therefore searched with the actual costs of the sizes.
    """
    flops = found.plan.budgets if found.plan.unit == "flops" else [run.flops for run in found.runs]
    log_c = np.log(sorted(set(flops)))
    cost, n_M = _flops_of(found.sizes), [size.parameters for size in found.sizes]
    tried_M = np.geomspace(min(n_M) / BEYOND, max(n_M) * BEYOND, TRIED)
    d_CM = np.exp(log_c)[:, None] / cost(tried_M)

    def slopes(least_C: Array) -> tuple[float, float]:
        best_C = tried_M[least_C]
        return slope(log_c, np.log(best_C)), slope(log_c, log_c - np.log(cost(best_C)))

    least_RC = np.array([found.best_fit.drawn(tried_M, d_M).argmin(axis=1) for d_M in d_CM]).T
    drawn_R2 = np.array([slopes(least_C) for least_C in least_RC])
    by_law = slopes(found.best_fit.law.loss(tried_M, d_CM).argmin(axis=1))
    return estimate(by_law[0], drawn_R2[:, 0]), estimate(by_law[1], drawn_R2[:, 1])


def _require_enough(plan: ScalingPlan, sizes: int) -> None:
    fewest = len(CHINCHILLA.parameters) + 1
    budgets = len(plan.budgets)
    runs = sizes * budgets * len(plan.seeds)
    if runs < fewest or sizes < 2 or budgets < 2:
        raise ConfigError(
            f"{counted(sizes, 'size')} and {counted(budgets, 'budget')} are {counted(runs, 'run')}; "
            f"a law of {fewest - 1} parameters needs at least {fewest} runs, over 2 sizes and 2 budgets"
        )


def _run(item: GridJob, outcome: Outcome, unique: float) -> ScalingRun:
    return ScalingRun(
        outcome.name,
        item.size.name,
        item.size.parameters,
        item.budget,
        outcome.flops,
        outcome.tokens,
        outcome.seconds,
        outcome.scores["loss"],
        outcome.tokens / unique,
    )


def _variables(runs: Sequence[ScalingRun]) -> list[list[float]]:
    return [[run.parameters for run in runs], [run.tokens for run in runs]]


def _losses(runs: Sequence[ScalingRun]) -> list[float]:
    return [run.loss for run in runs]


def _predict(
    plan: ScalingPlan, runs: Sequence[ScalingRun], fits: Mapping[str, Fit], sizes: Sequence[MeasuredSize], times: float
) -> tuple[Prediction, GridJob]:
    """Predict the loss of the best size at `times` the largest compute."""
    flops = times * max(run.flops for run in runs)
    law = fits[FORMS[0].name].law
    size = min(sizes, key=lambda size: law.loss(size.parameters, flops / size.flops_per_token))
    tokens = flops / size.flops_per_token
    losses = {name: found.predict(size.parameters, tokens) for name, found in fits.items()}
    job = job_of(plan, size, flops, plan.seeds[0], "flops")
    job = replace(job, job=replace(job.job, name=f"predicted-{job.job.name}"))
    first = FORMS[0].name
    others = {name: loss for name, loss in losses.items() if name != first}
    found = Prediction(job.job.name, size.name, size.parameters, flops, tokens, times, first, losses[first], others)
    return found, job


def _backtest(runs: Sequence[ScalingRun], draws: int) -> Backtest | None:
    """Predict the runs of the largest budget from the smaller ones; None if these are too few."""
    top = max(run.budget for run in runs)
    known, held_out = [run for run in runs if run.budget < top], [run for run in runs if run.budget == top]
    if len(known) <= len(CHINCHILLA.parameters) or len({run.budget for run in known}) < 2:
        return None
    earlier = fit(FORMS[0], _variables(known), _losses(known), draws)
    predicted = {run.name: earlier.predict(run.parameters, run.tokens) for run in held_out}
    inside = sum(predicted[run.name].low <= run.loss <= predicted[run.name].high for run in held_out)
    return Backtest({run.name: predicted[run.name].value / run.loss - 1 for run in held_out}, inside)


def _single(runs: Sequence[ScalingRun], plan: ScalingPlan, draws: int) -> dict[str, Fit]:
    """For a grid of tokens, fit L(N) to the runs with the most data, and L(D) to those of the largest model."""
    if plan.unit != "tokens":
        return {}
    most, largest = max(run.budget for run in runs), max(run.parameters for run in runs)
    by_size = [run for run in runs if run.budget == most]
    by_data = [run for run in runs if run.parameters == largest]
    found: dict[str, Fit] = {}
    for variable, chosen, where in (
        ("N", by_size, f"at {short(most)} tokens"),
        ("D", by_data, f"at N = {largest:,}"),
    ):
        values = [[run.parameters if variable == "N" else run.tokens for run in chosen]]
        for form in (PowerForm(variable), floored(variable)):
            if len(chosen) > len(form.parameters):
                found[f"L({variable}) {where}, {form.name}"] = fit(form, values, _losses(chosen), draws)
    return found


def _of_compute(iso: Isoflops | None, draws: int) -> dict[str, Fit]:
    """Fit L(C) to the minima of the isoflop curves, if there are enough of them."""
    minima = iso.minima if iso is not None else []
    form = PowerForm("C")
    if len(minima) <= len(form.parameters):
        return {}
    values, losses = [[valley.flops for valley in minima]], [valley.least for valley in minima]
    return {f"L(C) at the best sizes, {form.name}": fit(form, values, losses, draws)}


def _isoflops(
    runs: Sequence[ScalingRun], law: Fit, plan: ScalingPlan, sizes: Sequence[MeasuredSize]
) -> Isoflops | None:
    if plan.unit != "flops":
        return None
    by_budget: dict[float, list[tuple[float, float]]] = {}
    for run in runs:
        by_budget.setdefault(run.budget, []).append((run.parameters, run.loss))
    return isoflops(by_budget, _flops_of(sizes), law.noise_R)


def _flops_of(sizes: Sequence[MeasuredSize]) -> Callable[[Any], Any]:
    """Return FLOPs per token as a function of N: a smooth log-log interpolation, linear beyond the given sizes.

    Piecewise linear interpolation is not enough: it would pull the best size to its kinks.
    """
    by_n = {size.parameters: size.flops_per_token for size in sizes}
    log_n, log_f = np.log(sorted(by_n)), np.log([by_n[n] for n in sorted(by_n)])
    if len(by_n) < 2:
        return lambda n: by_n[min(by_n)] * n / min(by_n)
    curve = PchipInterpolator(log_n, log_f)
    first, last = curve(log_n[[0, -1]], 1)

    def cost(n: Any) -> Any:
        x = np.log(n)
        beyond = first * np.minimum(x - log_n[0], 0) + last * np.maximum(x - log_n[-1], 0)
        return np.exp(curve(np.clip(x, log_n[0], log_n[-1])) + beyond)

    return cost
