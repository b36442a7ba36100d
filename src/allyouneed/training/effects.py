"""Refuse settings that would have no effect in combination with others.

A setting that only another type has is refused by `config.choice`. Combinations within a table are described by its
config (`Config.ineffective_setting`), those across tables here. They are checked where a person gives a recipe
(`load_recipe`), not where a stored one is read: a run or model folder of an earlier version loads with whatever it
holds, and its run resumes.
"""

from collections.abc import Callable, Iterator

from allyouneed.config import Config
from allyouneed.decode import SearchConfig
from allyouneed.errors import ConfigError
from allyouneed.text.tokenizer import TokenizerConfig
from allyouneed.training.average import LastConfig
from allyouneed.training.guards import RESTARTS_UNTIL
from allyouneed.training.recipe import Recipe


def require_effective(recipe: Recipe) -> None:
    """Raise ConfigError for the first setting that would have no effect: its name, the reason and the remedy."""
    for check in (ineffective_setting, *CHECKS):
        problem = check(recipe)
        if problem is not None:
            raise ConfigError(problem)


def ineffective_setting(config: Config) -> str | None:
    """Return the first problem that a config, or one in it, describes; None if there is none."""
    for path, part in _configs(config, ""):
        problem = part.ineffective_setting()
        if problem is not None:
            return path + problem
    return None


def _configs(config: Config, path: str) -> Iterator[tuple[str, Config]]:
    """Yield a config and all configs in it, each with the prefix of its settings: `model.mixer.`."""
    yield path, config
    for name in type(config).model_fields:
        value = getattr(config, name)
        for part in value if isinstance(value, list) else [value]:
            if isinstance(part, Config):
                yield from _configs(part, f"{path}{name}.")


def _snapshots(recipe: Recipe) -> str | None:
    average, budget = recipe.train.average, recipe.train.budget
    most = budget.steps or budget.tokens  # a step predicts at least one token
    if isinstance(average, LastConfig) and most is not None and average.every > most:
        unit = "steps" if budget.steps else "tokens"
        return (
            f"train.average.every={average.every}: has no effect, as no snapshot is taken in {most} {unit}; "
            f"use at most {most}, or average='none'"
        )
    return None


def _workers(recipe: Recipe) -> str | None:
    workers, batches = recipe.train.workers, recipe.train.accumulate
    if workers > batches:
        return (
            f"train.workers={workers}: a step has {batches} micro-batches (train.accumulate), so more workers have no "
            f"effect; use at most {batches}, or 0"
        )
    return None


def _patience(recipe: Recipe) -> str | None:
    patience = recipe.train.patience
    most = int(1 / recipe.train.evaluate_every + 1e-9) - (recipe.start is None)  # evaluations after the first
    if patience > most:
        return (
            f"train.patience={patience}: at most {most} evaluations follow the first one (train.evaluate_every), so it "
            "has no effect; use a smaller one, or 0"
        )
    return None


def _restart(recipe: Recipe) -> str | None:
    above, every = recipe.train.restart_above, recipe.train.evaluate_every
    if above and every > RESTARTS_UNTIL:
        return (
            f"train.restart_above={above:g}: has no effect without an evaluation in the first half of the budget; "
            f"use train.evaluate_every of at most {RESTARTS_UNTIL:g}, or 0"
        )
    return None


def _evaluation_share(recipe: Recipe) -> str | None:
    # The default is accepted: resolved recipes write every setting out.
    share, budget = recipe.train.evaluation_share, recipe.train.budget
    if budget.minutes is None and share != type(recipe.train)().evaluation_share:
        return (
            f"train.evaluation_share={share:g}: has no effect with a budget in {budget.unit}, which is independent of "
            "the time; remove it, or give the budget in minutes"
        )
    return None


def _loss_per(recipe: Recipe) -> str | None:
    if recipe.train.loss_per == "example" and recipe.model.kind == "encoder" and not recipe.task.traits().per_position:
        return (
            f"train.loss_per='example': has no effect with task {recipe.task.type!r}, whose examples have one class "
            "each; remove it"
        )
    return None


def _search(recipe: Recipe) -> str | None:
    if recipe.model.kind == "encoder":
        reason = "an encoder, whose classes need no search"
    elif recipe.task.type == "language":
        reason = "task 'language', which is scored by its loss; `allyouneed generate` samples"
    else:
        return None
    usual = SearchConfig()
    unused = [name for name in ("beam", "length_penalty", "n_best", "max_length") if _differs(recipe, usual, name)]
    return f"decode.{unused[0]}: has no effect with {reason}; remove it" if unused else None


def _differs(recipe: Recipe, usual: SearchConfig, name: str) -> bool:
    return bool(getattr(recipe.decode, name) != getattr(usual, name))


def _vocabulary(recipe: Recipe) -> str | None:
    # The default size is accepted: resolved recipes write every setting out.
    for name in ("tokenizer", "target_tokenizer"):
        tokenizer = getattr(recipe.task, name, None)
        if tokenizer is not None and tokenizer.kind == "bytes" and tokenizer.size != TokenizerConfig().size:
            return f"task.{name}.size={tokenizer.size}: has no effect with kind 'bytes', which has 256 ids; remove it"
    return None


# Not refused: train.parallel with one process. A run of several processes may resume with one.
CHECKS: tuple[Callable[[Recipe], str | None], ...] = (
    _snapshots,
    _workers,
    _patience,
    _restart,
    _evaluation_share,
    _loss_per,
    _search,
    _vocabulary,
)
