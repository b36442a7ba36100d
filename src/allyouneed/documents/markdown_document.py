"""Markdown (CommonMark, with tables and strikethrough): the text of paragraphs, headings, lists and tables changes.

Code, HTML blocks, link targets, images, reference definitions and front matter stay, character by character. A
paragraph is translated as one text and written on one line; hard line breaks stay. Special characters in a translation
are escaped. It is accepted if it has the structure of its source when it is read again.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from markdown_it.token import Token

from allyouneed.documents.markdown_places import markdown_parser, place_of
from allyouneed.documents.markup import balanced, markup_pieces
from allyouneed.documents.pieces import Atom, Document, Part, Piece, Segment, Tag, matching_tags

Extent = tuple[int, int, int]  # a line of the source, and the first character of a text there and the one behind it
_FRONT = re.compile(r"\A(---|\+\+\+)[^\S\n]*\n.*?^\1[^\S\n]*(?:\n|\Z)", re.DOTALL | re.MULTILINE)
_SPECIAL = re.compile(r"[\\`*\[\]<~]|(?<!\w)_|_(?!\w)|&(?=#?\w+;)")
_START = re.compile(r"\A(?:(?=[#>+=-])|(\d{1,9})(?=[.)]))")
_TASK = re.compile(r"\[[ xX]\]\s+")  # a box of a list
_PARAGRAPH = ["paragraph_open", "inline", "paragraph_close"]


class MarkdownDocument(Document):
    """Markdown as a document."""

    def __init__(self, text: str) -> None:
        front = _FRONT.match(text)
        begin = front.end() if front else 0
        lines = text[begin:].split("\n")
        starts = [0]
        for line in lines:
            starts.append(starts[-1] + len(line) + 1)
        parts, at = [text[:begin]], begin  # type: list[Part], int
        env: dict[str, Any] = {}
        for token, extents in _inlines(markdown_parser().parse(text[begin:], env), lines):
            start = begin + starts[extents[0][0]] + extents[0][1]
            end = begin + starts[extents[-1][0]] + extents[-1][2]
            where = f"line {text.count(chr(10), 0, begin) + extents[0][0] + 1}"
            prefixes = [lines[line][:first] for line, first, _ in extents]
            parts += [text[at:start], *_segments(token, where, text[start:end], prefixes, env)]
            at = end
        super().__init__([*parts, text[at:]])


class _MarkdownSegment(Segment):
    """A text. `raw` is how the source writes it, `content` the same without the signs of blocks before its lines."""

    def __init__(self, pieces: Sequence[Piece], where: str, raw: str, content: str, env: dict[str, Any]) -> None:
        super().__init__(pieces, where)
        self._raw, self._content, self._env = raw, content, env

    def original(self) -> str:
        """Return the Markdown of the source."""
        return self._raw

    def escape(self, text: str) -> str:
        """Return a text whose characters mean themselves."""
        # An escaped | would still make a line above --- the head of a table.
        return _SPECIAL.sub(r"\\\g<0>", text).replace("|", "&#124;")

    def render(self, pieces: Sequence[Piece]) -> str:
        """Return the pieces on one line. Protected parts are written as in the source."""
        text = "".join(
            self.escape(piece) if isinstance(piece, str) else str(piece.raw) if piece.raw is not None else piece.shown
            for piece in pieces
        )
        return _START.sub(r"\1\\", text, count=1) if pieces and isinstance(pieces[0], str) else text

    def accepts(self, rendered: str) -> bool:
        """Return whether a translation has the structure of the source."""
        first, second = self._structure(self._content), self._structure(rendered)
        return first == second and (not self._is_paragraph(self._content) or self._is_paragraph(rendered))

    def _structure(self, text: str) -> "Counter[str]":
        (inline,) = markdown_parser().parseInline(text, self._env)
        return Counter(
            f"{token.type} {token.attrs} {token.content if token.type in ('code_inline', 'html_inline') else ''}"
            for token in inline.children or ()
            if token.type not in ("text", "text_special", "softbreak")
        )

    def _is_paragraph(self, text: str) -> bool:
        return [token.type for token in markdown_parser().parse(text, dict(self._env))] == _PARAGRAPH


def _inlines(tokens: Sequence[Token], lines: Sequence[str]) -> Iterator[tuple[Token, list[Extent]]]:
    """Yield the texts of the document, each with where its lines are. One that cannot be found stays as it is."""
    line, column = 0, 0  # behind the last text
    for token in tokens:
        if token.type != "inline" or not token.map or not token.content.strip():
            continue
        extents: list[Extent] = []
        for number, content in enumerate(token.content.split("\n"), start=token.map[0]):
            bare = content.strip()
            after = column if number == line else 0
            first = lines[number].find(bare, after) if number < len(lines) else -1
            if first < 0 or number < line:
                break
            extents.append((number, first, first + len(bare)))
        else:
            line, column = extents[-1][0], extents[-1][2]
            yield token, extents


def _segments(token: Token, where: str, raw: str, prefixes: Sequence[str], env: dict[str, Any]) -> list[Part]:
    """Return a text as one segment, or as one for each line that ends with a hard break."""
    runs = _runs(token, prefixes)
    if len(runs) == 1:
        return [_MarkdownSegment(balanced(runs[0][0]), where, raw, token.content, env)]
    if any(matching_tags(pieces) is None for pieces, _ in runs):
        joined = [one for pieces, broken in runs for one in (*pieces, *([Atom(broken)] if broken else []))]
        return [_MarkdownSegment(balanced(joined), where, raw, token.content, env)]
    parts: list[Part] = []
    for pieces, broken in runs:
        own = _MarkdownSegment(pieces, where, "", "", env).render(pieces)
        parts += [_MarkdownSegment(pieces, where, own, own, env), broken]
    return parts


def _runs(token: Token, prefixes: Sequence[str]) -> list[tuple[list[Piece], str]]:
    """Return the pieces of each line that ends with a hard break, and the break."""
    source, at = token.content, 0
    runs: list[tuple[list[Piece], str]] = []
    pieces: list[Piece] = []
    for child in token.children or ():
        place = place_of(child)
        if place is None:
            continue
        start, end = place
        text = source[at:start]
        if child.type == "hardbreak":
            bare = text.rstrip(" ")
            line = source.count("\n", 0, end)
            pieces.append(bare)
            runs.append((_filled(pieces), text[len(bare) :] + source[start:end].rstrip(" ") + prefixes[line]))
            pieces = []
        else:
            pieces += [text, *_pieces(child, source[start:end])]
        at = end
    runs.append((_filled([*pieces, source[at:]]), ""))
    first = runs[0][0]
    if first and isinstance(first[0], str) and (box := _TASK.match(first[0])):
        first[:1] = _filled([Atom(box.group()), first[0][box.end() :]])
    return runs


def _filled(pieces: Sequence[Piece]) -> list[Piece]:
    return [piece for piece in pieces if piece != ""]


def _pieces(child: Token, raw: str) -> list[Piece]:
    if child.type in ("text_special", "softbreak"):
        return ["\n" if child.type == "softbreak" else child.content]
    if child.type == "html_inline":
        found = markup_pieces(raw)
        tag = re.match(r"<(/?)([A-Za-z][\w-]*)", raw)
        if tag and not raw.endswith("/>") and tag.group(2).lower() not in ("br", "img", "wbr", "hr"):
            return [Tag(raw, "close" if tag.group(1) else "open", f"html {tag.group(2).lower()}")]
        return found if all(isinstance(one, Atom) for one in found) else [Atom(raw)]
    if child.nesting and not child.meta.get("whole"):
        return [Tag(raw, "open" if child.nesting > 0 else "close", child.tag)]
    return [Atom(raw, child.content if child.type == "code_inline" else "")]
