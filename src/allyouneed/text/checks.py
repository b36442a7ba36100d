"""Checks of a text before a model reads it."""

from collections.abc import Sequence

from allyouneed.errors import DataError
from allyouneed.text.codec import Codec
from allyouneed.text.specials import UNK
from allyouneed.text.tokenizer import Tokenizer

LONGEST = 4096  # tokens of a text that a model reads; memory and time grow with its square


def require_short(tokenizer: Tokenizer | None, texts: Sequence[str], where: str, before: int = 0) -> None:
    """Raise DataError if a text is too long for a model. `before`: lines of `where` that precede the texts."""
    assert tokenizer is not None
    for number, text in enumerate(texts, start=before + 1):
        long = tokenizer.surely_longer(text, LONGEST)
        # No tokeniser makes more tokens than there are bytes, so most texts need not be encoded.
        if long or (len(text) > LONGEST // 4 and len(tokenizer.encode(text)) > LONGEST):
            raise DataError(f"{where}: line {number}: a text of more than {LONGEST:,} tokens; cut it into pieces")


def check_known(text: str, ids: Sequence[int], where: str) -> None:
    """Raise DataError if ids hold UNK: a model with a class for each token (a compiled program) has none for UNK."""
    if UNK in ids:
        what = f"has a token that is not in the model's vocabulary (its token {ids.index(UNK)})"
        raise DataError(f"{where}: {text!r} {what}")


def require_known(codec: Codec, texts: Sequence[str], where: str, before: int = 0) -> None:
    """Check texts with `check_known` if each token has a class. `before`: as in `require_short`."""
    if codec.per_position:
        for number, text in enumerate(texts, start=before + 1):
            check_known(text, codec.encode_source(text), f"{where}: line {number}")


def has_unknown(codec: Codec, text: str) -> bool:
    """Return whether the model reads a part of the text as UNK."""
    return UNK in codec.encode_source(text)
