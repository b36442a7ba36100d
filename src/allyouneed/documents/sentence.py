"""A segment in sentences: what a model reads of each, and where its tags and protected parts are."""

import re
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from allyouneed.documents.pieces import Atom, Piece, Segment, Tag
from allyouneed.documents.placement import Block, Marker, Matrix, blocks_of, words
from allyouneed.documents.protect import digits, protected, without_exact_parts
from allyouneed.text.sentences import SentenceSplitter

Span = tuple[int, int]
BLANKS = " \t\n\r\f\v\x85\u2028\u2029\u00a0\u202f"  # one blank to a model


@dataclass
class Part:
    """A protected part of a sentence. A model reads its text."""

    start: int
    end: int
    atom: Atom
    exact: bool  # otherwise a number, whose separators may change

    @property
    def key(self) -> tuple[bool, str]:
        """What the translation must contain."""
        return self.exact, self.atom.shown if self.exact else digits(self.atom.shown)


@dataclass
class Sentence:
    """A sentence, its translation, and what has to be in both."""

    text: str
    parts: list[Part]
    markers: list[Marker]
    gap: str = ""  # between it and the next sentence
    target: str = ""
    fixed: dict[Span, Atom] = field(default_factory=dict)  # parts in the target
    copies: dict[Span, Span] = field(default_factory=dict)  # where each of them is in the text
    weights: Matrix | None = None
    original: str = ""
    is_empty: bool = False  # the model has generated nothing

    def __post_init__(self) -> None:
        self.original, self.target = self.text, self.text

    @property
    def has_words(self) -> bool:
        """Whether there is anything to translate: a letter outside of the protected parts."""
        rest, place = "", 0
        for part in self.parts:
            rest, place = rest + self.text[place : part.start], part.end
        return any(map(str.isalpha, rest + self.text[place:]))

    @property
    def source_words(self) -> list[Span]:
        return words(self.text, [(part.start, part.end) for part in self.parts])

    @property
    def target_words(self) -> list[Span]:
        return words(self.target, sorted(self.fixed))

    @property
    def shown_target(self) -> str:
        """The translation, with the parts that were taken out at its end: only its length and words matter."""
        if self.is_empty:
            return ""
        out = [one.piece.shown for one in self.markers if isinstance(one.piece, Atom) and one.piece.shown]
        return " ".join([self.target, *out])

    def lost_parts(self) -> "set[tuple[bool, str]] | None":
        """Find the protected parts in the translation. Return the keys of those that it lacks or has too often.

        None: it has others, which the model has made up.
        """
        found = list(protected(self.target))
        wanted = {part.atom.shown for part in self.parts if part.exact and part.atom.raw is None}
        if any(one.exact and one.text not in wanted for one in found):
            return None
        different = {part.key: part for part in self.parts}
        spots: dict[tuple[bool, str], list[Span]] = {}  # of what is not markup
        for one in found:
            spots.setdefault((one.exact, one.key), []).append((one.start, one.end))
        places = {key: self._places(part, spots) for key, part in different.items()}
        counts = Counter(part.key for part in self.parts)
        lost = {key for key, spans in places.items() if len(spans) != counts[key]}
        taken = Counter(place for spans in places.values() for span in spans for place in range(*span))
        if not lost and any(count > 1 for count in taken.values()):
            return set(places)  # one in the other: code and a number in it
        if not lost:
            free = {key: iter(spans) for key, spans in places.items()}
            spans = [(next(free[part.key]), part) for part in self.parts]
            self.fixed = {
                span: part.atom if part.exact else Atom(None, self.target[span[0] : span[1]]) for span, part in spans
            }
            self.copies = {span: (part.start, part.end) for span, part in spans}
        return lost

    def _places(self, part: Part, spots: "Mapping[tuple[bool, str], list[Span]]") -> list[Span]:
        """Return where the translation has what may be this part."""
        if part.atom.raw is not None:
            pattern = rf"(?<!\w){re.escape(part.atom.shown)}(?!\w)"
            return [match.span() for match in re.finditer(pattern, self.target)]
        return spots.get(part.key, [])

    def take_out(self, keys: "Collection[tuple[bool, str]]") -> None:
        """Take protected parts out of the text: they become atoms, to be placed in the translation."""
        markers, at = [(one.place, 0, one) for one in self.markers], 0
        tags = {one.place for one in self.markers if isinstance(one.piece, Tag)}
        out = [part for part in self.parts if part.key in keys]
        for part in out:
            before, after = _beside(self.text, part.start, part.end)
            # A tag between the blank and the part: the blank is outside of its element.
            beside = "" if part.start in tags else before, "" if part.end in tags else after
            markers.append((part.start, 1, Marker(part.atom, part.start, beside)))
        kept: list[tuple[int, str]] = []
        for one in [*out, None]:
            end = len(self.text) if one is None else one.start
            kept.append((at, self.text[at:end]))
            at = end if one is None else one.end
        text, moved = _squeezed(kept)
        markers.sort(key=lambda entry: entry[:2])
        self.markers = [replace(one, place=moved(place)) for place, _, one in markers]
        left = [part for part in self.parts if part.key not in keys]
        self.parts = [replace(part, start=moved(part.start), end=moved(part.end)) for part in left]
        self.text = self.target = text

    def clean(self) -> None:
        """Remove placeholders that the model has made up from the translation of a text without any."""
        self.target = without_exact_parts(self.target)


