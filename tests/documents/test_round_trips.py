"""Tags and placeholders survive any model: outputs and alignments are random here, and as hostile as possible.

The oracles are other readers: html.parser, babel, expat, markdown-it, and regular expressions for placeholders.
"""

import codecs
import io
import random
import re
import xml.etree.ElementTree as ET
import zipfile
from collections import Counter
from html.parser import HTMLParser

import pytest
from babel.messages.pofile import read_po
from markdown_it import MarkdownIt
from random_translator import random_translator, translated

from allyouneed.documents.files import read_document
from allyouneed.documents.srt_document import in_lines

WORDS = [
    "two",
    "big",
    "dogs",
    "run",
    "over",
    "the",
    "green",
    "hill",
    "and",
    "see",
    "a",
    "red",
    "house",
    "near",
    "old",
    "trees",
]
PLACEHOLDERS = ["%s", "%(name)s", "%1$d", "{0}", "{name}", "{{x}}", "${HOME}", "https://x.org/a?b=c", "me@x.org", "%%"]
PLACEHOLDER = re.compile(
    r"%\(\w+\)s|%\d\$d|%[sd%]|\$?\{+\w+\}+|https?://[\w./?=]*[\w/]|[\w.]+@[\w.]+\w"
)  # fmt: skip


def words(choose: random.Random, most: int = 4) -> str:
    return " ".join(choose.choices(WORDS, k=choose.randrange(1, most)))


def html_fragment(seed: int) -> str:
    """Return a fragment with nested inline elements, images, code, entities and placeholders."""
    choose = random.Random(seed)

    def inline(depth: int) -> str:
        found = []
        for _ in range(choose.randrange(1, 4)):
            kind = choose.randrange(8)
            if kind < 3 or depth > 3:
                found.append(words(choose))
            elif kind < 6:
                name = choose.choice(["b", "i", "em", "a href='x>y'", 'span class="z"', "strong"])
                found.append(f"<{name}>{inline(depth + 1)}</{name.split()[0]}>")
            elif kind == 6:
                found.append(
                    choose.choice(["<img src=x>", "<code>ls -l</code>", "<i class=icon></i>", "<wbr>", "&amp;"])
                )
            else:
                found.append(choose.choice(PLACEHOLDERS))
        return choose.choice([" ", " ", ""]).join(found)

    return "".join(f"<p>{inline(0)}. {inline(1)}</p>\n<br>" for _ in range(choose.randrange(1, 3)))


