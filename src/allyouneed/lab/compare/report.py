"""The report of a comparison: verdicts, then the evidence, then the command."""

import math
import platform
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from allyouneed.lab.charts import AnyChart, save_chart
from allyouneed.lab.compare.charts import AXES, all_charts, worth_drawing
from allyouneed.lab.compare.comparison import Comparison, missing_comparisons, summary
from allyouneed.lab.compare.plan import BASELINE, System, TaskFacts, settings_that_differ, slug
from allyouneed.lab.jobs import Outcome
from allyouneed.lab.report import Code, Heading, Note, Paragraph, Part, Table, Verdict, write_report
from allyouneed.lab.statistics import FEW
from allyouneed.words import counted, plural

METHOD = (
    f"Intervals are 95 % intervals of the mean over seeds: Student's t for fewer than {FEW} seeds, else a bootstrap. "
    "Differences are paired: runs with the same seed share the data and its order. A difference counts as shown if its "
    "interval excludes zero and a paired t-test agrees after Holm's correction for all tests on this page. If all "
    "seeds tie, a spread of one held-out item is assumed. Effects are Hedges' g, positive if a system is better. "
    "Scores are measured on the validation split, with the weights that were best there by the recipe's own metric."
)
TIMING = "Seconds are the wall-clock time of each complete run, including any slowdown by other work on the machine."


def write_comparison(comparison: Comparison, folder: Path, command: str) -> Path:
    """Write report.html, report.json and the charts."""
    charts = all_charts(comparison)
    plan = comparison.plan
    title = f"{len(plan.systems)} systems compared on {', '.join(task.name for task in plan.tasks)}"
    page = write_report(folder, plan.question, title, _parts(comparison, charts, command), as_data(comparison, command))
    for name, chart in charts.items():
        save_chart(chart, folder / "charts" / f"{slug(name)}.png")
    return page


def _parts(comparison: Comparison, charts: dict[str, AnyChart], command: str) -> list[Part]:
    plan = comparison.plan
    parts: list[Part] = [Paragraph(_question(comparison)), Verdict(f"{summary(comparison)}.")]
    parts += [Paragraph(f"{words}.") for words in verdict_lines(comparison)]
    parts += [Note(f"Failed: {outcome.name}: {outcome.error}") for outcome in comparison.failures()]
    if "matrix" in charts:
        parts += [Heading("Do they transfer?"), *map(Paragraph, transfer(comparison)), charts["matrix"]]
    for task in plan.tasks:
        parts += [Heading(task.name), result_table(comparison, task), charts[f"{task.name}-bars"]]
        parts += [Heading(f"What it cost ({task.name})"), cost_table(comparison, task)]
        parts += [charts[f"{task.name}-pareto-{cost.lower()}"] for cost in worth_drawing(comparison, task)]
        parts += [Heading(f"Learning curves ({task.name})")]
        parts += [charts[f"{task.name}-loss-over-{axis.lower()}"] for axis in AXES]
    parts += [Heading("What differs"), _difference_table(comparison), *map(Note, plan.notes)]
    parts += [
        Heading("All runs"),
        _run_table(comparison),
        Heading("How it was measured"),
        Paragraph(METHOD),
        Note(TIMING),
    ]
    parts += [Note(f"Python {platform.python_version()}, torch {torch.__version__}, {platform.machine()}")]
    return [*parts, Heading("Reproduce"), Code(command), Note("The folder `runs` holds each run with its recipe.")]


def verdict_lines(comparison: Comparison) -> list[str]:
    """Return a verdict for each comparison with the baseline, then the comparisons that failed."""
    return [*(found.verdict for found in comparison.found.values()), *missing_comparisons(comparison)]


def _question(comparison: Comparison) -> str:
    plan = comparison.plan
    budgets = dict.fromkeys(budget_text(task) for task in plan.tasks)
    runs = sum(len(outcomes) for outcomes in comparison.outcomes.values())
    return (
        f"{len(plan.systems)} systems on {', '.join(task.name for task in plan.tasks)}, "
        f"{counted(len(plan.seeds), 'seed')} each: {runs} runs of {' or '.join(budgets)}. "
        + ("The baseline is the unchanged recipe." if plan.baseline.name == BASELINE else "The first is the baseline.")
    )


def budget_text(task: TaskFacts) -> str:
    """Describe the budget of each run on a task."""
    ((name, amount),) = task.baseline.train.budget.model_dump(exclude_none=True).items()
    return f"{short(amount)} {'FLOPs' if name == 'flops' else plural(amount, name.removesuffix('s'))}"


def result_table(comparison: Comparison, task: TaskFacts) -> Table:
    """Build the table of the metric, its difference from the baseline, and the other scores."""
    names = [task.metric, *(name for name in _scores(comparison, task) if name != task.metric)]
    rows = []
    for system in comparison.plan.systems:
        at = comparison.interval(task, system.name)
        if at is None:
            continue
        found = comparison.found.get((task.name, system.name))
        cells = ["baseline", "", ""]
        if found is not None:
            between = found.difference.interval
            effect = f"{found.better:+.1f}" if math.isfinite(found.better) else "–"
            cells = [between.text(sign="+"), effect, _mark(found.shown)]
        others = [comparison.interval(task, system.name, name) for name in names[1:]]
        tested = comparison.tested.get((task.name, system.name), {})
        cells += [tested[task.metric].text()] if task.metric in tested else []
        rows.append([system.name, at.text(), *cells, *(f"{other.mean:.3f}" if other else "" for other in others)])
    test = [f"{task.metric} (test split)"] if comparison.tested else []
    return Table(["system", names[0], "difference", "effect", "shown", *test, *names[1:]], rows)


