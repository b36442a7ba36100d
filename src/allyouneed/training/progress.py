"""The progress of a run: the numbers that a checkpoint stores beside tensors, and the interface for showing them."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Protocol

from allyouneed.training.budget import Spent
from allyouneed.training.pace import Pace


@dataclass
class Progress:
    """What a run has spent and found so far. A checkpoint's `state.json` holds these fields under these names."""

    spent: Spent = field(default_factory=Spent)
    evaluations: int = 0  # number of evaluations that have fallen due
    evaluated_at: int = -1  # step of the last evaluation
    held_out_loss: float = 0.0  # of the last evaluation
    since_best: int = 0  # evaluations since the best one
    best: float | None = None  # best value of the metric, negated if lower is better
    best_loss: float | None = None  # held-out loss of the best evaluation
    best_step: int = -1
    usual_norm: float = 0.0  # running mean of the gradient norm, for the spike guard
    skips: int = 0  # consecutive steps whose gradient was not applied
    losses: list[float] = field(default_factory=list)  # of the steps since the last log record
    first_budget: float = 0.0  # amount that the run began with: the warm-up is a fraction of it
    budget: float = 0.0  # present amount; 0: a checkpoint of an older version
    pace: Pace = field(default_factory=Pace)  # of a run whose budget is in minutes

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as JSON values."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        return {**values, "spent": self.spent.as_dict(), "pace": asdict(self.pace)}

    @classmethod
    def from_dict(cls, state: Mapping[str, Any]) -> "Progress":
        """Read what `as_dict` wrote. Checkpoints of older versions lack some of them."""
        values: dict[str, Any] = {"held_out_loss": 0.0, "best_loss": None, "first_budget": 0.0, "budget": 0.0, **state}
        values["pace"] = Pace.from_dict(state["pace"]) if "pace" in state else Pace()
        spent = {name: state["spent"][name] + 0 for name in ("steps", "tokens", "seconds", "flops")}  # + 0: a number
        return cls(**{each.name: values[each.name] for each in fields(cls)} | {"spent": Spent(**spent)})


class ProgressListener(Protocol):
    """Receives the progress of a run: a progress bar, a test."""

    def note(self, line: str) -> None:
        """Receive a message for the user."""

    def progress(self, fraction: float, record: dict[str, Any]) -> None:
        """Receive the spent fraction of the budget and the log record of a step or an evaluation."""


class SilentListener:
    """A listener that shows nothing."""

    def note(self, line: str) -> None: ...
    def progress(self, fraction: float, record: dict[str, Any]) -> None: ...
