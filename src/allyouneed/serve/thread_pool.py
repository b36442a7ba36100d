"""Slow work other than decoding, such as maps, programs and logs: it runs in a few threads, not in the event loop.

Clients take turns: a client with many calls in the queue delays each call of another client by one call. Requests
beyond the limits of the queue are refused at once, and those that wait too long time out. A UserError becomes a 400.
"""

import asyncio
import json
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Any, TypeVar

from fastapi import Response
from fastapi.concurrency import run_in_threadpool

from allyouneed.errors import UserError
from allyouneed.serve.clients import CURRENT_CLIENT
from allyouneed.serve.config import ServeConfig
from allyouneed.serve.errors import Refusal

Result = TypeVar("Result")


class ThreadPool:
    """At most `config.threads` concurrent threads, with a queue of `config.queue` calls."""

    def __init__(self, config: ServeConfig) -> None:
        self.config = config
        self._free = config.threads
        self._queue: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()  # by client; the next turn first

    async def run(self, call: Callable[..., Result], *values: Any) -> Result:
        """Return the result of a call in another thread. Refuse with 400 on a UserError."""
        if self._free:
            self._free -= 1
        else:
            await self._wait_for_turn(CURRENT_CLIENT.get())
        try:
            return await run_in_threadpool(call, *values)
        except UserError as error:
            raise Refusal(400, str(error)) from None
        finally:
            self._pass_on()

    async def _wait_for_turn(self, client: str) -> None:
        """Return when a thread is free for this call."""
        mine = self._queue.get(client, deque())
        if len(mine) >= self.config.client_queue or sum(map(len, self._queue.values())) >= self.config.queue:
            raise Refusal(429, "the queue is full; try again in a moment", retry=1)
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.setdefault(client, mine).append(turn)
        try:
            async with asyncio.timeout(self.config.deadline):
                await asyncio.shield(turn)
        except BaseException as error:
            if turn.done():
                self._pass_on()
            else:
                self._leave(client, turn)
            if isinstance(error, TimeoutError):
                seconds = f"{self.config.deadline:.0f} seconds"
                raise Refusal(503, f"no thread became free within {seconds}", retry=5) from None
            raise

    def _pass_on(self) -> None:
        """Give the thread to the client whose turn it is."""
        if not self._queue:
            self._free += 1
            return
        client, calls = self._queue.popitem(last=False)
        calls.popleft().set_result(None)
        if calls:
            self._queue[client] = calls  # after all others

    def _leave(self, client: str, turn: "asyncio.Future[None]") -> None:
        self._queue[client].remove(turn)
        if not self._queue[client]:
            del self._queue[client]


def json_response(data: Any) -> Response:
    """Return plain values as JSON, with non-ASCII characters escaped: texts may hold what UTF-8 cannot encode."""
    return Response(json.dumps(data, allow_nan=False), media_type="application/json")
