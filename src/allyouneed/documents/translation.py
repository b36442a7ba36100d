"""Translation of a document: sentence by sentence, with tags, placeholders, addresses and numbers in their places.

    translation = translate_document(document, splitter)
    request = next(translation)            # texts to translate, or pairs to align
    request = translation.send(results)    # until StopIteration, whose value is the Result

The generator does no work of a model itself, so commands and the server use the same code.

1. Each sentence is translated with its protected parts in it. They are kept if the translation contains exactly them.
2. Otherwise it is translated without those that were lost, and if more are lost, without any. What was taken out is
   placed as an atom (`placement`).
3. Sentences with tags or atoms inside are aligned, and the segment is put together.

At the end the markup and the placeholders of each segment are compared with its source. What differs is repaired by
removing special characters from the translation. If that fails, the segment stays as it was, and the result names it.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field

from allyouneed.documents.pieces import Document, Piece, Segment, matching_tags
from allyouneed.documents.placement import Aligned, Matrix, place
from allyouneed.documents.protect import exact_parts, stray_signs, without_signs
from allyouneed.documents.sentence import Sentence, SplitSegment, split_segment
from allyouneed.text.output_checks import EXPLAINED, Doubt, doubts_of
from allyouneed.text.sentences import SentenceSplitter

Span = tuple[int, int]


@dataclass(frozen=True)
class Texts:
    """A request to translate texts. The response is a list of translations."""

    texts: list[str]


@dataclass(frozen=True)
class Pair:
    """A text and its translation, with the words of both."""

    source: str
    source_words: list[Span]
    target: str
    target_words: list[Span]


@dataclass(frozen=True)
class Pairs:
    """A request to align translations. The response has a matrix for each, or None if the model has no alignment."""

    pairs: list[Pair]


Request = Texts | Pairs
Response = Sequence[str] | Sequence[Matrix | None]


@dataclass
class Result:
    """A translated document."""

    segments: list[str]  # rendered
    kept: list[str] = field(default_factory=list)  # places of segments that could not be translated
    doubts: list[tuple[str, Doubt]] = field(default_factory=list)  # places of translations that may be wrong
    sentences: int = 0

    def warnings(self) -> list[str]:
        """Return why the translation may be wrong, each reason once."""
        reasons = {doubt for _, doubt in self.doubts}
        kept = ["a part could not be translated without losing tags or placeholders"] if self.kept else []
        return [*kept, *(text for doubt, text in EXPLAINED.items() if doubt in reasons)]


def translate_document(
    document: Document, splitter: SentenceSplitter, check: bool = True
) -> Generator[Request, Response, Result]:
    """Translate the segments of a document. `check`: look for translations that may be wrong."""
    paragraphs = [split_segment(segment, splitter) for segment in document.segments]
    sentences = [sentence for one in paragraphs for sentence in one.sentences]
    wordy = [sentence for sentence in sentences if sentence.has_words]
    count, again = len(wordy), sentences
    for step in ("whole", "without lost parts", "without parts"):
        found = yield Texts([sentence.text for sentence in wordy])
        _set_targets(wordy, found)
        lost = [(sentence, sentence.lost_parts()) for sentence in again if sentence.parts]
        again = [sentence for sentence, keys in lost if keys is None or keys]
        for sentence, keys in lost:
            if keys is None or keys:
                every = [part.key for part in sentence.parts]
                sentence.take_out(every if keys is None or step != "whole" else keys)
        wordy = [sentence for sentence in again if sentence.has_words]
    for sentence in sentences:
        if not sentence.parts:
            sentence.clean()
    aligned = [sentence for one in paragraphs if one.needs_alignment for sentence in one.sentences]
    pairs = [Pair(one.text, one.source_words, one.target, one.target_words) for one in aligned]
    weights = yield Pairs(pairs)
    for sentence, matrix in zip(aligned, weights, strict=True):
        assert not isinstance(matrix, str)
        sentence.weights = matrix
    result = Result([], sentences=count)
    for one in paragraphs:
        _add(one, result, check)
    return result


def _set_targets(sentences: Sequence[Sentence], found: Response) -> None:
    for sentence, target in zip(sentences, found, strict=True):
        assert isinstance(target, str)
        # A sentence without a translation stays as it is; `shown_target` is empty, which is a doubt.
        sentence.target, sentence.is_empty = _readable(target) or sentence.text, not _readable(target)


def _readable(text: str) -> str:
    """Return generated text on one line, without characters that no document may contain."""
    text = "".join(
        " " if char.isspace() else char
        for char in text
        if char.isspace() or unicodedata.category(char) not in ("Cc", "Cs", "Cn", "Co")
    )
    return " ".join(text.split(" ")).strip()


def _add(one: SplitSegment, result: Result, check: bool) -> None:
    """Add the rendered translation of a paragraph to the result."""
    segment = one.segment
    if not any(sentence.has_words for sentence in one.sentences):
        result.segments.append(segment.original())
        return
    markers = [marker.piece for sentence in one.sentences for marker in sentence.markers]
    pieces = _placed(one) if matching_tags(markers) is not None else []
    for attempt in map(one.assembled, (pieces, _single_blanks(_plainer(pieces)))):
        rendered = segment.render(attempt)
        if _same_parts(segment, attempt) and segment.accepts(rendered):
            result.segments.append(rendered)
            break
    else:
        result.segments.append(segment.original())
        result.kept.append(segment.where)
        return
    if check:
        for sentence in one.sentences:
            doubts = doubts_of(sentence.original, sentence.shown_target)
            result.doubts += [(segment.where, doubt) for doubt in doubts]
            if sentence.is_empty and "short" not in doubts:
                result.doubts.append((segment.where, "short"))


def _placed(one: SplitSegment) -> list[Piece]:
    """Return the translation of all sentences of a paragraph as pieces."""
    source, target = one.joined_source(), one.joined_target()
    blocks = one.blocks() if source.markers else []
    aligned = Aligned(source.text, source.words, target.text, target.words, blocks, target.fixed)
    return place(source.markers, aligned)


def _plain(pieces: Sequence[Piece]) -> str:
    """Return the text of pieces. Markup separates texts."""
    text = "".join(
        piece if isinstance(piece, str) else "\0" if piece.raw is not None else piece.shown for piece in pieces
    )
    return " ".join(text.split())


def _same_parts(segment: Segment, pieces: Sequence[Piece]) -> bool:
    """Return whether a translation has the tags, atoms and exact parts of its source."""
    if matching_tags(pieces) is None or _markup(segment.pieces) != _markup(pieces):
        return False
    source, target = _plain(segment.pieces), _plain(pieces)
    # Stray signs, such as a single brace, are no placeholders themselves, but break the format of a message.
    return exact_parts(source) == exact_parts(target) and stray_signs(target) <= stray_signs(source)


def _markup(pieces: Sequence[Piece]) -> "Counter[str]":
    """Return the characters of all tags and atoms: an element without text is one atom in a translation."""
    return Counter(char for one in pieces if not isinstance(one, str) for char in one.raw or "" if not char.isspace())


def _plainer(pieces: Sequence[Piece]) -> list[Piece]:
    """Return pieces whose texts cannot be taken for markup or placeholders, with blanks around copied parts."""
    found: list[Piece] = []
    for piece in pieces:
        if isinstance(piece, str):
            text = without_signs("".join(char for char in piece if char not in "<>|`*_[]~#"))
            found.append(text if text.strip() or not piece.strip() else " ")
        elif piece.raw is None:
            found += [*([" "] if found and _ends_blank(found[-1]) else []), piece, " "]
        else:
            found.append(piece)
    return found


def _single_blanks(pieces: Sequence[Piece]) -> list[Piece]:
    """Return pieces without blanks at the ends, and without two blanks in a row inside of a text."""
    found = [" ".join(re.split(" +", piece)) if isinstance(piece, str) else piece for piece in pieces]
    if found and isinstance(found[0], str):
        found[0] = found[0].lstrip()
    if found and isinstance(found[-1], str):
        found[-1] = found[-1].rstrip()
    return [piece for piece in found if piece != ""]


def _ends_blank(piece: Piece) -> bool:
    return not isinstance(piece, str) or not piece[-1:].isspace()
