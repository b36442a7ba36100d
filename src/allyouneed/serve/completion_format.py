"""The parts of a completion, and their form in the responses of /v1/completions."""

import math
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from pydantic import BaseModel

from allyouneed.serve.completion_schema import (
    Choice,
    Completion,
    CompletionRequest,
    Finish,
    Logprobs,
    Unknown,
    UnknownCompletion,
    Usage,
)
from allyouneed.serve.detokenizer import TextPiece
from allyouneed.serve.slices import TimeSlice


@dataclass
class CompletionPart:
    """The next pieces of one choice. The last part of a choice has a `finish`."""

    index: int
    offset: int = 0  # characters of the choice before this part
    pieces: list[TextPiece] = field(default_factory=list)
    finish: Finish | None = None


class ResponseFormat(Protocol):
    """How parts become responses, or the events of a stream."""

    def response(self, parts: Sequence[CompletionPart], usage: Usage | None, unknown: Unknown | None) -> BaseModel:
        """Return the response for some parts."""

    async def dump_choice(self, part: CompletionPart, turn: TimeSlice) -> str:
        """Return one part as a member of `choices`, in JSON. Others have their turns meanwhile, however long it is."""


class CompletionFormat:
    """The format of /v1/completions."""

    def __init__(self, model: str, body: CompletionRequest) -> None:
        self._model, self._body = model, body
        self._id, self._created = f"cmpl-{secrets.token_hex(12)}", int(time.time())

    def response(self, parts: Sequence[CompletionPart], usage: Usage | None, unknown: Unknown | None) -> BaseModel:
        """Return the response for some parts."""
        completion = Completion(
            id=self._id,
            created=self._created,
            model=self._model,
            choices=[self.choice(part) for part in parts],
            usage=usage,
        )
        return completion if unknown is None else UnknownCompletion(**dict(completion), unknown=unknown)

    def choice(self, part: CompletionPart) -> Choice:
        """Return one part as a member of `choices`."""
        texts, offsets = [piece.text for piece in part.pieces], []
        offset = part.offset
        for text in texts:
            offsets.append(offset)
            offset += len(text)
        logprobs = None
        if self._body.logprobs is not None:
            top = [dict(piece.top) for piece in part.pieces] if self._body.logprobs else None
            values: list[float | None] = [None if math.isnan(one.logprob) else one.logprob for one in part.pieces]
            logprobs = Logprobs(tokens=texts, token_logprobs=values, top_logprobs=top, text_offset=offsets)
        return Choice(index=part.index, text="".join(texts), logprobs=logprobs, finish_reason=part.finish)

    async def dump_choice(self, part: CompletionPart, turn: TimeSlice) -> str:
        """Return one part as a member of `choices`, in JSON."""
        choice = self.choice(part)
        await turn.checkpoint()
        return choice.model_dump_json()
