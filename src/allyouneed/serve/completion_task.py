"""One request for completions, from the ids of its prompts to the parts of its choices."""

import secrets
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

import torch
from pydantic import BaseModel

from allyouneed.decode import SampleConfig
from allyouneed.decode.base import FIRST_TOKEN, as_float32
from allyouneed.decode.running_batch import GeneratedToken, Row
from allyouneed.decode.sample import uniforms
from allyouneed.serve.backend import Backend
from allyouneed.serve.completion_format import CompletionFormat, CompletionPart, ResponseFormat
from allyouneed.serve.completion_schema import CompletionRequest, Finish, Unknown, Usage
from allyouneed.serve.detokenizer import Detokenizer, TextPiece, TextStream, whole_text
from allyouneed.serve.errors import Refusal
from allyouneed.serve.models import Served
from allyouneed.serve.request_record import current_record
from allyouneed.serve.worker import BatchOperation, bytes_of
from allyouneed.text.specials import BOS

DEFAULT_MAX_TOKENS = 16  # OpenAI's
MAX_TOKENS_BEYOND_SOURCE = 50
TopTokens = list[tuple[int, float]]  # the most probable tokens and their log-probabilities


class CompletionTask:
    """Generates the choices of one request."""

    has_first = False  # whether the ids contain the first one that is read, which is BOS otherwise

    def __init__(
        self,
        backend: Backend,
        served: Served,
        body: CompletionRequest,
        ids: list[list[int]],
        unknown: Unknown | None = None,
        response_format: ResponseFormat | None = None,
    ) -> None:
        self.served, self.body, self.ids, self._unknown = served, body, ids, unknown
        self._engine, self._backend = backend.engine_of(served), backend
        self._format = response_format or CompletionFormat(served.name, body)
        self._record = current_record()

    @property
    def usage(self) -> Usage:
        """Tokens so far."""
        read, written = sum(map(len, self.ids)), self._record.completion_tokens
        return Usage(prompt_tokens=read, completion_tokens=written, total_tokens=read + written)

    def completion(self, parts: Sequence[CompletionPart], usage: Usage | None = None) -> BaseModel:
        """Return the response for some parts. The first one states the unknown words."""
        unknown, self._unknown = self._unknown, None
        return self._format.response(parts, usage, unknown)

    async def parts(self) -> AsyncGenerator[CompletionPart]:
        """Yield the parts of all choices as they become final."""
        n, sent = self.body.n or 1, [0] * (len(self.ids) * (self.body.n or 1))
        if self.body.echo:
            echoed, turn = await self._echoed(), self._engine.time_slice()
            for prompt, pieces in enumerate(echoed):
                for index in range(prompt * n, (prompt + 1) * n):
                    yield CompletionPart(index, 0, pieces)
                    await turn.checkpoint()
                    sent[index] = sum(len(piece.text) for piece in pieces)
        generated = self._generate() if self.served.generates_text else self._classify()
        async with aclosing(generated):
            async for part in generated:
                part.offset = sent[part.index]
                sent[part.index] += sum(len(piece.text) for piece in part.pieces)
                yield part

    async def whole(self) -> list[CompletionPart]:
        """Return all choices, each as one part. Refuse a response that would take too much memory."""
        choices: dict[int, CompletionPart] = {}
        left = self._backend.config.max_response
        async with aclosing(self.parts()) as parts:
            async for part in parts:
                left -= sum(bytes_of(len(piece.top)) for piece in part.pieces)
                if left < 0:
                    message = f"the response has more than {self._backend.config.max_response:,} bytes of tokens"
                    message = f"{message}: stream it, or request fewer answers, tokens or log-probabilities"
                    raise Refusal(400, message, code="response_too_large")
                whole = choices.setdefault(part.index, CompletionPart(part.index))
                whole.pieces += part.pieces
                whole.finish = part.finish or whole.finish
        return [choices[index] for index in sorted(choices)]

    async def dumped(self, choices: Sequence[CompletionPart]) -> str:
        """Return the response of all choices as JSON. Other requests are served meanwhile, however long it is."""
        turn, texts = self._engine.time_slice(), []
        for part in choices:
            await turn.checkpoint()
            texts.append(await self._format.dump_choice(part, turn))
        empty = '"choices":[]'
        before, _, after = self.completion([], self.usage).model_dump_json().partition(empty)
        return "".join((before, empty[:-1], ",".join(texts), "]", after))

    async def _generate(self) -> AsyncGenerator[CompletionPart]:
        body, n = self.body, self.body.n or 1
        if body.max_tokens == 0:
            for index in range(len(self.ids) * n):
                yield CompletionPart(index, finish="length")
            return
        rows = self._rows()
        index_of = {row: index for index, row in enumerate(rows)}
        by_token = body.stream or body.stops or body.logprobs is not None
        generated = self._stream(index_of) if by_token else self._generate_whole(index_of)
        async with aclosing(generated):
            async for part in generated:
                yield part

    async def _stream(self, index_of: dict[Row, int]) -> AsyncGenerator[CompletionPart]:
        """Yield parts as tokens arrive. If several tokens of a choice have arrived, its part contains all of them."""
        streams = [TextStream(Detokenizer(self.served.bundle.codec, row.prompt), self.body.stops) for row in index_of]
        unfinished, turn = set(index_of.values()), self._engine.time_slice()
        async with aclosing(self._engine.generate(list(index_of))) as batches:
            async for tokens in batches:
                turn.begin()
                parts: dict[int, CompletionPart] = {}
                for token in tokens:
                    await turn.checkpoint()
                    index = index_of[token.row]
                    if index in unfinished:  # otherwise a stop text has ended it
                        part = parts.setdefault(index, CompletionPart(index))
                        self._push(part, streams[index], token)
                        if part.finish is not None:
                            unfinished.discard(index)
                for part in parts.values():
                    if part.pieces or part.finish:
                        yield part
                        await turn.checkpoint()  # the reader of this part has used some time, too
                if not unfinished:
                    return

    def _push(self, part: CompletionPart, stream: TextStream, token: GeneratedToken) -> None:
        """Add to a part what is final after one more token."""
        if token.end != "stop":
            self._record.completion_tokens += 1
            top = _with_token(token.token, token.logprob, token.top)
            part.pieces += stream.push(token.token, token.logprob, top)
        if token.end is not None and not stream.stopped:
            part.pieces += stream.finish()
        part.finish = "stop" if stream.stopped else token.end

    async def _generate_whole(self, index_of: dict[Row, int]) -> AsyncGenerator[CompletionPart]:
        """Yield each choice as one part, when no single token is needed."""
        turn = self._engine.time_slice()
        async with aclosing(self._engine.generate(list(index_of), wait_for_all=True)) as batches:
            async for tokens in batches:
                turn.begin()
                for last in tokens:
                    await turn.checkpoint()
                    ids = last.row.ids[:-1] if last.end == "stop" else last.row.ids
                    self._record.completion_tokens += len(ids)
                    text = whole_text(self.served.bundle.codec, last.row.prompt, ids)
                    yield CompletionPart(index_of[last.row], 0, [TextPiece(text)], last.end)

    def _rows(self) -> list[Row]:
        body, config = self.body, self._backend.config
        seed = secrets.randbits(32) if body.seed is None else body.seed
        rows = []
        for prompt, ids in enumerate(self.ids):
            default = len(ids) + MAX_TOKENS_BEYOND_SOURCE if self.served.takes_source else DEFAULT_MAX_TOKENS
            sampling = SampleConfig(
                temperature=1.0 if body.temperature is None else body.temperature,
                top_k=body.top_k,
                top_p=body.top_p or 1.0,
                min_p=body.min_p or 0.0,
                max_length=min(default, config.max_tokens) if body.max_tokens is None else body.max_tokens,
            )
            source, start = (ids, []) if self.served.takes_source else (None, ids)
            begin, start = (start[0], start[1:]) if self.has_first and start else (BOS, start)
            for sample in range(body.n or 1):
                rows.append(Row(start, source, sampling, uniforms(seed, prompt, sample), body.logprobs or 0, begin))
        return rows

    async def _classify(self) -> AsyncGenerator[CompletionPart]:
        """Yield the classes of each prompt as one piece."""
        n = self.body.n or 1
        search = self._backend.search(self.served, self.served.search)
        found = await self._engine.run(search, self.body.prompts)
        for prompt, answers in enumerate(found):
            text, tokens, finish = self._cut_classes(answers[0].text)
            for index in range(prompt * n, (prompt + 1) * n):
                self._record.completion_tokens += tokens
                yield CompletionPart(index, 0, [TextPiece(text)], finish)

    def _cut_classes(self, text: str) -> tuple[str, int, Finish]:
        """Apply `max_tokens` and `stop` to the classes of a text. Every class counts as one token."""
        names = text.split() if self.served.bundle.codec.per_position else [text]
        most = len(names) if self.body.max_tokens is None else self.body.max_tokens
        kept = text if most >= len(names) else " ".join(names[:most])
        stop = min((place for stop in self.body.stops if (place := kept.find(stop)) >= 0), default=None)
        finish: Finish = "stop" if stop is not None or most >= len(names) else "length"
        return kept[:stop], min(most, len(names)), finish

    async def _echoed(self) -> list[list[TextPiece]]:
        """Return the prompts, token by token if log-probabilities are requested."""
        if self.body.logprobs is None:
            return [[TextPiece(prompt)] for prompt in self.body.prompts]
        most, model = self.body.logprobs, self.served.bundle.model

        def measure(prompts: Sequence[list[int]]) -> list[list[tuple[float, TopTokens]]]:
            return [prompt_logprobs(model, prompt, most) for prompt in prompts]

        found = await self._engine.run(BatchOperation(("echo", most), measure), self.ids)
        echoed = []
        turn = self._engine.time_slice()
        for ids, measured in zip(self.ids, found, strict=True):
            stream, pieces = TextStream(Detokenizer(self.served.bundle.codec)), list[TextPiece]()
            for token, (logprob, top) in zip(ids, measured, strict=True):
                await turn.checkpoint()
                pieces += stream.push(token, logprob, _with_token(token, logprob, top))
            echoed.append([*pieces, *stream.finish()])
        return echoed


def _with_token(token: int, logprob: float, top: TopTokens) -> TopTokens:
    """Return the alternatives including the chosen token, whatever its rank."""
    return top if any(token == other for other, _ in top) or not top else [*top, (token, logprob)]


def prompt_logprobs(model: Any, prompt: Sequence[int], most: int) -> list[tuple[float, TopTokens]]:
    """Return the log-probability of each token of a prompt, and the `most` best tokens in its place."""
    if not prompt:
        return []
    ids_1T = torch.tensor([[BOS, *prompt[:-1]]], device=model.head.weight_VD.device)
    x_1TD, _ = model.hidden(ids_1T, model.start())
    found = []
    for token, x_1D in zip(prompt, x_1TD.unbind(dim=1), strict=True):
        logprob_V = as_float32(model.head(x_1D))[0].log_softmax(dim=0)
        best = logprob_V[FIRST_TOKEN:].topk(min(most, len(logprob_V) - FIRST_TOKEN))
        top = [
            (word + FIRST_TOKEN, value) for word, value in zip(best.indices.tolist(), best.values.tolist(), strict=True)
        ]
        found.append((float(logprob_V[token]), top))
    return found
