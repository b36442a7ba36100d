"""Several systems on the same tasks with the same seeds and the same budget: who is better, and how sure is that?

    plan = make_plan(Question(["numbers-en-de"], vary=["model.norm=pre,post"]), folder / "data")
    comparison = compare(plan, folder / "runs")

Each run is a folder of its own (`lab/runs.py`), so a comparison that was killed goes on when it is asked for again,
and seeds, systems or tasks can be added to a finished one. A system is measured against the baseline by the
differences of runs of one seed, which share the data and its order; all tests of a comparison are corrected together
(Holm), and what is not shown by then is called that.

Scores are those of the weights that were best on the validation split, measured on the validation split.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from allyouneed.errors import TrainingError
from allyouneed.lab.compare.plan import Plan, TaskFacts, job_name
from allyouneed.lab.compare.test_split import scores_on_test_split
from allyouneed.lab.runs import Outcome, Place, Watch, run_all
from allyouneed.lab.statistics import Difference, Interval, difference, holm, interval, verdict
from allyouneed.words import counted

Cell = tuple[str, str]  # task, system


@dataclass(frozen=True)
class Found:
    """A system against the baseline on one task."""

    difference: Difference  # of the metric as it is: system minus baseline
    shown: bool  # after the correction for all tests of the comparison
    better: float  # the effect size, positive where the system is better; nan without a spread
    words: str


@dataclass(frozen=True)
class Comparison:
    """All runs and what follows from them."""

    plan: Plan
    outcomes: Mapping[Cell, Sequence[Outcome]]  # of each seed, in order
    found: Mapping[Cell, Found]  # of all but the baseline, where there are values to compare
    tested: Mapping[Cell, Mapping[str, Interval]] = field(
        default_factory=dict
    )  # scores of the test split, if asked for

    def values(self, task: TaskFacts, system: str, name: str | None = None) -> dict[int, float]:
        """A score (default: the metric) of each seed whose run ended."""
        outcomes = zip(self.plan.seeds, self.outcomes.get((task.name, system), ()), strict=False)
        return {seed: outcome.scores[name or task.metric] for seed, outcome in outcomes if not outcome.failed}

    def interval(self, task: TaskFacts, system: str, name: str | None = None) -> Interval | None:
        """The mean of the seeds and where it may be; None: no run ended."""
        values = list(self.values(task, system, name).values())
        return interval(values) if values else None

    def lost(self, task: TaskFacts, system: str) -> str:
        """How many runs of a system have no result, in words; they are in no mean and no test."""
        outcomes = self.outcomes.get((task.name, system), ())
        failed = sum(outcome.failed for outcome in outcomes)
        return f"{failed} of {counted(len(outcomes), 'run')} of {system} failed" if failed else ""

    def failures(self) -> list[Outcome]:
        """Runs without a result."""
        return [outcome for outcomes in self.outcomes.values() for outcome in outcomes if outcome.failed]


def compare(
    plan: Plan, folder: Path, *, workers: int = 0, cores: int = 1, on: Place = "local", watch: Watch | None = None
) -> Comparison:
    """Makes all runs that are not yet made, and compares."""
    made = run_all(plan.jobs(), folder, workers=workers, cores=cores, on=on, watch=watch)
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


def judge(plan: Plan, outcomes: Mapping[Cell, Sequence[Outcome]]) -> Comparison:
    """Differences, tests and words for given runs."""
    bare = Comparison(plan, outcomes, {})
    differences: dict[Cell, Difference] = {}
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


def _found(bare: Comparison, task: TaskFacts, system: str, between: Difference, holds: bool) -> Found:
    plan = bare.plan
    inside = between.interval.low <= 0 <= between.interval.high
    shown = holds and not inside
    words = verdict(between, task.higher_is_better, system, plan.baseline.name, is_shown=shown)
    words += "".join(f"; {lost}" for name in (system, plan.baseline.name) if (lost := bare.lost(task, name)))
    if len(plan.tasks) > 1:
        words = f"{task.name}: {words}"
    sign = 1 if task.higher_is_better else -1
    effect = sign * between.effect if math.isfinite(between.effect) else math.nan
    return Found(between, shown, effect, words)


def look_at_test_split(comparison: Comparison, folder: Path) -> Comparison:
    """The same with the scores of all finished runs on the test split. They decide nothing."""
    tested = {}
    for cell, outcomes in comparison.outcomes.items():
        scores = [scores_on_test_split(folder / outcome.name) for outcome in outcomes if not outcome.failed]
        if scores:
            tested[cell] = {name: interval([one[name] for one in scores]) for name in scores[0]}
    return replace(comparison, tested=tested)


def without_result(comparison: Comparison) -> list[str]:
    """A line for each system that cannot be compared on a task, since no run is left."""
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
    """How many systems could be told apart from the baseline."""
    plan, found = comparison.plan, comparison.found
    shown = [(task, cell) for task in plan.tasks for cell in found if cell[0] == task.name and found[cell].shown]
    better = sum((found[cell].difference.interval.mean > 0) == task.higher_is_better for task, cell in shown)
    if not found:
        return f"Nothing can be compared with {plan.baseline.name}: its runs, or all others, failed"
    if len(plan.seeds) < 2:
        return "One seed shows no difference, whatever it is: ask for --seeds 3 or more"
    return (
        f"Of {counted(len(found), 'comparison')} with {plan.baseline.name}, {better} came out better, "
        f"{len(shown) - better} worse, and {len(found) - len(shown)} could not be told apart with "
        f"{counted(len(plan.seeds), 'seed')}"
    )
