"""XLIFF 1.2 and 2.x: empty targets are filled, everything else stays, character by character.

Inline elements are tags (g, pc, mrk; bpt and ept, bx and ex, sc and ec as pairs) or atoms (x, ph, it, cp and others).
Units with translate="no" and targets with content stay.
"""

import re
from collections.abc import Sequence

from allyouneed.documents.markup import balanced
from allyouneed.documents.pieces import Atom, Document, Part, Piece, Segment, Tag
from allyouneed.documents.xml_tokens import XmlToken, closing, decode_xml, escape_text, raw_of, text_of, xml_tokens
from allyouneed.errors import DataError

_NAMESPACE = "urn:oasis:names:tc:xliff:document:"
_UNITS = ("trans-unit", "segment")
_ENCLOSING = ("g", "pc", "mrk")
_STARTS = {"bpt": "id", "bx": "id", "sc": "id", "sm": "id"}
_ENDS = {"ept": "id", "ex": "id", "ec": "startRef", "em": "startRef"}


class XliffDocument(Document):
    """XLIFF as a document."""

    def __init__(self, raw: bytes, where: str) -> None:
        text, self._encoding = decode_xml(raw, where)
        tokens = xml_tokens(text, where)
        root = next((token for token in tokens if token.kind in ("open", "empty")), None)
        if root is None or root.local != "xliff" or not root.name.startswith(_NAMESPACE):
            raise DataError(f"{where}: not XLIFF: its first element should be xliff, of {_NAMESPACE}1.2 or 2.0")
        super().__init__(_parts(tokens))

    def write(self, translated: Sequence[str]) -> bytes:
        """Return the file in its encoding."""
        return self.text(translated).encode(self._encoding, "xmlcharrefreplace")


class _XliffSegment(Segment):
    def escape(self, text: str) -> str:
        """Return a text without markup."""
        return escape_text(text)


def _parts(tokens: Sequence[XmlToken]) -> list[Part]:
    parts: list[Part] = []
    kept = list[bool]()  # for each open element, whether it must not be translated
    at = 0
    while at < len(tokens):
        token = tokens[at]
        if token.kind == "open":
            stated = token.attributes.get("translate")
            kept.append(stated == "no" or (stated is None and bool(kept) and kept[-1]))
            if token.local in _UNITS and not kept[-1]:
                behind = closing(tokens, at)
                parts += _unit(tokens[at:behind])
                at = behind
                kept.pop()
                continue
        elif token.kind == "close":
            kept.pop()
        parts.append(token.raw)
        at += 1
    return parts


def _unit(tokens: Sequence[XmlToken]) -> list[Part]:
    """Return a unit with its target, unless the unit has one."""
    children = dict[str, tuple[int, int]]()
    at = 1
    while at < len(tokens) - 1:
        behind = closing(tokens, at) if tokens[at].kind == "open" else at + 1
        if tokens[at].kind in ("open", "empty"):
            children.setdefault(tokens[at].local, (at, behind))
        at = behind
    source = children.get("seg-source") or children.get("source")
    if source is None or not text_of(tokens[source[0] : source[1]]).strip():
        return [raw_of(tokens)]
    if "target" in children:
        start, behind = children["target"]
        if text_of(tokens[start:behind]).strip():
            return [raw_of(tokens)]
        opening = tokens[start].raw.rstrip().removesuffix("/>").removesuffix(">").rstrip() + ">"
        before, after = raw_of(tokens[:start]), raw_of(tokens[behind:])
    else:
        behind = source[1]
        gap = tokens[source[0] - 1].raw if tokens[source[0] - 1].kind == "text" else ""
        opening = re.sub(r"^<([\w.-]+:)?.*", r"<\1target>", tokens[source[0]].raw, flags=re.DOTALL)
        before, after = raw_of(tokens[:behind]) + gap, raw_of(tokens[behind:])
    name = re.match(r"<([\w:.-]+)", opening)
    assert name is not None
    content = balanced(_pieces(tokens[source[0] + 1 : source[1] - 1]))
    segment = _XliffSegment(content, f"line {tokens[source[0]].line}")
    return [before + opening, segment, f"</{name.group(1)}>{after}"]


def _pieces(tokens: Sequence[XmlToken]) -> list[Piece]:
    pieces: list[Piece] = []
    opened: list[str] = []
    at = 0
    while at < len(tokens):
        token, behind = tokens[at], at + 1
        if token.kind == "text":
            pieces.append(token.text)
        elif token.kind == "close":
            pieces.append(Tag(token.raw, "close", opened.pop()))
        elif token.kind == "open" and token.local in _ENCLOSING and not _is_protected(token):
            opened.append(token.local)
            pieces.append(Tag(token.raw, "open", token.local))
        elif token.kind in ("open", "empty"):
            behind = closing(tokens, at) if token.kind == "open" else behind
            raw, local = raw_of(tokens[at:behind]), token.local
            if local in _STARTS:
                pieces.append(Tag(raw, "open", f"pair {_number(token, _STARTS[local])}"))
            elif local in _ENDS:
                pieces.append(Tag(raw, "close", f"pair {_number(token, _ENDS[local])}"))
            else:
                shown = text_of(tokens[at:behind]) if local == "mrk" else ""
                pieces.append(Atom(raw, shown))
        else:
            pieces.append(Atom(token.raw))
        at = behind
    return pieces


def _number(token: XmlToken, attribute: str) -> str:
    return token.attributes.get("rid") or token.attributes.get(attribute, "")


def _is_protected(token: XmlToken) -> bool:
    return token.attributes.get("translate") == "no" or token.attributes.get("mtype") == "protected"
