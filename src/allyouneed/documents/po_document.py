"""Message catalogues of gettext (PO): empty translations are filled, everything else stays, character by character.

Existing translations, fuzzy ones included, obsolete messages, comments, flags and the header stay. The header's
Plural-Forms states how many forms a message has and which of them is the singular. Line breaks in a message separate
texts that are translated on their own.
"""

import gettext
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from babel.messages.pofile import unescape

from allyouneed.documents.markup import MarkupSegment, markup_pieces
from allyouneed.documents.pieces import Document, Part
from allyouneed.errors import DataError

_LINE = re.compile(r'\s*(?:(msgctxt|msgid|msgid_plural|msgstr(?:\[(\d+)\])?)\s+)?"((?:[^"\\]|\\.)*)"\s*')
_PLURALS = re.compile(r"nplurals\s*=\s*(\d{1,9})\s*;\s*plural\s*=\s*([^;\n]+)")
MOST_FORMS = 12


@dataclass
class _Field:
    """A keyword of a message, with the lines of its text."""

    keyword: str
    first: int  # line
    behind: int
    lines: list[str]

    @property
    def text(self) -> str:
        """The whole text."""
        return "".join(self.lines)


@dataclass
class _Message:
    fields: list[_Field] = field(default_factory=list)

    def text(self, keyword: str) -> str | None:
        return next((one.text for one in self.fields if one.keyword == keyword), None)

    @property
    def targets(self) -> list[_Field]:
        return [one for one in self.fields if one.keyword.startswith("msgstr")]


class PoDocument(Document):
    """A catalogue as a document."""

    def __init__(self, text: str, where: str) -> None:
        self._end = "\r\n" if "\r\n" in text else "\n"
        self._lines = text.replace("\r\n", "\n").split("\n")
        messages = list(_messages(self._lines, where))
        if not messages:
            raise DataError(f'{where}: no messages; a catalogue has lines such as msgid ".." and msgstr ".."')
        forms, singular = _plural_forms(messages)
        parts: list[Part] = []
        at = 0
        for message in messages:
            targets = message.targets
            if not message.text("msgid") or any(one.text for one in targets):
                continue
            plural = message.text("msgid_plural")
            parts.append("".join(f"{line}\n" for line in self._lines[at : targets[0].first]))
            if plural is None:
                parts += _target("msgstr", message.text("msgid") or "", targets[0].first + 1)
            for number in range(0 if plural is None else max(forms, len(targets))):
                source = (message.text("msgid") if number == singular else plural) or ""
                parts += [*([] if number == 0 else ["\n"]), *_target(f"msgstr[{number}]", source, targets[0].first + 1)]
            at = targets[-1].behind
            parts.append("\n" if at < len(self._lines) else "")
        parts.append("\n".join(self._lines[at:]))
        super().__init__(parts)

    def text(self, translated: Sequence[str]) -> str:
        """Return the catalogue with the line ends of the source."""
        return super().text(translated).replace("\n", self._end)


class _MessageSegment(MarkupSegment):
    """A line of a message."""

    def escape(self, text: str) -> str:
        """Return a text between quotation marks."""
        text = text.replace("\\", "\\\\").replace('"', '\\"')
        return text.replace("\t", "\\t").replace("\r", "\\r").replace("\n", "\\n")

    def render(self, pieces: "Sequence[object]") -> str:
        """Return the pieces between quotation marks: tags are text, too."""
        return self.escape("".join(one if isinstance(one, str) else _text_of(one) for one in pieces))


def _text_of(piece: object) -> str:
    raw = getattr(piece, "raw", None)
    return str(getattr(piece, "shown", "") if raw is None else raw)


def _target(keyword: str, source: str, line: int) -> Iterator[Part]:
    """Yield the lines of a translation."""
    lines = source.split("\n")
    several = len(lines) > 2 or (len(lines) == 2 and lines[1] != "")
    yield f'{keyword} ""\n"' if several else f'{keyword} "'
    for number, text in enumerate(lines):
        last = number == len(lines) - 1
        if text:
            yield _MessageSegment(markup_pieces(text), f"line {line}")
        if not last:
            yield "\\n" + ('"\n"' if several and (number < len(lines) - 2 or lines[-1]) else "")
    yield '"'


def _messages(lines: Sequence[str], where: str) -> Iterator[_Message]:
    """Yield the messages that are not obsolete."""
    message = _Message()
    for number, line in enumerate(lines):
        bare = line.strip()
        if not bare or bare.startswith("#"):
            continue
        match = _LINE.fullmatch(line)
        if match is None:
            raise DataError(f"{where}: line {number + 1}: neither a keyword with a quoted text nor a comment")
        keyword, _, quoted = match.groups()
        if keyword is None:
            if not message.fields:
                raise DataError(f"{where}: line {number + 1}: a text without a keyword; should be msgid or msgstr")
            message.fields[-1].behind = number + 1
            message.fields[-1].lines.append(unescape(f'"{quoted}"'))
            continue
        if keyword in ("msgctxt", "msgid") and message.targets:
            yield message
            message = _Message()
        message.fields.append(_Field(keyword, number, number + 1, [unescape(f'"{quoted}"')]))
    if message.fields and not message.targets:
        raise DataError(f"{where}: line {message.fields[0].first + 1}: a message without msgstr; the file is cut off")
    if message.targets:
        yield message


def _plural_forms(messages: Sequence[_Message]) -> tuple[int, int]:
    """Return how many forms a plural has, and which form is the singular."""
    header = next((one.targets[0].text for one in messages if one.text("msgid") == ""), "")
    match = _PLURALS.search(header)
    if match is None:
        return 2, 0
    forms = min(int(match.group(1)), MOST_FORMS)
    try:
        choose: Callable[[int], int] = gettext.c2py(match.group(2).strip())
        singular = choose(1)
    except (ValueError, ZeroDivisionError, OverflowError, RecursionError):
        singular = 0
    return max(1, forms), singular if forms > 1 else -1
