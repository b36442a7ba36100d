"""OpenAI's endpoints: /v1/models and /v1/completions.

To a language model the prompt is the beginning of a text. To a model with a source it is the source, and the completion
is what the model says about it.
"""

import json
import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import torch
from fastapi import APIRouter, Request
from pydantic import BaseModel, Field, StrictBool, StrictInt, StrictStr, ValidationInfo, field_validator
from starlette.responses import Response, StreamingResponse

from allyouneed.config import Config
from allyouneed.decode import SampleConfig
from allyouneed.decode.base import FIRST_WORD, as_float32
from allyouneed.decode.running_batch import Row
from allyouneed.decode.sample import SHARPEST, uniforms
from allyouneed.serve.backend import Backend, unless_gone
from allyouneed.serve.errors import Refusal, described, otherwise
from allyouneed.serve.models import Served
from allyouneed.serve.worker import Work
from allyouneed.serve.writing import Detokenizer, Piece, Writer, whole_text
from allyouneed.text.specials import BOS

USUAL_LENGTH = 16  # OpenAI's default for max_tokens
BEYOND_SOURCE = 50
STOPS, LONGEST_STOP = 4, 100  # texts, and characters of each
Finish = Literal["stop", "length"]
Stop = Annotated[StrictStr, Field(min_length=1, max_length=LONGEST_STOP)]
Stops = Annotated[
    Stop | Annotated[list[Stop], Field(max_length=STOPS)],
    otherwise(f"should be at most {STOPS} stop texts, each of 1 to {LONGEST_STOP} characters"),
]
Prompts = Annotated[
    StrictStr | list[StrictStr],
    otherwise("should be a text or a list of texts; token numbers are not supported, send text"),
]
UNSUPPORTED = otherwise("not supported here; leave it out")
Zero = Annotated[float, Field(ge=0, le=0), UNSUPPORTED]


class StreamOptions(Config):
    """What a stream should hold beside text."""

    include_usage: StrictBool = False
    include_obfuscation: StrictBool | None = None  # padding against listeners; there is none here


