"""The prediction of a run, stored in `prediction.json` before the run starts and never changed afterwards.

A grid that is extended later may change the prediction only as long as the predicted run does not exist.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from allyouneed.errors import ConfigError, DataError
from allyouneed.lab.report import to_json
from allyouneed.lab.scaling.laws import Estimate
from allyouneed.storage import write_atomic
from allyouneed.version import __version__


@dataclass(frozen=True)
class Prediction:
    """The predicted loss of a run that does not exist yet."""

    run: str
    size: str
    parameters: int
    flops: float
    tokens: float
    times: float  # compute relative to the largest run of the fit
    form: str
    loss: Estimate
    others: Mapping[str, Estimate]  # predictions of the other forms


def write_prediction(
    folder: Path, prediction: Prediction, laws: Mapping[str, Mapping[str, float]], losses: Mapping[str, float]
) -> None:
    """Write prediction.json. Raise ConfigError if the predicted run exists and the prediction would change."""
    path = folder / "prediction.json"
    new = json.loads(to_json({"prediction": asdict(prediction), "law": laws, "from": losses}))
    existing_runs = sorted(file.parent for file in (folder / "runs").glob("predicted-*/recipe.toml"))
    if existing_runs and not path.exists():
        raise ConfigError(
            f"{existing_runs[0]}: exists, but its prediction {path} does not. A prediction must precede its run: "
            "restore the file, remove the run, or choose another --out"
        )
    if path.exists():
        try:
            old = json.loads(path.read_text(encoding="utf-8"))
        except ValueError:
            raise DataError(f"{path}: not valid JSON; remove it to predict again") from None
        if {name: old.get(name) for name in new} == new:
            return  # the same prediction keeps its date
        if existing_runs:
            raise ConfigError(
                f"{path}: was made {_changes(old, new)}, and the predicted run exists: {existing_runs[0]}. "
                "A prediction cannot be changed afterwards: choose another --out"
            )
    head = {"allyouneed": __version__, "made": datetime.now(UTC).isoformat(timespec="seconds")}
    write_atomic(path, to_json(head | new))


def _changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """Describe how an earlier prediction differs."""
    before, after = old.get("prediction", {}), new["prediction"]
    changes = ["from other runs"] if old.get("from") != new["from"] else []
    if before.get("times") != after["times"]:
        changes.append(f"for {before.get('times')} times the compute, now --predict is {after['times']:g}")
    if before.get("size") != after["size"]:
        changes.append(f"for size {before.get('size')}, now it is {after['size']}")
    return "; ".join(changes) or "with other numbers from the same runs"
