"""From tokens to text, piece by piece: a character may need several tokens, and a text may have to stop inside one."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from allyouneed.text.codec import Codec
from allyouneed.text.specials import EOS
from allyouneed.text.tokenizer import SPECIALS

BROKEN = "\N{REPLACEMENT CHARACTER}"
LONGEST_CHARACTER = 4  # tokens: bytes of UTF-8


class Detokenizer:
    """The text of ids as it becomes certain, in constant time for each: only the last few are decoded again."""

    def __init__(self, codec: Codec, prompt: Sequence[int] = ()) -> None:
        self._codec = codec
        self._ids = _just_before(prompt)
        self._known = codec.decode_target(self._ids)
        self._told = len(self._ids)

    def push(self, *tokens: int) -> str:
        """What more tokens add; nothing, while a character is not complete."""
        self._ids.extend(tokens)
        text = self._codec.decode_target(self._ids)
        if text.endswith(BROKEN) and len(self._ids) - self._told < LONGEST_CHARACTER:
            return ""
        return self._tell(text)

    def rest(self) -> str:
        """What is left when no more tokens come."""
        return self._tell(self._codec.decode_target(self._ids))

    def name(self, token: int) -> str:
        """What a token would add here."""
        if token == EOS:
            return SPECIALS[EOS]
        return self._codec.decode_target([*self._ids, token])[len(self._known) :]

    def _tell(self, text: str) -> str:
        piece = text[len(self._known) :]
        self._ids = self._ids[self._told :] or self._ids  # what was told last stands before what comes
        self._told, self._known = len(self._ids), self._codec.decode_target(self._ids)
        return piece


def _just_before(prompt: Sequence[int]) -> list[int]:
    """What stands before decides about blanks."""
    return list(prompt[-2 * LONGEST_CHARACTER :])


def whole_text(codec: Codec, prompt: Sequence[int], ids: Sequence[int]) -> str:
    """The text of all ids, as it would be told piece by piece."""
    before = _just_before(prompt)
    text = codec.decode_target([*before, *ids])[len(codec.decode_target(before)) if before else 0 :]
    if BROKEN not in text:
        return text
    # Bytes that are no character: what becomes of them depends on when they are told.
    detokenizer = Detokenizer(codec, prompt)
    return "".join(map(detokenizer.push, ids)) + detokenizer.rest()


@dataclass(frozen=True)
class Piece:
    """What one token added to a text."""

    text: str
    logprob: float = 0.0
    top: tuple[tuple[str, float], ...] = ()


class Writer:
    """The text of one answer, in pieces that can be sent: what may be the beginning of a stop text is held back."""

    def __init__(self, detokenizer: Detokenizer, stops: Sequence[str] = ()) -> None:
        self._detokenizer, self._stops = detokenizer, stops
        self._held: list[Piece] = []
        self.stopped = False

    def push(self, token: int, logprob: float, top: Sequence[tuple[int, float]]) -> list[Piece]:
        """The pieces that are certain after one more token."""
        names: dict[str, float] = {}
        for other, value in top:
            names.setdefault(self._detokenizer.name(other), value)
        self._held.append(Piece(self._detokenizer.push(token), logprob, tuple(names.items())))
        return self._release()

    def finish(self) -> list[Piece]:
        """The pieces that are left when no more tokens come."""
        rest = self._detokenizer.rest()
        if rest and self._held:
            self._held[-1] = replace(self._held[-1], text=self._held[-1].text + rest)
        elif rest:
            self._held.append(Piece(rest))
        found = self._release()
        if not self.stopped:
            found, self._held = [*found, *self._held], []
        return found

    def _release(self) -> list[Piece]:
        text = "".join(piece.text for piece in self._held)
        places = [place for place in (text.find(stop) for stop in self._stops) if place >= 0]
        if places:
            self.stopped = True
            return self._cut(min(places))
        certain = len(text) - max((_overlap(text, stop) for stop in self._stops), default=0)
        found, reached = [], 0
        while self._held and reached + len(self._held[0].text) <= certain:
            piece = self._held.pop(0)
            reached += len(piece.text)
            found.append(piece)
        return found

    def _cut(self, length: int) -> list[Piece]:
        """What stands before a stop text; the last piece may lose its end."""
        held, self._held = self._held, []
        found = []
        for piece in held:
            if length > 0:
                found.append(replace(piece, text=piece.text[:length]))
            length -= len(piece.text)
        return found


def _overlap(text: str, stop: str) -> int:
    """How many characters at the end of a text may be the beginning of a stop text."""
    longest = min(len(text), len(stop) - 1)
    return next((size for size in range(longest, 0, -1) if text.endswith(stop[:size])), 0)
