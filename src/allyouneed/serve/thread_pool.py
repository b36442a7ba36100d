"""Work that takes a while and is no decoding: maps, programs, logs. In threads, a few at a time, not in the event loop.

Whoever comes when too many wait is refused at once, and whoever has waited too long is told so; what a user did wrong
is an answer, not a failure.
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
    """`config.workers` threads at a time; `config.queue` may wait for them."""

    def __init__(self, config: ServeConfig) -> None:
        self.config = config
        self._free = asyncio.Semaphore(config.workers)
        self._waiting = 0

    async def work(self, call: Callable[..., Result], *values: Any) -> Result:
        """The result of a call in another thread. A UserError is refused with 400."""
        if self._waiting >= self.config.queue:
            raise Refusal(429, "too many requests wait already; try again in a moment", retry=1)
        self._waiting += 1
        try:
            async with asyncio.timeout(self.config.deadline):
                await self._free.acquire()
        except TimeoutError:
            raise Refusal(503, f"waited {self.config.deadline:.0f} seconds for a free place", retry=5) from None
        finally:
            self._waiting -= 1
        try:
            return await run_in_threadpool(call, *values)
        except UserError as error:
            raise Refusal(400, str(error)) from None
        finally:
            self._free.release()


def as_answer(data: Any) -> Response:
    """Plain values as JSON, everything beyond ASCII escaped: texts may hold what UTF-8 cannot."""
    return Response(json.dumps(data, allow_nan=False), media_type="application/json")
