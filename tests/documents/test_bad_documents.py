"""Documents that are damaged or hostile: one line that states where and what, and no memory for what they claim."""

import io
import tracemalloc
import warnings
import zipfile
from pathlib import Path

import pytest
from random_translator import translated
from test_round_trips import BODY, XLIFF, docx

from allyouneed.documents import xml_tokens
from allyouneed.documents.files import LARGEST, format_of, read_document
from allyouneed.errors import ConfigError, DataError

LAUGHS = '<!DOCTYPE x [<!ENTITY a "ha"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;">]>'
OUTSIDE = '<!DOCTYPE x [<!ENTITY a SYSTEM "file:///etc/passwd">]>'
UNIT = "<trans-unit id='1'><source>%s</source></trans-unit>"
ENTITY = UNIT % "&b;"


def with_doctype(doctype: str) -> bytes:
    return (XLIFF % ENTITY).replace("?>", f"?>{doctype}", 1).encode()


def changed(raw: bytes, name: str, size: int) -> bytes:
    """Return an archive whose directory states another size for a file."""
    with zipfile.ZipFile(io.BytesIO(raw)) as archive:
        true = archive.getinfo(name).file_size
    return raw.replace(true.to_bytes(4, "little"), size.to_bytes(4, "little"))


def with_picture(name: str = "word/media/a.png") -> bytes:
    """Return an archive with a file that is copied."""
    buffer = io.BytesIO(docx(BODY))
    with warnings.catch_warnings(), zipfile.ZipFile(buffer, "a") as archive:
        warnings.simplefilter("ignore")  # of a name that is there
        archive.writestr(name, "red pixels")
    return buffer.getvalue()


BAD: dict[str, tuple[str, bytes, str]] = {
    "entities": ("xliff", with_doctype(LAUGHS), "line 1: has a document type"),
    "external entity": ("xliff", with_doctype(OUTSIDE), "line 1: has a document type"),
    "undefined entity": ("xliff", (XLIFF % ENTITY).encode(), "undefined entity"),
    "cut XLIFF": ("xliff", (XLIFF % "<trans-unit>").encode()[:150], "not XML: .*cut off"),
    "empty": ("xliff", b"", "not XML"),
    "not XLIFF": ("xliff", b"<html/>", "its first element should be xliff"),
    "encoding": ("xliff", b"<?xml version='1.0' encoding='none'?><xliff/>", "not readable as none"),
    "encoding of names": ("xliff", b"<?xml version='1.0' encoding='punycode'?><xliff/>", "not readable as punycode"),
    "bytes": ("xliff", b"<xliff>\xff</xliff>", "not readable as utf-8"),
    "cut DOCX": ("docx", docx(BODY)[:-30], "damaged, or not a Word document"),
    "not DOCX": ("docx", b"hello", "damaged, or not a Word document"),
    "other archive": ("docx", docx("").replace(b"word/document", b"word/dokument"), "it has no word/document.xml"),
    "DOCX entities": ("docx", docx("", doctype=LAUGHS), "word/document.xml: line 1: has a document type"),
    "sizes that lie": ("docx", changed(docx("<w:p/>" * 4000), "word/document.xml", 200), "damaged|not XML"),
    "claimed size": ("docx", changed(docx(BODY), "word/document.xml", 1 << 31), "MiB unpacked"),
    "damaged picture": ("docx", with_picture().replace(b"red pixels", b"led pixels"), "damaged, .*a.png"),
    "two of a name": ("docx", with_picture("word/document.xml"), "two files have the same name"),
    "cut PO": ("po", b'msgid "a"\nmsgid_plural "b"\n', "line 1: a message without msgstr"),
    "no PO": ("po", b"hello\n", "line 1: neither a keyword"),
    "empty PO": ("po", b"", "no messages"),
    "quote": ("po", b'msgid "a\nmsgstr ""\n', "line 1: neither"),
    "no times": ("srt", b"1\nhello\n", "no line has times"),
    "UTF-16": ("text", "hello".encode("utf-16"), "is UTF-16"),
    "latin": ("markdown", b"a\nb \xe4\n", "line 2: byte 3 0xE4 is not UTF-8"),
    "packed": ("html", b"\x1f\x8b123", "compressed"),
    "reference": (
        "html",
        b"<p>\n<a href='&#" + b"9" * 5000 + b";'>",
        "x: line 2: a character reference of 1,000 digits",
    ),
    "declaration": ("html", b"<![nothing] x>", "x: not HTML"),
}


