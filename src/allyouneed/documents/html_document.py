"""HTML: the text between the tags changes, everything else stays as it is, character by character.

A segment is what is between two tags that are not in `INLINE`. Its tags are placed by alignment: elements stay nested,
their order may change with that of the words. Copied are comments, declarations, scripts, styles and other elements in
`UNTOUCHED`, elements with `translate="no"` or the class `notranslate`, texts without letters, and an unfinished tag at
the end. Those in `INLINE_UNTOUCHED`, and images, stay inside the sentence: a model reads their text. Translations are
escaped, so that they never become markup.

If the inline tags of a segment are not balanced, the texts between them are translated one by one.
"""

import html
import re
from collections.abc import Sequence
from dataclasses import dataclass
from html.parser import HTMLParser
from itertools import groupby
from typing import Literal

from allyouneed.documents.markup import balanced
from allyouneed.documents.pieces import Atom, Document, Part, Piece, Segment, Tag
from allyouneed.errors import DataError


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


INLINE = _names(
    "a abbr acronym b bdi bdo big cite data del dfn em font i ins mark nobr q s small span strike strong sub sup tt u"
)
UNTOUCHED = _names(
    "applet audio canvas code embed iframe kbd math noembed noframes object plaintext samp script style svg template "
    "textarea time var video xmp"
)
# Of these, the ones that are words of a sentence.
INLINE_UNTOUCHED = _names("code kbd samp time var")
ATOMS = _names("img wbr")
VOID = _names("area base br col embed hr img input link meta param source track wbr")
BLANKS = " \t\n\r\f"
_SEPARATORS = re.compile(rf"[{BLANKS}\xa0]+")
_MARKUP = re.compile(r"<[^<>]*>")
_LONG_REFERENCE = re.compile(r"&#[0-9]{1000}")  # Python refuses to read such numbers
Kind = Literal["text", "open", "close", "atom", "boundary"]


@dataclass
class _Token:
    kind: Kind
    raw: str
    name: str = ""


