"""Plain text line by line, with alternatives: what the server translates unless a format is stated."""

from collections.abc import Sequence


class LineDocument:
    """A text whose units are the lines that are not blank; line ends and blank lines are kept."""

    def __init__(self, text: str) -> None:
        lines = text.splitlines(keepends=True)
        contents = [line.splitlines()[0] for line in lines]
        self._lines = [
            (bool(content.strip()), line[len(content) :]) for line, content in zip(lines, contents, strict=True)
        ]
        self.units = [content for content in contents if content.strip()]

    def join(self, found: Sequence[Sequence[str]], rank: int = 0) -> str:
        """Return the translated lines. `found` has the translations of each unit, best first; `rank` selects one.

        A line with fewer translations uses its last one.
        """
        translations = iter(found)
        return "".join((_ranked(next(translations), rank) if filled else "") + end for filled, end in self._lines)


def _ranked(translations: Sequence[str], rank: int) -> str:
    return translations[min(rank, len(translations) - 1)]
