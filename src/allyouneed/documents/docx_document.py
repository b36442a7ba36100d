"""Word documents (DOCX): the text of paragraphs is translated, in the body, headers, footers and notes.

Runs of a paragraph in the same format are one text. The most common format of a paragraph is that of its text; other
runs and hyperlinks are tags, which alignment places. Fields, drawings, breaks and everything else are atoms. The rest
of the archive is copied.
"""

import io
import lzma
import re
import zipfile
import zlib
from collections import Counter
from collections.abc import Sequence
from shutil import copyfileobj

from allyouneed.documents.markup import balanced
from allyouneed.documents.pieces import Atom, Document, Part, Piece, Segment, Tag, matching_tags
from allyouneed.documents.xml_tokens import XmlToken, closing, decode_xml, escape_text, raw_of, text_of, xml_tokens
from allyouneed.errors import DataError

LARGEST_MEMBERS, LARGEST_ARCHIVE, MOST_MEMBERS = 32 << 20, 512 << 20, 10_000  # bytes unpacked: those with text, all
BLOCK = 1 << 20  # bytes
_TRANSLATED = re.compile(r"word/(document|header\d*|footer\d*|footnotes|endnotes)\.xml")
_WORD = (
    "http://schemas.openxmlformats.org/wordprocessingml/2006/main",
    "http://purl.oclc.org/ooxml/wordprocessingml/main",
)
_WRAPPERS = ("hyperlink", "ins", "smartTag")
_SEPARATORS, SEPARATOR = ("br", "cr", "tab"), "separator"
_DROPPED = ("proofErr", "lastRenderedPageBreak")
_DAMAGED = (
    *(zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, OSError),
    *(NotImplementedError, RuntimeError),  # packed with another method, or with a password
)


class DocxDocument(Document):
    """A Word document."""

    def __init__(self, raw: bytes, where: str) -> None:
        self._raw, self._files = raw, dict[str, list[Part]]()
        try:
            with zipfile.ZipFile(io.BytesIO(raw)) as archive:
                _check(archive, where)
                for info in archive.infolist():
                    if not _TRANSLATED.fullmatch(info.filename):
                        _read_through(archive, info)  # it is copied when everything is translated: too late for errors
                        continue
                    name = f"{where}: {info.filename}"
                    text, _ = decode_xml(archive.read(info), name)
                    self._files[info.filename] = _parts(xml_tokens(text, name))
        except _DAMAGED as error:
            raise DataError(f"{where}: damaged, or not a Word document: {str(error)[:100]}") from None
        if "word/document.xml" not in self._files:
            raise DataError(f"{where}: not a Word document: it has no word/document.xml")
        super().__init__([part for parts in self._files.values() for part in parts])

    def write(self, translated: Sequence[str]) -> bytes:
        """Return the archive with its translated files."""
        found, buffer = iter(translated), io.BytesIO()
        with zipfile.ZipFile(io.BytesIO(self._raw)) as old, zipfile.ZipFile(buffer, "w") as new:
            texts = {
                name: "".join(next(found) if isinstance(part, Segment) else part for part in parts)
                for name, parts in self._files.items()
            }
            for info in old.infolist():
                if info.filename in texts:
                    text = re.sub(
                        r'(<\?xml[^>]*encoding=)["\'][^"\']*["\']', r'\1"UTF-8"', texts[info.filename], count=1
                    )
                    new.writestr(info.filename, text.encode(), zipfile.ZIP_DEFLATED)
                else:
                    copied = zipfile.ZipInfo(info.filename, info.date_time)
                    copied.compress_type, copied.external_attr = zipfile.ZIP_DEFLATED, info.external_attr
                    with old.open(info) as source, new.open(copied, "w") as target:
                        copyfileobj(source, target)
        return buffer.getvalue()