@dataclass
class Joined:
    """The sentences of a paragraph as one text."""

    text: str
    words: list[Span]
    markers: list[Marker]
    fixed: dict[Span, Atom]


@dataclass
class SplitSegment:
    """A segment in sentences."""

    segment: Segment
    sentences: list[Sentence]
    lead: str = ""  # blanks around the text
    trail: str = ""

    @property
    def needs_alignment(self) -> bool:
        """Whether a tag or an atom is between words."""
        return any(
            one.source_words and (number > 0 or marker.place > 0) and not self._at_end(number, marker)
            for number, one in enumerate(self.sentences)
            for marker in one.markers
        )

    def _at_end(self, number: int, marker: Marker) -> bool:
        return number == len(self.sentences) - 1 and marker.place >= len(self.sentences[-1].text)

    def joined_source(self) -> Joined:
        """Return the text that was translated, with its markers."""
        return _join([(one.text, one.source_words, one.markers, {}, one.gap) for one in self.sentences])

    def joined_target(self) -> Joined:
        """Return the translation."""
        return _join([(one.target, one.target_words, [], one.fixed, one.gap) for one in self.sentences])

    def blocks(self) -> list[Block]:
        """Return the words of each sentence and their alignment, which is guessed if the model has none."""
        found, before = list[Block](), (0, 0)
        for one in self.sentences:
            first, second = one.source_words, one.target_words
            rows = None if one.weights is None else list(one.weights)
            for at, span in enumerate(second):
                if rows is not None and span in one.fixed:  # a copy belongs to its source, whatever the model has read
                    rows[at] = [float(other == one.copies[span]) for other in first]
            found += blocks_of(_texts(one.text, first), _texts(one.target, second), rows, before)
            before = (before[0] + len(first), before[1] + len(second))
        return found

    def assembled(self, pieces: Sequence[Piece]) -> list[Piece]:
        """Return the pieces between the blanks of the source."""
        return [*([self.lead] if self.lead else []), *pieces, *([self.trail] if self.trail else [])]


def _texts(text: str, spans: Sequence[Span]) -> list[str]:
    return [text[start:end] for start, end in spans]


def _join(sides: Sequence[tuple[str, list[Span], list[Marker], dict[Span, Atom], str]]) -> Joined:
    joined, at = Joined("", [], [], {}), 0
    for text, spans, markers, fixed, gap in sides:
        joined.text += text + gap
        joined.words += [(start + at, end + at) for start, end in spans]
        joined.markers += [replace(one, place=one.place + at) for one in markers]
        joined.fixed |= {(start + at, end + at): atom for (start, end), atom in fixed.items()}
        at += len(text) + len(gap)
    return joined


def split_segment(segment: Segment, splitter: SentenceSplitter) -> SplitSegment:
    """Return a segment in sentences."""
    pieces = _without_empty_elements(segment.pieces)
    texts: list[tuple[Tag | Atom | None, str]] = []
    for piece in pieces:
        texts.append(
            (None, piece) if isinstance(piece, str) else (piece, piece.shown if isinstance(piece, Atom) else "")
        )
    return _in_sentences(segment, texts, splitter)


def _without_empty_elements(pieces: Sequence[Piece]) -> list[Piece]:
    """Return pieces in which an element without text is one atom."""
    found: list[Piece] = []
    for piece in pieces:
        found.append(piece)
        if isinstance(piece, Tag) and piece.kind == "close":
            at = len(found) - 2
            while at >= 0 and _is_empty(found[at]):
                at -= 1
            opening = found[at] if at >= 0 else None
            if isinstance(opening, Tag) and opening.kind == "open":
                found[at:] = [Atom("".join(one if isinstance(one, str) else str(one.raw) for one in found[at:]))]
    return found


