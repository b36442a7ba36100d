"""Tags inside plain strings: messages of programs and subtitles have `<b>` and `</a>` in texts that nothing escapes."""

import re
from collections.abc import Sequence

from allyouneed.documents.pieces import Atom, Piece, Segment, Tag, matching_tags

_TAG = re.compile(r"<(/?)([A-Za-z][\w:.-]*)(?:\s[^<>]*)?(/?)>|<!--.*?-->", re.DOTALL)
MOST_DEPTH = 40  # of nested tags; deeper ones are copied where they are


class MarkupSegment(Segment):
    """A text in which tags are not escaped: a translation must have those of its source, and no others."""

    def accepts(self, rendered: str) -> bool:
        """Return whether a translation has the tags of the source."""
        return sorted(tags_of(rendered)) == sorted(tags_of(super().render(self.pieces)))


def tags_of(text: str) -> list[str]:
    """Return the tags of a text."""
    return [match.group() for match in _TAG.finditer(text)]


def markup_pieces(text: str) -> list[Piece]:
    """Return a text with its tags as pieces. Tags without a partner are atoms."""
    pieces: list[Piece] = []
    place = 0
    for match in _TAG.finditer(text):
        pieces.append(text[place : match.start()])
        closing, name, alone = match.groups()
        if alone or not name or name.lower() in ("br", "img", "hr", "wbr", "input"):
            pieces.append(Atom(match.group()))
        else:
            pieces.append(Tag(match.group(), "close" if closing else "open", name.lower()))
        place = match.end()
    pieces.append(text[place:])
    return balanced([piece for piece in pieces if piece != ""])


def balanced(pieces: Sequence[Piece]) -> list[Piece]:
    """Return pieces whose tags are balanced: if they are not, or nested too deeply, all of them become atoms."""
    depth = deepest = 0
    for piece in pieces:
        if isinstance(piece, Tag):
            depth += 1 if piece.kind == "open" else -1
            deepest = max(deepest, depth)
    if matching_tags(pieces) is None or deepest > MOST_DEPTH:
        return [Atom(piece.raw) if isinstance(piece, Tag) else piece for piece in pieces]
    return list(pieces)