class CompletionRequest(Config):
    """OpenAI's request, and `top_k` and `min_p`. What is not supported may be given its neutral value only."""

    model: StrictStr
    prompt: Prompts
    max_tokens: Annotated[StrictInt, Field(ge=0)] | None = None  # None: 16; with a source, as long as it may become
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[StrictInt, Field(ge=1)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    n: Annotated[StrictInt, Field(ge=1)] | None = None
    stop: Stops | None = None
    logprobs: Annotated[StrictInt, Field(ge=0)] | None = None
    echo: StrictBool | None = None
    seed: Annotated[StrictInt, Field(ge=0, lt=1 << 63)] | None = None
    stream: StrictBool | None = None
    stream_options: StreamOptions | None = None
    user: StrictStr | None = None  # whose request it is: taken, and used for nothing
    best_of: StrictInt | None = None
    suffix: Annotated[StrictStr, Field(max_length=0), UNSUPPORTED] | None = None
    presence_penalty: Zero | None = None
    frequency_penalty: Zero | None = None
    logit_bias: Annotated[dict[str, float], Field(max_length=0), UNSUPPORTED] | None = None

    @field_validator("temperature")
    @classmethod
    def _not_tiny(cls, value: float | None) -> float | None:
        if value is not None and 0 < value < SHARPEST:
            raise ValueError(f"too close to 0; use 0 (the most probable token) or at least {SHARPEST}")
        return value

    @field_validator("best_of")
    @classmethod
    def _as_many_as_n(cls, value: int | None, info: ValidationInfo) -> int | None:
        if value is not None and value != (info.data.get("n") or 1):
            raise ValueError("only as many as n are drawn; leave it out")
        return value

    @field_validator("stream_options")
    @classmethod
    def _of_a_stream(cls, value: StreamOptions | None, info: ValidationInfo) -> StreamOptions | None:
        if value is not None and not info.data.get("stream"):
            raise ValueError("only with stream")
        return value

    @property
    def prompts(self) -> list[str]:
        """All texts."""
        return [self.prompt] if isinstance(self.prompt, str) else self.prompt

    @property
    def stops(self) -> list[str]:
        """All texts that end an answer."""
        return [self.stop] if isinstance(self.stop, str) else self.stop or []


class Logprobs(BaseModel):
    """The tokens of a text, how probable each was, and what else could have stood there."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float]] | None
    text_offset: list[int]


class Choice(BaseModel):
    """One answer."""

    index: int
    text: str
    logprobs: Logprobs | None
    finish_reason: Finish | None


class Usage(BaseModel):
    """Tokens read and said."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class Completion(BaseModel):
    """What was said; in a stream, a part of it."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[Choice]
    usage: Usage | None = None


class ModelCard(BaseModel):
    """A model."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "allyouneed"


class ModelList(BaseModel):
    """All models."""

    object: Literal["list"] = "list"
    data: list[ModelCard]


@dataclass
class Answer:
    """One answer on its way to the client."""

    index: int
    offset: int = 0  # characters sent so far
    pieces: list[Piece] = field(default_factory=list)
    finish: Finish | None = None


def router(backend: Backend) -> APIRouter:
    """`/v1/*`."""
    router = APIRouter(prefix="/v1", tags=["OpenAI"])

    @router.get("/models", responses=described(401, 500, 503))
    async def models() -> ModelList:
        """All models."""
        return ModelList(data=[_card(served) for served in backend.models.values()])

    @router.get("/models/{model}", responses=described(401, 404, 500, 503))
    async def model(model: str) -> ModelCard:
        """One model."""
        return _card(backend.served(model))

    @router.post(
        "/completions",
        response_model=Completion,
        responses={
            200: {"description": "The completion, or a stream of its parts", "content": {"text/event-stream": {}}},
            **described(400, 401, 404, 408, 413, 429, 500, 503),
        },
    )
    async def completions(request: Request, body: CompletionRequest) -> Response:
        """What a model says next, or says about a source."""
        served = backend.served(body.model)
        task = await _prepare(backend, served, body)
        if body.stream:
            # The first event decides about the status: a full queue is no stream.
            events = task.parts()
            first = await unless_gone(request, anext(events))
            return StreamingResponse(_lines(task, first, events), media_type="text/event-stream")
        answers = await unless_gone(request, _all(task))
        return Response(task.completion(answers, task.usage).model_dump_json(), media_type="application/json")

    return router


def _card(served: Served) -> ModelCard:
    return ModelCard(id=served.name, created=int((served.bundle.path / "config.json").stat().st_mtime))


async def _prepare(backend: Backend, served: Served, body: CompletionRequest) -> "_Task":
    """Checks all that can be checked, then makes ids of texts."""
    config, n = backend.config, body.n or 1
    if not body.prompts:
        raise Refusal(400, "prompt: an empty list", param="prompt")
    for name, value, most in (
        ("n", n, config.max_n),
        ("max_tokens", body.max_tokens or 0, config.max_tokens),
        ("logprobs", body.logprobs or 0, config.max_logprobs),
    ):
        if value > most:
            raise Refusal(400, f"{name}: {value} is more than {most}", param=name)
    backend.check_texts(body.prompts, "prompt")
    if body.echo and body.logprobs is not None and served.takes_source:
        raise Refusal(400, "echo: the prompt is a source, and sources have no log-probabilities", param="echo")
    if not served.says_text and body.logprobs is not None:
        raise Refusal(
            400, f"logprobs: {served.name} names classes; /score says how probable they are", param="logprobs"
        )
    backend.engines[served.name].require_room(n * len(body.prompts), "prompt")
    if served.takes_source:
        ids = await backend.encode_sources(served, body.prompts, "prompt")
    else:
        ids = await backend.encode_targets(served, body.prompts, "prompt")
    return _Task(backend, served, body, ids)


class _Task:
    """One request for completions, from ids to answers."""

    def __init__(self, backend: Backend, served: Served, body: CompletionRequest, ids: list[list[int]]) -> None:
        self.served, self.body, self.ids = served, body, ids
        self._engine, self._backend = backend.engines[served.name], backend
        self._id, self._created = f"cmpl-{secrets.token_hex(12)}", int(time.time())
        self._said = 0

    @property
    def usage(self) -> Usage:
        """Tokens so far."""
        read = sum(map(len, self.ids))
        return Usage(prompt_tokens=read, completion_tokens=self._said, total_tokens=read + self._said)

    def completion(self, answers: Sequence[Answer], usage: Usage | None = None) -> Completion:
        """Answers, or parts of them, as the client is told."""
        return Completion(
            id=self._id,
            created=self._created,
            model=self.served.name,
            choices=[self._choice(answer) for answer in answers],
            usage=usage,
        )

    def _choice(self, answer: Answer) -> Choice:
        texts, places = [piece.text for piece in answer.pieces], []
        offset = answer.offset
        for text in texts:
            places.append(offset)
            offset += len(text)
        logprobs = None
        if self.body.logprobs is not None:
            top = [dict(piece.top) for piece in answer.pieces] if self.body.logprobs else None
            values: list[float | None] = [piece.logprob for piece in answer.pieces]
            logprobs = Logprobs(tokens=texts, token_logprobs=values, top_logprobs=top, text_offset=places)
        return Choice(index=answer.index, text="".join(texts), logprobs=logprobs, finish_reason=answer.finish)

    async def parts(self) -> AsyncGenerator[Answer]:
        """Parts of answers, as they become certain; the last one of each says why it ended."""
        n, sent = self.body.n or 1, [0] * (len(self.ids) * (self.body.n or 1))
        if self.body.echo:
            for prompt, pieces in enumerate(await self._echoed()):
                for index in range(prompt * n, (prompt + 1) * n):
                    yield Answer(index, 0, pieces)
                    sent[index] = sum(len(piece.text) for piece in pieces)
        said = self._walked() if self.served.says_text else self._named()
        async with aclosing(said):
            async for part in said:
                part.offset = sent[part.index]
                sent[part.index] += sum(len(piece.text) for piece in part.pieces)
                yield part

    async def _walked(self) -> AsyncGenerator[Answer]:
        body, n = self.body, self.body.n or 1
        if body.max_tokens == 0:
            for index in range(len(self.ids) * n):
                yield Answer(index, finish="length")
            return
        rows = self._rows()
        number = {row: index for index, row in enumerate(rows)}
        if not (body.stream or body.stops or body.logprobs is not None):
            async with aclosing(self._at_once(number)) as answers:
                async for answer in answers:
                    yield answer
            return
        writers = [Writer(Detokenizer(self.served.bundle.codec, row.prompt), body.stops) for row in rows]
        open_answers = set(range(len(rows)))
        walk = self._engine.walk(rows)
        async with aclosing(walk):
            async for said in walk:
                index = number[said.row]
                if index not in open_answers:  # it met a stop text before
                    continue
                writer, pieces = writers[index], []
                if said.end != "stop":
                    self._said += 1
                    pieces = writer.push(said.token, said.logprob, self._top(said.token, said.logprob, said.top))
                if said.end is not None and not writer.stopped:
                    pieces += writer.finish()
                finish: Finish | None = "stop" if writer.stopped else said.end
                if pieces or finish:
                    yield Answer(index, 0, pieces, finish)
                if finish is not None:
                    open_answers.discard(index)
                if not open_answers:
                    return

    async def _at_once(self, number: dict[Row, int]) -> AsyncGenerator[Answer]:
        """The same where nobody looks at single tokens."""
        async with aclosing(self._engine.walk(list(number), patient=True)) as walk:
            async for last in walk:
                ids = last.row.ids[:-1] if last.end == "stop" else last.row.ids
                self._said += len(ids)
                text = whole_text(self.served.bundle.codec, last.row.prompt, ids)
                yield Answer(number[last.row], 0, [Piece(text)], last.end)

    def _top(self, token: int, logprob: float, top: list[tuple[int, float]]) -> list[tuple[int, float]]:
        """The alternatives, and the chosen one, wherever it ranks."""
        return top if any(token == other for other, _ in top) or not top else [*top, (token, logprob)]

    def _rows(self) -> list[Row]:
        body, config = self.body, self._backend.config
        seed = secrets.randbits(32) if body.seed is None else body.seed
        rows = []
        for prompt, ids in enumerate(self.ids):
            usual = len(ids) + BEYOND_SOURCE if self.served.takes_source else USUAL_LENGTH
            sampling = SampleConfig(
                temperature=1.0 if body.temperature is None else body.temperature,
                top_k=body.top_k,
                top_p=body.top_p or 1.0,
                min_p=body.min_p or 0.0,
                max_length=min(usual, config.max_tokens) if body.max_tokens is None else body.max_tokens,
            )
            source, begin = (ids, []) if self.served.takes_source else (None, ids)
            for sample in range(body.n or 1):
                rows.append(Row(begin, source, sampling, uniforms(seed, prompt, sample), body.logprobs or 0))
        return rows

    async def _named(self) -> AsyncGenerator[Answer]:
        """What a model that names classes says: one piece."""
        n = self.body.n or 1
        work = self._backend.search(self.served, self.served.search)
        found = await self._engine.do(work, self.body.prompts)
        for prompt, answers in enumerate(found):
            for index in range(prompt * n, (prompt + 1) * n):
                self._said += len(answers[0].text.split())
                yield Answer(index, 0, [Piece(answers[0].text)], "stop")

    async def _echoed(self) -> list[list[Piece]]:
        """The prompts, token by token if their log-probabilities are asked for."""
        if self.body.logprobs is None:
            return [[Piece(prompt)] for prompt in self.body.prompts]
        most, model = self.body.logprobs, self.served.bundle.model

        def measure(prompts: Sequence[list[int]]) -> list[list[tuple[float, list[tuple[int, float]]]]]:
            return [prompt_logprobs(model, prompt, most) for prompt in prompts]

        found = await self._engine.do(Work(("echo", most), measure), self.ids)
        echoed = []
        for ids, measured in zip(self.ids, found, strict=True):
            writer = Writer(Detokenizer(self.served.bundle.codec))
            pieces = [
                piece
                for token, (logprob, top) in zip(ids, measured, strict=True)
                for piece in writer.push(token, logprob, self._top(token, logprob, top))
            ]
            echoed.append([*pieces, *writer.finish()])
        return echoed


def prompt_logprobs(model: Any, prompt: Sequence[int], most: int) -> list[tuple[float, list[tuple[int, float]]]]:
    """log P of each token of a prompt, and the best tokens in its place."""
    if not prompt:
        return []
    ids_1T = torch.tensor([[BOS, *prompt[:-1]]], device=model.head.weight_VD.device)
    x_1TD, _ = model.hidden(ids_1T, model.start())
    found = []
    for token, x_1D in zip(prompt, x_1TD.unbind(dim=1), strict=True):
        logprob_V = as_float32(model.head(x_1D))[0].log_softmax(dim=0)
        best = logprob_V[FIRST_WORD:].topk(min(most, len(logprob_V) - FIRST_WORD))
        top = [
            (word + FIRST_WORD, value) for word, value in zip(best.indices.tolist(), best.values.tolist(), strict=True)
        ]
        found.append((float(logprob_V[token]), top))
    return found


async def _all(task: _Task) -> list[Answer]:
    answers: dict[int, Answer] = {}
    async with aclosing(task.parts()) as parts:
        async for part in parts:
            whole = answers.setdefault(part.index, Answer(part.index))
            whole.pieces += part.pieces
            whole.finish = part.finish or whole.finish
    return [answers[index] for index in sorted(answers)]


async def _lines(task: _Task, first: Answer, parts: AsyncGenerator[Answer]) -> AsyncIterator[str]:
    """Server-sent events."""
    usage = bool(task.body.stream_options and task.body.stream_options.include_usage)
    exclude = {"usage"} if not usage else None
    async with aclosing(parts):
        try:
            yield f"data: {task.completion([first]).model_dump_json(exclude=exclude)}\n\n"
            async for part in parts:
                yield f"data: {task.completion([part]).model_dump_json(exclude=exclude)}\n\n"
            if usage:
                yield f"data: {task.completion([], task.usage).model_dump_json()}\n\n"
        except Refusal as refusal:  # the status is sent already; the client raises what it reads here
            yield f"data: {json.dumps(refusal.tree)}\n\n"
        yield "data: [DONE]\n\n"
