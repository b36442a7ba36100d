"""One request for completions, from the ids of its prompts to the parts of its choices."""

import math
import secrets
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from typing import Any

import torch
from pydantic import BaseModel

from allyouneed.decode import SampleConfig
from allyouneed.decode.base import FIRST_TOKEN, as_float32
from allyouneed.decode.running_batch import GeneratedToken, Row
from allyouneed.decode.sample import uniforms
from allyouneed.serve.backend import Backend
from allyouneed.serve.choice_text import ChoiceText, StreamedChoice, TopTokens, WholeChoice, with_token
from allyouneed.serve.completion_format import CompletionFormat, CompletionPart, ResponseFormat
from allyouneed.serve.completion_schema import CompletionRequest, Finish, Unknown, Usage
from allyouneed.serve.detokenizer import Detokenizer, TextPiece, TextStream
from allyouneed.serve.encoded_prompt import EncodedPrompt
from allyouneed.serve.engine import Deadline
from allyouneed.serve.errors import Refusal
from allyouneed.serve.models import Served
from allyouneed.serve.request_record import current_record
from allyouneed.serve.searched_rows import SearchedRow, search_rows
from allyouneed.serve.worker import BatchOperation, bytes_of
from allyouneed.text.specials import BOS

DEFAULT_MAX_TOKENS = 16  # OpenAI's
MAX_TOKENS_BEYOND_SOURCE = 50


