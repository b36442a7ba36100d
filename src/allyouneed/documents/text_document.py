"""Plain text: paragraphs between blank lines.

A paragraph that was wrapped is translated as one text and wrapped again at its width. It counts as wrapped if all lines
but the last are long, and about equally long. Other lines are translated one by one. Indentation, the sign of a list
item and blank lines stay.
"""

import re
from collections.abc import Iterator, Sequence

from allyouneed.documents.pieces import Document, Part, Piece, Segment

WRAPPED, SPREAD = 40, 16  # characters of a wrapped line, and by how many its lines differ at most
_PREFIX = re.compile(r"[^\S\n]*(?:(?:[-*•>+]|\d{1,3}[.)])[^\S\n]+)?")


class TextDocument(Document):
    """Plain text as a document."""

    def __init__(self, text: str) -> None:
        super().__init__(list(_parts(text)))


class WrappedSegment(Segment):
    """A text that is written in lines of at most `width` characters, after the first with an indentation."""

    def __init__(self, pieces: Sequence[Piece], where: str, width: int, indent: str, end: str) -> None:
        super().__init__(pieces, where)
        self._width, self._indent, self._end = width, indent, end

    def render(self, pieces: Sequence[Piece]) -> str:
        """Return the text in lines."""
        return f"{self._end}{self._indent}".join(wrap(super().render(pieces), self._width))

    def original(self) -> str:
        """Return the lines of the source."""
        return super().render(self.pieces).replace("\n", f"{self._end}{self._indent}")


def wrap(text: str, width: int) -> list[str]:
    """Return a text in lines of at most `width` characters, as far as its words allow."""
    lines: list[str] = []
    for word in text.split(" "):
        if lines and len(lines[-1]) + 1 + len(word) <= width:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return lines or [""]


def _parts(text: str) -> Iterator[Part]:
    lines = text.split("\n")
    paragraph: list[str] = []
    for number, line in enumerate([*lines, ""], start=1):
        last = number > len(lines)
        starts = bool(paragraph) and _prefix(line) != _indent(_prefix(paragraph[0]))
        if paragraph and (not line.strip() or starts):
            yield from _paragraph(paragraph, number - len(paragraph))
            yield "" if last else "\n"
            paragraph = []
        if line.strip():
            paragraph.append(line)
        elif not last:
            yield line + ("\n" if number < len(lines) else "")


def _paragraph(lines: Sequence[str], number: int) -> Iterator[Part]:
    """Yield the parts of lines between blank ones."""
    prefixes, contents, ends = [], [], []
    for line in lines:
        bare = line.rstrip()
        prefixes.append(_prefix(bare))
        contents.append(bare[len(prefixes[-1]) :])
        ends.append(line[len(bare) :])
    widths = [len(content) for content in contents]
    wrapped = len(lines) > 1 and min(widths[:-1]) >= max(WRAPPED, max(widths) - SPREAD)
    if wrapped:
        yield prefixes[0]
        yield WrappedSegment(["\n".join(contents)], f"line {number}", max(widths), _indent(prefixes[0]), f"{ends[0]}\n")
        yield ends[-1]
        return
    for place, content in enumerate(contents):
        yield prefixes[place]
        yield Segment([content], f"line {number + place}")
        yield ends[place] + ("\n" if place < len(lines) - 1 else "")


def _prefix(line: str) -> str:
    match = _PREFIX.match(line)
    return match.group() if match else ""


def _indent(prefix: str) -> str:
    """Return the prefix of the lines below: that of a quotation, but blanks instead of the sign of a list item."""
    return re.sub(r"[^\s>]", " ", prefix)
