"""Checks of a text before a model reads it."""

import re
from collections.abc import Iterator, Sequence

from allyouneed.errors import DataError
from allyouneed.text.codec import Codec
from allyouneed.text.specials import UNK
from allyouneed.text.tokenizer import Tokenizer

LONGEST = 4096  # tokens of a text that a model reads; memory and time grow with its square
SPELLED, SHORTEST_SPELLED = 1.5, 4  # bytes per token of a word that is spelled, and the fewest bytes of such a word


def require_short(
    tokenizer: Tokenizer | None, texts: Sequence[str], where: str, before: int = 0, most: int | None = None
) -> None:
    """Raise DataError if a text is too long for a model. `before`: lines of `where` that precede the texts.

    `most`: tokens that the model has positions for; None: no limit.
    """
    assert tokenizer is not None
    limit = LONGEST if most is None else min(most, LONGEST)
    for number, text in enumerate(texts, start=before + 1):
        long = tokenizer.surely_longer(text, limit)
        # No tokeniser makes more tokens than there are bytes, so most texts need not be encoded.
        if long or (len(text) > limit // 4 and len(tokenizer.encode(text)) > limit):
            which = f"{limit:,} tokens" if limit == LONGEST else f"{limit:,} tokens, for which the model has positions"
            raise DataError(f"{where}: line {number}: a text of more than {which}; cut it into pieces")


def room(codec: Codec, longest: int | None) -> int | None:
    """Return how many tokens a source may have beside its frame if a model has positions for `longest` ids."""
    if longest is None or codec.per_position:  # `require_known` checks those
        return None
    return max(0, longest - sum(map(len, codec.framing)))


def check_known(text: str, ids: Sequence[int], where: str) -> None:
    """Raise DataError if ids hold UNK: a model with a class for each token (a compiled program) has none for UNK."""
    if UNK in ids:
        what = f"has a token that is not in the model's vocabulary (its token {ids.index(UNK)})"
        raise DataError(f"{where}: {text!r} {what}")


def check_length(codec: Codec, ids: Sequence[int], longest: int | None, where: str) -> None:
    """Raise DataError if a text with a class for each token has more tokens than the model has positions."""
    frame = sum(map(len, codec.framing))
    if longest is not None and len(ids) > longest:
        count = len(ids) - frame
        raise DataError(
            f"{where}: {count:,} tokens; this model was made for at most {longest - frame:,}: shorten the text, "
            f"or compile the program again with --length {count}"
        )


def require_known(codec: Codec, texts: Sequence[str], where: str, before: int = 0, longest: int | None = None) -> None:
    """Check texts with `check_known` and `check_length` if each token has a class. `before`: as in `require_short`."""
    if codec.per_position:
        for number, text in enumerate(texts, start=before + 1):
            ids = codec.encode_source(text)
            check_known(text, ids, f"{where}: line {number}")
            check_length(codec, ids, longest, f"{where}: line {number}")


def unknown_words(tokenizer: Tokenizer, text: str) -> list[str]:
    """Return the words of a text that the vocabulary cannot represent, each once.

    A word between blanks is unknown if a part of it becomes UNK. Tokenisers of bytes have no UNK. There a word of
    letters is unknown if it is spelled: if its tokens have fewer than `SPELLED` bytes on average. Text of the domain
    has 0 to 0.5 % of such words with vocabularies of 4,000 and 10,000 tokens; number words read by a model of captions,
    or another language, have 2 to 50 %. Tokenisers of single letters and bytes spell everything, so they report
    characters that are UNK and nothing else.
    """
    spans = [span for span in tokenizer.spans(text) if span[1] < span[2]]
    found = {word: None for word, ids in _words(r"\S+", text, spans) if UNK in ids}
    if tokenizer.kind in ("bpe", "unigram"):
        for word, ids in _words(r"\w+", text, spans):
            size = len(word.encode("utf-8", "surrogatepass"))
            if SHORTEST_SPELLED <= size < SPELLED * len(ids) and UNK not in ids:
                found[word] = None
    return list(found)


def _words(pattern: str, text: str, spans: Sequence[tuple[int, int, int]]) -> Iterator[tuple[str, list[int]]]:
    """Yield the matches of a pattern, with the ids of the tokens that overlap each."""
    first = 0  # matches and tokens are both in the order of the text
    for match in re.finditer(pattern, text):
        while first < len(spans) and spans[first][2] <= match.start():
            first += 1
        behind = first
        while behind < len(spans) and spans[behind][1] < match.end():
            behind += 1
        yield match.group(), [token for token, _, _ in spans[first:behind]]