class CompletionTask:
    """Generates the choices of one request."""

    def __init__(
        self,
        backend: Backend,
        served: Served,
        body: CompletionRequest,
        prompts: Sequence[EncodedPrompt],
        unknown: Unknown | None = None,
        response_format: ResponseFormat | None = None,
        has_first: bool = False,
    ) -> None:
        """`has_first`: the ids contain the first one that is read, whether or not texts of the model begin with BOS."""
        self._has_first = has_first or not served.bundle.codec.bos
        self.served, self.body, self.prompts, self._unknown = served, body, prompts, unknown
        self._engine, self._backend = backend.engine_of(served), backend
        self._format = response_format or CompletionFormat(served.name, body)
        self._record = current_record()

    @property
    def usage(self) -> Usage:
        """Tokens so far."""
        read, written = sum(prompt.tokens for prompt in self.prompts), self._record.completion_tokens
        return Usage(prompt_tokens=read, completion_tokens=written, total_tokens=read + written)

    def completion(self, parts: Sequence[CompletionPart], usage: Usage | None = None) -> BaseModel:
        """Return the response for some parts. The first one states the unknown words."""
        unknown, self._unknown = self._unknown, None
        return self._format.response(parts, usage, unknown)

    async def parts(self) -> AsyncGenerator[CompletionPart]:
        """Yield the parts of all choices as they become final."""
        n, sent = self.body.n or 1, [0] * (len(self.prompts) * (self.body.n or 1))
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
            for index in range(len(self.prompts) * n):
                yield CompletionPart(index, finish="length")
            return
        by_token = bool(body.stream or body.stops) or body.logprobs is not None
        choices = [self._choice(prompt, by_token) for prompt in self.prompts for _ in range(n)]
        deadline = self._engine.deadline()
        for number, places in enumerate(self._turns(choices, by_token)):
            if number:  # the request was accepted with its first turn
                await self._engine.wait_for_capacity(len(places), deadline)
            async with aclosing(self._decode(choices, places, by_token, deadline)) as parts:
                async for part in parts:
                    yield part

    async def _decode(
        self, choices: Sequence[ChoiceText], places: dict[Row, tuple[int, int]], by_token: bool, deadline: Deadline
    ) -> AsyncGenerator[CompletionPart]:
        """Yield parts as tokens arrive. If several tokens of a choice have arrived, its part contains all of them."""
        turn, open_rows = self._engine.time_slice(), set(places)
        async with aclosing(self._batches(places, by_token, deadline)) as batches:
            async for tokens in batches:
                turn.begin()
                parts: dict[int, CompletionPart] = {}
                for token in tokens:
                    index, piece = places[token.row]
                    for found in choices[index].receive(piece, token):
                        part = parts.setdefault(index, CompletionPart(index))
                        part.pieces += found
                        part.finish = choices[index].finish
                        await turn.checkpoint()
                    if token.end is not None:
                        open_rows.discard(token.row)
                for part in parts.values():
                    if part.pieces or part.finish:
                        yield part
                        await turn.checkpoint()  # the reader of this part has used some time, too
                if open_rows and all(choices[places[row][0]].finish is not None for row in open_rows):
                    return  # a stop text or the maximum number of tokens has ended them

    async def _batches(
        self, places: dict[Row, tuple[int, int]], by_token: bool, deadline: Deadline
    ) -> AsyncGenerator[list[GeneratedToken]]:
        """Yield the tokens of rows: those with terms of the glossary are searched for, all others are sampled."""
        n, sampled, searched = self.body.n or 1, list[Row](), dict[Row, SearchedRow]()
        for row, (index, piece) in places.items():
            phrases = self.prompts[index // n].phrases
            if phrases and phrases[piece]:
                searched[row] = SearchedRow(phrases[piece], index % n)
            else:
                sampled.append(row)
        if searched:
            tokens = await search_rows(self._backend, self.served, searched, n, deadline)
            yield tokens if by_token else [token for token in tokens if token.end is not None]
            if sampled:
                await self._engine.wait_for_capacity(len(sampled), deadline)
        if sampled:
            async with aclosing(self._engine.generate(sampled, not by_token, deadline)) as batches:
                async for tokens in batches:
                    yield tokens

    def _choice(self, prompt: EncodedPrompt, by_token: bool) -> ChoiceText:
        codec, most = self.served.bundle.codec, self.body.max_tokens
        if not by_token:
            return WholeChoice(codec, prompt, most, self._record)
        context = () if self.served.takes_source else prompt.pieces[0]
        return StreamedChoice(codec, prompt, most, self._record, context, self.body.stops)

    def _turns(self, choices: Sequence[ChoiceText], by_token: bool) -> Iterator[dict[Row, tuple[int, int]]]:
        """Yield the rows that are decoded at once, each with the numbers of its choice and of its piece.

        The tokens of a piece wait for the pieces before it. The limit of the backlog holds for them, too: it bounds how
        many pieces of a choice are decoded ahead.
        """
        n, counts = self.body.n or 1, [len(prompt.pieces) for prompt in self.prompts]
        most, _ = self._engine.most_of_client
        # A text of many sentences is decoded in turns, each of which leaves room for other requests of the client.
        size = most if n * sum(counts) <= most else (most + 1) // 2
        seed = secrets.randbits(32) if self.body.seed is None else self.body.seed
        rows, ahead = dict[Row, tuple[int, int]](), 0
        first: set[int] = set()  # choices that have a row in this turn
        for piece in range(max(counts)):
            for index in range(len(choices)):
                if piece >= counts[index // n] or choices[index].finish is not None:
                    continue
                row = self._row(seed, index, piece)
                size_ahead = row.config.max_length * bytes_of(row.top) if by_token and index in first else 0
                if rows and (len(rows) >= size or ahead + size_ahead > self._backend.config.max_backlog):
                    yield rows
                    rows, ahead, size_ahead, first = {}, 0, 0, set()
                    if choices[index].finish is not None:
                        continue
                rows[row], ahead = (index, piece), ahead + size_ahead
                first.add(index)
        if rows:
            yield rows

    def _row(self, seed: int, index: int, piece: int) -> Row:
        body, (prompt, sample) = self.body, divmod(index, self.body.n or 1)
        ids = self.prompts[prompt].pieces[piece]
        default = len(ids) + MAX_TOKENS_BEYOND_SOURCE if self.served.takes_source else DEFAULT_MAX_TOKENS
        default = min(default, self._backend.config.max_tokens)
        most = default if body.max_tokens is None else body.max_tokens
        sampling = SampleConfig(
            temperature=1.0 if body.temperature is None else body.temperature,
            top_k=body.top_k,
            top_p=body.top_p or 1.0,
            min_p=body.min_p or 0.0,
            # One of several sentences must not use the tokens of the others.
            max_length=most if len(self.prompts[prompt].pieces) == 1 else min(most, default),
            ends=self.served.bundle.codec.ends,
        )
        source, start = (ids, list(self.served.bundle.codec.prefix)) if self.served.takes_source else (None, ids)
        begin, start = (start[0], start[1:]) if self._has_first and start else (BOS, start)
        return Row(start, source, sampling, uniforms(seed, prompt, sample, piece), body.logprobs or 0, begin)

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
        ids_of = [prompt.pieces[0] for prompt in self.prompts]  # of a language model, which reads a prompt as a whole

        def measure(prompts: Sequence[list[int]]) -> list[list[tuple[float, TopTokens]]]:
            return [prompt_logprobs(model, prompt, most, self._has_first) for prompt in prompts]

        found = await self._engine.run(BatchOperation(("echo", most, self._has_first), measure), ids_of)
        echoed = []
        turn = self._engine.time_slice()
        for ids, measured in zip(ids_of, found, strict=True):
            stream, pieces = TextStream(Detokenizer(self.served.bundle.codec)), list[TextPiece]()
            for token, (logprob, top) in zip(ids, measured, strict=True):
                await turn.checkpoint()
                pieces += stream.push(token, logprob, with_token(token, logprob, top))
            echoed.append([*pieces, *stream.finish()])
        return echoed


def prompt_logprobs(
    model: Any, prompt: Sequence[int], most: int, has_first: bool = False
) -> list[tuple[float, TopTokens]]:
    """Return the log-probability of each token of a prompt, and the `most` best tokens in its place.

    With `has_first` nothing precedes the first token, so its log-probability is NaN.
    """
    found: list[tuple[float, TopTokens]] = [(math.nan, [])] if has_first and prompt else []
    first, prompt = (prompt[:1], prompt[1:]) if has_first else ([BOS], prompt)
    if not prompt:
        return found
    ids_1T = torch.tensor([[*first, *prompt[:-1]]], device=model.head.like.device)
    x_1TD, _ = model.hidden(ids_1T, model.start())
    for token, x_1D in zip(prompt, x_1TD.unbind(dim=1), strict=True):
        logprob_V = as_float32(model.head(x_1D))[0].log_softmax(dim=0)
        best = logprob_V[FIRST_TOKEN:].topk(min(most, len(logprob_V) - FIRST_TOKEN))
        top = [
            (word + FIRST_TOKEN, value) for word, value in zip(best.indices.tolist(), best.values.tolist(), strict=True)
        ]
        found.append((float(logprob_V[token]), top))
    return found
