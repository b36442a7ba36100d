"""Scores of a finished model, on the held-out data of its own task or on files.

A model folder is all that is needed: it stores the recipe, and so the task, the seed and the search. Held-out data is
prepared again from the task. It is only used if that gives the same tokenisers that the model was trained with.
"""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from allyouneed.decode import SearchConfig
from allyouneed.errors import ConfigError, DataError, MissingFileError
from allyouneed.evaluation.settings import recipe_of
from allyouneed.folder import Bundle
from allyouneed.shortlist.table import Shortlist
from allyouneed.tasks import Score, Split, TaskData
from allyouneed.text.codec import Codec
from allyouneed.text.corpus_settings import file_names
from allyouneed.training import Recipe, evaluate


def evaluate_split(
    bundle: Bundle,
    split: Split | None,
    search: SearchConfig,
    report: Callable[[str], None],
    shortlist: Shortlist | None = None,
) -> list[Score]:
    """Return all scores on a held-out split of the model's own task. None: the test split, or else validation."""
    with tempfile.TemporaryDirectory(prefix="allyouneed-") as temporary:
        data = task_data(bundle, Path(temporary))
        for note in data.notes:
            report(note)
        return evaluate(bundle.model, data, split or _last_split(data), search, shortlist=shortlist)


def task_data(bundle: Bundle, temporary: Path) -> TaskData:
    """Return the data that the model was trained on: from its run folder, or prepared again in `temporary`."""
    recipe, run_data = recipe_of(bundle), bundle.path.parent / "data"
    folder = run_data if run_data.is_dir() else temporary
    try:
        data = prepared_again(recipe, bundle.codec, folder)
    except MissingFileError as error:
        raise DataError(f"{bundle.path}: {error}; give --data, or --source and --reference") from None
    if not data.codec.same_ids_as(bundle.codec):
        raise DataError(
            f"{bundle.path}: its task's data has changed since training (the tokenisers differ); "
            "give --data, or --source and --reference"
        )
    data.codec = bundle.codec
    return data


def prepared_again(recipe: Recipe, codec: Codec, folder: Path) -> TaskData:
    """Prepare the data of a finished model. One that began with the tokenizers of another model has them still."""
    if recipe.start is not None:
        return recipe.task.prepare_with(codec, folder, recipe.seed)
    return recipe.task.prepare(folder, recipe.seed)


def _last_split(data: TaskData) -> Split:
    try:
        next(iter(data.held_out("test")))
    except ConfigError:
        return "valid"
    return "test"


def evaluate_files(
    bundle: Bundle,
    files: Any,
    search: SearchConfig,
    report: Callable[[str], None],
    shortlist: Shortlist | None = None,
) -> list[Score]:
    """Return all scores on [source file, reference file], one file, or corpora as a recipe gives them."""
    data = recipe_of(bundle).task.from_files(bundle.codec, files, bundle.model.longest_source)
    for note in data.notes:
        report(note)
    name = ",".join(Path(file).name for file in file_names(files))
    return [
        Score(one.name, one.value, one.signature.replace("split:test", f"data:{name}"), one.higher_is_better)
        for one in evaluate(bundle.model, data, "test", search, shortlist=shortlist)
    ]
