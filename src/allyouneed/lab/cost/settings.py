"""The sizes and repetitions of a cost study."""

from dataclasses import dataclass

from allyouneed.errors import ConfigError


@dataclass(frozen=True)
class CostSettings:
    """The sizes and repetitions of a cost study."""

    mixers: tuple[str, ...] = ()  # empty: all
    lengths: tuple[int, ...] = (1024, 2048, 4096, 8192)
    widths: tuple[int, ...] = (128, 256, 512)
    width: int = 64  # used while the length varies
    length: int = 256  # used while the width varies
    repeats: int = 3
    paths: tuple[int, ...] = (64, 512)  # lengths at which path lengths are measured
    cross_widths: tuple[int, ...] = (32, 64)

    @property
    def cross_lengths(self) -> list[int]:
        """Return the lengths at which attention and recurrence are compared: 64, 128, .. up to the longest."""
        return [64 << turn for turn in range(12) if 64 << turn <= max(self.lengths)]

    def __post_init__(self) -> None:
        for name in ("lengths", "widths"):
            sizes = getattr(self, name)
            if len(set(sizes)) < 2 or min(sizes) < 8:
                raise ConfigError(
                    f"--{name.removesuffix('s')}: {' '.join(map(str, sizes))}: needs two sizes or more, each at least 8"
                )
        for size in (self.width, *self.widths, *self.cross_widths):
            if size % 32:
                raise ConfigError(f"--width: {size}: should be a multiple of 32, the width of a head")


FULL = CostSettings(
    lengths=(1024, 2048, 4096, 8192, 16384),
    widths=(128, 256, 512, 1024),
    repeats=5,
    paths=(64, 512, 1024),
    cross_widths=(32, 64, 128),
)
