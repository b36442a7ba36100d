"""The learning rate as a function of the fraction of the budget spent.

    inverse-sqrt   peak min(f / w, sqrt(w / f))            the paper's rule (section 5.3) with warm-up fraction w
    cosine         peak (floor + (1 - floor) (1 + cos(pi g)) / 2)
    linear         peak (1 - (1 - floor) g)
    stable-decay   peak, then straight down to floor over the last `decay` of the budget
    constant       peak

after a linear warm-up over the first w of the budget; g runs from 0 to 1 after the warm-up.
The paper's base model: 4,000 of 100,000 steps and 512^-0.5 4000^-0.5, that is w = 0.04 and peak = 7.0e-4.
"""

import math
from typing import Annotated, Literal

from pydantic import Field, model_validator

from allyouneed.config import Config

Share = Annotated[float, Field(ge=0, le=1)]


class ScheduleConfig(Config):
    type: Literal["inverse-sqrt", "cosine", "linear", "stable-decay", "constant"] = "inverse-sqrt"
    warmup: Share = 0.04  # of the budget
    decay: Share = 0.3  # of the budget, at its end: stable-decay only
    floor: Share = 0.0  # of the peak, at the end: cosine, linear and stable-decay

    @model_validator(mode="after")
    def _fits(self) -> "ScheduleConfig":
        if self.type == "stable-decay" and self.warmup + self.decay > 1:
            raise ValueError(f"warmup {self.warmup} and decay {self.decay} together exceed the budget")
        if self.type == "inverse-sqrt" and self.warmup == 0:
            raise ValueError("inverse-sqrt needs a warm-up above 0: its peak is where the warm-up ends")
        return self

    def factor(self, fraction: float) -> float:
        """What the peak learning rate is multiplied by."""
        fraction = min(max(fraction, 0.0), 1.0)
        if fraction < self.warmup:
            return fraction / self.warmup
        after = (fraction - self.warmup) / (1 - self.warmup) if self.warmup < 1 else 1.0
        if self.type == "inverse-sqrt":
            return math.sqrt(self.warmup / fraction)
        if self.type == "cosine":
            return self.floor + (1 - self.floor) * (1 + math.cos(math.pi * after)) / 2
        if self.type == "linear":
            return 1 - (1 - self.floor) * after
        if self.type == "stable-decay" and fraction > 1 - self.decay:
            # Rounding may step a hair below the floor.
            return max(self.floor, 1 - (1 - self.floor) * (fraction - (1 - self.decay)) / self.decay)
        return 1.0
