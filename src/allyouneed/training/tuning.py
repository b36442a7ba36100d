"""Recipes of runs that start from a model folder: its model, its task and its settings, or other data.

    the folder's own recipe            train on, with the same data
    with data, or another task         the folder's model and tokenizers on other data
    with a recipe file                 the sections of the file, on the folder's model

A folder that was never trained here (an imported one) has no training settings. `TUNING` stands in for them.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from allyouneed.config import Tree, merge, override, read_recipe
from allyouneed.errors import ConfigError
from allyouneed.folder import FolderConfig, folder_head, folder_recipe
from allyouneed.models import ModelConfig
from allyouneed.models.encoder import EncoderConfig
from allyouneed.models.vit import ViTConfig
from allyouneed.tasks import TASKS
from allyouneed.text.codec import Codec
from allyouneed.training.recipe import Recipe, TrainConfig
from allyouneed.training.recipe_files import find_recipe

# Small steps, so that what the model has learnt is kept.
TUNING: Tree = {
    "budget": {"minutes": 5},
    "optimizer": {"type": "adamw", "lr": 1e-4, "weight_decay": 0.01},
    "schedule": {"type": "linear", "warmup": 0.1},
}
STEP_TOKENS = 4096  # of a language model
LENGTHS = ("max_length", "context")  # settings of tasks that the positions of a model bound


def tuning_recipe(start: str, recipe: str | Path | Recipe | None, given: Tree, sets: Sequence[str] = ()) -> Tree:
    """Return the values of a recipe that starts from a model folder.

    `recipe`: one whose sections replace those of the folder. `given`: what the command line sets. `sets`: overrides
    that are applied later, and are only checked here.
    """
    config, codec = folder_head(start)
    _refuse_tokenizer(override(given, sets))
    own = without_none(config.recipe)
    read = _sections(recipe)
    _refuse_tokenizer(read)
    tree = {**own, **read, "model": merge(config.model.model_dump(mode="json"), read.get("model", {}))}
    above = override(given, [one for one in sets if one.startswith("task.")])
    if "task" in read or above.get("task", {}).keys() & {"type", "train"}:
        tree = _on_other_data(tree, own, read, above, config, codec)
    return {**tree, "start": {"folder": start, "sha256": folder_recipe(start)[1]}}


def _sections(recipe: str | Path | Recipe | None) -> Tree:
    """Return the sections of a recipe: of an object, what was set in it."""
    if isinstance(recipe, Recipe):
        tree = without_none(recipe.model_dump(mode="json", exclude_unset=True))
        return tree | {part: {**tree[part], "type": getattr(recipe, part).type} for part in ("task", "model")}
    return {} if recipe is None else read_recipe(find_recipe(str(recipe)))


def _on_other_data(tree: Tree, own: Tree, read: Tree, above: Tree, config: FolderConfig, codec: Codec) -> Tree:
    """Return the recipe for the data of the recipe file or of the command line."""
    task = merge({"task": tree.get("task", {})}, {"task": above.get("task", {})})["task"]
    kind = task.get("type")
    changed = kind != (own.get("task") or {}).get("type")
    if kind in TASKS and changed:
        task = {**bounded_lengths(kind, config.model), **task}
    usual = without_none(TrainConfig().model_dump(mode="json"))
    if "train" not in read and {**own.get("train", {}), "precision": usual["precision"]} == usual:
        smoothing = 0.1 if kind in TASKS and TASKS[kind].translates else 0.0
        tree = {**tree, "train": {**TUNING, "label_smoothing": smoothing}}
        if kind == "language" and "task" not in read:  # a few windows: texts of an imported model may be long
            task = {**task, "batch": max(1, STEP_TOKENS // task.get("context", 256)), **above.get("task", {})}
    if changed:  # its search settings may have no effect on this task
        tree = {**tree, "decode": read.get("decode", {})}
    model = {**tree["model"], **_other_head(kind, config, codec)}
    return {**tree, "about": read.get("about", ""), "task": task, "model": merge(model, read.get("model", {}))}


def bounded_lengths(kind: str, model: ModelConfig) -> Tree:
    """Return settings of a task that are shorter than its defaults, if the positions of the model end before."""
    longest = getattr(getattr(model, "positions", None), "max_length", None)
    fields = TASKS[kind].model_fields
    found = {name: fields[name].default for name in LENGTHS if name in fields}
    return {name: longest for name, usual in found.items() if longest is not None and longest < usual}


def _other_head(kind: Any, config: FolderConfig, codec: Codec) -> Tree:
    """Return the settings of an encoder for classes of whole texts, if it had none.

    An imported one gets the head that its architecture has, so that it can be exported. A model of images without
    classes gets a head without its pooler, as in transformers.
    """
    model = config.model
    if isinstance(model, ViTConfig) and not config.sizes.target:
        return {"transform": "none"}
    per_text = kind in TASKS and "encoder" in TASKS[kind].kinds and not TASKS[kind].per_position
    if not isinstance(model, EncoderConfig) or not per_text:
        return {}
    if codec.origin is not None and (model.pool == "none" or not codec.classes) and codec.origin.classifier:
        return dict(codec.origin.classifier)
    if model.pool != "none":
        return {}
    return {"pool": "mean", "transform": "none", "tied": False}


def _refuse_tokenizer(tree: Tree) -> None:
    """Raise ConfigError for settings of tokenizers: those of the model are used."""
    task = tree.get("task")
    if not isinstance(task, dict):
        return
    for name in ("tokenizer", "target_tokenizer"):
        value = task.get(name)
        found = [key for key in value if key != "dropout"] if isinstance(value, dict) else [] if value is None else [""]
        for key in found:
            raise ConfigError(
                f"{'.'.join(part for part in ('task', name, key) if part)}: has no effect with --from, which uses the "
                "tokenizers of the model; remove it"
            )
    if "shared" in task:
        raise ConfigError("task.shared: has no effect with --from, which uses the tokenizers of the model; remove it")


def without_none(tree: Tree) -> Tree:
    """Return the tree without settings that are None."""
    kept = {name: value for name, value in tree.items() if value is not None}
    return {name: without_none(value) if isinstance(value, dict) else value for name, value in kept.items()}
