"""The letter case of whole texts: IN CAPITALS and In Title Case, as people write them.

    capitals    ß -> SS; Greek loses its accents: μαΐου -> ΜΑΪΟΥ; Turkish and Azerbaijani i -> İ
    title case  the first letter of each word; in headlines, small English words stay as they are: Man of the Year

No letter is ever made smaller, so final sigma needs no rule. Placeholders, tags and addresses stay as they are. A text
in a script without case is returned unchanged, also if a few of its words have case. Georgian counts as one: its
capitals are in Unicode, but people do not use them.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Callable
from itertools import groupby

from allyouneed.documents.protect import EXACT

DOTTED_I = frozenset({"tr", "tur", "az", "aze", "azj", "azb"})  # languages in which i and ı are two letters
ENGLISH, DUTCH = frozenset({"en", "eng"}), frozenset({"nl", "nld"})
# Words that stay small in headlines: articles, conjunctions, prepositions.
SMALL = re.compile(
    "an?|and|as|at|but|by|for|from|if|in(?:to)?|nor|off?|on|onto|or|over|per|the|to|up|via|with", re.IGNORECASE
)
SENTENCE_END = tuple(".:!?")

_FIXED = re.compile(rf"({EXACT.pattern}|</?\w[^<>]{{0,400}}>)")
_WITHOUT_CAPITALS = re.compile("([\u10d0-\u10ffµ]+)")  # Georgian; micro is a sign: its capital is a Greek letter
_MARK = "\u0300-\u036f"
_WORD = re.compile(rf"(?<![\w{_MARK}])(?<!\w['’])[^\W\d_](?:[\w{_MARK}]|['’](?=\w))*")
_GREEK = re.compile("[\u0370-\u03ff\u1f00-\u1fff]")
_GREEK_OR = re.compile(rf"(?<![\w{_MARK}])(ή)(?![\w{_MARK}])")  # it keeps its accent, unlike the article
_HIATUS = re.compile("([αεηοΑΕΗΟ]\u0301[ιυΙΥ])(?!\u0308)")  # the accent parts two vowels, which ï shows in capitals
_ACCENTS = re.compile(rf"(?<=[\u0370-\u03ff])[{_MARK}]+")
_KEPT_MARKS = "\u0308\u0345"  # diaeresis, iota below (in capitals: beside)


def has_case(text: str) -> bool:
    """Return whether a text is in a script with case: most runs of its letters are, as in "the name 中国"."""
    if text.isascii():
        return text.lower() != text.upper()
    runs = Counter(kind for kind, _ in groupby(map(_kind, text)))
    return runs["case"] > runs["no case"]


def _kind(char: str) -> str:
    if not char.isalpha():
        return "no letter"
    return "case" if char.lower() != char.upper() and not _WITHOUT_CAPITALS.match(char) else "no case"


def in_capitals(text: str, language: str | None = None) -> str:
    """Return a text in capitals; the same text if its script has no case. `language`: its code, if known."""
    return _outside(_FIXED, text, lambda part: _capitals(part, language)) if has_case(text) else text


def in_title_case(text: str, language: str | None = None, headline: bool = False) -> str:
    """Return a text whose words begin with capitals; the same text if its script has no case.

    `headline`: small English words stay as they are, except for the first and the last word, and after a colon.
    """
    if not has_case(text):
        return text
    words = list(_WORD.finditer(_FIXED.sub(lambda found: "0" * len(found[0]), text)))
    parts, done = list[str](), 0
    for number, found in enumerate(words):
        start, end = found.span()
        begins = number in (0, len(words) - 1) or text[max(0, start - 3) : start].rstrip().endswith(SENTENCE_END)
        small = headline and not begins and SMALL.fullmatch(found[0])
        parts += [text[done:start], found[0] if small else _capitalized(found[0], language)]
        done = end
    return "".join([*parts, text[done:]])


def _outside(pattern: re.Pattern[str], text: str, change: Callable[[str], str]) -> str:
    """Return a text with everything changed but what a pattern, which is one group, matches."""
    parts = pattern.split(text)
    parts[::2] = map(change, parts[::2])
    return "".join(parts)


def _capitals(text: str, language: str | None) -> str:
    if language in DOTTED_I:
        text = text.replace("i", "İ")
    if _GREEK.search(text):
        text = _outside(_GREEK_OR, text, _without_accents).replace("ή", "Ή")
    return _outside(_WITHOUT_CAPITALS, text, str.upper)


def _without_accents(text: str) -> str:
    """Return a text whose Greek letters have no accents, breathings or circumflexes."""
    parted = _HIATUS.sub("\\1\u0308", unicodedata.normalize("NFD", text))
    kept = _ACCENTS.sub(lambda marks: "".join(mark for mark in marks[0] if mark in _KEPT_MARKS), parted)
    return unicodedata.normalize("NFC", kept)


def _capitalized(word: str, language: str | None) -> str:
    if any(char.isupper() for char in word[1:]) or _WITHOUT_CAPITALS.match(word):  # iPhone, µm
        return word
    if language in DUTCH and word.startswith("ij"):
        return f"IJ{word[2:]}"
    dotted = language in DOTTED_I and word.startswith("i")
    return ("İ" if dotted else word[0].title()) + word[1:]
