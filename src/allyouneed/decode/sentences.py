"""Translation of texts in pieces: sentence by sentence, or a few sentences at a time."""

from collections.abc import Callable, Sequence

from allyouneed.decode.translate import Answer
from allyouneed.text.sentences import SentenceSplitter, Split

Translate = Callable[[list[str]], list[list[Answer]]]


def in_pieces(splitter: SentenceSplitter, translate: Translate, n_best: int) -> Translate:
    """Return `translate` with each text split into pieces, which are translated at once and joined."""

    def translate_pieces(texts: list[str]) -> list[list[Answer]]:
        splits = [splitter.split(text) for text in texts]
        return join_answers(splits, translate([piece for split in splits for piece in split.pieces]), n_best)

    return translate_pieces


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
        )
        for chosen in best
    ]
