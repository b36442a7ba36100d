"""Translations that cannot be right: much shorter than their source, repetitions, copies.

    short       fewer than 0.4 bytes of UTF-8 for each byte of a source of at least 24 bytes
    repeated    a phrase of up to 8 words three times in a row, or a word four times, and not so in the source
    copied      at least 4 words of letters, of which 8 in 10 are those of the source

Bytes instead of characters: Chinese writes a sentence with a third of the characters and nearly as many bytes.
"""

from collections import Counter
from typing import Literal

Doubt = Literal["short", "repeated", "copied"]
EXPLAINED: dict[Doubt, str] = {
    "short": "much shorter than the source",
    "repeated": "a phrase is repeated",
    "copied": "the source was copied",
}
SHORT, SHORTEST_SOURCE = 0.4, 24  # bytes
LONGEST_PHRASE, REPEATED_WORD = 8, 3  # words
LONGEST_WORD = 20  # characters; a text whose words are longer on average is written without blanks
COPIED, FEWEST_COPIED = 0.8, 4  # share and number of words


def doubts_of(source: str, target: str) -> list[Doubt]:
    """Return why a translation into another language may be wrong."""
    found: list[Doubt] = []
    size = len(source.strip().encode("utf-8", "replace"))
    if size >= SHORTEST_SOURCE and len(target.strip().encode("utf-8", "replace")) < SHORT * size:
        found.append("short")
    first, second = _words(source), _words(target)
    if _repeats(_units(target)) and not _repeats(_units(source)):
        found.append("repeated")
    letters = Counter(word for word in first if word.isalpha())
    if letters.total() >= FEWEST_COPIED and (letters & Counter(second)).total() >= COPIED * letters.total():
        found.append("copied")
    return found


def _words(text: str) -> list[str]:
    return text.casefold().split()


def _units(text: str) -> list[str]:
    """Return the words of a text, or its characters if it is written without blanks."""
    words = _words(text)
    return words if len(text) < LONGEST_WORD * max(1, len(words)) else list(text)


def _repeats(words: list[str]) -> bool:
    """Return whether a phrase is repeated, and a word often enough to be no emphasis."""
    for length in range(1, LONGEST_PHRASE + 1):
        run, enough = 0, max(REPEATED_WORD, 2 * length)  # words that repeat those one phrase before them
        for word, before in zip(words[length:], words, strict=False):
            run = run + 1 if word == before else 0
            if run >= enough:
                return True
    return False
