"""Charts of a comparison: learning curves, Pareto plots, bars with intervals, and a matrix of systems and tasks."""

import math
from collections.abc import Callable, Sequence

from allyouneed.lab.charts import AnyChart, Bar, Bars, Chart, Curve, Matrix
from allyouneed.lab.compare.comparison import Comparison
from allyouneed.lab.compare.plan import TaskFacts
from allyouneed.lab.jobs import Outcome, Point
from allyouneed.lab.statistics import interval_label
from allyouneed.words import counted

MOST_CURVES = 9  # more are hard to distinguish
EQUAL = 1.02  # costs within this ratio count as equal
STRONG = 4.0  # standard deviations at which colours saturate
AXES: dict[str, Callable[[Point], float]] = {
    "tokens": lambda point: point.tokens,
    "FLOPs": lambda point: point.flops,
    "seconds": lambda point: point.seconds,
}
COSTS: dict[str, Callable[[Outcome], float]] = {
    "FLOPs": lambda outcome: outcome.flops,
    "seconds": lambda outcome: outcome.seconds,
    "parameters": lambda outcome: outcome.parameters,
}


def all_charts(comparison: Comparison) -> dict[str, AnyChart]:
    """Return every chart by its file name."""
    charts: dict[str, AnyChart] = {}
    for task in comparison.plan.tasks:
        charts[f"{task.name}-bars"] = bars(comparison, task)
        for axis in AXES:
            charts[f"{task.name}-loss-over-{axis.lower()}"] = learning_curves(comparison, task, axis)
        for cost in worth_drawing(comparison, task):
            charts[f"{task.name}-pareto-{cost.lower()}"] = pareto(comparison, task, cost)
    if len(comparison.plan.tasks) > 1:
        charts["matrix"] = matrix(comparison)
    return charts


def bars(comparison: Comparison, task: TaskFacts) -> Bars:
    """Draw the metric of every system."""
    found = []
    for system in comparison.plan.systems:
        at = comparison.interval(task, system.name)
        if at is not None:
            found.append(Bar(system.name, at.mean, at.low, at.high))
    better = "higher" if task.higher_is_better else "lower"
    note = f"{_mean(comparison, task)}, validation split; {better} is better."
    return Bars(f"{task.metric} on {task.name}", task.metric, found, note)


def learning_curves(comparison: Comparison, task: TaskFacts, axis: str) -> Chart:
    """Draw held-out loss over tokens, FLOPs or seconds."""
    where = AXES[axis]
    curves = []
    shown = _systems_to_draw(comparison, task)
    for name in shown:
        runs = [outcome.curve for outcome in comparison.outcomes[task.name, name] if not outcome.failed]
        points = list(zip(*runs, strict=False))  # the mean ends with the shortest run
        losses = [[point.scores["loss"] for point in at] for at in points]
        x = [sum(where(point) for point in at) / len(at) for at in points]
        y = [sum(loss) / len(loss) for loss in losses]
        curves.append(Curve(name, x, y, [min(loss) for loss in losses], [max(loss) for loss in losses]))
    one = max(_counts(comparison, [task])) == 1
    note = f"{'One seed' if one else f'Mean and range of {_seeds(comparison, [task])}'}, validation split."
    if len(shown) < len(comparison.plan.systems):
        note += f" The baseline and the {len(shown) - 1} systems that differ most from it; the table lists all."
    y = [loss for curve in curves for loss in curve.y if loss > 0]
    wide = bool(y) and max(y) > 10 * min(y)
    return Chart(f"Loss on {task.name} over {axis}", axis, _loss_unit(comparison, task), curves, log_y=wide, note=note)


def pareto(comparison: Comparison, task: TaskFacts, cost: str) -> Chart:
    """Draw the metric over one cost; a dashed line joins the Pareto front."""
    curves, ends = [], []
    for system in comparison.plan.systems:
        at = comparison.interval(task, system.name)
        if at is None:
            continue
        x = _mean_cost(comparison, task, system.name, cost)
        curves.append(Curve(system.name, [x], [at.mean], [at.low], [at.high], style="points"))
        ends.append((x, at.mean))
    front = pareto_front(ends, task.higher_is_better)
    drawn = len(front) > 1
    if drawn:
        curves.append(Curve("front", [x for x, _ in front], [y for _, y in front], style="dashed"))
    costs = [x for x, _ in ends]
    note = _mean(comparison, task) + ("; no system on the front is matched by a cheaper one." if drawn else ".")
    wide = max(costs) > 20 * min(costs)
    return Chart(f"{task.metric} on {task.name} over {cost}", cost, task.metric, curves, log_x=wide, note=note)


