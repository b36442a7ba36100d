"""Slow work other than decoding, such as maps, programs and logs: it runs in a few threads, not in the event loop.

Requests beyond the queue limit are refused at once, and those that wait too long time out. A UserError becomes a 400.
"""

import asyncio
import json
from collections.abc import Callable
from typing import Any, TypeVar

from fastapi import Response
from fastapi.concurrency import run_in_threadpool

from allyouneed.errors import UserError
from allyouneed.serve.config import ServeConfig
from allyouneed.serve.errors import Refusal

Result = TypeVar("Result")


class ThreadPool:
    """At most `config.threads` concurrent threads, with a queue of `config.queue` calls."""

    def __init__(self, config: ServeConfig) -> None:
        self.config = config
        self._free = asyncio.Semaphore(config.threads)
        self._queued = 0

    async def run(self, call: Callable[..., Result], *values: Any) -> Result:
        """Return the result of a call in another thread. Refuse with 400 on a UserError."""
        if self._queued >= self.config.queue:
            raise Refusal(429, "the queue is full; try again in a moment", retry=1)
        self._queued += 1
        try:
            async with asyncio.timeout(self.config.deadline):
                await self._free.acquire()
        except TimeoutError:
            raise Refusal(503, f"no thread became free within {self.config.deadline:.0f} seconds", retry=5) from None
        finally:
            self._queued -= 1
        try:
            return await run_in_threadpool(call, *values)
        except UserError as error:
            raise Refusal(400, str(error)) from None
        finally:
            self._free.release()


def json_response(data: Any) -> Response:
    """Return plain values as JSON, with non-ASCII characters escaped: texts may hold what UTF-8 cannot encode."""
    return Response(json.dumps(data, allow_nan=False), media_type="application/json")
