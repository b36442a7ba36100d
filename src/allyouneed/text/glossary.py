"""Terms that translations must use: a glossary, terms that are kept as they are, and the start of a translation.

    dog house<TAB>Hundehütte             where the source has the term, the translation has its target
    sofa<TAB>Sofa<TAB>Couch              several targets: one of them
    Kubernetes                           a term without a target is kept: written as in the source
    # a comment                          lines that begin with # and empty lines are ignored

Terms match whole words, and upper and lower case alike unless `match_case`. Of terms that overlap in a text the first
one counts, and the longest one that begins there. A target occurs at least once; a kept term as often as in the source.
Scripts that are written without blanks have no words: a term in them matches anywhere.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import dataclass
from pathlib import Path

from allyouneed.errors import DataError
from allyouneed.text.lines import lines, resolve

# Characters of scripts without blanks: Thai to Myanmar, Khmer, kana and Han.
UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
_UNSPACED = re.compile(f"[{UNSPACED}]")
_WORD = re.compile(rf"[{UNSPACED}]|(?:(?![{UNSPACED}])\w)+|[^\w\s]")
LONGEST_TERM = 200  # characters
MOST_TERMS = 1_000_000


@dataclass(frozen=True)
class RequiredPhrase:
    """A phrase of a translation: one of its alternatives occurs at least `count` times."""

    alternatives: tuple[str, ...]
    count: int = 1

    def occurs_in(self, output: str) -> bool:
        """Return whether an output has an alternative as whole words. At the start its first letter may be a capital.

        Once is enough, whatever `count` is.
        """
        return any(_finds(text, output) for text in self.alternatives)


@dataclass(frozen=True)
class Constraint:
    """What a translation must contain, and how it must begin."""

    phrases: tuple[RequiredPhrase, ...] = ()
    prefix: str = ""


def _finds(text: str, output: str) -> bool:
    if is_unspaced(text[0]) or is_unspaced(text[-1]):
        return text in output
    at_start = re.escape(text[0].upper() + text[1:])
    return bool(re.search(rf"(?:(?<!\w){re.escape(text)}|^{at_start})(?!\w)", output))


def is_unspaced(character: str) -> bool:
    """Return whether a character belongs to a script that is written without blanks."""
    return bool(_UNSPACED.match(character))


class Glossary:
    """Terms by their words."""

    def __init__(self, terms: Iterable[Sequence[str]] = (), match_case: bool = False) -> None:
        """`terms`: a source term and its targets; without targets the term is kept. Raise DataError for a bad one."""
        self._match_case = match_case
        self._terms: dict[tuple[str, ...], tuple[str, ...]] = {}
        self._kept: dict[tuple[str, ...], str] = {}  # terms without targets, as they were given
        self._lengths: dict[str, list[int]] = {}  # of the terms that begin with a word, the longest first
        self._base: Glossary | None = None  # terms that count where these have none, or only shorter ones
        for number, term in enumerate(terms, start=1):
            self._add(term, f"term {number}")

    @staticmethod
    def read(name: str, match_case: bool = False) -> "Glossary":
        """Return the glossary of a file. Raise DataError if it is not one."""
        glossary, path = Glossary(match_case=match_case), resolve(name)
        for number, line in enumerate(lines(Path(path)), start=1):
            if line.strip() and not line.startswith("#"):
                glossary._add(line.split("\t"), f"{path}: line {number}")
        if not glossary._terms:
            raise DataError(f"{path}: no terms; a line should hold a source term, a TAB and its target")
        return glossary

    def over(self, base: "Glossary | None") -> "Glossary":
        """Return a glossary with the terms of both. Where both have a term, its targets are those of this one."""
        joined = copy(self)
        joined._base = base  # shared instead of copied: requests add a few terms to the many of a server
        return joined

    def targets(self) -> list[str]:
        """Return all targets, and the terms that are kept."""
        base = [] if self._base is None else self._base.targets()
        return base + [text for key, targets in self._terms.items() for text in targets or (self._kept[key],)]

    def _add(self, term: Sequence[str], where: str) -> None:
        source, *targets = (unicodedata.normalize("NFC", part.strip()) for part in term)
        for part in (source, *targets):
            if not part:
                raise DataError(f"{where}: an empty term; a line should hold a source term, a TAB and its target")
            if len(part) > LONGEST_TERM:
                raise DataError(f"{where}: a term of {len(part):,} characters; at most {LONGEST_TERM}")
        key = tuple(word for word, _, _ in self._words(source))
        if self._terms.setdefault(key, tuple(targets)) != tuple(targets):
            raise DataError(f"{where}: {source!r} has other targets before; write all of them in one line")
        if len(self._terms) > MOST_TERMS:
            raise DataError(f"{where}: more than {MOST_TERMS:,} terms")
        if not targets:
            self._kept[key] = source
        lengths = self._lengths.setdefault(key[0], [])
        if len(key) not in lengths:
            lengths.append(len(key))
            lengths.sort(reverse=True)

    def _words(self, text: str) -> list[tuple[str, int, int]]:
        """Return the words and signs of a text, with their places."""
        return [
            (match.group() if self._match_case else match.group().casefold(), match.start(), match.end())
            for match in _WORD.finditer(text)
        ]

    def phrases(self, text: str) -> tuple[RequiredPhrase, ...]:
        """Return what the translation of a text must contain."""
        text = unicodedata.normalize("NFC", text)
        words = self._words(text)
        found: Counter[tuple[str, ...]] = Counter()
        place = 0
        while place < len(words):
            length, targets = self._longest_term(words, place)
            if length and targets:
                found[targets] = 1
            elif length:
                found[text[words[place][1] : words[place + length - 1][2]],] += 1
            place += max(1, length)
        return tuple(RequiredPhrase(targets, count) for targets, count in found.items())

    def _longest_term(self, words: Sequence[tuple[str, int, int]], place: int) -> tuple[int, tuple[str, ...]]:
        """Return how many words the longest term at a place has, and its targets."""
        below = (0, ()) if self._base is None else self._base._longest_term(words, place)
        for length in self._lengths.get(words[place][0], ()):
            key = tuple(word for word, _, _ in words[place : place + length])
            if key in self._terms and length >= below[0]:
                return length, self._terms[key]
        return below


def constraints_of(
    glossary: Glossary | None, texts: Sequence[str], prefixes: Sequence[str] = ()
) -> list[Constraint] | None:
    """Return what the translations of texts must contain and begin with; None if nothing at all."""
    if glossary is None and not any(prefixes):
        return None
    phrases = [() if glossary is None else glossary.phrases(text) for text in texts]
    return [Constraint(one, begin) for one, begin in zip(phrases, prefixes or [""] * len(texts), strict=True)]
