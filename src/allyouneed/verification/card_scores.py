"""Check that a model reproduces the scores that its card states.

The data is prepared in a temporary folder, from a copy of what the run has prepared, so the folder is not changed.
"""

import math
import re
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from allyouneed.errors import DataError, UserError
from allyouneed.evaluation.measure import prepared_again
from allyouneed.evaluation.settings import recipe_of
from allyouneed.folder import Bundle
from allyouneed.tasks import Score
from allyouneed.training.evaluate import evaluate
from allyouneed.training.log import read_log
from allyouneed.verification.finding import Finding

# Tolerances of scores for another order of summation: it changes the last digits of a probability and, rarely, a
# decoded word.
CLOSE = {"loss": 1e-4, "perplexity": 1e-3, "bits_per_char": 1e-4}
CLOSE_DECODED = 0.01
_SCORE = re.compile(r"- (\w+) = (-?[0-9.]+|nan|inf) `([^`]*)`")
_ITEMS = re.compile(r"\|items:(\d+)/")
_VERSION = re.compile(r"\|allyouneed:[^|]*")  # the number must not depend on the version


@dataclass(frozen=True)
class Recorded:
    """A score as the card or the log states it."""

    name: str
    value: float
    signature: str
    exact: bool  # all digits (from a log), or rounded to four decimals (from a card)


def recorded_scores(bundle: Bundle) -> list[Recorded]:
    """Return the scores that the card states, with all digits if the log of the run is next to the model."""
    part = bundle.card.partition("\n## Scores\n")[2].partition("\n## ")[0]
    found = [_SCORE.fullmatch(line) for line in part.splitlines()]
    logged: dict[str, object] = {}
    if (bundle.path.parent / "log.jsonl").is_file():
        ends = [record for record in read_log(bundle.path.parent / "log.jsonl") if record.get("kind") == "end"]
        logged = ends[-1] if ends else {}
    scores = []
    for match in filter(None, found):
        rounded, full = float(match[2]), logged.get(match[1])
        exact = isinstance(full, float) and f"{full:.4f}" == match[2]
        scores.append(Recorded(match[1], full if isinstance(full, float) and exact else rounded, match[3], exact))
    return scores


def check_scores(bundle: Bundle) -> Iterator[Finding]:
    where = str(bundle.path / "README.md")
    try:
        recorded = recorded_scores(bundle)
        if not recorded:
            yield Finding("score", where, "skipped", "the card states no score")
            return
        measured = {score.name: score for score in _measure(bundle, _items(recorded))}
    except DataError as error:
        yield Finding("score", where, "skipped", f"the data is missing or has changed: {error}")
        return
    except UserError as error:
        yield Finding("score", where, "failed", str(error))
        return
    for score in recorded:
        yield _compared(where, score, measured.get(score.name))


def _items(recorded: list[Recorded]) -> int | None:
    """Return how many held-out items the scores are of, if not of all."""
    found = _ITEMS.search(recorded[0].signature)
    return None if found is None else int(found[1])


def _measure(bundle: Bundle, items: int | None) -> list[Score]:
    recipe, beside = recipe_of(bundle), bundle.path.parent / "data" / "prepared"
    with tempfile.TemporaryDirectory(prefix="allyouneed-") as temporary:
        if beside.is_dir():
            shutil.copytree(beside, Path(temporary) / "prepared", symlinks=True)
        data = prepared_again(recipe, bundle.codec, Path(temporary))
        if not data.codec.same_ids_as(bundle.codec):
            raise DataError("the tokenisers of its task differ")
        data.codec = bundle.codec
        return evaluate(bundle.model, data, "valid", recipe.decode, items=items)


def _compared(where: str, recorded: Recorded, measured: Score | None) -> Finding:
    if measured is None:
        return Finding("score", where, "failed", f"{recorded.name} is stated, but its task does not measure it")
    stated, found, name = recorded.value, measured.value, recorded.name
    if _VERSION.sub("", recorded.signature) != _VERSION.sub("", measured.signature):
        detail = f"{name}: signature {recorded.signature} there, {measured.signature} here"
        return Finding("score", where, "skipped", detail)
    if found == stated or (math.isnan(found) and math.isnan(stated)):
        return Finding("score", where, "ok", f"{name} = {found!r}, identical")
    if not recorded.exact and f"{found:.4f}" == f"{stated:.4f}":
        return Finding("score", where, "ok", f"{name} = {found:.4f}, the same to the four decimals of the card")
    off, most = abs(found - stated), CLOSE.get(name, CLOSE_DECODED) * max(1.0, abs(stated))
    detail = f"{name} = {found!r}, stated {stated!r}: off by {off:.2g}; order of summation explains {most:.2g}"
    return Finding("score", where, "ok" if off <= most else "failed", detail)
