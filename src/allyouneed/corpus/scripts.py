"""Scripts of letters: Latin, Cyrillic, Arabic, ... by the names that Unicode gives to letters."""

import unicodedata
from collections import Counter
from collections.abc import Iterable
from functools import cache

FEWEST_LETTERS = 3  # of a text whose script counts
USUAL = 0.1  # the share of all letters from which on a script is usual
# Japanese mixes these; half-width and full-width letters are compatibility forms.
_TOGETHER = {"HIRAGANA": "CJK", "KATAKANA": "CJK", "KATAKANA-HIRAGANA": "CJK", "BOPOMOFO": "CJK"}


@cache
def script_of(char: str) -> str:
    """Return the script of a letter; an empty text for other characters."""
    if not char.isalpha():
        return ""
    name = unicodedata.name(unicodedata.normalize("NFKC", char)[0], "")
    first = name.partition(" ")[0]
    return _TOGETHER.get(first, first)


def scripts_in(text: str) -> Counter[str]:
    """Return the number of letters of each script."""
    if text.isascii():
        return Counter(LATIN=sum(map(str.isalpha, text)))
    found: Counter[str] = Counter()
    for char, count in Counter(text).items():
        found[script_of(char)] += count
    del found[""]
    return found


def usual_scripts(texts: Iterable[str]) -> frozenset[str]:
    """Return the scripts that are usual in texts."""
    total: Counter[str] = Counter()
    for text in texts:
        total += scripts_in(text)
    return frozenset(script for script, count in total.items() if count >= USUAL * total.total())


def is_other_script(text: str, usual: frozenset[str]) -> bool:
    """Return whether most letters of a text are of scripts that are not usual."""
    if text.isascii() and "LATIN" in usual:
        return False
    found = scripts_in(text)
    ours = sum(count for script, count in found.items() if script in usual)
    return found.total() >= FEWEST_LETTERS and 2 * ours < found.total()
