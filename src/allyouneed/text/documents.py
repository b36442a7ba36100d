"""Documents to translate: a text as the units that a model translates, and back from their translations.

    document.units                        texts to translate
    document.further(found)               more texts, once those are translated
    document.join(found, further, rank)   the document, from the translations of both

`found` and `further` have for each text its translations, best first; `rank` selects one of them.
"""

from collections.abc import Sequence
from typing import Protocol

Found = Sequence[Sequence[str]]


class Document(Protocol):
    """A text in units."""

    units: list[str]

    def further(self, found: Found) -> list[str]:
        """Return further texts to translate, given the translations of `units`."""

    def join(self, found: Found, further: Found, rank: int = 0) -> str:
        """Return the translated document."""


class LineDocument:
    """Plain text. A unit is a line that is not blank; line ends and blank lines are kept."""

    def __init__(self, text: str) -> None:
        lines = text.splitlines(keepends=True)
        contents = [line.splitlines()[0] for line in lines]
        self._lines = [
            (bool(content.strip()), line[len(content) :]) for line, content in zip(lines, contents, strict=True)
        ]
        self.units = [content for content in contents if content.strip()]

    def further(self, found: Found) -> list[str]:
        """Return nothing: lines are translated independently."""
        return []

    def join(self, found: Found, further: Found, rank: int = 0) -> str:
        """Return the translated lines. A line with fewer translations uses its last one."""
        translations = iter(found)
        return "".join((_ranked(next(translations), rank) if filled else "") + end for filled, end in self._lines)


def _ranked(translations: Sequence[str], rank: int) -> str:
    return translations[min(rank, len(translations) - 1)]
