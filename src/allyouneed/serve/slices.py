"""Long computations in the event loop, cut into slices of a few milliseconds that take turns.

Detokenizing and serializing a response of many tokens takes seconds. A thread would not help, because the serializer
holds the interpreter's lock. So such work is cut:

    an iteration of the event loop:   everything that is short;  one slice of one long computation

Clients take turns, so that many long responses of one client do not delay those of others.
"""

import asyncio
import time
from collections import deque

from allyouneed.serve.clients import CURRENT_CLIENT

SLICE = 0.002  # seconds


class SliceTurns:
    """The long computations of an event loop. Each iteration of the loop continues one of them."""

    def __init__(self) -> None:
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}  # by client, in order of turns
        self._scheduled = False

    async def next_turn(self, client: str) -> None:
        """Wait until this computation may continue, in a later iteration of the loop."""
        loop = asyncio.get_running_loop()
        turn = loop.create_future()
        self._waiting.setdefault(client, deque()).append(turn)
        if not self._scheduled:
            self._scheduled = True
            loop.call_soon(self._pass_on, loop)
        await turn

    def _pass_on(self, loop: asyncio.AbstractEventLoop) -> None:
        while self._waiting:
            client = next(iter(self._waiting))
            waiting = self._waiting.pop(client)
            turn = waiting.popleft()
            if waiting:
                self._waiting[client] = waiting
            if not turn.done():  # otherwise it was cancelled
                turn.set_result(None)
                loop.call_soon(self._pass_on, loop)
                return
        self._scheduled = False


class TimeSlice:
    """The current slice of one computation."""

    def __init__(self, turns: SliceTurns) -> None:
        self._turns, self._client = turns, CURRENT_CLIENT.get()
        self.begin()

    def begin(self) -> None:
        """Start a slice. Call it after waiting for something else."""
        self._begun = time.perf_counter()

    async def checkpoint(self) -> None:
        """End the slice if its time is over, and wait for the next one. Call it every millisecond or more often."""
        if time.perf_counter() - self._begun > SLICE:
            await self._turns.next_turn(self._client)
            self.begin()
