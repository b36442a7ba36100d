"""The budget of a run: steps, tokens, minutes or FLOPs. Schedules are functions of the fraction spent."""

import time
from dataclasses import dataclass, field

from pydantic import PositiveFloat, PositiveInt, model_validator

from allyouneed.config import Config
from allyouneed.words import plural

UNITS = ("steps", "tokens", "minutes", "flops")


class BudgetConfig(Config):
    """Exactly one of these. Steps, tokens and FLOPs are repeatable to the bit; minutes depend on the machine."""

    steps: PositiveInt | None = None
    tokens: PositiveInt | None = None  # predictions in the loss: target tokens, or classified texts
    minutes: PositiveFloat | None = None  # of wall-clock time, up to the finished model
    flops: PositiveFloat | None = None  # forward and backward, as the model declares them

    @model_validator(mode="after")
    def _one(self) -> "BudgetConfig":
        given = [name for name in UNITS if getattr(self, name) is not None]
        if len(given) != 1:
            found = "none" if not given else " and ".join(given)
            raise ValueError(f"give exactly one of steps, tokens, minutes, flops; found {found}")
        return self

    @property
    def unit(self) -> str:
        """The unit of the budget."""
        return next(name for name in UNITS if getattr(self, name) is not None)

    @property
    def amount(self) -> float:
        """The amount of that unit."""
        return float(getattr(self, self.unit))

    def of(self, amount: float) -> "BudgetConfig":
        """Return a budget of this amount in the same unit."""
        return self.model_copy(update={self.unit: type(getattr(self, self.unit))(amount)})

    def __str__(self) -> str:
        return f"{self.amount:,.12g} {plural(self.amount, self.unit.removesuffix('s'))}"


@dataclass
class Spent:
    """What a run has spent so far, interruptions not counted."""

    steps: int = 0
    tokens: int = 0
    seconds: float = 0.0
    flops: float = 0.0
    _since: float = field(default_factory=time.monotonic)

    def add_step(self, tokens: int, flops: float) -> None:
        """Count one optimizer step."""
        self.steps += 1
        self.tokens += tokens
        self.flops += flops
        self.tick()

    def count_from(self, moment: float) -> None:
        """Count the time since this moment of the monotonic clock."""
        self._since = moment

    def tick(self) -> None:
        """Add the time since the last call."""
        now = time.monotonic()  # never jumps, unlike the wall clock
        self.seconds += now - self._since
        self._since = now

    def fraction(self, budget: BudgetConfig) -> float:
        """Return the spent fraction, from 0 to 1 or slightly above: the last step may overrun."""
        if budget.steps is not None:
            return self.steps / budget.steps
        if budget.tokens is not None:
            return self.tokens / budget.tokens
        if budget.minutes is not None:
            return self.seconds / (60 * budget.minutes)
        assert budget.flops is not None
        return self.flops / budget.flops

    def as_dict(self) -> dict[str, float]:
        """Return the numbers for checkpoints and logs."""
        return {"steps": self.steps, "tokens": self.tokens, "seconds": self.seconds, "flops": self.flops}
