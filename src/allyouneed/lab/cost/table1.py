"""The rows of table 1 of Vaswani et al. 2017, for every mixer: what theory says each of them costs.

A row holds the mixer (settings may follow the length: a sparse pattern's stride is near its square root), the formula
of one layer, and the exponents of its leading term in n and d. The leading term of attention is that of the reading
itself, as in the paper; the four projections, O(n d^2), come with it in every formula here and not in the paper's
table. It leads where n (or the window, or the number of slots: whatever a position reads) is large beside d.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from allyouneed.errors import ConfigError, unknown_name
from allyouneed.lab.cost.path_length import default_role
from allyouneed.mixers import MIXERS, MixerConfig, Role


@dataclass(frozen=True)
class Theory:
    """What a layer costs, by its paper."""

    formula: str  # FLOPs of a layer, O(..)
    in_length: float  # the exponent of n in the leading term
    in_width: float  # the exponent of d in the leading term
    sequential: str
    path: str  # layers between the first and the last position


THEORY: dict[str, Theory] = {
    "softmax": Theory("n² d + n d²", 2, 1, "1", "1"),
    "window": Theory("n w d + n d²", 1, 1, "1", "n / w"),
    "longformer": Theory("n (w + g) d + n d²", 1, 1, "1", "1"),
    "bigbird": Theory("n b (4 + g + r) d + n d²", 1, 1, "1", "1"),
    "sparse": Theory("n √n d + n d²", 1.5, 1, "1", "2"),
    "linear": Theory("n d² / h + n d²", 1, 2, "n / c", "1"),
    "performer": Theory("n m d + n d²", 1, 1, "n / c", "1"),
    "linformer": Theory("n k d + n d²", 1, 1, "1", "1"),
    "local": Theory("n b d + n d²", 1, 1, "1", "1, or never"),
    "memory-compressed": Theory("n² d / s + n d²", 2, 1, "1", "1"),
    "reformer": Theory("n r c d + n d²", 1, 1, "1", "1"),
    "xl": Theory("n m d + n d²", 1, 1, "1", "n / m"),
    "compressive": Theory("n (m + c) d + n d²", 1, 1, "1", "n / (m + r c)"),
    "rnn": Theory("n d²", 1, 2, "n", "1 (n steps)"),
    "lstm": Theory("n d²", 1, 2, "n", "1 (n steps)"),
    "gru": Theory("n d²", 1, 2, "n", "1 (n steps)"),
    "convolution": Theory("k n d²", 1, 2, "1", "n / k"),
}


@dataclass(frozen=True)
class Row:
    """A mixer with what theory says of it. Its settings are the defaults, but for what follows the length."""

    name: str
    theory: Theory

    def config(self, length: int, width: int, head: int = 32) -> MixerConfig:
        """The mixer for sequences of this length and width, with heads of `head` numbers."""
        given: dict[str, object] = {}
        if "heads" in MIXERS[self.name].model_fields:
            given["heads"] = max(1, width // head)
        if self.name == "sparse":  # section 4.2: a stride near the square root; a few last positions of a block
            given |= {"stride": max(8, round(math.sqrt(length))), "summaries": 8}
        if self.name == "linformer":  # its matrix has a column for each position
            given["max_length"] = max(length, 256)
        return MIXERS[self.name].model_validate(given)

    @property
    def role(self) -> Role:
        """Causal, where the mechanism can be."""
        return default_role(self.config(64, 64))

    @property
    def by_steps(self) -> bool:
        """Whether it works position by position."""
        return self.theory.sequential == "n"

    @property
    def counted_lengths(self) -> tuple[int, ...]:
        """Lengths at which the leading term leads, at a width of 4."""
        if self.name == "memory-compressed":  # read in blocks of 512 queries
            return 2048, 4096, 8192
        if self.by_steps or self.theory.in_length == 2:
            return 256, 512, 1024
        return (1024, 4096, 16384) if self.name == "sparse" else (4096, 8192, 16384)

    @property
    def counted_widths(self) -> tuple[int, ...]:
        """Widths at which the leading term leads, at `counted_width_length` positions."""
        return (4, 8, 16) if self.theory.in_width == 1 else (64, 128, 256) if self.by_steps else (256, 512, 1024)

    @property
    def counted_width_length(self) -> int:
        """How many positions the widths are tried with."""
        return 1024 if self.theory.in_width == 1 else 64


def rows(names: Sequence[str] = ()) -> list[Row]:
    """The rows of these mixers (none: of all)."""
    for name in names:
        if name not in THEORY:
            raise ConfigError(f"--mixer: {unknown_name(name, THEORY)}")
    return [Row(name, THEORY[name]) for name in (names or THEORY)]
