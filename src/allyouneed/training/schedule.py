"""The learning rate as a function of the fraction f of the budget spent.

    inverse-sqrt   peak min(f / w, sqrt(w / f))            the paper's rule (section 5.3) with warm-up fraction w
    cosine         peak (floor + (1 - floor) (1 + cos(pi g)) / 2)
    linear         peak (1 - (1 - floor) g)
    stable-decay   peak, then linearly down to floor over the last `decay` of the budget
    constant       peak

after a linear warm-up over the first w of the budget; g runs from 0 to 1 after the warm-up.
The paper's base model: 4,000 of 100,000 steps and 512^-0.5 4000^-0.5, that is w = 0.04 and peak = 7.0e-4.
"""

import math
from typing import Annotated, Literal

from pydantic import Field, SerializeAsAny, model_validator

from allyouneed.config import Config, choice

Share = Annotated[float, Field(ge=0, le=1)]


class ScheduleConfig(Config):
    """A learning-rate schedule."""

    type: str
    warmup: Share = 0.04  # fraction of the budget

    def factor(self, fraction: float) -> float:
        """Return the factor of the peak learning rate at this fraction of the budget."""
        fraction = min(max(fraction, 0.0), 1.0)
        return fraction / self.warmup if fraction < self.warmup else self.after_warmup(fraction)

    def after_warmup(self, fraction: float) -> float:
        """Return the factor at a fraction of the budget after the warm-up."""
        raise NotImplementedError

    def extends_from(self, fraction: float) -> bool:
        """Return whether the factors up to this fraction would be the same if the budget were larger."""
        return True

    def progress(self, fraction: float) -> float:
        """Return the progress from the end of the warm-up (0) to the end of the budget (1)."""
        return (fraction - self.warmup) / (1 - self.warmup) if self.warmup < 1 else 1.0


class InverseSqrtConfig(ScheduleConfig):
    """The paper's schedule."""

    type: Literal["inverse-sqrt"] = "inverse-sqrt"

    @model_validator(mode="after")
    def _require_warmup(self) -> "InverseSqrtConfig":
        if self.warmup == 0:
            raise ValueError("inverse-sqrt needs a warm-up above 0: its peak is where the warm-up ends")
        return self

    def after_warmup(self, fraction: float) -> float:
        return math.sqrt(self.warmup / fraction)


class CosineConfig(ScheduleConfig):
    """Half a cosine from the peak to the floor."""

    type: Literal["cosine"] = "cosine"
    floor: Share = 0.0  # of the peak, at the end

    def extends_from(self, fraction: float) -> bool:
        return fraction <= self.warmup

    def after_warmup(self, fraction: float) -> float:
        return self.floor + (1 - self.floor) * (1 + math.cos(math.pi * self.progress(fraction))) / 2


class LinearDecayConfig(ScheduleConfig):
    """A line from the peak to the floor."""

    type: Literal["linear"] = "linear"
    floor: Share = 0.0  # of the peak, at the end

    def extends_from(self, fraction: float) -> bool:
        return fraction <= self.warmup

    def after_warmup(self, fraction: float) -> float:
        return 1 - (1 - self.floor) * self.progress(fraction)


class StableDecayConfig(ScheduleConfig):
    """The peak for most of the budget, then a line to the floor."""

    type: Literal["stable-decay"] = "stable-decay"
    decay: Share = 0.3  # of the budget, at its end; earlier versions accepted 0
    floor: Share = 0.0  # of the peak, at the end

    @model_validator(mode="after")
    def _require_budget(self) -> "StableDecayConfig":
        if self.warmup + self.decay > 1:
            raise ValueError(f"warmup {self.warmup} and decay {self.decay} together exceed the budget")
        return self

    def ineffective_setting(self) -> str | None:
        return None if self.decay else "decay=0: never decays; use a larger one, or type 'constant'"

    def extends_from(self, fraction: float) -> bool:
        return fraction <= 1 - self.decay

    def after_warmup(self, fraction: float) -> float:
        if fraction <= 1 - self.decay:  # always if decay is 0
            return 1.0
        # Rounding may step a hair below the floor.
        return max(self.floor, 1 - (1 - self.floor) * (fraction - (1 - self.decay)) / self.decay)


class ConstantConfig(ScheduleConfig):
    """The peak to the end."""

    type: Literal["constant"] = "constant"

    def after_warmup(self, fraction: float) -> float:
        return 1.0


SCHEDULES: dict[str, type[ScheduleConfig]] = {
    "inverse-sqrt": InverseSqrtConfig,
    "cosine": CosineConfig,
    "linear": LinearDecayConfig,
    "stable-decay": StableDecayConfig,
    "constant": ConstantConfig,
}

AnySchedule = Annotated[SerializeAsAny[ScheduleConfig], choice(SCHEDULES, default="inverse-sqrt")]