@pytest.mark.parametrize("name", BAD)
def test_one_line_states_what_is_wrong(name: str) -> None:
    kind, raw, message = BAD[name]
    with pytest.raises(DataError, match=message) as caught:
        read_document(raw, kind, "x")
    assert str(caught.value).startswith("x: ")
    assert "\n" not in str(caught.value)


def test_a_bomb_is_not_unpacked() -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("word/document.xml", "w") as file:
        for _ in range(40):
            file.write(b" " * (1 << 20))
    tracemalloc.start()
    with pytest.raises(DataError, match=r"word/document.xml: 40 MiB unpacked; at most 32 are read"):
        read_document(buffer.getvalue(), "docx", "x")
    assert tracemalloc.get_traced_memory()[1] < 4 << 20
    tracemalloc.stop()


def test_all_files_with_text_count() -> None:
    parts = {f"word/header{number}.xml": b" " * (7 << 20) for number in range(5)}
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, raw in parts.items():
            archive.writestr(name, raw)
    with pytest.raises(DataError, match=r"word/header4.xml: 35 MiB unpacked; at most 32 are read"):
        read_document(buffer.getvalue(), "docx", "x")


def test_small_tags_that_would_take_much_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(xml_tokens, "MOST_TOKENS", 1000)
    with pytest.raises(DataError, match="more than 1,000 tags and texts of XML; split the document"):
        read_document((XLIFF % ("<g/>" * 1000)).encode(), "xliff", "x")


def test_plural_forms_without_an_end() -> None:
    header = 'msgid ""\nmsgstr "Plural-Forms: nplurals=%s; plural=n != 1;"\n\n'
    message = 'msgid "dog"\nmsgid_plural "dogs"\nmsgstr[0] ""\nmsgstr[1] ""\n'
    for number, forms in (("1" * 5000, 2), ("1" * 9, 12)):  # Python refuses to read the first one
        assert len(read_document((header % number + message).encode(), "po", "x").segments) == forms


def test_large_documents_and_unknown_formats() -> None:
    with pytest.raises(DataError, match="more than 64 MiB"):
        read_document(bytes(LARGEST + 1), "text", "x")
    with pytest.raises(ConfigError, match="did you mean 'html'"):
        read_document(b"", "htm", "x")
    with pytest.raises(ConfigError, match=r"state one: --format text \| html"):
        format_of(Path("a.pdf"))


@pytest.mark.parametrize(
    ("kind", "raw"),
    [
        ("docx", docx("<w:p>" * 5000 + "</w:p>" * 5000)),
        (
            "docx",
            docx("<w:p>" + "<w:hyperlink>" * 3000 + "<w:r><w:t>x</w:t></w:r>" + "</w:hyperlink>" * 3000 + "</w:p>"),
        ),
        ("xliff", (XLIFF % ("<group>" * 5000 + "</group>" * 5000)).encode()),
        ("markdown", b"[" * 5000 + b"`" * 5000 + b"*a " * 1000 + b"> " * 200),
        ("po", b'msgid "' + b"<b>{" * 6000 + b'"\nmsgstr ""\n'),
        ("srt", b"00:00:01,000 --> 00:00:02,000\n" + b"- a\n" * 3000),
        ("srt", b"00:00:01,000 --> 00:00:02,000\n" + b"a b\n" * 3000),
        ("xliff", (XLIFF % (UNIT % "a\n" * 3 + "\n" * 80_000)).encode()),
        ("po", b'msgid ""\n' + b'"abcdefgh"\n' * 60_000 + b'msgstr "c"\n'),
        ("text", b"%(" * 6000 + b"{" * 6000 + b"1." * 6000 + b"a@" * 3000 + b"http://" * 2000),
    ],
)
def test_time_is_linear_in_hostile_documents(kind: str, raw: bytes) -> None:
    translated(read_document(raw, kind, "x"), lambda text: text)  # minutes each if it were quadratic
