"""Scores on the test split, computed once, at the end: selection on the validation split biases its scores upwards.

The scores of a run are stored next to its model (`test.json`), since a finished run does not change.
"""

import json
from pathlib import Path

from allyouneed.errors import FolderError
from allyouneed.evaluation.measure import evaluate_split
from allyouneed.evaluation.settings import recipe_of
from allyouneed.lab.report import to_json
from allyouneed.pipeline import load
from allyouneed.storage import write_atomic

KEPT = "test.json"


def scores_on_test_split(run: Path) -> dict[str, float]:
    """Return all scores of a finished run on its task's test split."""
    kept = run / KEPT
    if not kept.exists():
        bundle = load(run)
        found = evaluate_split(bundle, "test", recipe_of(bundle).decode, lambda note: None)
        write_atomic(kept, to_json({score.name: score.value for score in found}))
    try:
        scores = json.loads(kept.read_bytes())
        return {str(name): float(value) for name, value in scores.items()}
    except (ValueError, TypeError, AttributeError):
        raise FolderError(f"{kept}: not a file of scores; remove it to measure them again") from None
