"""HTML to translate: the text between the tags changes, everything else stays as it is, character by character.

The markup of the result is exactly the markup of the input, in the same order: translations are escaped. Copied are
tags with their attributes, comments, declarations, scripts, styles and other elements in `UNTOUCHED`, elements with
`translate="no"` or the class `notranslate`, texts without letters or digits, and an unfinished tag at the end.

A run is what is between two tags that are not in `INLINE`. It is translated as one sentence:

    <p>two <b>big</b> dogs</p>      "two big dogs" and "big" are translated: "zwei große Hunde", "große"
    <p>zwei <b>große</b> Hunde</p>  the translation of the element occurs once in that of the sentence: it gets the tags

If the translations of the elements do not each occur once, in order, the texts between the tags are translated one by
one instead. So are runs whose elements contain several texts, or nothing, or are not closed.
"""

import html
import re
from collections.abc import Sequence
from dataclasses import dataclass
from html.parser import HTMLParser
from itertools import groupby
from typing import Literal

from allyouneed.errors import DataError
from allyouneed.text.documents import Found


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


INLINE = _names(
    "a abbr acronym b bdi bdo big cite data del dfn em font i ins mark nobr q s small span strike strong sub sup tt u"
)
UNTOUCHED = _names(
    "applet audio canvas code embed iframe kbd math noembed noframes object plaintext samp script style svg template "
    "textarea time var video xmp"
)
VOID = _names("area base br col embed hr img input link meta param source track wbr")
BLANKS = " \t\n\r\f"
_SEPARATORS = re.compile(rf"[{BLANKS}\xa0]+")
Kind = Literal["text", "open", "close", "boundary"]


@dataclass
class _Token:
    kind: Kind
    raw: str
    name: str = ""

    @property
    def text(self) -> str:
        """What a reader sees, without the blanks around it; empty if there is nothing to translate."""
        if self.kind != "text":
            return ""
        text = _SEPARATORS.sub(" ", html.unescape(self.raw)).strip()
        return text if any(map(str.isalnum, text)) else ""

    def replaced(self, text: str) -> str:
        """Return the raw text with another content, between the same blanks."""
        before, after = len(self.raw) - len(self.raw.lstrip(BLANKS)), len(self.raw.rstrip(BLANKS))
        return self.raw[:before] + _escaped(text) + self.raw[after:]