def _check(archive: zipfile.ZipFile, where: str) -> None:
    """Raise DataError for an archive that would unpack to more than a document has."""
    members = archive.infolist()
    total = sum(info.file_size for info in members)
    if len(members) > MOST_MEMBERS or total > LARGEST_ARCHIVE:
        raise DataError(
            f"{where}: {len(members):,} files of {total >> 20:,} MiB unpacked; at most {MOST_MEMBERS:,} files and "
            f"{LARGEST_ARCHIVE >> 20} MiB are read"
        )
    if len({info.filename for info in members}) < len(members):
        raise DataError(f"{where}: two files have the same name; save the document again")
    read = 0
    for info in members:
        if _TRANSLATED.fullmatch(info.filename):
            read += info.file_size
            if read > LARGEST_MEMBERS:
                size = f"{read >> 20:,} MiB unpacked; at most {LARGEST_MEMBERS >> 20} are read"
                raise DataError(f"{where}: {info.filename}: {size}")


def _read_through(archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> None:
    """Read a file, which raises an error if it is damaged or encrypted."""
    with archive.open(info) as file:
        while file.read(BLOCK):
            pass


class _DocxSegment(Segment):
    """The content of a paragraph. Text is written in runs of the current format."""

    def __init__(self, pieces: Sequence[Piece], where: str, raw: str, prefix: str, base: str) -> None:
        super().__init__(pieces, where)
        self._raw, self._prefix, self._base = raw, prefix, base

    def original(self) -> str:
        """Return the runs of the source."""
        return self._raw

    def keep(self, raw: str) -> None:
        """Set what `original` returns."""
        self._raw = raw

    def render(self, pieces: Sequence[Piece]) -> str:
        """Return the pieces as runs."""
        formats, found, w = [self._base], list[str](), self._prefix
        for piece in pieces:
            text = piece if isinstance(piece, str) else piece.shown if isinstance(piece, Atom) else ""
            if isinstance(piece, Tag) and piece.name == "run":
                formats = [*formats, piece.raw] if piece.kind == "open" else formats[:-1]
            elif isinstance(piece, Tag) or (isinstance(piece, Atom) and piece.raw is not None):
                found.append(str(piece.raw))
            elif text:
                written = f'<{w}t xml:space="preserve">{escape_text(text)}</{w}t>'
                found.append(f"<{w}r>{formats[-1]}{written}</{w}r>")
        return "".join(found)


def _is(token: XmlToken, *names: str) -> bool:
    return token.kind in ("open", "empty") and token.local in names and token.name.rpartition(" ")[0] in _WORD


def _parts(tokens: Sequence[XmlToken]) -> list[Part]:
    parts: list[Part] = []
    at, number, ends = 0, 0, _paragraph_ends(tokens)
    while at < len(tokens):
        token = tokens[at]
        if at in ends:
            behind, start = ends[at], at + 1
            if _is(tokens[start], "pPr"):
                start = closing(tokens, start) if tokens[start].kind == "open" else start + 1
            number += 1
            parts.append(raw_of(tokens[at:start]))
            parts += _paragraph(tokens[start : behind - 1], token.raw, f"paragraph {number}")
            at = behind - 1
        elif token.kind == "text" and token.text.strip() and at and _is(tokens[at - 1], "t"):
            parts.append(_TextSegment([token.text], f"paragraph {number + 1}"))  # beside a text box
            at += 1
        else:
            parts.append(token.raw)
            at += 1
    return parts


def _paragraph_ends(tokens: Sequence[XmlToken]) -> dict[int, int]:
    """Return where each paragraph ends, of those that contain no other: a text box has paragraphs inside of one."""
    found: dict[int, int] = {}
    opened: list[int] = []  # elements
    outer: set[int] = set()
    inside: list[int] = []  # paragraphs
    for place, token in enumerate(tokens):
        if token.kind == "open":
            opened.append(place)
            if _is(token, "p"):
                outer.update(inside[-1:])
                inside.append(place)
        elif token.kind == "close":
            start = opened.pop()
            if inside and inside[-1] == start:
                found[inside.pop()] = place + 1
    return {start: end for start, end in found.items() if start not in outer}


class _TextSegment(Segment):
    def escape(self, text: str) -> str:
        """Return a text without markup."""
        return escape_text(text)


def _paragraph(tokens: Sequence[XmlToken], opening: str, where: str) -> list[Part]:
    """Return the content of a paragraph as a segment, if it has text."""
    raw = raw_of(tokens)
    runs = _runs(tokens)
    sizes = Counter[str]()
    for piece, style in runs:
        if isinstance(piece, str):
            sizes[style] += len(piece)
    if not sizes:
        return [raw] if raw else []
    base = sizes.most_common(1)[0][0]
    prefix = re.match(r"<([\w.-]+:)?", opening)
    w = (prefix and prefix.group(1)) or ""
    groups = _groups(runs)
    if any(matching_tags(_pieces(group, base)) is None for group in groups):
        groups = [runs]
    pieces = _pieces(runs, base)
    if balanced(pieces) != pieces:
        return [raw]
    if len(groups) == 1:
        return [_DocxSegment(_pieces(runs, base), where, raw, w, base)]
    parts: list[Part] = []
    for group in groups:
        pieces = _pieces(group, base)
        one = _DocxSegment(pieces, where, "", w, base)
        one.keep(one.render(pieces))
        parts.append(one)
    return parts


def _groups(runs: Sequence[tuple[Piece, str]]) -> list[list[tuple[Piece, str]]]:
    """Return runs in groups that end with a line break or a tabulator."""
    groups: list[list[tuple[Piece, str]]] = [[]]
    for piece, style in runs:
        groups[-1].append((piece, style))
        if isinstance(piece, Atom) and style == SEPARATOR:
            groups.append([])
    return [group for group in groups if group]


def _pieces(runs: Sequence[tuple[Piece, str]], base: str) -> list[Piece]:
    """Return runs as pieces: texts in other formats than the base are elements."""
    pieces: list[Piece] = []
    before: str | None = None  # the format of the last piece, if that is a text
    for piece, style in runs:
        if not isinstance(piece, str):
            pieces.append(piece)
            before = None
        elif style == before:  # continues the last run
            place = -1 if style == base else -2
            pieces[place] = str(pieces[place]) + piece
        else:
            pieces += [piece] if style == base else [Tag(style, "open", "run"), piece, Tag("", "close", "run")]
            before = style
    return pieces


def _runs(tokens: Sequence[XmlToken]) -> list[tuple[Piece, str]]:
    """Return texts with their formats, wrappers and atoms, in order."""
    found: list[tuple[Piece, str]] = []
    at, field_start, depth = 0, 0, 0  # of a field, which is one atom
    while at < len(tokens):
        token, behind = tokens[at], at + 1
        if token.kind == "open" and not _is(token, *_WRAPPERS):
            behind = closing(tokens, at)
        part = tokens[at:behind]
        opens = sum(_field(one, "begin") for one in part)
        if opens and not depth:
            field_start = at
        inside = bool(depth or opens)
        depth += opens - sum(_field(one, "end") for one in part)
        if inside:
            if depth <= 0:
                depth = 0
                found.append((Atom(raw_of(tokens[field_start:behind])), ""))
        elif _is(token, "r") and token.kind == "open":
            found += _run(part)
        elif _is(token, *_WRAPPERS) and token.kind == "open":
            found.append((Tag(token.raw, "open", token.local), ""))
        elif token.kind == "close":
            found.append((Tag(token.raw, "close", token.local), ""))
        elif token.local not in _DROPPED:
            found.append((Atom(raw_of(part)), ""))
        at = behind
    if depth:  # a field that ends in another paragraph
        found.append((Atom(raw_of(tokens[field_start:])), ""))
    return found


def _run(tokens: Sequence[XmlToken]) -> list[tuple[Piece, str]]:
    """Return the texts of a run with its format, and everything else as atoms: runs in the same format."""
    style, at, found = "", 1, list[tuple[Piece, str]]()
    if _is(tokens[1], "rPr"):
        at = closing(tokens, 1) if tokens[1].kind == "open" else 2
        style = raw_of(tokens[1:at])
    while at < len(tokens) - 1:
        behind = closing(tokens, at) if tokens[at].kind == "open" else at + 1
        part = tokens[at:behind]
        if _is(tokens[at], "t"):
            text = text_of(part)
            found += [(text, style)] if text else []
        elif tokens[at].local not in _DROPPED and tokens[at].kind != "text":
            atom = Atom(f"{tokens[0].raw}{style}{raw_of(part)}{tokens[-1].raw}")
            found.append((atom, SEPARATOR if tokens[at].local in _SEPARATORS else ""))
        at = behind
    return found


def _field(token: XmlToken, kind: str) -> bool:
    return _is(token, "fldChar") and any(value == kind for value in token.attributes.values())
