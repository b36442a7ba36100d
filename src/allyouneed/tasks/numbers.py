"""Built-in translation data: number words (num2words) and dates (Babel) in any two of their languages.

    numbers   forty-one                -> einundvierzig             (the German inversion)
    dates     Saturday, May 19, 1973   -> Samstag, 19. Mai 1973

Every number or day is in one split only, so test items never occur in training. The seed determines everything.
"""

import datetime
import re
from collections.abc import Iterator
from functools import cache, lru_cache
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field, model_validator

from allyouneed.errors import ConfigError, unknown_name
from allyouneed.randomness import generator
from allyouneed.tasks.base import Score
from allyouneed.tasks.batching import shuffled
from allyouneed.tasks.pair_files import AnySplit
from allyouneed.tasks.pairs import PairTask, exactness_scores
from allyouneed.text.lines import Pair
from allyouneed.text.ragged import Array
from allyouneed.text.tokenizer import TokenizerConfig

Count = Annotated[int, Field(ge=1, le=10_000_000)]
Style = Literal["full", "long", "medium", "short"]
SMALL = 1000  # a large enough data set holds every number below: people try these first

# Corrections of num2words 0.5.14, by language: (pattern, replacement).
CORRECTIONS: dict[str, list[tuple[str, str]]] = {
    "de": [(r"einstausend", "eintausend")],
    "en": [(r",", "")],  # not wrong, but unusual input: "one thousand, two hundred"
    "es": [(r"veintiuno (?=mil)", "veintiún "), (r"\buno (?=mil)", "un ")],
    "sv": [(r"etttusen", "ettusen")],
    "cs": [(r"dvěstě", "dvě stě"), (r"(tři|čtyři)sta", r"\1 sta"), (r"(pět|šest|sedm|osm|devět)set", r"\1 set")],
    "nl": [(r"duizend(?=\S)", "duizend ")],
}


class NumbersConfig(PairTask):
    summary = "built-in: number words from one language to another"

    target_default = TokenizerConfig(kind="characters")

    type: Literal["numbers"] = "numbers"
    source: str = "en"
    target: str = "de"
    up_to: Annotated[int, Field(ge=10, le=10**12)] = 999_999
    pairs: Count = 10_000  # training numbers
    valid: Count = 500
    test: Count = 500
    tokenizer: TokenizerConfig = TokenizerConfig(kind="words")
    shared: bool = False

    @model_validator(mode="after")
    def _known(self) -> "NumbersConfig":
        for language in (self.source, self.target):
            if language not in number_languages():
                raise ValueError(unknown_name(language, number_languages()))
        _require_enough("numbers", self.up_to + 1, self.pairs, self.valid, self.test, "raise up_to")
        return self

    def languages(self) -> tuple[str, str]:
        return self.source, self.target

    def describe(self, split: AnySplit, corpus: int | None = None) -> str:
        return f"number words {self.source}-{self.target}, {split}"

    def sources(self, seed: int) -> dict[str, Any]:
        return {**self.model_dump(include={"source", "target", "up_to", "pairs", "valid", "test"}), "seed": seed}

    def rows(self, split: AnySplit, seed: int) -> Iterator[Pair]:
        for number in _part(split, _numbers(self, seed), self.pairs, self.valid).tolist():
            yield number_words(number, self.source), number_words(number, self.target)

    def measure(self, hypotheses: list[str], references: list[str]) -> list[Score]:
        return exactness_scores(hypotheses, references)


