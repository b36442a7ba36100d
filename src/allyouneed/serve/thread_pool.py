"""Slow work other than decoding, such as tokenizing, maps, programs and logs: it runs in a few threads.

Clients take turns: a client with many calls in the queue delays each call of another client by one call. Requests
beyond the limits of the queue are refused at once, and those that wait too long time out. Work for the operator, such
as a reload, does not use these threads: it never waits for clients.
"""

import asyncio
import json
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from typing import Any, TypeVar

from fastapi import Response

from allyouneed.errors import UserError
from allyouneed.serve.clients import CURRENT_CLIENT
from allyouneed.serve.config import ServeConfig
from allyouneed.serve.errors import Refusal
from allyouneed.serve.worker import closing

Result = TypeVar("Result")


class ThreadPool:
    """At most `config.threads` concurrent threads, with a queue of `config.queue` calls."""

    def __init__(self, config: ServeConfig) -> None:
        self.config = config
        self._free, self._executor = config.threads, ThreadPoolExecutor(config.threads)
        self._queue: OrderedDict[str, deque[asyncio.Future[None]]] = OrderedDict()  # by client; the next turn first

    async def run(self, call: Callable[..., Result], *values: Any) -> Result:
        """Return the result of a call in another thread. Refuse with 400 on a UserError."""
        try:
            return await self.run_unchecked(call, *values)
        except UserError as error:
            raise Refusal(400, str(error)) from None

    async def run_unchecked(self, call: Callable[..., Result], *values: Any) -> Result:
        """Return the result of a call in another thread, or raise its error."""
        if self._free:
            self._free -= 1
        else:
            await self._wait_for_turn(CURRENT_CLIENT.get())
        loop = asyncio.get_running_loop()

        def free_thread(_: object) -> None:
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(self._pass_on)

        work = self._executor.submit(copy_context().run, call, *values)
        work.add_done_callback(free_thread)  # not earlier, even if the request is cancelled
        return await asyncio.wrap_future(work)

    @property
    def waiting(self) -> int:
        """Number of calls in the queue."""
        return sum(map(len, self._queue.values()))

    def refuse_waiting(self) -> None:
        """Refuse the calls in the queue: the server shuts down. Call it in the event loop."""
        queue, self._queue = self._queue, OrderedDict()
        for calls in queue.values():
            for turn in calls:
                turn.set_exception(closing())

    async def _wait_for_turn(self, client: str) -> None:
        """Return when a thread is free for this call."""
        config, mine = self.config, self._queue.get(client, deque())
        share = config.queue // len({*self._queue, client})  # every client may use an equal share of the queue
        if len(mine) >= config.client_queue or (self.waiting >= config.queue and len(mine) >= share):
            raise Refusal(429, "the queue is full; try again in a moment", retry=1)
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.setdefault(client, mine).append(turn)
        try:
            async with asyncio.timeout(config.deadline):
                await asyncio.shield(turn)
        except BaseException as error:
            if not turn.done():
                self._leave(client, turn)
            elif turn.exception() is None:
                self._pass_on()
            if isinstance(error, TimeoutError):
                seconds = f"{config.deadline:.0f} seconds"
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
