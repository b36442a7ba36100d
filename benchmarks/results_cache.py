"""Results of long runs, stored next to their folders, so that benchmarks do not repeat finished measurements."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from allyouneed.errors import ConfigError
from allyouneed.training import Recipe
from allyouneed.training.recipe_files import require_same_recipe


def cached_result(run: Path, recipe: Recipe, measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return the stored result of a run of exactly this recipe; if there is none, measure and store it."""
    try:
        require_same_recipe(run, recipe)
    except ConfigError as error:
        raise SystemExit(str(error)) from None
    file = run.with_suffix(run.suffix + ".json")
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(measure()))
    result: dict[str, Any] = json.loads(file.read_text())
    return result
