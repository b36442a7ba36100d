"""What every format gives to translation: a document as verbatim strings and segments, a segment as pieces.

    parts     "<p>", Segment, "</p>"
    pieces    "two ", Tag("<b>", "open"), "big", Tag("</b>", "close"), " dogs ", Atom("<img>"), "%d"

Joined, the parts are the document, character by character. Translation changes the texts of a segment. Each tag and
each atom occurs exactly once in the result, and tags stay balanced.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Tag:
    """The start or the end of a part of the text: markup that encloses."""

    raw: str
    kind: Literal["open", "close"]
    name: str = ""  # of both ends of a pair


@dataclass(frozen=True)
class Atom:
    """What is copied: markup (`raw`), or a part of the text such as a placeholder (`raw` is None).

    `shown`: the text that a model reads in its place.
    """

    raw: str | None
    shown: str = ""


Piece = str | Tag | Atom


class Segment:
    """A text to translate as a whole, between tags of its own. `where` is its place in the document, for messages."""

    def __init__(self, pieces: Sequence[Piece], where: str) -> None:
        self.pieces, self.where = list(pieces), where

    def escape(self, text: str) -> str:
        """Return a text as it is written in the format."""
        return text

    def render(self, pieces: Sequence[Piece]) -> str:
        """Return the pieces of a translation as they are written in the format."""
        return "".join(
            self.escape(piece)
            if isinstance(piece, str)
            else self.escape(piece.shown)
            if isinstance(piece, Atom) and piece.raw is None
            else str(piece.raw)
            for piece in pieces
        )

    def original(self) -> str:
        """Return the segment as it is in the source."""
        return self.render(self.pieces)

    def accepts(self, rendered: str) -> bool:
        """Return whether a rendered translation has the markup of the source. Escaped text always has."""
        return True


Part = str | Segment


class Document:
    """A document in parts."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self.parts = list(parts)

    @property
    def segments(self) -> list[Segment]:
        """The segments, in order."""
        return [part for part in self.parts if isinstance(part, Segment)]

    @property
    def units(self) -> list[str]:
        """The texts of the segments that have letters or digits, as a model reads them."""
        texts = [" ".join("".join(_shown(piece) for piece in segment.pieces).split()) for segment in self.segments]
        return [text for text in texts if any(map(str.isalnum, text))]

    def text(self, translated: Sequence[str]) -> str:
        """Return the document with its segments replaced by rendered translations."""
        found = iter(translated)
        return "".join(next(found) if isinstance(part, Segment) else part for part in self.parts)

    def write(self, translated: Sequence[str]) -> bytes:
        """Return the bytes of the translated document."""
        return self.text(translated).encode()


def _shown(piece: Piece) -> str:
    return piece if isinstance(piece, str) else piece.shown if isinstance(piece, Atom) else ""


def matching_tags(pieces: Sequence[Piece]) -> dict[int, int] | None:
    """Return the place of the closing tag of each opening one; None if tags are not balanced."""
    found: dict[int, int] = {}
    opened: list[tuple[int, str]] = []
    for place, piece in enumerate(pieces):
        if not isinstance(piece, Tag):
            continue
        if piece.kind == "open":
            opened.append((place, piece.name))
        elif not opened or opened[-1][1] != piece.name:
            return None
        else:
            found[opened.pop()[0]] = place
    return None if opened else found
