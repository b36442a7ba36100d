"""Incremental detokenization. A character may need several tokens, and a stop text may end inside a token."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from allyouneed.text.codec import Codec
from allyouneed.text.specials import EOS, SPECIALS

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
LONGEST_CHARACTER = 4  # tokens: bytes of UTF-8


class Detokenizer:
    """Turns a stream of ids into text, in constant time per id: only the last few ids are decoded again."""

    def __init__(self, codec: Codec, prompt: Sequence[int] = ()) -> None:
        self._codec = codec
        self._ids = _context(prompt)
        self._text = codec.decode_target(self._ids)
        self._emitted = len(self._ids)

    def push(self, *tokens: int) -> str:
        """Return the text that more tokens add, or an empty text while a character is incomplete."""
        self._ids.extend(tokens)
        text = self._codec.decode_target(self._ids)
        if text.endswith(REPLACEMENT) and len(self._ids) - self._emitted < LONGEST_CHARACTER:
            return ""
        return self._emit(text)

    def rest(self) -> str:
        """Return the text that is left after the last token."""
        return self._emit(self._codec.decode_target(self._ids))

    def text_of(self, token: int) -> str:
        """Return the text that a token would add here."""
        if token == EOS:
            return SPECIALS[EOS]
        return self._codec.decode_target([*self._ids, token])[len(self._text) :]

    def _emit(self, text: str) -> str:
        new = text[len(self._text) :]
        self._ids = self._ids[self._emitted :] or self._ids  # the ids emitted last are the context of the next ones
        self._emitted, self._text = len(self._ids), self._codec.decode_target(self._ids)
        return new


def _context(prompt: Sequence[int]) -> list[int]:
    """Return the last ids of a prompt, after its last EOS: spaces depend on the tokens before them."""
    ids = list(prompt[-2 * LONGEST_CHARACTER :])
    return ids if EOS not in ids else ids[len(ids) - ids[::-1].index(EOS) :]


def whole_text(codec: Codec, prompt: Sequence[int], ids: Sequence[int]) -> str:
    """Return the text of all ids, the same as the concatenated output of a `Detokenizer`."""
    before = _context(prompt)
    text = codec.decode_target([*before, *ids])[len(codec.decode_target(before)) if before else 0 :]
    if REPLACEMENT not in text:
        return text
    # The text of invalid bytes depends on where the stream is cut.
    detokenizer = Detokenizer(codec, prompt)
    return "".join(map(detokenizer.push, ids)) + detokenizer.rest()


@dataclass(frozen=True)
class TextPiece:
    """The text that one token added."""

    text: str
    logprob: float = 0.0  # NaN: the token was read, not predicted
    top: tuple[tuple[str, float], ...] = ()


class TextStream:
    """The text of one completion as a stream of pieces. Text that may start a stop text is held back."""

    def __init__(self, detokenizer: Detokenizer, stops: Sequence[str] = ()) -> None:
        self._detokenizer, self._stops = detokenizer, stops
        self._held: list[TextPiece] = []
        self._gap = ""  # text before the next token that no token adds
        self.stopped = False

    def push(self, token: int, logprob: float, top: Sequence[tuple[int, float]]) -> list[TextPiece]:
        """Return the pieces that are final after one more token."""
        gap, self._gap = self._gap, ""
        names: dict[str, float] = {}
        for other, value in top:
            text = self._detokenizer.text_of(other)
            names.setdefault(text if other == EOS else gap + text, value)
        self._held.append(TextPiece(gap + self._detokenizer.push(token), logprob, tuple(names.items())))
        return self._release()

    def restart(self, detokenizer: Detokenizer, gap: str) -> list[TextPiece]:
        """Continue with another sequence of tokens after `gap`, and return the pieces that are final."""
        self._hold(self._detokenizer.rest())
        self._detokenizer = detokenizer
        self._gap += gap  # a sequence without tokens adds nothing but its gap
        return self._release()

    def finish(self) -> list[TextPiece]:
        """Return the pieces that are left after the last token."""
        self._hold(self._gap + self._detokenizer.rest())
        self._gap = ""
        released = self._release()
        if not self.stopped:
            released, self._held = [*released, *self._held], []
        return released

    def _hold(self, rest: str) -> None:
        """Add text that no further token adds."""
        if rest and self._held:
            self._held[-1] = replace(self._held[-1], text=self._held[-1].text + rest)
        elif rest:
            self._held.append(TextPiece(rest))

    def _release(self) -> list[TextPiece]:
        text = "".join(piece.text for piece in self._held)
        places = [place for place in (text.find(stop) for stop in self._stops) if place >= 0]
        if places:
            self.stopped = True
            return self._cut(min(places))
        final = len(text) - max((_overlap(text, stop) for stop in self._stops), default=0)
        released, length = [], 0
        while self._held and length + len(self._held[0].text) <= final:
            piece = self._held.pop(0)
            length += len(piece.text)
            released.append(piece)
        return released

    def _cut(self, length: int) -> list[TextPiece]:
        """Return the pieces before a stop text. The last one may be shortened."""
        held, self._held = self._held, []
        kept = []
        for piece in held:
            if length > 0:
                kept.append(replace(piece, text=piece.text[:length]))
            length -= len(piece.text)
        return kept


def _overlap(text: str, stop: str) -> int:
    """Return the length of the longest suffix of `text` that is a proper prefix of `stop`."""
    longest = min(len(text), len(stop) - 1)
    return next((size for size in range(longest, 0, -1) if text.endswith(stop[:size])), 0)