def _is_empty(piece: Piece) -> bool:
    if isinstance(piece, str):
        return not piece.strip(BLANKS)
    return isinstance(piece, Atom) and piece.raw is not None and not piece.shown


def _in_sentences(
    segment: Segment, texts: Sequence[tuple[Tag | Atom | None, str]], splitter: SentenceSplitter
) -> SplitSegment:
    first, last = (texts[0][1], texts[-1][1]) if texts else ("", "")
    lead = first[: len(first) - len(first.lstrip(BLANKS))] if texts and texts[0][0] is None else ""
    trail = (
        last[len(last.rstrip(BLANKS)) :]
        if texts and texts[-1][0] is None and (len(texts) > 1 or last.strip(BLANKS))
        else ""
    )
    raw, places = "", list[tuple[int, int, Tag | Atom]]()
    for piece, text in texts:
        if piece is not None:
            places.append((len(raw), len(raw) + len(text), piece))
        raw += text
    text, moved = _squeezed([(0, raw)])
    parts, markers = list[Part](), list[Marker]()
    for start, end, piece in places:
        beside = _beside(raw, start, end)
        if isinstance(piece, Atom) and piece.shown:
            parts.append(Part(moved(start), moved(end), piece, True))
        else:
            markers.append(Marker(piece, moved(start), beside))
    edges = sorted({marker.place for marker in markers} | {edge for part in parts for edge in (part.start, part.end)})
    inside = {place for part in parts for place in range(part.start, part.end)}
    for one in protected(text):
        cut = bisect_right(edges, one.start) < bisect_left(edges, one.end)  # by a tag: each side is on its own
        if not cut and one.start not in inside:
            parts.append(Part(one.start, one.end, Atom(None, one.text), one.exact))
    parts.sort(key=lambda part: part.start)
    return SplitSegment(segment, _split(text, parts, markers, splitter), lead, trail)


def _split(text: str, parts: Sequence[Part], markers: Sequence[Marker], splitter: SentenceSplitter) -> list[Sentence]:
    spans: list[Span] = []
    for start, end in splitter.spans(text):
        if spans and any(part.start < start < part.end for part in parts):
            spans[-1] = (spans[-1][0], end)
        else:
            spans.append((start, end))
    sentences, starts, places = [], [part.start for part in parts], [one.place for one in markers]
    for number, (start, end) in enumerate(spans):
        last = number == len(spans) - 1
        following = len(text) if last else spans[number + 1][0]
        inside = [
            replace(part, start=part.start - start, end=part.end - start)
            for part in parts[bisect_left(starts, start) : bisect_left(starts, end)]
        ]
        # A tag between two sentences belongs to the side on which it is closed or opened.
        near = markers[0 if number == 0 else bisect_left(places, start) : bisect_right(places, following)]
        mine = [
            replace(one, place=min(max(0, one.place - start), end - start))
            for one in near
            if _belongs(one, start, following, number == 0, last)
        ]
        gap = "" if last else text[end:following] or splitter.between
        sentences.append(Sentence(text[start:end], inside, mine, gap))
    return sentences


def _belongs(one: Marker, start: int, following: int, first: bool, last: bool) -> bool:
    """Return whether a marker is in the sentence from `start`; the next one begins at `following`."""
    closes = isinstance(one.piece, Tag) and one.piece.kind == "close"
    low = one.place > start if closes else one.place >= start
    high = one.place <= following if closes else one.place < following
    return (low or first) and (high or last)


def _squeezed(kept: Sequence[tuple[int, str]]) -> "tuple[str, Callable[[int], int]]":
    """Return texts as one, with single blanks and none at the ends, and a function from old places to new ones.

    `kept` has the old place of each text.
    """
    found: list[str] = []
    places: list[int] = []  # the old place of each character
    for at, text in kept:
        for offset, char in enumerate(text):
            if char in BLANKS:
                if found and found[-1] != " ":
                    found.append(" ")
                    places.append(at + offset)
            else:
                found.append(char)
                places.append(at + offset)
    if found and found[-1] == " ":
        del found[-1], places[-1]
    return "".join(found), lambda place: bisect_left(places, place)


def _beside(text: str, start: int, end: int) -> tuple[str, str]:
    return text[start - 1] if start > 0 else "", text[end : end + 1]
