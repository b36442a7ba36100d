"""Evaluation during training, and the choice of the best checkpoint."""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from allyouneed.decode import SearchConfig
from allyouneed.errors import ConfigError
from allyouneed.models import Model
from allyouneed.tasks import Score, TaskData
from allyouneed.training.evaluate import Measurement, OutOfTime, find_score
from allyouneed.training.pace import LEAST_ITEMS, PROBE_TOKENS, TimePlan, measure_within, predict_seconds
from allyouneed.training.parallel import Parallelism
from allyouneed.training.process_group import ProcessGroup
from allyouneed.training.progress import Progress
from allyouneed.training.recipe import Recipe

T = TypeVar("T")


class _Stopped(Exception):
    """The run was requested to stop: the evaluation is repeated when the run resumes."""


@dataclass(frozen=True)
class Evaluated:
    """The scores of an evaluation and, with a plan, how many of the held-out items it used.

    No scores: the evaluation was given up, as it took too long.
    """

    scores: list[Score]
    items: int
    of: int


class Validator:
    """Evaluates the present weights on the validation split: rank 0 computes, all ranks receive the results.

    The task's own scores are computed only if `train.metric` is one, by greedy search.
    """

    def __init__(self, recipe: Recipe, data: TaskData, parallelism: Parallelism, group: ProcessGroup) -> None:
        self.recipe, self.data, self.parallelism, self.group = recipe, data, parallelism, group
        greedy = SearchConfig(beam=1, batch_tokens=recipe.decode.batch_tokens)
        self.search = None if recipe.train.metric == "loss" else greedy

    def evaluate(
        self, should_stop: Callable[[], bool], plan: TimePlan | None = None, seconds: float = 0.0, evaluations: int = 0
    ) -> Evaluated | None:
        """Return the scores; None if `should_stop` became true between two batches.

        With a plan, as many items are used as it allows; later evaluations use the same ones.
        `seconds`: spent so far; `evaluations`: how many were due before this one.
        """

        def measure(measurement: Measurement) -> dict[str, Any]:
            if plan is None:
                measurement.extend()
            elif plan.pace.items:
                measurement.deadline = time.monotonic() + plan.longest_evaluation(seconds)
                try:
                    measurement.extend(plan.pace.items)
                except OutOfTime:
                    return {"scores": [], "items": 0, "of": 0}
            else:
                measure_within(measurement, *plan.evaluation_seconds(evaluations), LEAST_ITEMS)
            used = (measurement.items, measurement.size) if plan is not None else (0, 0)
            return {"scores": [asdict(score) for score in measurement.scores()], "items": used[0], "of": used[1]}

        found = self._on_rank0(
            lambda model, between: measure(self._measurement(model, self.search, between)), should_stop
        )
        if found is None:
            return None
        return Evaluated([Score(**score) for score in found["scores"]], found["items"], found["of"])

    def predict(self, should_stop: Callable[[], bool], enough: float) -> tuple[float, float] | None:
        """Return the predicted seconds of a whole evaluation and of the final measurement; None if stopped.

        Untrained models do not end their texts, so the first tokens of each text are decoded, and the time of the
        others is extrapolated.
        """

        def measure(model: Model, between: Callable[[int], None]) -> tuple[float, float]:
            usual = self._measurement(model, self.search and _shortened(self.search), between)
            final = self._measurement(model, _shortened(self.recipe.decode), between)
            evaluation = predict_seconds(usual, enough)
            return evaluation, predict_seconds(final, enough) if final.decodes else evaluation

        found = self._on_rank0(measure, should_stop)
        return None if found is None else (found[0], found[1])

    def _measurement(self, model: Model, search: SearchConfig | None, between: Callable[[int], None]) -> Measurement:
        return Measurement(model, self.data, "valid", search, between)

    def _on_rank0(self, work: Callable[[Model, Callable[[int], None]], T], should_stop: Callable[[], bool]) -> T | None:
        model = self.parallelism.gather()

        def between(_: int) -> None:
            if should_stop():
                raise _Stopped

        def run() -> T | None:
            assert model is not None, "rank 0 has it"
            try:
                return work(model, between)
            except _Stopped:
                return None

        return self.group.on_rank0(run)


def _shortened(search: SearchConfig) -> SearchConfig:
    most = PROBE_TOKENS if search.max_length is None else min(search.max_length, PROBE_TOKENS)
    return search.model_copy(update={"max_length": most})


def give_up(progress: Progress, plan: TimePlan) -> str:
    """Enter an evaluation that took too long; return a note about it.

    If it was the last one, the last weights are chosen: the schedule has come to its end with them, and no earlier ones
    were shown to be better.
    """
    if plan.pace.fraction >= 1:
        progress.best, progress.best_loss, progress.best_step = None, None, progress.spent.steps
    return plan.describe_given_up(progress.spent.steps)


def record_scores(progress: Progress, scores: list[Score], metric: str) -> bool:
    """Enter the scores of the present weights into the progress; return whether they are the best so far.

    Coarse scores tie, for example at zero: the loss then decides. A score that is NaN is never the best.
    """
    chosen, loss = find_score(scores, metric), find_score(scores, "loss")
    if chosen is None:
        known = ", ".join(score.name for score in scores)
        raise ConfigError(f"train.metric: the task has no score {metric!r}; it has {known}")
    assert loss is not None, "every task has one"
    value = chosen.value if chosen.higher_is_better else -chosen.value
    tied = value == progress.best and progress.best_loss is not None and loss.value < progress.best_loss
    is_best = value == value and (progress.best is None or value > progress.best or tied)
    progress.evaluated_at, progress.held_out_loss = progress.spent.steps, loss.value
    if is_best:
        progress.best, progress.best_loss, progress.best_step = value, loss.value, progress.spent.steps
    progress.since_best = 0 if is_best else progress.since_best + 1
    return is_best
