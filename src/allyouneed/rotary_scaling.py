"""Rotary positions for longer texts than in training: low frequencies are divided, so that angles stay in range."""

import math

from pydantic import PositiveFloat, PositiveInt, model_validator
from torch import Tensor

from allyouneed.config import Config


class RotaryScaling(Config):
    """Divide frequencies by a factor: all of them (linear), or the low ones, as in Llama 3.1.

        f' = (1 - s) f / factor + s f,     s = (n - turns[0]) / (turns[1] - turns[0]), between 0 and 1

    n is the number of turns of a frequency within the trained positions: trained f / (2 pi).
    Paper: Chen et al. 2023, arXiv:2306.15595 (linear); Grattafiori et al. 2024, arXiv:2407.21783 (the other).
    """

    factor: PositiveFloat
    turns: tuple[PositiveFloat, PositiveFloat] | None = None  # fewer: divided; more: kept; None: all are divided
    trained: PositiveInt = 8192  # positions

    @model_validator(mode="after")
    def _ordered(self) -> "RotaryScaling":
        if self.turns is not None and self.turns[0] >= self.turns[1]:
            raise ValueError(f"turns={self.turns}: the first should be smaller than the second")
        return self

    def scaled(self, frequency_R: Tensor) -> Tensor:
        """Return the scaled frequencies."""
        if self.turns is None:
            return frequency_R / self.factor
        low, high = self.turns
        share_R = ((self.trained * frequency_R / (2 * math.pi) - low) / (high - low)).clamp(0, 1)
        return frequency_R * ((1 - share_R) / self.factor + share_R)