def cost_table(comparison: Comparison, task: TaskFacts) -> Table:
    """Build the table of finished runs and mean cost in all four budget units."""
    rows = []
    for system in comparison.plan.systems:
        outcomes = comparison.outcomes.get((task.name, system.name), ())
        ended = [one for one in outcomes if not one.failed]
        runs = f"{len(ended)} of {len(outcomes)}"
        if outcomes and not ended:
            rows.append([system.name, runs, *["–"] * 5])
        if ended:
            means = [
                sum(getattr(one, name) for one in ended) / len(ended)
                for name in ("flops", "tokens", "seconds", "steps")
            ]
            flops, tokens, seconds, steps = means
            rows.append(
                [
                    system.name,
                    runs,
                    f"{ended[0].parameters:,}",
                    f"{flops:.3g}",
                    short(tokens),
                    f"{seconds / 60:.2f}",
                    short(steps),
                ]
            )
    return Table(["system", "runs", "parameters", "FLOPs", "tokens", "minutes", "steps"], rows)


def transfer(comparison: Comparison) -> list[str]:
    """Describe for each change on how many tasks it helped."""
    lines = []
    for system in comparison.plan.systems[1:]:
        cells = [(task, comparison.found.get((task.name, system.name))) for task in comparison.plan.tasks]
        tried = [(task, found) for task, found in cells if found is not None]
        shown = [(found.difference.interval.mean > 0) == task.higher_is_better for task, found in tried if found.shown]
        if tried:
            lines.append(
                f"{system.name}: better on {sum(shown)}, worse on {len(shown) - sum(shown)}, "
                f"no difference shown on {len(tried) - len(shown)} of {counted(len(tried), 'task')}."
            )
    return lines


def _difference_table(comparison: Comparison) -> Table:
    rows = []
    for system in comparison.plan.systems[1:]:
        differ = _settings(comparison, system)
        text = "; ".join(f"{name} = {_value(ours)} ({_value(theirs)})" for name, (ours, theirs) in differ.items())
        rows.append([system.name, text])
    return Table(["system", "setting = its value (the baseline's)"], rows)


def _settings(comparison: Comparison, system: System) -> dict[str, tuple[Any, Any]]:
    """Return the settings in which a system differs from the baseline, on its first task."""
    task, recipe = next(iter(system.recipes.items()))
    return settings_that_differ(recipe, comparison.plan.baseline.recipes[task])


def _run_table(comparison: Comparison) -> Table:
    rows = []
    for task in comparison.plan.tasks:
        for outcome in _of_task(comparison, task):
            score = "failed" if outcome.failed else f"{outcome.scores[task.metric]:.4f}"
            spent = [
                f"{outcome.parameters:,}",
                f"{outcome.flops:.3g}",
                f"{outcome.tokens:,}",
                f"{outcome.seconds / 60:.2f}",
            ]
            rows.append([outcome.name, score, *spent, f"{outcome.steps:,}"])
    return Table(["run", "metric", "parameters", "FLOPs", "tokens", "minutes", "steps"], rows)


def as_data(comparison: Comparison, command: str) -> dict[str, Any]:
    """Return the content of report.json."""
    plan = comparison.plan
    runs = []
    for (task, system), outcomes in comparison.outcomes.items():
        runs += [
            {"task": task, "system": system, "seed": seed, **asdict(outcome)}
            for seed, outcome in zip(plan.seeds, outcomes, strict=True)
        ]
    differences = [
        {
            "task": task,
            "system": system,
            "difference": asdict(found.difference.interval),
            "p": found.difference.p,
            "effect": found.better,
            "shown": found.shown,
            "words": found.verdict,
        }
        for (task, system), found in comparison.found.items()
    ]
    tasks = [
        {
            "name": task.name,
            "metric": task.metric,
            "higher_is_better": task.higher_is_better,
            "budget": budget_text(task),
        }
        for task in plan.tasks
    ]
    return {
        "command": command,
        "summary": summary(comparison),
        "baseline": plan.baseline.name,
        "tasks": tasks,
        "systems": {system.name: _settings(comparison, system) for system in plan.systems[1:]},
        "seeds": list(plan.seeds),
        "differences": differences,
        "test": [
            {"task": task, "system": system, "scores": {name: asdict(at) for name, at in scores.items()}}
            for (task, system), scores in comparison.tested.items()
        ],
        "runs": runs,
        "notes": list(plan.notes),
    }


def short(number: float) -> str:
    """Format a count compactly: 4,000 or 34.7 or 2.5e+11."""
    return f"{number:,.0f}" if 100 <= number < 1e9 else f"{number:.3g}"


def _scores(comparison: Comparison, task: TaskFacts) -> list[str]:
    """Return the names of the scores that every finished run has."""
    ended = [outcome.scores for outcome in _of_task(comparison, task) if not outcome.failed]
    return [name for name in ended[0] if all(name in scores for scores in ended)] if ended else []


def _of_task(comparison: Comparison, task: TaskFacts) -> Sequence[Outcome]:
    return [outcome for (name, _), outcomes in comparison.outcomes.items() if name == task.name for outcome in outcomes]


def _mark(shown: bool) -> str:
    return "yes" if shown else "no"


def _value(value: Any) -> str:
    return "–" if value is None else str(value)