class _Tokenizer(HTMLParser):
    """Splits HTML into tokens, whose raw texts joined are the input. Raises DataError if that is not HTML."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=False)
        self._tokens: list[tuple[int, _Token]] = []  # with their places in the input
        self._untouched = ""  # the name of the element that is copied as a whole
        self._depth = 0  # how many elements of that name are open
        self._preformatted = 0
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
        self.tokens: list[_Token] = []
        for (start, token), end in zip(self._tokens, ends, strict=True):
            # The parser ignores </> without calling anything.
            for raw in re.split("(</>)", text[start:end]) if token.kind == "text" else [text[start:end]]:
                if raw:
                    self.tokens.append(_Token("boundary" if raw == "</>" else token.kind, raw, token.name))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Called by the parser."""
        if self._untouched:
            self._depth += tag == self._untouched
            self._add("boundary")
            return
        values = dict(attrs)
        no = (values.get("translate") or "").lower() == "no" or "notranslate" in (values.get("class") or "").split()
        if tag in UNTOUCHED or no:
            if tag not in VOID:
                self._untouched, self._depth = tag, 1
            self._add("boundary")
            return
        self._preformatted += tag == "pre"
        self._add("open" if tag in INLINE else "boundary", tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Called by the parser."""
        self._add("boundary")

    def handle_endtag(self, tag: str) -> None:
        """Called by the parser."""
        if self._untouched:
            self._depth -= tag == self._untouched
            if not self._depth:
                self._untouched = ""
            self._add("boundary")
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
            self._tokens.append((place, _Token("boundary" if part[0] == "\n" or self._untouched else "text", "")))
            place += len(part)

    def handle_charref(self, name: str) -> None:
        """Called by the parser."""
        self._add_text()

    def handle_entityref(self, name: str) -> None:
        """Called by the parser."""
        self._add_text()

    def handle_comment(self, data: str) -> None:
        """Called by the parser."""
        self._add("boundary")

    def handle_decl(self, decl: str) -> None:
        """Called by the parser."""
        self._add("boundary")

    def handle_pi(self, data: str) -> None:
        """Called by the parser."""
        self._add("boundary")

    def unknown_decl(self, data: str) -> None:
        """Called by the parser."""
        self._add("boundary")

    def _place(self) -> int:
        line, column = self.getpos()
        return self._line_starts[line - 1] + column

    def _add(self, kind: Kind, name: str = "") -> None:
        self._tokens.append((self._place(), _Token(kind, "", name)))

    def _add_text(self) -> None:
        if self._untouched:
            self._add("boundary")
        elif not self._tokens or self._tokens[-1][1].kind != "text":  # otherwise it continues a text
            self._add("text")


class _Run:
    """What is between two boundaries: texts and inline tags."""

    def __init__(self, tokens: Sequence[_Token]) -> None:
        self._tokens = list(tokens)
        self._elements: list[tuple[int, int, int]] = []  # first tag, text, last tag of each element in a sentence
        self._core = range(0)  # the tokens of the sentence
        if sum(bool(token.text) for token in tokens) > 1:
            self._find_sentence()

    @property
    def units(self) -> list[str]:
        """What is translated at first: the sentence and its elements, or the texts between the tags."""
        if self._elements:
            raw = "".join(self._tokens[place].raw for place in self._core if self._tokens[place].kind == "text")
            return [_Token("text", raw).text, *(self._tokens[text].text for _, text, _ in self._elements)]
        return self.texts

    @property
    def texts(self) -> list[str]:
        """The texts between the tags."""
        return [token.text for token in self._tokens if token.text]

    def placed(self, found: Sequence[str]) -> str | None:
        """Return the run with the translation of its sentence; None if there is none, or an element has no place."""
        if not self._elements:
            return self.pieced(found)
        sentence, place, parts = found[0], 0, list[str]()
        for (first, text, last), translation in zip(self._elements, found[1:], strict=True):
            match = _only_match(translation, sentence)
            if match is None or match.start() < place:
                return None
            parts += [_escaped(sentence[place : match.start()]), self._raw(first, text)]
            parts += [_escaped(match.group()), self._raw(text + 1, last + 1)]
            place = match.end()
        parts.append(_escaped(sentence[place:]))
        start, end = self._tokens[self._core[0]].raw, self._tokens[self._core[-1]].raw
        before = self._raw(0, self._core[0]) + start[: len(start) - len(start.lstrip(BLANKS))]
        return before + "".join(parts) + end[len(end.rstrip(BLANKS)) :] + self._raw(self._core[-1] + 1, None)

    def pieced(self, found: Sequence[str]) -> str:
        """Return the run with the translations of its texts."""
        translations = iter(found)
        return "".join(token.replaced(next(translations)) if token.text else token.raw for token in self._tokens)

    def _raw(self, first: int, behind: int | None) -> str:
        return "".join(token.raw for token in self._tokens[first:behind])

    def _find_sentence(self) -> None:
        """Set the sentence and its elements, unless a tag is not closed or an element has not exactly one text."""
        last_of = _matching_tags(self._tokens)
        if last_of is None:
            return
        first, last = 0, len(self._tokens) - 1
        while True:  # leave out what is around the sentence: blanks, and elements that contain all of it
            if self._is_blank(first):
                first += 1
            elif self._is_blank(last):
                last -= 1
            elif last_of.get(first) == last:
                first, last = first + 1, last - 1
            else:
                break
        elements, place = list[tuple[int, int, int]](), first
        while place <= last:
            end = last_of.get(place, place)
            if end > place:
                texts = [inside for inside in range(place, end) if self._tokens[inside].kind == "text"]
                if len(texts) != 1 or not self._tokens[texts[0]].text:
                    return
                elements.append((place, texts[0], end))
            place = end + 1
        self._elements, self._core = elements, range(first, last + 1)

    def _is_blank(self, place: int) -> bool:
        token = self._tokens[place]
        return token.kind == "text" and not token.raw.strip(BLANKS)


def _matching_tags(tokens: Sequence[_Token]) -> dict[int, int] | None:
    """Return the place of the last tag of each element; None if a tag is not closed, or in the wrong order."""
    found: dict[int, int] = {}
    opened: list[int] = []
    for place, token in enumerate(tokens):
        if token.kind == "open":
            opened.append(place)
        elif token.kind == "close":
            if not opened or tokens[opened[-1]].name != token.name:
                return None
            found[opened.pop()] = place
    return None if opened else found


def _only_match(text: str, sentence: str) -> re.Match[str] | None:
    """Return the one place of a text in a sentence, whatever its case and its last punctuation; None if not one."""
    bare = text.strip().rstrip(".!?").rstrip()
    if not bare:
        return None
    matches = list(re.finditer(rf"(?<!\w){re.escape(bare)}(?!\w)", sentence, re.IGNORECASE))
    return matches[0] if len(matches) == 1 else None


def _escaped(text: str) -> str:
    return html.escape(text, quote=False)


class HtmlDocument:
    """HTML as a `Document`. It has one translation only, whatever the rank."""

    def __init__(self, text: str) -> None:
        self._parts: list[_Run | str] = []
        for boundary, tokens in groupby(_Tokenizer(text).tokens, lambda token: token.kind == "boundary"):
            if boundary:
                self._parts.append("".join(token.raw for token in tokens))
            else:
                self._parts.append(_Run(list(tokens)))
        self._runs = [part for part in self._parts if isinstance(part, _Run)]
        self.units = [unit for run in self._runs for unit in run.units]

    def further(self, found: Found) -> list[str]:
        """Return the texts of the sentences in which the elements have no certain place."""
        return [
            text
            for run, translations in zip(self._runs, self._found_by_run(found), strict=True)
            if run.placed(translations) is None
            for text in run.texts
        ]

    def join(self, found: Found, further: Found, rank: int = 0) -> str:
        """Return the translated HTML."""
        translations, more = iter(self._found_by_run(found)), iter(further)
        parts = []
        for part in self._parts:
            if isinstance(part, _Run):
                placed = part.placed(next(translations))
                parts.append(part.pieced([next(more)[0] for _ in part.texts]) if placed is None else placed)
            else:
                parts.append(part)
        return "".join(parts)

    def _found_by_run(self, found: Found) -> list[list[str]]:
        translations = iter(found)
        return [[next(translations)[0] for _ in run.units] for run in self._runs]
