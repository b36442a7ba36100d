"""Where tags and atoms go in a translation: by the alignment of its words with those of the source.

An element (a pair of tags) encloses source words. It gets the run of target words with the largest sum

    sum_j  p_j(element) - 1/2        p_j: the share of target word j's alignment inside the element

so that single wrong links do not stretch it. Elements stay nested, siblings do not overlap, and each has at least one
word as long as words are left. An atom between two source words goes where the words before it follow those of its left
side and precede those of its right side, near words counting most. Everything occurs exactly once, whatever the model
has generated.
"""

import math
import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, field
from itertools import accumulate

from allyouneed.documents.pieces import Atom, Piece, Tag

Span = tuple[int, int]
Matrix = Sequence[Sequence[float]]  # for each target word, its alignment with each source word
# Source words and target words of a sentence, and for each target word the sums of its alignment with the first source
# words: of none, of one, of two ...
Block = tuple[int, int, int, int, Matrix]
_CLOSING = frozenset(".,;:!?)]}»”’%。、，！？；：）")  # no blank precedes them
_OPENING = frozenset("([{«“‘¿¡（")  # no blank follows them
REACH, FARTHEST = 2.0, 12  # source words within which the neighbours of an atom count
LONGEST_GUESS = 100  # words that are aligned with each other without a model
# Scripts without blanks between words: each character is a word.
_SINGLE = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
_WORD = re.compile(rf"[{_SINGLE}]|[^\W{_SINGLE}]+(?:['’-][^\W{_SINGLE}]+)*|[^\w\s]")


def words(text: str, whole: Sequence[Span] = ()) -> list[Span]:
    """Return the words and the punctuation marks of a text. Each span of `whole` is one word."""
    found, place = list[Span](), 0
    for start, end in [*whole, (len(text), len(text))]:
        found += [match.span() for match in _WORD.finditer(text, place, start)]
        if start < end:
            found.append((start, end))
        place = max(place, end)
    return found


