"""OpenAI's endpoint /v1/chat/completions.

A language model with a chat template reads the conversation as its template writes it; without one, as plain turns:

    System: Be brief.
    User: Hello!
    Assistant:

The answer then ends where the model would start the next turn of the user. A model with a source reads the last message
of the user as its source, and nothing else.
"""

import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import APIRouter, Request
from pydantic import BaseModel
from starlette.responses import Response

from allyouneed.errors import DataError
from allyouneed.serve.backend import Backend
from allyouneed.serve.chat_schema import (
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatCompletion,
    ChatDelta,
    ChatLogprobs,
    ChatMessage,
    ChatRequest,
    ChatTokenLogprob,
    FirstChatDelta,
    TokenLogprob,
    UnknownChatChunk,
    UnknownChatCompletion,
)
from allyouneed.serve.completion_format import CompletionPart
from allyouneed.serve.completion_schema import CompletionRequest, Unknown, Usage
from allyouneed.serve.completion_task import CompletionTask
from allyouneed.serve.completions import respond
from allyouneed.serve.detokenizer import TextPiece
from allyouneed.serve.encoded_prompt import EncodedPrompt, encode_sources
from allyouneed.serve.errors import Refusal, error_responses
from allyouneed.serve.models import Served
from allyouneed.serve.request_record import current_record
from allyouneed.serve.slices import TimeSlice
from allyouneed.serve.unknown import unknown_words_of
from allyouneed.text.chat_template import plain_turns
from allyouneed.text.specials import BOS

NEXT_TURN = "\nUser:"  # ends an answer of a model without a template


def router(backend: Backend) -> APIRouter:
    """Return `/v1/chat/completions`."""
    router = APIRouter(prefix="/v1", tags=["OpenAI"])

    @router.post(
        "/chat/completions",
        response_model=ChatCompletion | UnknownChatCompletion,
        responses={
            200: {"description": "The answer, or a stream of its parts", "content": {"text/event-stream": {}}},
            **error_responses(400, 401, 404, 408, 413, 429, 500, 503),
        },
    )
    async def chat(request: Request, body: ChatRequest) -> Response:
        """Answer the last message of a conversation."""
        return await respond(request, await _prepare(backend, backend.served(body.model), body))

    return router


class ChatFormat:
    """The format of /v1/chat/completions. `plain`: the model writes a blank before an answer."""

    def __init__(self, model: str, body: ChatRequest, plain: bool) -> None:
        self._body, self._plain = body, plain
        self._started: set[int] = set()  # choices whose first part was sent
        self._common: dict[str, Any] = {"model": model, "created": int(time.time())}
        self._common["id"] = f"chatcmpl-{secrets.token_hex(12)}"

    def response(self, parts: Sequence[CompletionPart], usage: Usage | None, unknown: Unknown | None) -> BaseModel:
        """Return the response for some parts."""
        more: dict[str, Any] = {"choices": [self.choice(part) for part in parts], "usage": usage}
        if self._body.stream:
            if unknown is None:
                return ChatChunk(**self._common, **more)
            return UnknownChatChunk(**self._common, **more, unknown=unknown)
        if unknown is None:
            return ChatCompletion(**self._common, **more)
        return UnknownChatCompletion(**self._common, **more, unknown=unknown)

    async def dump_choice(self, part: CompletionPart, turn: TimeSlice) -> str:
        """Return one part as a member of `choices`, in JSON, token by token if it has log-probabilities."""
        if not self._body.logprobs:
            return self.choice(part).model_dump_json()
        tokens, empty = [], '"content":[]'
        for piece in part.pieces:
            tokens.append(self._token(piece).model_dump_json())
            await turn.checkpoint()
        choice = self.choice(part, ChatLogprobs(content=[])).model_dump_json()
        before, _, after = choice.partition(empty)  # texts have no unescaped quotation marks
        return "".join((before, empty[:-1], ",".join(tokens), "]", after))

    def choice(self, part: CompletionPart, logprobs: ChatLogprobs | None = None) -> ChatChoice | ChatChunkChoice:
        """Return one part as a member of `choices`."""
        text = "".join(piece.text for piece in part.pieces)
        if self._plain and not part.offset:
            text = text.removeprefix(" ")
        if self._body.logprobs and logprobs is None:
            logprobs = ChatLogprobs(content=[self._token(piece) for piece in part.pieces])
        if not self._body.stream:
            message = ChatMessage(content=text)
            return ChatChoice(index=part.index, message=message, logprobs=logprobs, finish_reason=part.finish)
        delta = ChatDelta(content=text) if part.index in self._started else FirstChatDelta(content=text)
        self._started.add(part.index)
        return ChatChunkChoice(index=part.index, delta=delta, logprobs=logprobs, finish_reason=part.finish)

    def _token(self, piece: TextPiece) -> ChatTokenLogprob:
        top = [
            TokenLogprob(token=text, logprob=logprob, bytes=list(text.encode()))
            for text, logprob in piece.top[: self._body.top_logprobs or 0]
        ]
        encoded = list(piece.text.encode())
        return ChatTokenLogprob(token=piece.text, logprob=piece.logprob, bytes=encoded, top_logprobs=top)