class _Tokenizer(HTMLParser):
    """Splits HTML into tokens, whose raw texts joined are the input. Raises DataError if that is not HTML."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=False)
        self._tokens: list[tuple[int, _Token]] = []  # with their places in the input
        self._untouched = ""  # the name of the element that is copied as a whole
        self._depth = 0  # how many elements of that name are open
        self._copied: Kind = "boundary"  # of the tokens of that element
        self._atoms = 0  # elements that are atoms
        self._preformatted = 0
        if long := _LONG_REFERENCE.search(text):
            raise DataError(f"line {text.count(chr(10), 0, long.start()) + 1}: a character reference of 1,000 digits")
        self._line_starts = [0, *(match.end() for match in re.finditer("\n", text))]
        try:
            # A blank ends a character reference. `close` is not called: it takes quadratic time for unfinished tags,
            # of which only the first matters, because a browser ignores what follows.
            self.feed(text + " ")
        except AssertionError as error:
            raise DataError(f"not HTML: {str(error)[:100]}") from None
        rest = len(text) + 1 - len(self.rawdata)
        if self.rawdata and (not self._tokens or self._tokens[-1][0] < rest):
            self._tokens.append((rest, _Token("boundary", "")))
        self._tokens.insert(0, (0, _Token("boundary", "")))  # what the parser ignores at the start
        ends = [*(place for place, _ in self._tokens[1:]), len(text)]
        found: list[_Token] = []
        for (start, token), end in zip(self._tokens, ends, strict=True):
            if token.kind == "atom" and self._untouched and token.name == str(self._atoms):
                token.kind = "boundary"  # without an end it is not an atom
            # The parser ignores </> without calling anything.
            for raw in re.split("(</>)", text[start:end]) if token.kind == "text" else [text[start:end]]:
                if raw:
                    found.append(_Token("boundary" if raw == "</>" else token.kind, raw, token.name))
        self.tokens: list[_Token] = []
        for (kind, name), group in groupby(found, lambda token: (token.kind, token.name)):
            if kind == "atom":  # the tokens of an atom are one
                self.tokens.append(_Token(kind, "".join(token.raw for token in group), name))
            else:
                self.tokens += group

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Called by the parser."""
        if self._untouched:
            self._depth += tag == self._untouched
            self._add_copied()
            return
        values = dict(attrs)
        no = (values.get("translate") or "").lower() == "no" or "notranslate" in (values.get("class") or "").split()
        if tag in UNTOUCHED or no:
            inline = tag in INLINE or tag in INLINE_UNTOUCHED
            self._copied, self._atoms = "atom" if inline else "boundary", self._atoms + 1
            if tag not in VOID:
                self._untouched, self._depth = tag, 1
            self._add_copied()
            return
        self._preformatted += tag == "pre"
        if tag in ATOMS:
            self._add_atom()
        else:
            self._add("open" if tag in INLINE else "boundary", tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Called by the parser."""
        if tag in ATOMS and not self._untouched:
            self._add_atom()
        else:
            self._add_copied() if self._untouched else self._add("boundary")

    def handle_endtag(self, tag: str) -> None:
        """Called by the parser."""
        if self._untouched:
            self._depth -= tag == self._untouched
            self._add_copied()
            if not self._depth:
                self._untouched = ""
            return
        self._preformatted = max(0, self._preformatted - (tag == "pre"))
        self._add("close" if tag in INLINE else "boundary", tag)

    def handle_data(self, data: str) -> None:
        """Called by the parser. Line breaks of a preformatted text are boundaries."""
        if not self._preformatted or "\n" not in data:
            self._add_text()
            return
        place = self._place()
        for part in re.findall("\n+|[^\n]+", data):
            kind: Kind = self._copied if self._untouched else "boundary" if part[0] == "\n" else "text"
            self._tokens.append((place, _Token(kind, "", str(self._atoms))))
            place += len(part)

    def handle_charref(self, name: str) -> None:
        """Called by the parser."""
        self._add_text()

    def handle_entityref(self, name: str) -> None:
        """Called by the parser."""
        self._add_text()

    def handle_comment(self, data: str) -> None:
        """Called by the parser."""
        self._add_copied() if self._untouched else self._add("boundary")

    def handle_decl(self, decl: str) -> None:
        """Called by the parser."""
        self._add_copied() if self._untouched else self._add("boundary")

    def handle_pi(self, data: str) -> None:
        """Called by the parser."""
        self._add_copied() if self._untouched else self._add("boundary")

    def unknown_decl(self, data: str) -> None:
        """Called by the parser."""
        self._add_copied() if self._untouched else self._add("boundary")

    def _place(self) -> int:
        line, column = self.getpos()
        return self._line_starts[line - 1] + column

    def _add(self, kind: Kind, name: str = "") -> None:
        self._tokens.append((self._place(), _Token(kind, "", name)))

    def _add_copied(self) -> None:
        self._add(self._copied, str(self._atoms))

    def _add_atom(self) -> None:
        self._atoms += 1
        self._add("atom", str(self._atoms))

    def _add_text(self) -> None:
        if self._untouched:
            self._add_copied()
        elif not self._tokens or self._tokens[-1][1].kind != "text":  # otherwise it continues a text
            self._add("text")


class _HtmlSegment(Segment):
    def __init__(self, tokens: Sequence[_Token], where: str) -> None:
        super().__init__([_piece(token) for token in tokens], where)
        self._raw = "".join(token.raw for token in tokens)

    def escape(self, text: str) -> str:
        """Return a text without markup."""
        return html.escape(text, quote=False)

    def original(self) -> str:
        """Return the HTML of the source."""
        return self._raw


class HtmlDocument(Document):
    """HTML as a document."""

    def __init__(self, text: str) -> None:
        parts: list[Part] = []
        line = 1
        for boundary, group in groupby(_Tokenizer(text).tokens, lambda token: token.kind == "boundary"):
            tokens = list(group)
            raw = "".join(token.raw for token in tokens)
            parts += [raw] if boundary else _segments(tokens, f"line {line}")
            line += raw.count("\n")
        super().__init__(parts)


def _segments(tokens: Sequence[_Token], where: str) -> list[Part]:
    """Return what is between two boundaries as one segment, or the texts between its tags as segments."""
    pieces = [_piece(token) for token in tokens]
    if balanced(pieces) == pieces:
        return [_HtmlSegment(tokens, where)]
    found: list[Part] = []
    for tag, group in groupby(tokens, lambda token: token.kind in ("open", "close")):
        run = list(group)
        found += [token.raw for token in run] if tag else [_HtmlSegment(run, where)]
    return found


def _piece(token: _Token) -> Piece:
    if token.kind == "text":
        return html.unescape(token.raw)
    if token.kind == "atom":
        return Atom(token.raw, _SEPARATORS.sub(" ", html.unescape(_MARKUP.sub("", token.raw))).strip())
    return Tag(token.raw, "open" if token.kind == "open" else "close", token.name)
