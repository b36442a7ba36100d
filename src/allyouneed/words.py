"""Text for people: counts with their nouns (1 run, 2 runs), durations, untrusted text made safe for a terminal."""

import unicodedata

# Control and format characters, surrogates of undecodable file names, line separators.
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})


def plural(count: float, noun: str) -> str:
    """Return the noun in singular or plural, by the count. All nouns used here take an s."""
    return noun if count == 1 else f"{noun}s"


def counted(count: int, noun: str) -> str:
    """Return a count with its noun: 1 run, 2,000 runs."""
    return f"{count:,} {plural(count, noun)}"


def minutes_and_seconds(seconds: float) -> str:
    """Return a duration such as 1:05."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


def printable(text: str, keep: str = "") -> str:
    """Return the text on one line with every invisible character escaped, except those in `keep`."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        char if char in keep or unicodedata.category(char) not in _HIDDEN else _escape(char) for char in text
    )


def _escape(char: str) -> str:
    return char.encode("unicode_escape").decode("ascii")
