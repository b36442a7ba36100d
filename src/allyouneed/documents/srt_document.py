"""Subtitles (SRT): the text of each cue is translated; numbers, times and blank lines stay.

The lines of a cue are one text. Its translation has as many lines, of similar lengths. Lines that begin with a dash are
speakers, each translated on its own.
"""

import re
from bisect import bisect_left
from collections.abc import Iterator, Sequence

from allyouneed.documents.markup import MarkupSegment, markup_pieces
from allyouneed.documents.pieces import Document, Part, Piece
from allyouneed.errors import DataError

_TIME = r"\d{1,3}:\d\d:\d\d[,.]\d{1,3}"
_TIMES = re.compile(rf"\s*{_TIME}\s*-->\s*{_TIME}.*")
_TEXT = re.compile(r"([^<>]+)([<>]|\Z)")  # before > it is the inside of a tag
_SPEAKER = re.compile(r"\s*[-–—]\s*")


class SrtDocument(Document):
    """Subtitles as a document."""

    def __init__(self, text: str, where: str) -> None:
        super().__init__(list(_parts(text, where)))


class _Cue(MarkupSegment):
    """The text of a cue, in lines."""

    def __init__(self, pieces: Sequence[Piece], where: str, lines: int, end: str) -> None:
        super().__init__(pieces, where)
        self._lines, self._end = lines, end

    def render(self, pieces: Sequence[Piece]) -> str:
        """Return the text in the lines of the source."""
        return self._end.join(in_lines(super().render(pieces), self._lines))

    def original(self) -> str:
        """Return the lines of the source."""
        return super().render(self.pieces).replace("\n", self._end)

    def accepts(self, rendered: str) -> bool:
        """Return whether a translation has the tags of the source, and no arrow, which is for times."""
        return super().accepts(rendered) and ("-->" not in rendered or "-->" in self.original())


def in_lines(text: str, count: int) -> list[str]:
    """Return a text in `count` lines of similar lengths, or fewer if it has fewer words."""
    texts = ((match.start(), match.group(1)) for match in _TEXT.finditer(text) if match.group(2) != ">")
    blanks = [at + place for at, inside in texts for place, char in enumerate(inside) if char == " "]
    lines, start, first = list[str](), 0, 0  # the rest of the text, and of its blanks
    for left in range(count, 1, -1):
        if first == len(blanks):
            break
        middle = start + (len(text) - start) / left
        behind = bisect_left(blanks, middle, lo=first)
        near = range(max(first, behind - 1), min(len(blanks), behind + 1))
        chosen = min(near, key=lambda place: abs(blanks[place] - middle))
        lines.append(text[start : blanks[chosen]])
        start, first = blanks[chosen] + 1, chosen + 1
    return [*lines, text[start:]]


def _parts(text: str, where: str) -> Iterator[Part]:
    found = False
    lines, at = text.splitlines(keepends=True), 0
    while at < len(lines):
        yield lines[at]
        at += 1
        if not _TIMES.fullmatch(lines[at - 1].rstrip("\r\n")):
            continue
        found, first = True, at
        while at < len(lines) and lines[at].strip():
            at += 1
        yield from _cue([line.rstrip("\r\n") for line in lines[first:at]], lines[first:at], first + 1)
    if not found:
        raise DataError(f"{where}: no subtitles: no line has times such as 00:01:02,500 --> 00:01:04,000")


def _cue(lines: Sequence[str], raw: Sequence[str], number: int) -> Iterator[Part]:
    speakers = [_SPEAKER.match(line) for line in lines]
    ends = [full[len(line) :] for line, full in zip(lines, raw, strict=True)]
    if len(lines) > 1 and all(speakers):
        for place, (line, speaker) in enumerate(zip(lines, speakers, strict=True)):
            dash = speaker.group() if speaker else ""
            yield dash
            yield _Cue(markup_pieces(line[len(dash) :]), f"line {number + place}", 1, "\n")
            yield ends[place]
    elif lines:
        yield _Cue(markup_pieces("\n".join(lines)), f"line {number}", len(lines), ends[0] or "\n")
        yield ends[-1]