class Markup(HTMLParser):
    """Collects the elements with their parents, and the text."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.found, self.open, self.text = Counter[object](), list[str](), ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found[(tag, tuple(attrs), () if tag in ("img", "wbr", "code") else tuple(self.open))] += 1
        if tag not in ("img", "br", "wbr"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, "not balanced"

    def handle_data(self, data: str) -> None:
        self.text += f"\0{data}"  # a tag separates texts


def placeholders(text: str) -> "Counter[str]":
    return Counter(PLACEHOLDER.findall(text))


def test_200_html_fragments() -> None:
    for seed in range(200):
        source = html_fragment(seed)
        raw, result = translated(read_document(source.encode(), "html", "x"), random_translator(seed), seed)
        found, wanted = Markup(raw.decode()), Markup(source)
        assert found.found == wanted.found, source
        assert not found.open
        assert placeholders(found.text) == placeholders(wanted.text), (source, raw.decode())
        assert len(result.kept) <= 1


def po_entry(choose: random.Random, number: int) -> str:
    def message() -> str:
        parts = [choose.choice([words(choose), words(choose), choose.choice(PLACEHOLDERS)]) for _ in range(4)]
        parts.insert(choose.randrange(4), choose.choice(["", "<b>bold</b>", "<br/>", "</i>", "\\n", "\\t", '\\"q\\"']))
        return f"m{number} " + " ".join(part for part in parts if part) + choose.choice(["", "\\n"])

    if number % 4:
        return f'#: file.c:{number}\n#, python-format\nmsgid "{message()}"\nmsgstr ""\n'
    return f'msgctxt "c"\nmsgid "{message()}"\nmsgid_plural "{message()}"\nmsgstr[0] ""\nmsgstr[1] ""\n'


def test_200_po_entries() -> None:
    choose = random.Random(1)
    header = 'msgid ""\nmsgstr ""\n"Content-Type: text/plain; charset=UTF-8\\n"\n'
    header += '"Plural-Forms: nplurals=3; plural=(n==1 ? 0 : n>1 && n<5 ? 1 : 2);\\n"\n'
    tail = '\n#, fuzzy\n#| msgid "old"\nmsgid "kept"\nmsgstr "behalten"\n\n#~ msgid "gone"\n#~ msgstr "weg"\n'
    source = header + "\n" + "\n".join(po_entry(choose, number) for number in range(200)) + tail
    tags = re.compile(r"</?\w+/?>")
    for seed in range(2):
        raw, result = translated(read_document(source.encode(), "po", "x"), random_translator(seed), seed)
        found = read_po(io.BytesIO(raw), abort_invalid=True)
        assert len(found) == 201
        for message in found:
            if not message.id or message.id == "kept":
                continue
            sides = (
                zip(message.id, message.string[:2], strict=True)
                if message.pluralizable
                else [(message.id, message.string)]
            )
            assert not message.pluralizable or len(message.string) == 3
            for ours, theirs in sides:
                assert placeholders(theirs) == placeholders(ours), (ours, theirs)
                assert Counter(tags.findall(theirs)) == Counter(tags.findall(ours)), (ours, theirs)
                assert theirs.endswith("\n") == ours.endswith("\n")
        text = raw.decode()
        assert text.startswith(header)
        assert text.endswith(tail)
        assert re.sub(r'msgstr.*\n(".*\n)*', "", text) == re.sub(r'msgstr.*\n(".*\n)*', "", source)
        assert len(result.kept) < 10


def test_po_keeps_line_ends_and_fills_only_what_is_empty() -> None:
    wanted = '# c\nmsgid "a"\nmsgstr "A"\n\nmsgid "one"\nmsgid_plural "many"\nmsgstr[0] "ONE"\nmsgstr[1] "MANY"\n'
    source = re.sub('"[A-Z]+"', '""', wanted)
    for end in ("\n", "\r\n"):
        document = read_document(source.replace("\n", end).encode(), "po", "x")
        assert translated(document, str.upper)[0].decode() == wanted.replace("\n", end)
        again = read_document(wanted.replace("\n", end).encode(), "po", "x")
        assert translated(again, str.lower)[0].decode() == wanted.replace("\n", end)


XLIFF = """<?xml version="1.0"?><xliff version="1.2" xmlns="urn:oasis:names:tc:xliff:document:1.2"><file><body>%s
</body></file></xliff>"""


def test_xliff_keeps_its_inline_elements() -> None:
    choose, units = random.Random(3), ""
    for number in range(40):
        inner = (
            f'{words(choose)} <g id="1">{words(choose)} <x id="2"/>{words(choose)}</g> &amp; <ph id="5">&lt;br&gt;</ph>'
        )
        pair = f'<bpt id="3">&lt;b&gt;</bpt>{words(choose)}<ept id="3">&lt;/b&gt;</ept> %s'
        units += f'\n<trans-unit id="{number}"><source>{inner}{pair}</source></trans-unit>'
    for seed in range(3):
        source = (XLIFF % units).encode()
        raw, _ = translated(read_document(source, "xliff", "x"), random_translator(seed), seed)
        space = "{urn:oasis:names:tc:xliff:document:1.2}"
        found = ET.fromstring(raw)
        for unit in found.iter(f"{space}trans-unit"):
            first, second = unit.find(f"{space}source"), unit.find(f"{space}target")
            assert first is not None
            assert second is not None
            sides = [
                Counter((one.tag, one.get("id")) for one in side.iter() if one is not side) for side in (first, second)
            ]
            assert sides[0] == sides[1]
            order = [one.tag.removeprefix(space) for one in second.iter()]
            assert order.index("bpt") < order.index("ept")
            assert "".join(second.itertext()).count("%s") == 1


@pytest.mark.parametrize("encoding", ["UTF-8", "ISO-8859-1", "windows-1252", "UTF-16", "UTF-16LE", "gb18030"])
@pytest.mark.parametrize("kind", ["xliff", "docx"])
def test_xml_in_any_encoding(kind: str, encoding: str) -> None:
    head, text = f'<?xml version="1.0" encoding="{encoding}"?>', "Größe 12 µm"

    def written(content: str) -> bytes:
        mark = codecs.BOM_UTF16_LE if encoding == "UTF-16LE" else b""
        return mark + f"{head}{content.split('?>', 1)[-1]}".encode(encoding)

    if kind == "xliff":
        source = written(XLIFF % f"<trans-unit id='1'><source>{text}</source></trans-unit>")
    else:
        body = f"<w:document {WORD}><w:body>{'<w:p>' + RUN.format('', text) + '</w:p>'}</w:body></w:document>"
        source = docx("", content=written(body))
    document = read_document(source, kind, "x")
    assert document.units == [text]
    raw, _ = translated(document, lambda one: one.replace("Größe", "Maß"))
    if kind == "docx":
        with zipfile.ZipFile(io.BytesIO(raw)) as archive:
            raw = archive.read("word/document.xml")
            assert "".join(ET.fromstring(raw.decode()).itertext()) == "Maß 12 µm"
            return
    found = raw.decode("UTF-16" if encoding.startswith("UTF-16") else encoding)
    assert found.startswith(head)
    assert f"<source>{text}</source><target>Maß 12 µm</target>" in found


def test_markdown_keeps_its_structure() -> None:
    choose = random.Random(5)
    parts = [
        "---\ntitle: a\n---\n",
        "# {} *{}*\n",
        "{} **{}** `ls {}` [{}](http://x.y 'a') {}\n",
        "- {}\n- [x] {} ![{}](b.png)\n",
    ]
    parts += [
        "> {}\n> {}\n",
        "| {} | b |\n|---|---|\n| `{}` | **{}** |\n",
        "```\n{}\n```\n",
        "1. {} <b>{}</b>  \n   {}\n",
        "[r]: http://z\n",
    ]
    parts += ["{} [{}][r] <http://q.r> \\*{}\\* %s\n"]
    source = "\n".join(re.sub(r"\{\}", lambda _: words(choose), part) for part in parts * 3)
    source = source.replace("---\ntitle", "***\ntitle").replace("***\ntitle", "---\ntitle", 1)
    parser = MarkdownIt("commonmark").enable(["table", "strikethrough"])

    def structure(text: str) -> tuple[list[str], "Counter[str]"]:
        text = text.removeprefix("---\ntitle: a\n---\n")
        blocks = parser.parse(text)
        inline = [
            f"{one.type} {one.attrs}" for block in blocks for one in block.children or () if "text" not in one.type
        ]
        kept = [f"{one.type}{one.content if one.type in ('fence', 'html_block') else ''}" for one in blocks]
        return kept, Counter(one for one in inline if "softbreak" not in one)

    for seed in range(12):
        raw, _ = translated(read_document(source.encode(), "markdown", "x"), random_translator(seed), seed)
        assert structure(raw.decode()) == structure(source), seed
        assert raw.decode().startswith("---\ntitle: a\n---\n")
        assert raw.decode().count("[r]: http://z") == 3
    same, _ = translated(read_document(source.encode(), "markdown", "x"), lambda text: text)
    assert structure(same.decode()) == structure(source)


WORD = 'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"'


def docx(body: str, doctype: str = "", content: bytes | None = None, **more: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("[Content_Types].xml", "<Types/>")
        own = f"{doctype}<w:document {WORD}><w:body>{body}</w:body></w:document>"
        archive.writestr("word/document.xml", own if content is None else content)
        for name, raw in more.items():
            archive.writestr(name, raw)
    return buffer.getvalue()


RUN = "<w:r>{}<w:t>{}</w:t></w:r>"
BODY = (
    "<w:p><w:pPr><w:jc/></w:pPr>" + RUN.format("", "two ") + RUN.format("<w:rPr><w:b/></w:rPr>", "big")
    + "<w:proofErr/>"
    + RUN.format("", " dogs &amp; %s cats") + '<w:hyperlink id="4">' + RUN.format("<w:rPr><w:u/></w:rPr>", " a link")
    + "</w:hyperlink><w:r><w:br/></w:r>" + RUN.format("", "next")
    + '<w:r><w:fldChar w:fldCharType="begin"/></w:r><w:r><w:instrText>PAGE</w:instrText></w:r>'
    + '<w:r><w:fldChar w:fldCharType="end"/></w:r></w:p><w:p/>'
)  # fmt: skip


def test_docx_keeps_formats_links_and_fields() -> None:
    source = docx(BODY, picture=b"\x89PNG" * 100)
    raw, _ = translated(read_document(source, "docx", "x"), str.upper)
    with zipfile.ZipFile(io.BytesIO(raw)) as archive:
        assert archive.testzip() is None
        assert archive.read("picture") == b"\x89PNG" * 100
        text = archive.read("word/document.xml").decode()
    assert [*ET.fromstring(text).itertext()] == ["TWO ", "BIG", " DOGS & ", "%s", " CATS ", "A LINK", "NEXT", "PAGE"]
    assert '<w:r><w:rPr><w:b/></w:rPr><w:t xml:space="preserve">BIG</w:t></w:r>' in text
    assert re.search('<w:hyperlink id="4"><w:r><w:rPr><w:u/></w:rPr><w:t xml:space="preserve">A LINK', text)
    for seed in range(20):
        raw, _ = translated(read_document(source, "docx", "x"), random_translator(seed), seed)
        with zipfile.ZipFile(io.BytesIO(raw)) as archive:
            tree = ET.fromstring(archive.read("word/document.xml"))
        tags = Counter(one.tag.rpartition("}")[2] for one in tree.iter())
        assert tags["b"] <= 1 <= tags["hyperlink"] == tags["br"] == tags["jc"] == tags["instrText"]
        assert "".join(tree.itertext()).count("%s") == 1


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_srt_keeps_times_and_lines(end: str) -> None:
    cue = "{n}\n00:00:0{n},000 --> 00:00:0{n},900\n"
    source = cue.format(n=1) + "<i>Two big dogs run\nover the hill.</i>\n\n" + cue.format(n=2) + "- See?\n- Yes, 7.\n"
    source = source.replace("\n", end)
    raw, _ = translated(read_document(source.encode(), "srt", "x"), str.upper)
    assert raw.decode() == source.upper().replace("<I>", "<i>").replace("</I>", "</i>")
    for seed in range(20):
        text = translated(read_document(source.encode(), "srt", "x"), random_translator(seed), seed)[0].decode()
        assert re.findall(".*-->.*", text) == re.findall(".*-->.*", source)
        assert (text.count("<i>"), text.count("</i>"), text.count("7")) >= (1, 1, 1)
        assert Counter(re.findall("</?i>", text)) == {"<i>": 1, "</i>": 1}


def closest_cuts(text: str, count: int) -> list[str]:
    """Return a text in lines: one cut at a time, at the blank outside of tags that is nearest to an equal share."""
    lines, rest = [], text
    for left in range(count, 1, -1):
        blanks = [match.start() for match in re.finditer(r" (?![^<>]*>)", rest)]
        if not blanks:
            break
        cut = min(blanks, key=lambda place: abs(place - len(rest) / left))
        lines.append(rest[:cut])
        rest = rest[cut + 1 :]
    return [*lines, rest]


def test_lines_of_a_cue_are_about_equally_long() -> None:
    assert in_lines("two big dogs run over <i class='a b'>the hill</i>", 2) == [
        "two big dogs run over",
        "<i class='a b'>the hill</i>",
    ]
    choose = random.Random(1)
    for _ in range(2000):
        text, count = "".join(choose.choices("ab   <>", k=choose.randrange(25))), choose.randrange(1, 7)
        assert in_lines(text, count) == closest_cuts(text, count)


def test_30_sentences_come_back_as_30() -> None:
    sentences = [f"Number {number} of the dogs runs over hill {number}." for number in range(30)]
    for text in (" ".join(sentences), "\n\n".join(" ".join(sentences[at : at + 3]) for at in range(0, 30, 3))):
        raw, result = translated(read_document(text.encode(), "text", "x"), lambda one: one.replace("dogs", "Hunde"))
        assert result.sentences == 30
        assert raw.decode() == text.replace("dogs", "Hunde")
    document = read_document(" ".join(sentences).encode(), "text", "x")
    assert translated(document, lambda one: "")[1].sentences == 30


def test_text_keeps_paragraphs_lists_and_width() -> None:
    wrapped = "this is a long paragraph that was wrapped\nat a width of some forty characters, so it\nis one text.\n"
    source = f"Title\n\n  {'- one item'}\n  - two items\n\n{wrapped}\n\n\n> end\n  last"
    raw, result = translated(read_document(source.encode(), "text", "x"), str.upper)
    assert raw.decode() == source.upper()
    assert result.sentences == 6
