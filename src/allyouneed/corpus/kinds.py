"""The kinds of defects."""

from collections.abc import Iterable
from dataclasses import dataclass

from pydantic import Field

from allyouneed.config import Config
from allyouneed.errors import ConfigError, unknown_name


@dataclass(frozen=True)
class Kind:
    """A kind of defect."""

    meaning: str
    dropped: bool = True  # by `clean`, unless --keep names it


KINDS: dict[str, Kind] = {
    "empty": Kind("a side is empty"),
    "duplicate": Kind("an earlier row is the same"),
    "held-out": Kind("a held-out row is nearly the same"),
    "copied": Kind("source and target are the same text"),
    "ratio": Kind("one side is much longer than its partner usually is"),
    "long": Kind("a side is longer than --longest characters"),
    "script": Kind("a side is in another script than usual"),
    "swapped": Kind("each side is in the language of the other"),
    "language": Kind("a side is in the language of the other, or in a third one"),
    "unlike": Kind("a side is unlike all others: another language, a list of names, noise", dropped=False),
    "mojibake": Kind("UTF-8 that was read as another encoding: Ã¼ for ü"),
    "replacement": Kind("U+FFFD, which stands for bytes that were lost"),
    "control": Kind("control characters, private or unassigned code points"),
    "unnormalised": Kind("letters and accents that are not composed (not NFC)", dropped=False),
}


class Rules(Config):
    """Limits of what is not a defect."""

    ratio: float = Field(default=3.0, gt=1)  # of characters, relative to the median of the corpus
    longest: int = Field(default=2000, ge=1)  # characters
    near: float = Field(default=0.8, gt=0, le=1)  # share of n-grams that a near-copy has in common


def dropped_kinds(drop: Iterable[str], keep: Iterable[str]) -> frozenset[str]:
    """Return the kinds that are dropped: the default, with those of `drop`, without those of `keep`."""
    drop, keep = set(drop), set(keep)
    for name in sorted(drop | keep):
        if name not in KINDS:
            raise ConfigError(f"--drop, --keep: {unknown_name(name, KINDS)}")
    if both := drop & keep:
        raise ConfigError(f"--drop and --keep both name {', '.join(sorted(both))}; name each kind once")
    return frozenset({name for name, kind in KINDS.items() if kind.dropped} | drop) - keep