def blocks_of(
    source: Sequence[str], target: Sequence[str], weights: Matrix | None, before: tuple[int, int]
) -> list[Block]:
    """Return a sentence as blocks, after this many source and target words.

    Without weights the alignment is guessed. Then a long sentence becomes several blocks, of the same relative places.
    """
    count = 1 if weights is not None else 1 + max(len(source), len(target)) // LONGEST_GUESS
    found: list[Block] = []
    for number in range(count):
        (first, behind), (start, end) = (
            (number * len(side) // count, (number + 1) * len(side) // count) for side in (source, target)
        )
        rows = guessed(source[first:behind], target[start:end]) if weights is None else weights
        sums = [list(accumulate(row, initial=0.0)) for row in rows]
        found.append((before[0] + first, before[0] + behind, before[1] + start, before[1] + end, sums))
    return found


def guessed(source: Sequence[str], target: Sequence[str]) -> list[list[float]]:
    """Return an alignment without a model: equal words, otherwise the same relative place."""
    rows = []
    for at, word in enumerate(target):
        place = (at + 0.5) * len(source) / max(1, len(target)) - 0.5
        row = [
            math.exp(-abs(one - place)) * (20.0 if other.casefold() == word.casefold() else 1.0)
            for one, other in enumerate(source)
        ]
        total = sum(row) or 1.0
        rows.append([weight / total for weight in row])
    return rows


@dataclass
class Marker:
    """A tag or an atom at a place of the source text."""

    piece: Tag | Atom
    place: int  # characters of the source before it
    beside: tuple[str, str] = ("", "")  # the characters of the source before and after it


@dataclass(eq=False)
class _Element:
    tags: tuple[str | Tag, str | Tag]
    first: int  # source words
    behind: int
    beside: tuple[str, str]
    children: "list[_Element | _Void]" = field(default_factory=list)
    start: int = 0  # target words
    end: int = 0

    @property
    def word(self) -> int:
        """Source words before it."""
        return self.first


@dataclass(eq=False)
class _Void:
    marker: Marker
    word: int  # source words before it
    start: int = 0  # target words before it

    @property
    def beside(self) -> tuple[str, str]:
        """The characters of the source before and after it."""
        return self.marker.beside

    @property
    def end(self) -> int:
        """An atom has no words."""
        return self.start


@dataclass(frozen=True)
class Aligned:
    """A source and its translation in words, and the sentences in which they are aligned."""

    source: str
    source_words: Sequence[Span]
    target: str
    target_words: Sequence[Span]
    blocks: Sequence[Block]
    fixed: dict[Span, Atom] = field(default_factory=dict)  # atoms that the translation contains

    def shares(self, first: int, behind: int) -> Iterator[tuple[int, float, float]]:
        """Yield the target words of the sentences with these source words: the part of the alignment with these words
        and the part with all others."""
        start = bisect_right(self.blocks, first, key=lambda block: block[1])
        for from_, to, at, _, matrix in self.blocks[start:]:
            if from_ >= max(behind, first + 1):
                return
            low, high = max(0, first - from_), max(0, min(behind, to) - from_)
            for sums in matrix:
                inside = sums[high] - sums[low]
                yield at, inside, sums[-1] - inside
                at += 1

    def is_mark(self, side: str, word: Span) -> bool:
        """Return whether a word of the source or the target is a punctuation mark."""
        text = self.source if side == "source" else self.target
        return not any(map(str.isalnum, text[word[0] : word[1]]))


def place(markers: Sequence[Marker], aligned: Aligned) -> list[Piece]:
    """Return the translation as pieces, with each tag and atom in its place."""
    root = _tree(markers, aligned.source_words)
    root.end = len(aligned.target_words)
    pending = [root]
    while pending:
        element = pending.pop()
        inner = [child for child in element.children if isinstance(child, _Element)]
        filled = [child for child in inner if child.first < child.behind]
        _place_elements(element, filled, aligned)
        for child in element.children:
            if isinstance(child, _Void) or child.first == child.behind:
                _place_void(child, element, filled, aligned)
        pending += inner
    return _joined(_emit(root, aligned))


def _tree(markers: Sequence[Marker], source_words: Sequence[Span]) -> _Element:
    root = _Element(("", ""), 0, len(source_words), ("", ""))
    opened, ends = [root], [end for _, end in source_words]
    for marker in markers:
        before = bisect_right(ends, marker.place)
        if isinstance(marker.piece, Atom):
            opened[-1].children.append(_Void(marker, before))
        elif marker.piece.kind == "open":
            element = _Element((marker.piece, ""), before, before, marker.beside)
            opened[-1].children.append(element)
            opened.append(element)
        else:
            closed = opened.pop()
            closed.tags, closed.behind = (closed.tags[0], marker.piece), max(closed.first, before)
            closed.beside = (closed.beside[0], marker.beside[1])
    return root


def _place_elements(parent: _Element, elements: Sequence[_Element], aligned: Aligned) -> None:
    """Set the target words of elements, those with the most certain words first."""
    taken: set[int] = set()
    weights = {id(one): _weights(one, parent, aligned) for one in elements}
    for one in sorted(elements, key=lambda one: -max((weight for _, weight in weights[id(one)]), default=0.0)):
        if one.first <= parent.first and one.behind >= parent.behind and len(elements) == 1:
            one.start, one.end = parent.start, parent.end
            continue
        start, end = _best_run([(at, weight) for at, weight in weights[id(one)] if at not in taken], parent.end)
        one.start, one.end = _without_marks(one, start, end, aligned)
        taken.update(range(one.start, one.end))


def _weights(element: _Element, parent: _Element, aligned: Aligned) -> list[tuple[int, float]]:
    """Return the target words that may belong to an element, with their weights."""
    return [
        (at, 0.5 * (inside - outside))
        for at, inside, outside in aligned.shares(element.first, element.behind)
        if parent.start <= at < parent.end
    ]


def _best_run(weights: Sequence[tuple[int, float]], none: int) -> Span:
    """Return the run of consecutive words with the largest sum, at least one word; (`none`, `none`) without any."""
    best, found = -math.inf, (none, none)
    total, start, last = 0.0, 0, -2
    for at, weight in weights:
        if at != last + 1 or total <= 0.0:
            total, start = 0.0, at
        total, last = total + weight, at
        if total > best:
            best, found = total, (start, at + 1)
    return found


def _without_marks(element: _Element, start: int, end: int, aligned: Aligned) -> Span:
    """Leave out punctuation at an end of a run if the element of the source has none there."""
    source = aligned.source_words[element.first : element.behind]
    if source and not aligned.is_mark("source", source[-1]):
        while end - start > 1 and aligned.is_mark("target", aligned.target_words[end - 1]):
            end -= 1
    if source and not aligned.is_mark("source", source[0]):
        while end - start > 1 and aligned.is_mark("target", aligned.target_words[start]):
            start += 1
    return start, end


def _place_void(void: _Void | _Element, parent: _Element, elements: Sequence[_Element], aligned: Aligned) -> None:
    """Set the target words before an atom, or an element without words, outside of the elements beside it."""
    if void.word <= parent.first:
        void.start = parent.start
    elif void.word >= parent.behind:
        void.start = parent.end
    else:
        # It is not the end of the source, so it is before the marks at the end of the translation.
        end = parent.end
        while end > parent.start and aligned.is_mark("target", aligned.target_words[end - 1]):
            end -= 1
        void.start = min(_gap_for(void.word, parent, aligned), max(end, parent.start))
    for one in elements:
        if one.start < void.start < one.end:
            left = void.start - one.start < one.end - void.start
            void.start = one.start if left else one.end
    if isinstance(void, _Element):
        void.end = void.start


def _gap_for(word: int, parent: _Element, aligned: Aligned) -> int:
    """Return how many target words precede an atom after this many source words."""
    found, best, total = parent.start, 0.0, 0.0
    start = bisect_right(aligned.blocks, word - 1, key=lambda block: block[1])
    for from_, to, first, _, matrix in aligned.blocks[start : start + 2]:
        if from_ > word:
            break
        near = range(max(from_, word - FARTHEST), min(to, word + FARTHEST))
        close = [math.exp(-abs(one + 0.5 - word) / REACH) * (1 if one < word else -1) for one in near]
        for at, sums in enumerate(matrix, start=first):
            if not parent.start <= at < parent.end:
                continue
            found = at if total == best == 0.0 and at > found else found
            row = [sums[one - from_ + 1] - sums[one - from_] for one in near]
            total += sum(weight * sign for weight, sign in zip(row, close, strict=True))
            if total > best:
                best, found = total, at + 1
    return found


def _emit(root: _Element, aligned: Aligned) -> list[Piece]:
    """Return the pieces of the translation. Blanks between words are outside of the elements that end there."""
    pieces: list[Piece] = []
    gaps = _gaps(aligned)

    def emit(element: _Element) -> None:
        def position(child: _Element | _Void) -> tuple[int, int]:
            # What is empty comes before an element that starts at the same word, in the order of the source.
            return child.start, int(child.start < child.end)

        at, gap_done = element.start, True  # the blanks before the first word are outside

        def advance(to: int) -> None:
            nonlocal at, gap_done
            while at < to:
                if not gap_done:
                    pieces.append(gaps[at])
                pieces.append(_word(aligned, at))
                at, gap_done = at + 1, False

        for child in sorted(element.children, key=position):
            advance(child.start)
            gap = gaps[at] if element.start < at < element.end and not gap_done else ""
            filled, separate = child.start < child.end, True
            if filled:
                pieces.append(gap)
            else:
                after_word = at > element.start and not gap_done
                separate = _is_apart(child.beside[0], _last(pieces), _OPENING) and (after_word or _last(pieces) == "\0")
                pieces.append((gap or " ") if separate else "")
            if isinstance(child, _Void):
                pieces.append(child.marker.piece)
            else:
                pieces.append(child.tags[0])
                emit(child)
                pieces.append(child.tags[1])
            if not filled and at < element.end and _is_apart(child.beside[1], _first(aligned, at), _CLOSING):
                pieces.append(" ")
            elif not filled and not separate:
                pieces.append(gap)
            at, gap_done = child.end, not filled
        advance(element.end)

    emit(root)
    return [*([gaps[0]] if gaps[0] else []), *pieces, gaps[-1]]


def _is_apart(source: str, target: str, glued: Set[str]) -> bool:
    """Return whether a blank separates an atom from its neighbour: by the characters beside it in both texts."""
    if source.isspace():
        return target not in glued
    return bool(source) and not source.isalnum() and target.isalnum()  # a mark was between the atom and a word


def _last(pieces: Sequence[Piece]) -> str:
    """Return the last character of pieces; NUL for a tag or an atom."""
    last = next((piece for piece in reversed(pieces) if piece != ""), "")
    return last[-1:] if isinstance(last, str) else "\0"


def _first(aligned: Aligned, at: int) -> str:
    """Return the first character of a target word."""
    return aligned.target[aligned.target_words[at][0]]


def _gaps(aligned: Aligned) -> list[str]:
    ends = [0, *(end for _, end in aligned.target_words)]
    starts = [*(start for start, _ in aligned.target_words), len(aligned.target)]
    return [aligned.target[end:start] for end, start in zip(ends, starts, strict=True)]


def _word(aligned: Aligned, at: int) -> Piece:
    span = aligned.target_words[at]
    return aligned.fixed.get(span) or aligned.target[span[0] : span[1]]


def _joined(pieces: Sequence[Piece]) -> list[Piece]:
    """Return pieces with neighbouring texts joined, and without empty ones."""
    found: list[Piece] = []
    for piece in pieces:
        if isinstance(piece, str) and found and isinstance(found[-1], str):
            found[-1] += piece
        elif piece != "":
            found.append(piece)
    return found