async def _prepare(backend: Backend, served: Served, body: ChatRequest) -> CompletionTask:
    """Check the request, then convert its messages to ids."""
    config, (name, most) = backend.config, body.most
    for field, value, bound in (
        ("n", body.n or 1, config.max_n),
        (name, most or 0, config.max_tokens),
        ("top_logprobs", body.top_logprobs or 0, config.max_logprobs),
    ):
        if value > bound:
            raise Refusal(400, f"{field}: {value} is more than {bound}", param=field)
    backend.check_texts(["\n".join(message.text for message in body.messages)], "messages")
    if not served.generates_text and body.logprobs:
        message = f"logprobs: {served.name} is a classifier; use /score for the probabilities of its classes"
        raise Refusal(400, message, param="logprobs")
    backend.engine_of(served).require_capacity(body.n or 1, "n")
    plain = not served.takes_source and served.bundle.codec.chat is None
    settings = body.model_dump(include=set(CompletionRequest.model_fields) - {"logprobs", "stream_options"})
    settings |= {"stream_options": body.stream_options, "stop": [*body.stops, *([NEXT_TURN] if plain else [])]}
    settings["max_tokens"] = config.max_tokens if most is None and not served.takes_source else most
    settings["logprobs"] = (body.top_logprobs or 0) if body.logprobs else None
    if served.takes_source:
        source = next((message.text for message in reversed(body.messages) if message.role == "user"), None)
        if not source:
            raise Refusal(400, "messages: no message of a user, which would be the source", param="messages")
        prompts = await encode_sources(backend, served, [source], "messages")
        (words,) = await unknown_words_of(backend, [(served, source)])
        completion = CompletionRequest.model_construct(**settings, prompt=source)
        return CompletionTask(backend, served, completion, prompts, words or None, ChatFormat(served.name, body, plain))
    messages = [{"role": message.role, "content": message.text} for message in body.messages]
    completion = CompletionRequest.model_construct(**settings, prompt="")
    if plain:
        (ids,) = await backend.encode_targets(served, ["".join(plain_turns(messages))], "messages")
    else:
        ids = await _encode(backend, served, messages)
    prompt, chat_format = EncodedPrompt([ids]), ChatFormat(served.name, body, plain)
    return CompletionTask(backend, served, completion, [prompt], None, chat_format, has_first=not plain)


async def _encode(backend: Backend, served: Served, messages: Sequence[Mapping[str, str]]) -> list[int]:
    """Return the ids of a conversation by the template of the model, with the first one that it reads."""
    template, tokenizer = served.bundle.codec.chat, served.bundle.codec.target
    assert template is not None
    assert tokenizer is not None
    try:
        ids = await backend.in_thread(template.encode, tokenizer, messages)
    except DataError as error:
        raise Refusal(400, f"messages: {error}", param="messages") from None
    if len(ids) > backend.config.max_input_tokens:
        message = f"messages: more than {backend.config.max_input_tokens:,} tokens; shorten the conversation"
        raise Refusal(400, message, param="messages", code="context_length_exceeded")
    current_record().prompt_tokens += len(ids)
    return ids or [BOS]
