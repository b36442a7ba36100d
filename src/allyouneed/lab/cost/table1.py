"""The rows of table 1 of Vaswani et al. 2017, one for every mixer.

The mixer's config states the formula of one layer and its exponents in n and d (`Theory`). A row chooses the settings
and sizes to measure. The leading term dominates where n, or the window or number of slots that a position reads, is
large compared with d.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from allyouneed.errors import ConfigError, unknown_name
from allyouneed.lab.cost.path_length import default_role
from allyouneed.mixers import MIXERS, MixerConfig, Role, Theory


@dataclass(frozen=True)
class Table1Row:
    """A mixer of the table. Its settings are the defaults, except those that follow the length."""

    name: str

    @property
    def theory(self) -> Theory:
        """Return the cost by its paper."""
        return MIXERS[self.name].theory

    def config(self, length: int, width: int, head: int = 32) -> MixerConfig:
        """Return the mixer for this length and width, with heads of width `head`."""
        given: dict[str, object] = {}
        if "heads" in MIXERS[self.name].model_fields:
            given["heads"] = max(1, width // head)
        mixer = MIXERS[self.name]
        return mixer.model_validate(given | mixer.settings_for(length))

    @property
    def role(self) -> Role:
        """Return causal if the mechanism supports it."""
        return default_role(self.config(64, 64))

    @property
    def counted_lengths(self) -> tuple[int, ...]:
        """Return lengths at which the leading term dominates, at a width of 4."""
        if self.theory.leads_at is not None:
            return self.theory.leads_at
        return (256, 512, 1024) if self.theory.loops or self.theory.in_length == 2 else (4096, 8192, 16384)

    @property
    def counted_widths(self) -> tuple[int, ...]:
        """Return widths at which the leading term dominates, at `counted_width_length` positions."""
        return (4, 8, 16) if self.theory.in_width == 1 else (256, 512, 1024)

    @property
    def counted_width_length(self) -> int:
        """Return the length used while the width varies."""
        return 1024 if self.theory.in_width == 1 else 64


def rows(names: Sequence[str] = ()) -> list[Table1Row]:
    """Return the rows of these mixers; of all mixers if no name is given."""
    for name in names:
        if name not in MIXERS:
            raise ConfigError(f"--mixer: {unknown_name(name, MIXERS)}")
    return [Table1Row(name) for name in (names or MIXERS)]