def pareto_front(points: Sequence[tuple[float, float]], higher_is_better: bool) -> list[tuple[float, float]]:
    """Return the (cost, value) pairs that no cheaper or equally cheap pair matches, by cost."""
    front: list[tuple[float, float]] = []
    sign = 1 if higher_is_better else -1
    for cost, value in sorted(points, key=lambda point: (point[0], -sign * point[1])):
        if not front or sign * value > sign * front[-1][1]:
            front.append((cost, value))
    return front


def worth_drawing(comparison: Comparison, task: TaskFacts) -> list[str]:
    """Return the costs that differ between systems; costs made equal by the budget carry no information."""
    found = []
    for name in COSTS:
        costs = [
            _mean_cost(comparison, task, system.name, name)
            for system in comparison.plan.systems
            if comparison.values(task, system.name)
        ]
        if len(costs) > 1 and max(costs) > EQUAL * min(costs):
            found.append(name)
    return found


def matrix(comparison: Comparison) -> Matrix:
    """Draw effect sizes by system and task: does a change that helps on one task help on the others?"""
    plan = comparison.plan
    rows = [system.name for system in plan.systems[1:]]
    found = [[comparison.found.get((task.name, row)) for task in plan.tasks] for row in rows]
    values = [[math.nan if cell is None else cell.better for cell in row] for row in found]
    sure = [[cell is not None and cell.shown for cell in row] for row in found]
    note = (
        f"Blue: better than {plan.baseline.name}. Hedges' g, {_seeds(comparison, plan.tasks)}; "
        "bold: shown after Holm's correction."
    )
    title = "Effect of each change on each task, in standard deviations of seeds"
    return Matrix(title, rows, [task.name for task in plan.tasks], values, sure, note, digits=1, reach=STRONG)


def _systems_to_draw(comparison: Comparison, task: TaskFacts) -> list[str]:
    """Return the baseline and the systems that differ most from it, in the order of the plan."""
    plan = comparison.plan
    ended = [system.name for system in plan.systems if comparison.values(task, system.name)]
    if len(ended) <= MOST_CURVES:
        return ended

    def apart(name: str) -> float:
        found = comparison.found.get((task.name, name))
        return math.inf if name == plan.baseline.name else abs(found.difference.interval.mean) if found else 0.0

    kept = sorted(ended, key=apart, reverse=True)[:MOST_CURVES]
    return [name for name in ended if name in kept]


def _mean_cost(comparison: Comparison, task: TaskFacts, system: str, cost: str) -> float:
    ended = [outcome for outcome in comparison.outcomes[task.name, system] if not outcome.failed]
    return sum(COSTS[cost](outcome) for outcome in ended) / len(ended)


def _counts(comparison: Comparison, tasks: Sequence[TaskFacts]) -> list[int]:
    """Return the number of finished runs of each system, without the systems that have none and are not drawn."""
    counts = [len(comparison.values(task, system.name)) for task in tasks for system in comparison.plan.systems]
    return [count for count in counts if count] or [0]


def _seeds(comparison: Comparison, tasks: Sequence[TaskFacts]) -> str:
    counts = _counts(comparison, tasks)
    if min(counts) < max(counts):
        return f"{min(counts)} to {max(counts)} seeds (without failed runs)"
    lost = len(comparison.plan.seeds) - counts[0]
    return counted(counts[0], "seed") + (" (without failed runs)" if lost else "")


def _mean(comparison: Comparison, task: TaskFacts) -> str:
    counts = _counts(comparison, [task])
    if max(counts) == 1:
        return "One seed"
    how = " or ".join(dict.fromkeys(interval_label(count) for count in (min(counts), max(counts))))
    return f"Mean of {_seeds(comparison, [task])} with its {how}"


def _loss_unit(comparison: Comparison, task: TaskFacts) -> str:
    """Return the unit of the loss: an encoder classifies, all other models generate tokens."""
    recipes = [system.recipes[task.name] for system in comparison.plan.systems if task.name in system.recipes]
    return "nats per prediction" if any(one.model.kind == "encoder" for one in recipes) else "nats per token"
