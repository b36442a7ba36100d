"""XML as tokens, whose raw texts joined are the input. Document types are refused, and with them all entities."""

import codecs
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Literal
from xml.parsers import expat
from xml.sax.saxutils import escape as escape_markup

from allyouneed.errors import DataError

LARGEST_XML = 32 << 20  # characters
MOST_TOKENS = 2_000_000  # a token takes half a kilobyte
_DECLARED = re.compile(rb"""<\?xml[^>]{0,100}?encoding\s*=\s*["']([\w.-]{1,40})["']""")
# Python's names of the encodings of files. It has others: of host names, or of source code.
_OF_FILES = re.compile(
    r"utf-(8|16|32)(-[bl]e|-sig)?|ascii|(iso8859|iso2022|cp|koi8|kz|mac|shift|euc|gb|big5|hz|johab|tis).*"
)
_MARKS = {codecs.BOM_UTF8: "utf-8-sig", codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}
# Characters that XML 1.0 does not allow, not even escaped.
_FORBIDDEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")


@dataclass(slots=True)
class XmlToken:
    """A tag, a text, or anything else. Names are written as "namespace name"."""

    kind: Literal["open", "close", "empty", "text", "other"]
    raw: str
    name: str = ""
    attributes: dict[str, str] = field(default_factory=dict)
    text: str = ""  # of a text, without escapes
    line: int = 0

    @property
    def local(self) -> str:
        """The name without its namespace."""
        return self.name.rpartition(" ")[2]


def escape_text(text: str) -> str:
    """Return a text as XML."""
    return escape_markup(_FORBIDDEN.sub("", text))


def decode_xml(raw: bytes, where: str) -> tuple[str, str]:
    """Return the characters of an XML file, and its encoding."""
    encoding = next((name for mark, name in _MARKS.items() if raw.startswith(mark)), None)
    if encoding is None:
        declared = _DECLARED.match(raw)
        encoding = declared.group(1).decode() if declared else "utf-8"
    try:
        if not _OF_FILES.fullmatch(codecs.lookup(encoding).name):
            raise LookupError("it is not an encoding of files")
        text = raw.decode(encoding)
    except (LookupError, UnicodeError) as error:
        raise DataError(f"{where}: not readable as {encoding}: {str(error)[:100]}") from None
    if len(text) > LARGEST_XML:
        raise DataError(f"{where}: more than {LARGEST_XML >> 20} million characters of XML; split the document")
    return text, encoding


def xml_tokens(text: str, where: str) -> list[XmlToken]:
    """Return the tokens of XML. Raise DataError with the line if it is not well-formed, or has a document type."""
    events: list[tuple[int, XmlToken]] = []
    # Whatever encoding the file declares, the parser gets what `decode_xml` has read, as UTF-8.
    parser = expat.ParserCreate("utf-8", " ")

    def add(kind: Any, name: str = "", attributes: dict[str, str] | None = None, data: str = "") -> None:
        if len(events) == MOST_TOKENS:
            raise DataError(f"{where}: more than {MOST_TOKENS:,} tags and texts of XML; split the document")
        token = XmlToken(kind, "", name, attributes or {}, data, parser.CurrentLineNumber)
        events.append((parser.CurrentByteIndex, token))

    def refuse(*_: Any) -> None:
        raise DataError(f"{where}: line {parser.CurrentLineNumber}: has a document type (<!DOCTYPE); remove it")

    parser.StartDoctypeDeclHandler = refuse
    parser.StartElementHandler = lambda name, attributes: add("open", name, attributes)
    parser.EndElementHandler = lambda name: add("close", name)
    parser.CharacterDataHandler = lambda data: add("text", data=data)
    parser.CommentHandler = lambda _: add("other")
    parser.ProcessingInstructionHandler = lambda *_: add("other")
    parser.StartCdataSectionHandler = lambda: add("text")
    parser.EndCdataSectionHandler = lambda: add("text")
    parser.XmlDeclHandler = lambda *_: add("other")
    raw = text.encode("utf-8", "surrogatepass")
    try:
        parser.Parse(raw, True)
    except expat.ExpatError as error:
        reason = expat.ErrorString(error.code)
        raise DataError(f"{where}: line {error.lineno}: not XML: {reason}; the file may be cut off") from None
    return _joined(raw, events)


def _joined(raw: bytes, events: Sequence[tuple[int, XmlToken]]) -> list[XmlToken]:
    """Return tokens with their raw texts. Texts in a row are one token, and so are the ends of an empty element."""
    found: list[XmlToken] = [XmlToken("other", raw[: events[0][0]].decode())] if events and events[0][0] else []
    ends = [*(place for place, _ in events[1:]), len(raw)]
    for is_text, group in groupby(zip(events, ends, strict=True), lambda one: one[0][1].kind == "text"):
        if is_text:  # joined once: a text has an event for each of its lines
            texts = list(group)
            (start, token), end = texts[0][0], texts[-1][1]
            token.raw, token.text = raw[start:end].decode(), "".join(one.text for (_, one), _ in texts)
            found.append(token)
            continue
        for (start, token), end in group:
            token.raw = raw[start:end].decode()
            last = found[-1] if found else None
            if token.kind == "close" and not token.raw.startswith("</") and last is not None:
                # The end of <a/> is an event at its last character. What follows it is white space behind the root.
                last.kind, last.raw = "empty", last.raw + token.raw
            else:
                found.append(token)
    return found


def closing(tokens: Sequence[XmlToken], start: int) -> int:
    """Return the place behind the element that begins at `start`."""
    depth = 0
    for place in range(start, len(tokens)):
        depth += {"open": 1, "close": -1}.get(tokens[place].kind, 0)
        if depth == 0:
            return place + 1
    return len(tokens)


def raw_of(tokens: Sequence[XmlToken]) -> str:
    """Return the XML of tokens."""
    return "".join(token.raw for token in tokens)


def text_of(tokens: Sequence[XmlToken]) -> str:
    """Return the text of tokens."""
    return "".join(token.text for token in tokens if token.kind == "text")
