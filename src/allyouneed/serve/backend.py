"""What all endpoints share: the models, their engines, and the checks that come before any work."""

import asyncio
import hmac
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import suppress
from typing import TypeVar

from fastapi import Request

from allyouneed.decode import Answer, SearchConfig, translate
from allyouneed.decode.translate import as_answers
from allyouneed.errors import unknown_name
from allyouneed.serve.config import ServeConfig
from allyouneed.serve.engine import Engine
from allyouneed.serve.errors import Refusal
from allyouneed.serve.metrics import Metrics
from allyouneed.serve.models import Served, check_searches
from allyouneed.serve.worker import Work
from allyouneed.text.tokenizer import Tokenizer

# Characters of a text that are tokenised at once: a tenth of a millisecond usually, one at most. Another thread takes
# longer to begin. Several texts are another matter: the library's own threads work on them, and may be busy.
AT_ONCE = 1000
Result = TypeVar("Result")


class Backend:
    """Models by name, an engine for each, and the limits of what may be asked of them."""

    def __init__(self, config: ServeConfig, models: dict[str, Served]) -> None:
        check_searches(models, config)
        self.config, self.models, self.metrics = config, models, Metrics()
        self.engines = {name: Engine(served, config, self.metrics) for name, served in models.items()}
        self.draining = False  # no new requests are taken
        self.active = 0  # requests that are being answered

    def start(self) -> None:
        """Engines begin to work."""
        for engine in self.engines.values():
            engine.start()

    def close(self) -> None:
        """Engines end, whatever they do."""
        for engine in self.engines.values():
            engine.close()

    def served(self, name: str) -> Served:
        """The model of a name."""
        if name not in self.models:
            message = f"model: {unknown_name(name[:100], self.models)}"
            raise Refusal(404, message, param="model", code="model_not_found")
        return self.models[name]

    def check_key(self, *given: str | None) -> None:
        """One of the given keys must be one of the server's. How long this takes tells nothing about them."""
        known = [key.encode() for key in self.config.keys]
        tries = [key.encode("utf-8", "surrogatepass") for key in given if key is not None]
        if known and True not in [hmac.compare_digest(key, one) for key in known for one in tries]:
            what = "the key is none of this server's" if tries else "a key is needed"
            raise Refusal(401, f"{what}: Authorization: Bearer KEY, or api_key of /translate", code="invalid_api_key")

    def check_texts(self, texts: Sequence[str], param: str) -> None:
        """Refuses what is too much, before anything looks at it."""
        config = self.config
        if len(texts) > config.max_texts:
            raise Refusal(400, f"{param}: {len(texts)} texts; at most {config.max_texts} at once", param=param)
        characters = sum(map(len, texts))
        if characters > config.max_characters:
            message = f"{param}: {characters:,} characters; at most {config.max_characters:,} in one request"
            raise Refusal(400, message, param=param, code="too_many_characters")
        if any("\ud800" <= character <= "\udfff" for text in texts for character in text):
            raise Refusal(400, f"{param}: holds half of a surrogate pair, which is no character", param=param)

    async def encode(
        self, tokenizer: Tokenizer, texts: Sequence[str], param: str, encode: Callable[[list[str]], list[list[int]]]
    ) -> list[list[int]]:
        """The ids of texts that have been checked; too many for one text are refused."""
        most = self.config.max_input_tokens

        def work() -> list[list[int]]:
            if any(tokenizer.surely_longer(text, most) for text in texts):
                return [[0] * (most + 1)]
            return encode(list(texts))

        short = len(texts) == 1 and len(texts[0]) <= AT_ONCE and tokenizer.steady
        found = work() if short else await asyncio.to_thread(work)
        longest = max((len(ids) for ids in found), default=0)
        if longest > most:
            message = f"{param}: a text of more than {most:,} tokens; cut it into pieces"
            raise Refusal(400, message, param=param, code="context_length_exceeded")
        return found

    async def encode_sources(self, served: Served, texts: Sequence[str], param: str) -> list[list[int]]:
        """What a model with a source reads."""
        codec = served.bundle.codec
        assert codec.source is not None
        return await self.encode(codec.source, texts, param, codec.encode_sources)

    async def encode_targets(self, served: Served, texts: Sequence[str], param: str) -> list[list[int]]:
        """Texts of the target, without BOS and EOS."""
        target = served.bundle.codec.target
        assert target is not None
        return await self.encode(target, texts, param, target.encode_batch)

    def search(self, served: Served, config: SearchConfig) -> Work:
        """The best answers to texts, as work for the engine."""
        bundle, engine = served.bundle, served.ctranslate2

        def run(texts: Sequence[str]) -> list[list[Answer]]:
            if engine is None:
                return translate(bundle.model, bundle.codec, texts, config, shortlist=served.shortlist)
            return as_answers(bundle.codec, engine.search(bundle.codec.encode_sources(texts), config, exact=False))

        return Work(("search", config), run, rows=config.beam)


async def unless_gone(request: Request, work: Awaitable[Result]) -> Result:
    """The result of some work, which is given up when the client hangs up. The body must have been read."""

    async def gone() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    task, watch = asyncio.ensure_future(work), asyncio.ensure_future(gone())
    try:
        await asyncio.wait((task, watch), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise Refusal(499, "the client went away")  # nobody reads it
        return task.result()
    finally:
        for one in (task, watch):
            one.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await one


async def joined(events: AsyncGenerator[Result]) -> list[Result]:
    """All of a stream."""
    return [event async for event in events]
