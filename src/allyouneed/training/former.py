"""Recipes of earlier versions, in which one config served every type of optimizer, schedule and average.

Run and model folders of that time hold resolved recipes with every setting written out, including those without effect
on their type. They are dropped from recipes that are read from a file or folder, never from what is given on top.
"""

from collections.abc import Mapping
from typing import Any

from allyouneed.config import Config, Tree
from allyouneed.training.average import AVERAGES
from allyouneed.training.optimizer import OPTIMIZERS
from allyouneed.training.schedule import SCHEDULES

# All settings of the former config, and the present configs by type.
FORMER: dict[str, tuple[set[str], Mapping[str, type[Config]]]] = {
    "optimizer": ({"lr", "matrix_lr", "momentum", "beta1", "beta2", "epsilon", "weight_decay"}, OPTIMIZERS),
    "schedule": ({"warmup", "decay", "floor"}, SCHEDULES),
    "average": ({"decay", "count", "every"}, AVERAGES),
}


def without_former_settings(tree: Tree) -> Tree:
    """Return the tree of a recipe without settings that had no effect in an earlier version.

    A table that holds all settings of the former config is from such a version. In any other table, settings that its
    type does not have remain, and are refused when the recipe is parsed.
    """
    train = tree.get("train")
    if not isinstance(train, dict):
        return tree
    return {**tree, "train": {name: _kept(name, value) for name, value in train.items()}}


def _kept(name: str, value: Any) -> Any:
    if name not in FORMER or not isinstance(value, dict):
        return value
    settings, configs = FORMER[name]
    config = configs.get(str(value.get("type")))
    if config is None or not settings <= value.keys():
        return value
    return {key: item for key, item in value.items() if key in config.model_fields or key not in settings}
