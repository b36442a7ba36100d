"""Results of long runs, kept beside them: what a benchmark has measured once it does not measure again."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from allyouneed.errors import ConfigError
from allyouneed.training import Recipe
from allyouneed.training.recipe_files import require_same_recipe


def kept(run: Path, recipe: Recipe, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """The result of a run of this very recipe: read from the file beside its folder, or made and written there."""
    try:
        require_same_recipe(run, recipe)
    except ConfigError as error:
        raise SystemExit(str(error)) from None
    file = run.with_suffix(run.suffix + ".json")
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(make()))
    result: dict[str, Any] = json.loads(file.read_text())
    return result
