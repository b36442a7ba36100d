"""Ids of long texts, encoded on all cores: a text is cut into pieces, where no token can cross the cut.

The library encodes a text on one core, and takes 150 times its size meanwhile. Its words for byte-level BPE and unigram
are those of GPT-2: a run of letters, of digits or of other marks, each with the blank before it; or white space. So a
word ends before a single blank, and before and after a single LF, if no other white space is beside them.
"""

import re
from collections.abc import Iterator, Sequence
from itertools import chain, islice

from allyouneed.text.tokenizer import Tokenizer

PIECE = 1 << 16  # characters, at least; the end of a text may be half a piece longer
_CUT = re.compile(r"(?<=\S)(?= \S)|(?<=\S\n)(?=\S)")


def encode_long(tokenizer: Tokenizer, texts: Sequence[str]) -> list[list[int]]:
    """Return the ids of each text."""
    if not tokenizer.ends_words_at_blanks:
        return tokenizer.encode_batch(texts)
    pieces = [list(cut(text)) for text in texts]
    ids = iter(tokenizer.encode_batch([piece for some in pieces for piece in some]))
    return [next(ids) if len(some) == 1 else list(chain.from_iterable(islice(ids, len(some)))) for some in pieces]


def cut(text: str) -> Iterator[str]:
    """Yield a text in pieces; joined, they are the text."""
    start = 0
    while len(text) - start > PIECE * 3 // 2 and (found := _CUT.search(text, start + PIECE)):
        yield text[start : found.start()]
        start = found.start()
    yield text[start:]
