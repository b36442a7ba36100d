"""The threads for slow work: clients take turns, and every call that ends or gives up makes room."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from allyouneed.config import parse
from allyouneed.errors import DataError
from allyouneed.serve import ServeConfig
from allyouneed.serve.clients import CURRENT_CLIENT
from allyouneed.serve.errors import Refusal
from allyouneed.serve.thread_pool import ThreadPool

pytestmark = pytest.mark.no_shapes
Task = asyncio.Task[Any]


class Calls:
    """A pool of one thread, occupied until `open` is called, and the calls that it has made."""

    def __init__(self, **settings: Any) -> None:
        self.pool = ThreadPool(parse(ServeConfig, {"threads": 1, **settings}))
        self.made: list[str] = []
        self._gate = threading.Event()
        self.first = self.start("first", self._gate.wait)

    def start(self, client: str, call: Callable[[], Any] | None = None) -> Task:
        """Start a call of a client."""

        async def run() -> Any:
            CURRENT_CLIENT.set(client)
            return await self.pool.run(call or (lambda: self.made.append(client)))

        return asyncio.create_task(run())

    async def open(self, *tasks: Task) -> list[Any]:
        """Free the thread, and return the results of all tasks, or their errors."""
        await asyncio.sleep(0)
        self._gate.set()
        return await asyncio.gather(self.first, *tasks, return_exceptions=True)


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(test())


def test_clients_take_turns() -> None:
    async def test() -> None:
        calls = Calls()
        await calls.open(*[calls.start(client) for client in "aaaabbc"])
        assert calls.made == list("abcabaa")

    run(test)


def test_a_client_cannot_fill_the_queue() -> None:
    async def test() -> None:
        calls = Calls(client_queue=3, queue=4)
        results = await calls.open(*[calls.start(client) for client in "aaaabbb"])
        refused = [isinstance(one, Refusal) and one.status == 429 for one in results[1:]]
        assert refused == [False, False, False, True, False, False, True]  # the second may use half of the queue
        assert sorted(calls.made) == list("aaabb")

    run(test)


def test_calls_that_leave_make_room() -> None:
    """Cancelled while waiting, timed out, or failed."""

    def fail() -> None:
        raise DataError("wrong")

    async def test() -> None:
        calls = Calls(deadline=0.2)
        gone, late = calls.start("a"), calls.start("b")
        await asyncio.sleep(0)
        gone.cancel()
        with pytest.raises(Refusal, match="no thread became free"):
            await late
        calls.pool.config = parse(ServeConfig, {"threads": 1})  # for the others, time on a busy machine
        failed, last = calls.start("c", fail), calls.start("a")
        results = await calls.open(gone, failed, last)
        assert isinstance(results[1], asyncio.CancelledError)
        assert (results[2].status, results[2].message) == (400, "wrong")
        with pytest.raises(DataError):
            await calls.pool.run_unchecked(fail)
        assert calls.made == ["a"]
        await calls.start("d")
        assert calls.made == ["a", "d"]

    run(test)


def test_a_cancelled_call_occupies_its_thread_until_it_ends() -> None:
    async def test() -> None:
        calls = Calls()
        await asyncio.sleep(0)
        calls.first.cancel()
        next_one = calls.start("a")
        await asyncio.wait([calls.first])
        assert calls.pool.waiting == 1
        await calls.open(next_one)
        assert calls.made == ["a"]

    run(test)


def test_waiting_calls_are_refused_at_shutdown_and_running_ones_end() -> None:
    async def test() -> None:
        calls = Calls()
        waiting = [calls.start(client) for client in "aab"]
        await asyncio.sleep(0)
        calls.pool.refuse_waiting()
        refused = await asyncio.gather(*waiting, return_exceptions=True)
        assert [isinstance(one, Refusal) and (one.status, one.code) for one in refused] == [(503, "shutting_down")] * 3
        assert (await calls.open(), calls.made) == ([True], [])
        await calls.start("c")
        assert calls.made == ["c"]

    run(test)


def test_a_call_cancelled_when_its_turn_comes_passes_it_on() -> None:
    async def test() -> None:
        calls = Calls()
        gone, next_one = calls.start("a"), calls.start("b")
        await asyncio.sleep(0)
        calls.pool._pass_on()  # as if the first call had ended
        gone.cancel()
        await calls.open(gone, next_one)
        assert calls.made == ["b"]

    run(test)
