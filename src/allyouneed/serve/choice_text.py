"""The text of one choice, from the tokens of its rows.

A row decodes one piece of the prompt, and all pieces of a turn are decoded at once. Their texts are joined in order, so
tokens wait here until the pieces before theirs are complete.
"""

from abc import ABC, abstractmethod
from collections import defaultdict, deque
from collections.abc import Iterator, Sequence

from allyouneed.decode.running_batch import GeneratedToken
from allyouneed.serve.completion_schema import Finish
from allyouneed.serve.detokenizer import Detokenizer, TextPiece, TextStream, whole_text
from allyouneed.serve.encoded_prompt import EncodedPrompt
from allyouneed.serve.request_record import RequestRecord
from allyouneed.text.codec import Codec

TopTokens = list[tuple[int, float]]  # the most probable tokens and their log-probabilities


class ChoiceText(ABC):
    """The text of one choice, of at most `most` tokens."""

    def __init__(self, codec: Codec, prompt: EncodedPrompt, most: int | None, record: RequestRecord) -> None:
        self.finish: Finish | None = None  # why it is complete; None: it is not
        self._codec, self._gaps, self._left, self._record = codec, prompt.gaps, most, record
        self._piece = 0  # the number of the piece that is being joined
        self._arrived = defaultdict[int, deque[GeneratedToken]](deque)  # not joined yet, by piece
        self._is_cut = False  # a piece reached its maximum length

    def receive(self, piece: int, token: GeneratedToken) -> Iterator[list[TextPiece]]:
        """Add a token of a piece. Yield the final text of each token whose turn has come."""
        if self.finish is None:
            self._arrived[piece].append(token)
        while self.finish is None and self._arrived[self._piece]:
            yield self._join(self._arrived[self._piece].popleft())
        if self.finish is not None:
            self._arrived.clear()

    @abstractmethod
    def _join(self, token: GeneratedToken) -> list[TextPiece]:
        """Return the text that is final with the next token."""

    def _count(self, tokens: int) -> None:
        self._record.completion_tokens += tokens
        if self._left is not None:
            self._left -= tokens

    def _is_last(self, token: GeneratedToken) -> bool:
        """Return True if no token may follow this one."""
        return self._left == 0 or (token.end is not None and self._piece == len(self._gaps))

    def _finish_of(self, token: GeneratedToken) -> Finish:
        return "length" if self._left == 0 or self._is_cut or token.end == "length" else "stop"

    def _next_gap(self, token: GeneratedToken) -> str:
        """Continue with the next piece after the last token of this one, and return the text between them."""
        self._is_cut = self._is_cut or token.end == "length"
        del self._arrived[self._piece]
        self._piece += 1
        return self._gaps[self._piece - 1]


class StreamedChoice(ChoiceText):
    """A choice whose text is needed token by token. `context`: the ids before its first token."""

    def __init__(
        self,
        codec: Codec,
        prompt: EncodedPrompt,
        most: int | None,
        record: RequestRecord,
        context: Sequence[int] = (),
        stops: Sequence[str] = (),
    ) -> None:
        super().__init__(codec, prompt, most, record)
        self._text = TextStream(Detokenizer(codec, context), stops)

    def _join(self, token: GeneratedToken) -> list[TextPiece]:
        pieces, text = list[TextPiece](), self._text
        if token.end != "stop":
            self._count(1)
            pieces += text.push(token.token, token.logprob, with_token(token.token, token.logprob, token.top))
        if not text.stopped and self._is_last(token):
            pieces += text.finish()
            self.finish = self._finish_of(token)
        elif not text.stopped and token.end is not None:
            pieces += text.restart(Detokenizer(self._codec), self._next_gap(token))
        if text.stopped:
            self.finish = "stop"
        return pieces


class WholeChoice(ChoiceText):
    """A choice whose text is needed when its rows are done: only the last token of each row arrives."""

    _gap = ""  # before the piece that is being joined

    def _join(self, token: GeneratedToken) -> list[TextPiece]:
        ids = token.row.ids[:-1] if token.end == "stop" else token.row.ids
        ids = ids[: self._left]
        self._count(len(ids))
        text = self._gap + whole_text(self._codec, token.row.context, ids)
        if self._is_last(token):
            self.finish = self._finish_of(token)
        else:
            self._gap = self._next_gap(token)
        return [TextPiece(text)]


def with_token(token: int, logprob: float, top: TopTokens) -> TopTokens:
    """Return the alternatives including the chosen token, whatever its rank."""
    return top if any(token == other for other, _ in top) or not top else [*top, (token, logprob)]
