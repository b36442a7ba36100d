"""Translation of texts in pieces: sentence by sentence, or a few sentences at a time."""

from collections.abc import Sequence
from typing import Protocol

from allyouneed.decode.align import Span, align, links, word_spans
from allyouneed.decode.translate import Answer
from allyouneed.models import Model
from allyouneed.text.codec import Codec
from allyouneed.text.sentences import SentenceSplitter, Split


class Translate(Protocol):
    """A function from texts to the best answers for each."""

    def __call__(self, texts: list[str], prefixes: Sequence[str] = (), /) -> list[list[Answer]]:
        """Return the answers. They begin with `prefixes`, one for each text, if there are any."""


def in_pieces(splitter: SentenceSplitter, translate: Translate, n_best: int) -> Translate:
    """Return `translate` with each text split into pieces, which are translated at once and joined."""

    def translate_pieces(texts: list[str], prefixes: Sequence[str] = ()) -> list[list[Answer]]:
        splits = [splitter.split(text) for text in texts]
        pieces = [piece for split in splits for piece in split.pieces]
        return join_answers(splits, translate(pieces, first_prefixes(splits, prefixes)), n_best)

    return translate_pieces


def first_prefixes(splits: Sequence[Split], prefixes: Sequence[str]) -> list[str]:
    """Return a prefix for each piece: that of its text for the first one, and none for the others."""
    if not any(prefixes):
        return []
    pairs = zip(splits, prefixes, strict=True)
    return [prefix if place == 0 else "" for split, prefix in pairs for place in range(len(split.pieces))]


def join_answers(splits: Sequence[Split], answers: Sequence[list[Answer]], n_best: int) -> list[list[Answer]]:
    """Return the `n_best` answers of each text from those of all pieces, in order."""
    joined, start = [], 0
    for split in splits:
        end = start + len(split.pieces)
        joined.append(_joined(split, answers[start:end], n_best))
        start = end
    return joined


def _joined(split: Split, pieces: Sequence[list[Answer]], n_best: int) -> list[Answer]:
    """Return the best combinations of the answers for the pieces of one text.

    Pieces are independent: log-probabilities add up. The score is the mean of the pieces' scores, so that it stays
    comparable with that of a text in one piece.
    """
    if len(pieces) == 1:
        return pieces[0]
    best: list[tuple[Answer, ...]] = [()]
    for ranked in pieces:  # the best combinations of all pieces consist of the best ones of the first pieces
        longer = [(*chosen, answer) for chosen in best for answer in ranked]
        best = sorted(longer, key=lambda chosen: -sum(answer.score for answer in chosen))[:n_best]
    return [
        Answer(
            split.join([answer.text for answer in chosen]),
            sum(answer.score for answer in chosen) / len(chosen),
            sum(answer.logprob for answer in chosen),
            sum(answer.tokens for answer in chosen),
            tuple(answer.text for answer in chosen),
            all(answer.finished for answer in chosen),
        )
        for chosen in best
    ]


def align_pieces(
    model: Model, codec: Codec, splitter: SentenceSplitter, source: str, answer: Answer
) -> list[tuple[int, int]]:
    """Return the linked words (source, target) of a text and its translation, aligned piece by piece."""
    sources, targets = splitter.split(source).pieces, answer.pieces or (answer.text,)
    if len(sources) != len(targets):
        sources, targets = (source,), (answer.text,)
    ours, theirs = _words_of(source, sources), _words_of(answer.text, targets)
    items = [
        (text, [span for _, span in left], output, [span for _, span in right])
        for text, left, output, right in zip(sources, ours, targets, theirs, strict=True)
    ]
    found: set[tuple[int, int]] = set()
    for weights_JI, left, right in zip(align(model, codec, items), ours, theirs, strict=True):
        found |= {(left[i][0], right[j][0]) for i, j in links(weights_JI)}
    return sorted(found)


def _words_of(text: str, pieces: Sequence[str]) -> list[list[tuple[int, Span]]]:
    """Return for each piece of a text its words: the number of each in the text, and its place in the piece."""
    spans, found, at, first = word_spans(text), list[list[tuple[int, Span]]](), 0, 0
    for piece in pieces:
        start = text.index(piece, at)
        at = start + len(piece)
        while first < len(spans) and spans[first][1] <= start:
            first += 1
        inside, number = list[tuple[int, Span]](), first
        while number < len(spans) and spans[number][0] < at:
            low, high = max(start, spans[number][0]), min(at, spans[number][1])
            inside.append((number, (low - start, high - start)))
            number += 1
        found.append(inside)
    return found
