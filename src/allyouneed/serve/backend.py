"""What all endpoints share: the models, their engines, and the checks before a request is processed."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from fastapi import Request

from allyouneed.decode import Answer, SearchConfig, translate
from allyouneed.decode.translate import as_answers
from allyouneed.errors import unknown_name
from allyouneed.serve.config import ServeConfig
from allyouneed.serve.engine import Engine
from allyouneed.serve.errors import Refusal
from allyouneed.serve.metrics import Metrics
from allyouneed.serve.models import Served, check_searches
from allyouneed.serve.request_record import RequestRecord, current_record
from allyouneed.serve.shared_metrics import SharedMetrics
from allyouneed.serve.thread_pool import ThreadPool
from allyouneed.serve.worker import BatchOperation
from allyouneed.text.glossary import Constraint
from allyouneed.text.tokenizer import Tokenizer

# A single text of at most this many characters is tokenized in the event loop. That usually takes 0.1 ms, and at most
# 1 ms; switching to another thread takes longer. Several texts would use the tokenizer's own threads, which may be
# busy.
INLINE_CHARACTERS = 1000
Result = TypeVar("Result")


class Backend:
    """Models by name, an engine for each, and the limits of requests."""

    def __init__(self, config: ServeConfig, models: dict[str, Served]) -> None:
        check_searches(models, config)
        self.config, self.models, self.metrics = config, models, Metrics()
        self.engines = {name: Engine(served, config, self.metrics) for name, served in models.items()}
        self.retired: list[Engine] = []  # of models that were replaced; requests in progress still use them
        self.started = False  # all engines run
        self.shared_metrics: SharedMetrics | None = None  # of all workers, if there are several
        self.draining = False  # new requests are refused
        self.requests: set[RequestRecord] = set()  # the records of requests in progress
        self._pools: list[ThreadPool] = []
        self.texts = self.add_pool()  # work on the texts of requests

    @property
    def active(self) -> int:
        """Number of requests in progress."""
        return len(self.requests)

    def add_pool(self) -> ThreadPool:
        """Return new threads for slow work of one kind."""
        self._pools.append(ThreadPool(self.config))
        return self._pools[-1]

    async def in_thread(self, call: Callable[..., Result], *values: Any) -> Result:
        """Return the result of work on the texts of a request, in another thread. Clients take turns."""
        return await self.texts.run_unchecked(call, *values)

    def refuse_waiting(self) -> None:
        """Refuse the requests that wait for a thread: the server shuts down."""
        for pool in self._pools:
            pool.refuse_waiting()

    def start(self) -> None:
        """Start all engines."""
        for engine in self.engines.values():
            engine.start()
        self.started = True

    def share_metrics(self, folder: Path, worker: int) -> SharedMetrics:
        """Return the metrics of all workers from `/metrics`."""
        self.shared_metrics = SharedMetrics(self.metrics.registry, folder, worker)
        return self.shared_metrics

    def close(self) -> None:
        """Stop all engines, and refuse the requests that are in progress."""
        for engine in [*self.engines.values(), *self.retired]:
            engine.close()

    def replace_models(self, models: dict[str, Served]) -> list[Engine]:
        """Serve these models from now on, and return the engines of those that are no longer served.

        Requests in progress keep their models: `retire` an engine when they have ended.
        """
        engines = {name: self.engines[name] for name in models if self.models.get(name) is models[name]}
        for name in models.keys() - engines.keys():
            engines[name] = Engine(models[name], self.config, self.metrics)
            engines[name].start()
        old = [engine for name, engine in self.engines.items() if engines.get(name) is not engine]
        self.models, self.engines = models, {name: engines[name] for name in models}
        self.retired += old
        for name in {engine.served.name for engine in old} - models.keys():
            self.metrics.forget(name)
        return old

    def retire(self, engine: Engine) -> None:
        """Stop an engine that no request uses any more."""
        engine.close()
        self.retired.remove(engine)

    def served(self, name: str) -> Served:
        """Return the model with this name, or refuse with 404."""
        if name not in self.models:
            message = f"model: {unknown_name(name, self.models)}"
            raise Refusal(404, message, param="model", code="model_not_found")
        current_record().model = name
        return self.models[name]

    def engine_of(self, served: Served) -> Engine:
        """Return the engine of a model that `served` returned."""
        current_record().model = served.name
        if self.models.get(served.name) is served:
            return self.engines[served.name]
        return next(engine for engine in self.retired if engine.served is served)  # it was replaced meanwhile

    def check_texts(self, texts: Sequence[str], param: str) -> None:
        """Refuse texts that exceed the limits, before anything processes them."""
        config = self.config
        if len(texts) > config.max_texts:
            raise Refusal(400, f"{param}: {len(texts)} texts; at most {config.max_texts} in one request", param=param)
        characters = sum(map(len, texts))
        if characters > config.max_characters:
            message = f"{param}: {characters:,} characters; at most {config.max_characters:,} in one request"
            raise Refusal(400, message, param=param, code="too_many_characters")
        if any("\ud800" <= character <= "\udfff" for text in texts for character in text):
            raise Refusal(400, f"{param}: contains a lone surrogate, which is not a character", param=param)

    async def encode(
        self, tokenizer: Tokenizer, texts: Sequence[str], param: str, encode: Callable[[list[str]], list[list[int]]]
    ) -> list[list[int]]:
        """Return the ids of texts that passed `check_texts`. Refuse texts of too many tokens."""
        most = self.config.max_input_tokens

        def work() -> list[list[int]]:
            if any(tokenizer.surely_longer(text, most) for text in texts):
                return [[0] * (most + 1)]
            return encode(list(texts))

        inline = len(texts) == 1 and len(texts[0]) <= INLINE_CHARACTERS and tokenizer.linear_time
        found = work() if inline else await self.in_thread(work)
        longest = max((len(ids) for ids in found), default=0)
        if longest > most:
            message = f"{param}: a text of more than {most:,} tokens; split it"
            raise Refusal(400, message, param=param, code="context_length_exceeded")
        current_record().prompt_tokens += sum(map(len, found))
        return found

    async def encode_sources(self, served: Served, texts: Sequence[str], param: str) -> list[list[int]]:
        """Return the ids of source texts."""
        codec = served.bundle.codec
        assert codec.source is not None
        return await self.encode(codec.source, texts, param, codec.encode_sources)

    async def encode_targets(self, served: Served, texts: Sequence[str], param: str) -> list[list[int]]:
        """Return the ids of target texts, without BOS and EOS."""
        target = served.bundle.codec.target
        assert target is not None
        return await self.encode(target, texts, param, target.encode_batch)

    def search(self, served: Served, config: SearchConfig) -> BatchOperation:
        """Return the operation that searches for the best answers to texts."""
        bundle, engine = served.bundle, served.ctranslate2

        def run(texts: Sequence[str]) -> list[list[Answer]]:
            if engine is None:
                return translate(bundle.model, bundle.codec, texts, config, shortlist=served.shortlist)
            return as_answers(bundle.codec, engine.search(bundle.codec.encode_sources(texts), config, exact=False))

        return BatchOperation(("search", config), run, rows=config.beam)

    def constrained_search(self, served: Served, config: SearchConfig, rows: int) -> BatchOperation:
        """Return the operation that searches for answers to texts under constraints, with at most `rows` rows each."""
        bundle = served.bundle

        def run(items: Sequence[tuple[str, Constraint]]) -> list[list[Answer]]:
            texts, constraints = [text for text, _ in items], [constraint for _, constraint in items]
            return translate(bundle.model, bundle.codec, texts, config, None, served.shortlist, constraints)

        return BatchOperation(("constrained", config, rows), run, rows=rows)


async def cancel_on_disconnect(request: Request, work: Awaitable[Result]) -> Result:
    """Return the result of some work, or cancel it when the client disconnects. Read the request's body first."""

    async def disconnected() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    task, watch = asyncio.ensure_future(work), asyncio.ensure_future(disconnected())
    try:
        await asyncio.wait((task, watch), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise Refusal(499, "the client disconnected")  # never read
        return task.result()
    finally:
        for one in (task, watch):
            one.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await one
