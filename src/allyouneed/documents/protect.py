"""Parts of a text that a translation must contain unchanged: placeholders, addresses, numbers.

    exact      %s %(name)s %1$d {0} {name} {{name}} ${name} %{name} {% if %} &amp; \\n [^1]  https://..  name@host.org
    numbers    1,000.50  12:30  2024-05-01: a translation may write other separators between the same digits

A group of braces is one placeholder, nested braces included: messages of ICU are copied as a whole.
"""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

_PRINTF = r"%(?:\(\w+\)|\d+\$)?[#0+'-]*(?:\*|\d+)?(?:\.(?:\*|\d+))?(?:hh?|ll?|[Lqjzt])?[diouxXeEfFgGaAcCrsSpn@%]"
# Repetitions are bounded: an open brace without its partner would be searched for in the whole text.
_INNER = r"\{[^{}]{0,400}\}"
_MIDDLE = rf"\{{(?:[^{{}}]|{_INNER}){{0,400}}\}}"
_BRACES = rf"[$#%]?\{{(?:[^{{}}]|{_MIDDLE}){{0,400}}\}}"
_EXACT = [
    r"(?:https?|ftps?|file|ssh|git|s3)://[^\s<>\"'`]*[^\s<>\"'`.,;:!?)\]}]",
    r"(?:mailto:)?(?<![\w.+-])[\w.+-]{1,64}@\w[\w-]*(?:\.\w[\w-]*)+",
    r"www\.[^\s<>\"'`]*[^\s<>\"'`.,;:!?)\]}]",
    _BRACES,
    r"\$\(\w+\)",
    _PRINTF,
    r"&(?:#\d+|#x[0-9A-Fa-f]+|\w+);",
    r"\\[nrt](?![A-Za-z])",
    r"\[\^[^\s\]]+\]",
]
_SEPARATED = r"\d{1,3}(?:[ \u00a0\u202f]\d{3}){1,20}(?!\d)"
_NUMBER = rf"(?<!\w)(?:{_SEPARATED}|\d{{1,40}}(?:[.,:/\u00a0\u202f'’-]\d{{1,40}}){{0,20}})(?!\w)"
EXACT = re.compile("|".join(_EXACT))
_PATTERN = re.compile(f"(?P<exact>{'|'.join(_EXACT)})|(?P<number>{_NUMBER})")
# Characters without which no exact part can begin.
_SIGNS = re.compile(r"[%{}$&@\\^]|://|www\.")


@dataclass(frozen=True)
class Protected:
    """A part of a text."""

    start: int
    end: int
    text: str
    exact: bool

    @property
    def key(self) -> str:
        """What a translation must contain: the text, or the digits of a number."""
        return self.text if self.exact else digits(self.text)


def digits(text: str) -> str:
    """Return the digits of a number, without separators."""
    return "".join(filter(str.isdigit, text))


def protected(text: str) -> Iterator[Protected]:
    """Yield the parts that a translation must contain, in order."""
    for match in _PATTERN.finditer(text):
        yield Protected(match.start(), match.end(), match.group(), match.lastgroup == "exact")


def exact_parts(text: str) -> "Counter[str]":
    """Return how often each exact part occurs."""
    return Counter(EXACT.findall(text))


def stray_signs(text: str) -> "Counter[str]":
    """Return the signs of placeholders that are not part of one."""
    return Counter(char for char in EXACT.sub("", text) if char in "%{}$")


def without_exact_parts(text: str) -> str:
    """Return a text without what looks like an exact part, which a model has made up."""
    while EXACT.search(text):
        text = EXACT.sub("", text)
    return " ".join(text.split())


def without_signs(text: str) -> str:
    """Return a text without any character that can begin an exact part."""
    while _SIGNS.search(text):
        text = _SIGNS.sub("", text)
    return text
