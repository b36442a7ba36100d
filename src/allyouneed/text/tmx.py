"""Translation memories (TMX): the segments of two languages, streamed.

    <tu><tuv xml:lang="en"><seg>A <hi>text</hi>.</seg></tuv><tuv xml:lang="de"><seg>...</seg></tuv></tu>

Markup of the original document (bpt, ept, it, ph, ut and what is in them) is dropped, the text of `hi` is kept. Lines
of a segment are joined by blanks. A document type may be named, but nothing may be declared in it, and it is not
loaded: entities are a way to make a small file huge, or to read other files.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NoReturn
from xml.parsers import expat

from allyouneed.errors import DataError
from allyouneed.text.lines import open_text
from allyouneed.text.records import LONGEST_TEXT, MOST_NAMES, Row
from allyouneed.words import printable

BLOCK = 1 << 16  # bytes given to the parser at once
LONGEST_TOKEN = 2 * LONGEST_TEXT  # bytes of one tag, comment or attribute; the parser holds it whole
DEEPEST = 64  # elements inside each other
_CODES = frozenset({"bpt", "ept", "it", "ph", "ut"})
_MOST_LANGUAGES = 1000


class _Units:
    """The handlers of the parser: they collect the segments of a unit."""

    def __init__(self, path: Path, languages: Sequence[str] | None) -> None:
        self._path, self._languages = path, languages
        self._parser = parser = expat.ParserCreate()
        parser.buffer_text = True
        parser.StartElementHandler, parser.EndElementHandler = self._start, self._end
        parser.CharacterDataHandler = self._text
        parser.StartDoctypeDeclHandler = self._doctype
        parser.EntityDeclHandler = self._entity
        parser.ExternalEntityRefHandler = self._external
        parser.SkippedEntityHandler = self._skipped
        self._open: list[str] = []  # names of open elements
        self._unit: dict[str, str] | None = None
        self._language = ""
        self._parts: list[str] | None = None  # of the segment that is being read
        self._length, self._codes = 0, 0
        self.main = ""  # the source language that the file states
        self.rows: list[dict[str, str]] = []

    def feed(self, block: bytes) -> None:
        """Parse the next bytes; none at the end. Raise DataError where they are not TMX."""
        try:
            self._parser.Parse(block, not block)
        except expat.ExpatError as error:
            self._fail(f"is not XML: {expat.ErrorString(error.code)}; export the memory again", error.lineno)
        except (LookupError, ValueError, UnicodeError) as error:  # of encodings, which python looks up
            self._fail(f"cannot be decoded: {str(error).splitlines()[0]}; save it as UTF-8")

    def held(self, given: int) -> int:
        """Return how many bytes the parser holds because they are part of an incomplete token."""
        return given - self._parser.CurrentByteIndex

    def _fail(self, what: str, line: int | None = None) -> NoReturn:
        raise DataError(f"{self._path}: line {line or self._parser.CurrentLineNumber:,}: {what}") from None

    def fail_long(self) -> NoReturn:
        """Raise DataError for a token that is too long."""
        self._fail(f"a tag or comment of more than {LONGEST_TOKEN:,} bytes; this is not a translation memory")

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        if not self._open and name != "tmx":
            self._fail(f"is a document of type {printable(name)[:40]!r}, should be tmx")
        if len(self._open) >= DEEPEST:
            self._fail(f"more than {DEEPEST} elements inside each other; this is not a translation memory")
        self._open.append(name)
        if self._parts is not None:
            self._codes += name in _CODES
        elif name == "header":
            self.main = attributes.get("srclang", "")
        elif name == "tu":
            self._unit = {}
        elif name == "tuv":
            self._language = attributes.get("xml:lang", attributes.get("lang", ""))
        elif name == "seg" and self._unit is not None and self._wanted(self._language):
            self._parts, self._length = [], 0

    def _wanted(self, language: str) -> bool:
        """Return whether a segment is read. Of several segments in one language, only the first is."""
        assert self._unit is not None
        if self._languages is None:
            return language not in self._unit and len(self._unit) < _MOST_LANGUAGES
        side = _side(language, self._languages)
        return side is not None and self._languages[side] not in self._unit

    def _end(self, name: str) -> None:
        self._open.pop()
        if self._parts is not None and name in _CODES:
            self._codes -= 1
        elif name == "seg" and self._parts is not None and self._unit is not None:
            text, self._parts = "".join(self._parts), None
            if "\n" in text:
                text = " ".join(part.strip() for part in text.split("\n")).strip()
            side = None if self._languages is None else _side(self._language, self._languages)
            self._unit[self._language if self._languages is None or side is None else self._languages[side]] = text
        elif name == "tu" and self._unit is not None:
            self.rows.append(self._unit)
            self._unit = None

    def _text(self, text: str) -> None:
        if self._parts is None or self._codes:
            return
        self._length += len(text.encode("utf-8"))
        if self._length > LONGEST_TEXT:
            self._fail(f"a segment of more than {LONGEST_TEXT:,} bytes; a segment should hold one text")
        self._parts.append(text)

    def _doctype(self, name: str, system: str | None, public: str | None, internal: int) -> None:
        if internal:
            self._fail("declares a document type of its own; remove <!DOCTYPE ... [...]>, which no memory needs")

    def _entity(self, name: str, *_: object) -> NoReturn:
        self._fail(f"declares the entity {printable(name)[:40]!r}; remove the declaration, which no memory needs")

    def _external(self, *_: object) -> NoReturn:
        self._fail("refers to another file; put its text here")

    def _skipped(self, name: str, parameter: object) -> None:
        self._fail(f"the entity &{printable(name)[:40]}; is not defined; write the character itself")


def _side(language: str, languages: Sequence[str]) -> int | None:
    """Return which of the wanted languages this is: en-US is en, unless en-US is wanted, too."""
    found = _code(language)
    wanted = [_code(one) for one in languages]
    if found in wanted:
        return wanted.index(found)
    main = found.partition("-")[0]
    return wanted.index(main) if main in wanted else None


def _code(language: str) -> str:
    return language.replace("_", "-").lower()


def _parsed(path: Path, languages: Sequence[str] | None) -> Iterator[_Units]:
    """Yield the handlers after each block, with new rows."""
    units, given = _Units(path, languages), 0
    with open_text(path) as file:
        while True:
            block = file.read(BLOCK)
            given += len(block)
            units.feed(block)
            if units.held(given) > LONGEST_TOKEN:
                units.fail_long()
            yield units
            if not block:
                return


def tmx_rows(path: Path, languages: Sequence[str]) -> Iterator[Row]:
    """Yield the segments of each unit in these languages; an empty text for one that a unit does not have."""
    for units in _parsed(path, languages):
        rows, units.rows = units.rows, []
        for unit in rows:
            yield tuple([unit.get(language, "") for language in languages])


def tmx_languages(path: Path, sides: Sequence[str]) -> list[str]:
    """Return the languages of a file for these sides: the source language that its header states, and the other one.

    Raise DataError if the first unit does not have exactly as many languages, or its source language is not stated.
    """
    main, found = _first_languages(path)
    first = [language for language in found if _side(main, [language]) == 0 or _side(language, [main]) == 0]
    if len(found) == len(sides) == 1:
        return found
    if len(found) != len(sides) or len(first) != 1:
        listed = ", ".join(printable(language)[:20] for language in found[:MOST_NAMES])
        wanted = ", ".join(f'{side} = "CODE"' for side in sides)
        raise DataError(
            f"{path}: which languages? Its first unit has: {listed or 'none'}; its header states {main or 'nothing'}; "
            f"choose: {wanted}"
        )
    return [*first, *(language for language in found if language not in first)]


def _first_languages(path: Path) -> tuple[str, list[str]]:
    """Return the source language that the header states, and the languages of the first unit."""
    for units in _parsed(path, None):
        if units.rows:
            return units.main, list(units.rows[0])
    return units.main, []