class DatesConfig(PairTask):
    summary = "built-in: dates from one language to another"

    type: Literal["dates"] = "dates"
    source: str = "en"
    target: str = "de"
    first_year: Annotated[int, Field(ge=1, le=9999)] = 1900
    last_year: Annotated[int, Field(ge=1, le=9999)] = 2099
    styles: Annotated[tuple[Style, ...], Field(min_length=1)] = ("full", "long")
    pairs: Count = 10_000  # training days
    valid: Count = 500
    test: Count = 500
    tokenizer: TokenizerConfig = TokenizerConfig(kind="characters")

    @model_validator(mode="after")
    def _known(self) -> "DatesConfig":
        if self.first_year > self.last_year:
            raise ValueError(f"first_year={self.first_year} is after last_year={self.last_year}")
        for language in (self.source, self.target):
            _check_locale(language)
        _require_enough("days", self.days, self.pairs, self.valid, self.test, "take more years")
        return self

    @property
    def days(self) -> int:
        """Number of days in the range of years."""
        return (datetime.date(self.last_year, 12, 31) - datetime.date(self.first_year, 1, 1)).days + 1

    def languages(self) -> tuple[str, str]:
        return self.source, self.target

    def describe(self, split: AnySplit, corpus: int | None = None) -> str:
        return f"dates {self.source}-{self.target}, {split}"

    def sources(self, seed: int) -> dict[str, Any]:
        names = {"source", "target", "first_year", "last_year", "styles", "pairs", "valid", "test"}
        return {**self.model_dump(include=names), "seed": seed}

    def rows(self, split: AnySplit, seed: int) -> Iterator[Pair]:
        from babel.dates import format_date

        days = shuffled(self.days, generator(seed))[: self.pairs + self.valid + self.test]
        first = datetime.date(self.first_year, 1, 1).toordinal()
        for day in _part(split, days, self.pairs, self.valid).tolist():
            date = datetime.date.fromordinal(first + day)
            style = self.styles[int(generator(seed, day).random() * len(self.styles))]
            source, target = (format_date(date, style, locale=name) for name in (self.source, self.target))
            yield source, target

    def measure(self, hypotheses: list[str], references: list[str]) -> list[Score]:
        return exactness_scores(hypotheses, references)


@lru_cache(maxsize=1 << 17)  # the data is read several times
def number_words(number: int, language: str) -> str:
    """Return a number in words, with the known errors of num2words corrected."""
    from num2words import num2words  # imported here: it loads all of its languages

    try:
        text = num2words(number, lang=language)
    except (NotImplementedError, TypeError, ValueError, IndexError, KeyError, OverflowError):
        raise ConfigError(f"task: num2words cannot write {number:,} in {language!r}; lower up_to") from None
    for pattern, replacement in CORRECTIONS.get(language.split("_")[0], []):
        text = re.sub(pattern, replacement, text)
    return " ".join(text.split())


@cache
def number_languages() -> tuple[str, ...]:
    """Return the languages of num2words."""
    from num2words import CONVERTER_CLASSES

    return tuple(sorted(CONVERTER_CLASSES))


def _check_locale(name: str) -> None:
    from babel import Locale, localedata

    if not localedata.exists(name):
        short = {known for known in localedata.locale_identifiers() if len(known) <= 3}
        raise ValueError(unknown_name(name, short))
    if Locale.parse(name).months["format"]["wide"][1] == "M01":
        raise ValueError(f"Babel has no month names for {name!r}; choose another language")


def _require_enough(what: str, available: int, pairs: int, valid: int, test: int, remedy: str) -> None:
    if pairs + valid + test > available:
        raise ValueError(
            f"pairs + valid + test = {pairs + valid + test:,}, but there are only {available:,} {what}; {remedy}"
        )


def _part(split: AnySplit, items: Array, train: int, valid: int) -> Array:
    start, end = {"train": (0, train), "valid": (train, train + valid), "test": (train + valid, None)}[split]
    return items[start:end]


def _numbers(config: NumbersConfig, seed: int) -> Array:
    """Return pairs + valid + test different numbers in random order: the smallest ones, and random ones of the rest."""
    count, random = config.pairs + config.valid + config.test, generator(seed)
    small = min(SMALL, count // 10)
    others = config.up_to + 1 - small
    if others < 4 * count:  # rejection sampling would be slow
        large = small + shuffled(others, random)
    else:
        large = np.zeros(0, dtype=np.int64)
        while len(large) < count:
            more = small + np.floor(random.random(count) * others).astype(np.int64)
            joined = np.concatenate([large, more])
            large = joined[np.sort(np.unique(joined, return_index=True)[1])]
    chosen = np.concatenate([np.arange(small), large])[:count]
    return chosen[shuffled(count, random)]
