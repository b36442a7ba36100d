"""Copies of training pairs in another letter case: models that have seen them translate CAPITALS and Title Case.

    rows read in an epoch = pairs + upper x pairs in capitals + title x pairs in title case

A copy in capitals has both sides in capitals. A copy in title case has only its source so: most languages do not write
titles like English, and the usual target is always right. Copies are corpora with weights (`weighting.py`): which of
them an epoch reads depends on (seed, epoch) alone, and no batch exceeds `batch_tokens`. The tokeniser learns from as
many of them as training reads, so that capitals are not split into letters.

Pairs whose source has no case, or is written so already, have no copy. Of more than about 128 MiB of text only every
n-th pair has one, read n times as often.

Differs: Marian's --all-caps-every and --english-title-case-every change every n-th line instead of adding copies.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated
from zlib import crc32

from pydantic import Field

from allyouneed.config import Config
from allyouneed.tasks.letter_case import ENGLISH, in_capitals, in_title_case
from allyouneed.text.lines import Pair

Copied = Annotated[float, Field(ge=0, le=1)]
Languages = tuple[str, str] | None  # source, target


class CasingConfig(Config):
    """How many copies in another letter case an epoch reads for each training pair."""

    upper: Copied = 0.0  # both sides in capitals
    title: Copied = 0.0  # the source in title case


@dataclass(frozen=True)
class Copies:
    """Changed copies of training pairs."""

    name: str  # for notes: in capitals
    share: float  # copies read in an epoch for each pair
    copy: Callable[[Pair], Pair]  # an equal pair counts as none

    def of(self, pairs: Iterable[Pair]) -> Iterator[Pair]:
        """Yield the copies of pairs."""
        for pair in pairs:
            copy = self.copy(pair)
            if copy != pair:
                yield copy

    def of_one(self, pair: Pair, number: int) -> Pair | None:
        """Return the copy of a pair if its number is one of the share, evenly spread."""
        if int((number + 1) * self.share) == int(number * self.share):
            return None
        copy = self.copy(pair)
        return None if copy == pair else copy


def cased_copies(config: CasingConfig | None, languages: Languages) -> Sequence[Copies]:
    """Return the copies that a config describes, for languages as names of files or tags have them (de, deu_Latn)."""
    if config is None:
        return ()
    source, target = (re.split("[_-]", name)[0].lower() for name in languages) if languages else (None, None)
    both = (
        Copies("in capitals", config.upper, partial(_in_capitals, source, target)),
        Copies("in title case", config.title, partial(_in_title_case, source)),
    )
    return [copies for copies in both if copies.share]


def _in_capitals(ours: str | None, theirs: str | None, pair: Pair) -> Pair:
    source = in_capitals(pair[0], ours)
    return pair if source == pair[0] else (source, in_capitals(pair[1], theirs))


def _in_title_case(language: str | None, pair: Pair) -> Pair:
    """Return a pair whose source is in title case; if it may be English, half of them like headlines."""
    headline = (language is None or language in ENGLISH) and crc32(pair[0].encode()) % 2 == 1
    return in_title_case(pair[0], language, headline), pair[1]
