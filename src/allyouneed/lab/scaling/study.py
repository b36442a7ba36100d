"""`allyouneed scaling`: a grid of runs, the laws fitted to it, a prediction, and the run that tests the prediction.

    found = study(plan, folder)             # runs the grid (finished runs are not made again), fits, predicts
    checked = verify(found, folder)         # makes the predicted run, and compares

The prediction is written to `prediction.json` before that run begins, and never after: a grid that was extended may
change it only as long as the run that it speaks of does not exist.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from scipy.interpolate import PchipInterpolator

from allyouneed.errors import ConfigError, DataError, TrainingError
from allyouneed.lab.report import to_json
from allyouneed.lab.runs import Outcome, Place, Watch, run_all
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
    Measured,
    Plan,
    candidates,
    grid,
    job_of,
    measure,
    read_size,
    read_sizes,
    require_budgets,
    short,
)
from allyouneed.storage import write_atomic, writing
from allyouneed.version import __version__
from allyouneed.words import counted

FORMS: tuple[Form, ...] = (CHINCHILLA, KAPLAN)  # the first one predicts
NEAR = 0.03  # a prediction should be as near as this
BEYOND = 30.0  # times the sizes tried, either way, the law's best one is sought
TRIED = 4000  # numbers of parameters there


@dataclass(frozen=True)
class Run:
    """A finished run of the grid: one point of the fit."""

    name: str
    size: str
    parameters: int  # without tables
    budget: float
    flops: float
    tokens: int
    seconds: float
    loss: float  # on held-out text, at the end of its schedule
    epochs: float  # nan where the data has no end


@dataclass(frozen=True)
class Prediction:
    """What a run will give, said before it is made."""

    run: str
    size: str
    parameters: int
    flops: float
    tokens: float
    times: float  # the largest compute of the fit
    form: str
    loss: Estimate
    others: Mapping[str, Estimate]  # what the other forms say


@dataclass(frozen=True)
class Backtest:
    """The runs of the largest budget, predicted from the others."""

    errors: Mapping[str, float]  # relative, predicted minus measured
    inside: int  # how many lay in their interval


@dataclass(frozen=True)
class Study:
    """All that was found."""

    plan: Plan
    runs: Sequence[Run]
    failed: Sequence[Outcome]
    fits: Mapping[str, Fit]  # by form, of L(N, D)
    single: Mapping[str, Fit]  # of one variable, where runs share the other: "L(N) at 1e6 tokens"
    iso: Isoflops | None
    sizes: Sequence[Measured]  # that a larger run may have
    backtest: Backtest | None
    prediction: Prediction
    job: GridJob  # the run that the prediction is of
    measured: Run | None = None

    @property
    def best_fit(self) -> Fit:
        """The one that predicts."""
        return self.fits[FORMS[0].name]

    @property
    def error(self) -> float:
        """Predicted minus measured, relative to what was measured; nan before the run."""
        if self.measured is None:
            return float("nan")
        return self.prediction.loss.value / self.measured.loss - 1


@dataclass(frozen=True)
class How:
    """How runs are made."""

    workers: int = 0
    cores: int = 1
    on: Place = "local"
    watch: Watch | None = None

    def make(self, jobs: Sequence[GridJob], folder: Path) -> list[Outcome]:
        """The outcomes of jobs."""
        return run_all(
            [item.job for item in jobs],
            folder / "runs",
            workers=self.workers,
            cores=self.cores,
            on=self.on,
            watch=self.watch,
        )


def study(
    plan: Plan,
    folder: Path,
    times: float = 6.0,
    at: str | None = None,
    how: How | None = None,
    draws: int = DRAWS,
) -> Study:
    """Runs the grid, fits, and predicts a run of `times` the largest compute; `at`: of this size, not of the best."""
    if not 1 < times < math.inf:
        raise ConfigError(f"--predict {times:g}: should be above 1: times the largest compute of the grid")
    recipe = plan.load()
    wanted, sizes = None if at is None else read_size(plan, at), read_sizes(plan)
    require_budgets(plan)
    _require_enough(plan, len(sizes))
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    data = recipe.task.prepare(folder / "data", recipe.seed)
    chosen = None if wanted is None else measure(plan, wanted, data)
    jobs = grid(plan, [measure(plan, size, data) for size in sizes])
    outcomes = (how or How()).make(jobs, folder)
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
    found = Study(
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
    _write_prediction(found, folder)
    return found


def verify(found: Study, folder: Path, how: How | None = None) -> Study:
    """Makes the predicted run."""
    (outcome,) = (how or How()).make([found.job], folder)
    if outcome.failed:
        raise TrainingError(f"{outcome.name}: {outcome.error}")
    epochs = found.runs[0].epochs / found.runs[0].tokens
    return replace(found, measured=_run(found.job, outcome, 1 / epochs))


def best_sizes(found: Study, flops: Any) -> tuple[list[Measured], Array, Array, Array]:
    """For each compute: the best size by the fit, its loss, and the interval of that loss (without a run's noise)."""
    compute_G1 = np.atleast_1d(np.asarray(flops, dtype=np.float64))[:, None]
    n_M = np.array([size.parameters for size in found.sizes], dtype=np.float64)
    d_GM = compute_G1 / np.array([size.flops_per_token for size in found.sizes])
    loss_GM = found.best_fit.law.loss(n_M, d_GM)
    least_RG = found.best_fit.drawn(n_M, d_GM).min(axis=2)
    low_G, high_G = np.quantile(least_RG, [0.025, 0.975], axis=0)
    return [found.sizes[place] for place in loss_GM.argmin(axis=1)], loss_GM.min(axis=1), low_G, high_G


def best_exponents(found: Study) -> tuple[Estimate, Estimate]:
    """Of N*(C) and D*(C) by the fit: slopes over the compute of the grid, as those of the parabolas are.

    Hoffmann's beta / (alpha + beta) holds where C = 6 N D. Here C has attention and the last projection in it, so a
    token costs less than N times as much in a larger model; N* is sought with the costs that the sizes have.
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


def _require_enough(plan: Plan, sizes: int) -> None:
    fewest = len(CHINCHILLA.parameters) + 1
    budgets = len(plan.budgets)
    runs = sizes * budgets * len(plan.seeds)
    if runs < fewest or sizes < 2 or budgets < 2:
        raise ConfigError(
            f"{counted(sizes, 'size')} and {counted(budgets, 'budget')} are {counted(runs, 'run')}; "
            f"a law of {fewest - 1} parameters needs at least {fewest} runs, over 2 sizes and 2 budgets"
        )


def _run(item: GridJob, outcome: Outcome, unique: float) -> Run:
    return Run(
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


def _variables(runs: Sequence[Run]) -> list[list[float]]:
    return [[run.parameters for run in runs], [run.tokens for run in runs]]


def _losses(runs: Sequence[Run]) -> list[float]:
    return [run.loss for run in runs]


def _predict(
    plan: Plan, runs: Sequence[Run], fits: Mapping[str, Fit], sizes: Sequence[Measured], times: float
) -> tuple[Prediction, GridJob]:
    """The size that the fit holds for the best at that compute, and the loss it should have."""
    flops = times * max(run.flops for run in runs)
    law = fits[FORMS[0].name].law
    size = min(sizes, key=lambda size: law.loss(size.parameters, flops / size.flops_per_token))
    tokens = flops / size.flops_per_token
    said = {name: found.predict(size.parameters, tokens) for name, found in fits.items()}
    job = job_of(plan, size, flops, plan.seeds[0], "flops")
    job = replace(job, job=replace(job.job, name=f"predicted-{job.job.name}"))
    first = FORMS[0].name
    others = {name: loss for name, loss in said.items() if name != first}
    return Prediction(job.job.name, size.name, size.parameters, flops, tokens, times, first, said[first], others), job


def _backtest(runs: Sequence[Run], draws: int) -> Backtest | None:
    """How well the law would have predicted the largest budget from the smaller ones."""
    top = max(run.budget for run in runs)
    known, kept = [run for run in runs if run.budget < top], [run for run in runs if run.budget == top]
    if len(known) <= len(CHINCHILLA.parameters) or len({run.budget for run in known}) < 2:
        return None
    earlier = fit(FORMS[0], _variables(known), _losses(known), draws)
    said = {run.name: earlier.predict(run.parameters, run.tokens) for run in kept}
    inside = sum(said[run.name].low <= run.loss <= said[run.name].high for run in kept)
    return Backtest({run.name: said[run.name].value / run.loss - 1 for run in kept}, inside)


def _single(runs: Sequence[Run], plan: Plan, draws: int) -> dict[str, Fit]:
    """L(N) over the runs with the most data, L(D) over those of the largest model: where a grid of tokens has them."""
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
    """L(C): through the minima of the isoflop curves, if there are enough of them."""
    minima = iso.minima if iso is not None else []
    form = PowerForm("C")
    if len(minima) <= len(form.parameters):
        return {}
    values, losses = [[valley.flops for valley in minima]], [valley.least for valley in minima]
    return {f"L(C) at the best sizes, {form.name}": fit(form, values, losses, draws)}


def _isoflops(runs: Sequence[Run], law: Fit, plan: Plan, sizes: Sequence[Measured]) -> Isoflops | None:
    if plan.unit != "flops":
        return None
    by_budget: dict[float, list[tuple[float, float]]] = {}
    for run in runs:
        by_budget.setdefault(run.budget, []).append((run.parameters, run.loss))
    return isoflops(by_budget, _flops_of(sizes), law.noise_R)


def _flops_of(sizes: Sequence[Measured]) -> Callable[[Any], Any]:
    """FLOPs a token over N: a smooth curve through the sizes, on logarithmic axes, and straight on beyond them.

    Straight lines between the sizes would not do: a best size is drawn to where they meet.
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


def _write_prediction(found: Study, folder: Path) -> None:
    path = folder / "prediction.json"
    said = {
        "prediction": asdict(found.prediction),
        "law": {name: estimate.law.named for name, estimate in found.fits.items()},
        "from": {run.name: run.loss for run in found.runs},
    }
    said = json.loads(to_json(said))
    made = sorted(file.parent for file in (folder / "runs").glob("predicted-*/recipe.toml"))
    if made and not path.exists():
        raise ConfigError(
            f"{made[0]}: exists, but {path}, which came before it, does not. What is said afterwards is no prediction: "
            "put it back, remove the run, or choose another --out"
        )
    if path.exists():
        try:
            old = json.loads(path.read_text(encoding="utf-8"))
        except ValueError:
            raise DataError(f"{path}: is no JSON; remove it to predict again") from None
        if {name: old.get(name) for name in said} == said:
            return  # the same prediction keeps its date
        if made:
            raise ConfigError(
                f"{path}: was made {_other(old, said)}, and the run it predicts exists: {made[0]}. "
                "A prediction is not changed afterwards: choose another --out"
            )
    head = {"allyouneed": __version__, "made": datetime.now(UTC).isoformat(timespec="seconds")}
    write_atomic(path, to_json(head | said))


def _other(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """In what an earlier prediction differs, in words."""
    before, after = old.get("prediction", {}), new["prediction"]
    words = ["from other runs"] if old.get("from") != new["from"] else []
    if before.get("times") != after["times"]:
        words.append(f"for {before.get('times')} times the compute, now --predict is {after['times']:g}")
    if before.get("size") != after["size"]:
        words.append(f"for size {before.get('size')}, now it is {after['size']}")
    return "; ".join(words) or "with other numbers from the same runs"
