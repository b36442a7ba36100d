"""Evaluation during training, and the choice of the best checkpoint."""

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from allyouneed.decode import SearchConfig
from allyouneed.errors import ConfigError
from allyouneed.tasks import Score, TaskData
from allyouneed.training.evaluate import evaluate, find_score
from allyouneed.training.parallel import Parallelism
from allyouneed.training.process_group import ProcessGroup
from allyouneed.training.progress import Progress
from allyouneed.training.recipe import Recipe


class _Stopped(Exception):
    """The run was requested to stop: the evaluation is repeated when the run resumes."""


def validation_scores(
    recipe: Recipe, data: TaskData, parallelism: Parallelism, group: ProcessGroup, should_stop: Callable[[], bool]
) -> list[Score] | None:
    """Score the present weights on the validation split: rank 0 computes, all ranks receive the scores.

    The task's own scores are computed only if `train.metric` is one, by greedy search. Return None if `should_stop`
    became true between two batches, so that a long evaluation does not delay a stop.
    """
    greedy = SearchConfig(beam=1, batch_tokens=recipe.decode.batch_tokens)
    search = None if recipe.train.metric == "loss" else greedy
    model = parallelism.gather()

    def between(_: int) -> None:
        if should_stop():
            raise _Stopped

    def measure() -> list[dict[str, Any]] | None:
        assert model is not None, "rank 0 has it"
        try:
            return [asdict(score) for score in evaluate(model, data, "valid", search, between)]
        except _Stopped:
            return None

    scores = group.on_rank0(measure)
    return None if scores is None else [Score(**score) for score in scores]


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
