"""Compare systems on the same tasks with the same seeds and budget: which is better, and how certain is that?

    plan = make_plan(CompareOptions(["numbers-en-de"], vary=["model.norm=pre,post"]), folder / "data")
    comparison = compare(plan, folder / "runs")

Each run has its own folder (`lab/runs.py`), so the same call resumes a killed comparison, and seeds, systems or tasks
can be added to a finished one. A system is compared with the baseline by the paired differences of runs with the same
seed, which share the data and its order. All tests of a comparison are corrected together (Holm); a difference that
does not pass is reported as not shown.

Scores are those of the weights that were best on the validation split, measured on the validation split.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from allyouneed.errors import TrainingError
from allyouneed.lab.compare.plan import ComparisonPlan, TaskFacts, job_name
from allyouneed.lab.compare.test_split import scores_on_test_split
from allyouneed.lab.jobs import Backend, Outcome, RunProgress
from allyouneed.lab.runs import run_all
from allyouneed.lab.statistics import Difference, Interval, difference, holm, interval, verdict
from allyouneed.words import counted

TaskAndSystem = tuple[str, str]  # task, system


@dataclass(frozen=True)
class SystemResult:
    """A system against the baseline on one task."""

    difference: Difference  # of the metric: system minus baseline
    shown: bool  # after the correction for all tests of the comparison
    better: float  # the effect size, positive if the system is better; NaN without a spread
    verdict: str


@dataclass(frozen=True)
class Comparison:
    """All runs of a comparison with their statistics."""

    plan: ComparisonPlan
    outcomes: Mapping[TaskAndSystem, Sequence[Outcome]]  # one per seed, in order
    found: Mapping[TaskAndSystem, SystemResult]  # all systems but the baseline, if there are values to compare
    # Scores on the test split, if requested.
    tested: Mapping[TaskAndSystem, Mapping[str, Interval]] = field(default_factory=dict)

    def values(self, task: TaskFacts, system: str, name: str | None = None) -> dict[int, float]:
        """Return a score (default: the metric) for each seed whose run finished."""
        outcomes = zip(self.plan.seeds, self.outcomes.get((task.name, system), ()), strict=False)
        return {seed: outcome.scores[name or task.metric] for seed, outcome in outcomes if not outcome.failed}

    def interval(self, task: TaskFacts, system: str, name: str | None = None) -> Interval | None:
        """Return the mean over seeds with its interval; None if no run finished."""
        values = list(self.values(task, system, name).values())
        return interval(values) if values else None

    def lost(self, task: TaskFacts, system: str) -> str:
        """Describe how many runs of a system failed; failed runs enter no mean and no test."""
        outcomes = self.outcomes.get((task.name, system), ())
        failed = sum(outcome.failed for outcome in outcomes)
        return f"{failed} of {counted(len(outcomes), 'run')} of {system} failed" if failed else ""

    def failures(self) -> list[Outcome]:
        """Return all failed runs."""
        return [outcome for outcomes in self.outcomes.values() for outcome in outcomes if outcome.failed]


def compare(
    plan: ComparisonPlan,
    folder: Path,
    *,
    workers: int = 0,
    cores: int = 1,
    on: Backend = "local",
    progress: RunProgress | None = None,
) -> Comparison:
    """Execute all runs that are not finished yet, and compare."""
    made = run_all(plan.jobs(), folder, workers=workers, cores=cores, on=on, progress=progress)
    by_name = {outcome.name: outcome for outcome in made}
    if all(outcome.failed for outcome in made):
        raise TrainingError(f"all {len(made)} runs failed; the first: {made[0].name}: {made[0].error}")
    outcomes = {
        (task.name, system.name): [by_name[job_name(task.name, system.name, seed)] for seed in plan.seeds]
        for task in plan.tasks
        for system in plan.systems
        if task.name in system.recipes
    }
    return judge(plan, outcomes)


def judge(plan: ComparisonPlan, outcomes: Mapping[TaskAndSystem, Sequence[Outcome]]) -> Comparison:
    """Compute differences, tests and verdicts for given runs."""
    bare = Comparison(plan, outcomes, {})
    differences: dict[TaskAndSystem, Difference] = {}
    for task in plan.tasks:
        theirs = bare.values(task, plan.baseline.name)
        for system in plan.systems[1:]:
            ours = bare.values(task, system.name)
            both = [seed for seed in plan.seeds if seed in ours and seed in theirs]
            if both:
                pairs = [ours[seed] for seed in both], [theirs[seed] for seed in both]
                differences[task.name, system.name] = difference(*pairs, grain=task.grain)
    holds = holm({f"{task}\0{system}": found.p for (task, system), found in differences.items()})
    found = {}
    for task in plan.tasks:
        for system in plan.systems[1:]:
            if (task.name, system.name) in differences:
                cell = task.name, system.name
                found[cell] = _found(bare, task, system.name, differences[cell], holds["\0".join(cell)])
    return Comparison(plan, outcomes, found)


def _found(bare: Comparison, task: TaskFacts, system: str, between: Difference, holds: bool) -> SystemResult:
    plan = bare.plan
    inside = between.interval.low <= 0 <= between.interval.high
    shown = holds and not inside
    words = verdict(between, task.higher_is_better, system, plan.baseline.name, is_shown=shown)
    words += "".join(f"; {lost}" for name in (system, plan.baseline.name) if (lost := bare.lost(task, name)))
    if len(plan.tasks) > 1:
        words = f"{task.name}: {words}"
    sign = 1 if task.higher_is_better else -1
    effect = sign * between.effect if math.isfinite(between.effect) else math.nan
    return SystemResult(between, shown, effect, words)


def add_test_scores(comparison: Comparison, folder: Path) -> Comparison:
    """Add the scores of all finished runs on the test split. They do not affect the verdicts."""
    tested = {}
    for cell, outcomes in comparison.outcomes.items():
        scores = [scores_on_test_split(folder / outcome.name) for outcome in outcomes if not outcome.failed]
        if scores:
            tested[cell] = {name: interval([one[name] for one in scores]) for name in scores[0]}
    return replace(comparison, tested=tested)


def missing_comparisons(comparison: Comparison) -> list[str]:
    """Return a line for each system that cannot be compared on a task because all its runs failed."""
    plan = comparison.plan
    return [
        f"{task.name}: {system.name} could not be compared: {lost}"
        for task in plan.tasks
        for system in plan.systems[1:]
        if (task.name, system.name) not in comparison.found
        for lost in [comparison.lost(task, system.name) or comparison.lost(task, plan.baseline.name)]
        if lost
    ]


def summary(comparison: Comparison) -> str:
    """Summarise how many systems were better, worse, or not distinguishable from the baseline."""
    plan, found = comparison.plan, comparison.found
    shown = [(task, cell) for task in plan.tasks for cell in found if cell[0] == task.name and found[cell].shown]
    better = sum((found[cell].difference.interval.mean > 0) == task.higher_is_better for task, cell in shown)
    if not found:
        return f"Nothing can be compared with {plan.baseline.name}: its runs, or all others, failed"
    if len(plan.seeds) < 2:
        return "One seed cannot show a difference: use --seeds 3 or more"
    return (
        f"Of {counted(len(found), 'comparison')} with {plan.baseline.name}, {better} came out better, "
        f"{len(shown) - better} worse, and {len(found) - len(shown)} could not be told apart with "
        f"{counted(len(plan.seeds), 'seed')}"
    )
