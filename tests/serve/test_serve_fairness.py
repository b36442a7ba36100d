"""Searches, scores and classes of several requests are scheduled fairly."""

import asyncio
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
from serve_folders import running, translator

from allyouneed.decode import translate
from allyouneed.folder import load_folder
from allyouneed.serve.batch_worker import BatchWorker, FairLock
from allyouneed.serve.worker import BatchOperation, PendingRequest, RequestQueue
from waiting import PATIENCE, until

pytestmark = pytest.mark.no_shapes


class Harness:
    """A batch worker of at most 12 rows that a test drives batch by batch. Records the items of each batch."""

    def __init__(self) -> None:
        self.queue, self._batches = RequestQueue(), []
        self._worker = BatchWorker("batch worker", self.queue, 1, 12)

    def submit(self, items: str, key: str = "search", rows: int = 3) -> PendingRequest:
        request = PendingRequest(operation=BatchOperation(key, self._run, rows), items=items)
        with self.queue.changed:
            self.queue.add(request)
        return request

    def batch(self) -> str:
        self._worker.work()
        return self._batches.pop() if self._batches else ""

    def _run(self, items: Sequence[Any]) -> Sequence[Any]:
        self._batches.append("".join(items))
        return [item.upper() for item in items]


def with_harness(scenario: Callable[[Harness], None]) -> None:
    async def main() -> None:  # a pending request needs an event loop
        scenario(Harness())

    asyncio.run(main())


def test_a_request_of_several_batches_yields_to_others_after_each() -> None:
    def scenario(harness: Harness) -> None:
        long = harness.submit("abcdefghij")
        assert harness.batch() == "abcd"
        short = harness.submit("x")
        assert len(harness.queue) == 7
        assert harness.batch() == "x"
        harness.submit("y")  # a series of short requests does not starve the long one
        assert harness.batch() == "efgh"
        assert harness.batch() == "yij"
        assert not harness.queue.items
        assert (long.results, short.results) == (list("ABCDEFGHIJ"), ["X"])

    with_harness(scenario)


def test_small_requests_share_a_batch() -> None:
    def scenario(harness: Harness) -> None:
        for items in ("ab", "c", "defghi", "jk", "l"):
            harness.submit(items)
        assert harness.batch() == "abcl"  # four items fit: all of the first request, and other requests as a whole
        assert harness.batch() == "defg"
        assert harness.batch() == "jkhi"
        assert harness.batch() == ""

    with_harness(scenario)


def test_kinds_alternate_and_items_larger_than_a_batch_run_alone() -> None:
    def scenario(harness: Harness) -> None:
        harness.submit("abcdefgh")
        harness.submit("xyz", "score", 1)
        harness.submit("vw", "wide", 100)
        assert [harness.batch() for _ in range(6)] == ["abcd", "xyz", "v", "efgh", "w", ""]

    with_harness(scenario)


def test_cancelled_requests_leave_the_queue() -> None:
    def scenario(harness: Harness) -> None:
        long = harness.submit("abcdefgh")
        assert harness.batch() == "abcd"
        harness.submit("x")
        harness.queue.cancel(long)
        assert long.cancelled
        assert [harness.batch(), harness.batch()] == ["x", ""]
        left = harness.submit("y")
        with harness.queue.changed:
            assert harness.queue.close() == {left}
        assert len(harness.queue) == 0

    with_harness(scenario)


def test_a_fair_lock_goes_to_the_longest_waiter() -> None:
    lock, order = FairLock(), []

    def take() -> None:
        with lock:
            order.append("other")

    other = threading.Thread(target=take)
    with lock:
        other.start()
        until(lambda: len(lock.waiters) == 1)
        order.append("first")
    with lock:
        order.append("first again")
    other.join()
    assert order == ["first", "other", "first again"]
    with lock:
        pass


def test_a_short_translation_overtakes_a_long_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both get the same translations as alone."""
    folder = translator(tmp_path, "numbers", beam=5)
    bundle = load_folder(folder)
    long, short = [f"{word} hundred" for word in "abcdefghijklmnopqrstuvwxyz"], "one"
    batches: list[list[str]] = []
    started, resume = threading.Event(), threading.Event()

    def search(model: Any, codec: Any, texts: Sequence[str], *args: Any, **settings: Any) -> Any:
        batches.append(list(texts))
        started.set()
        assert resume.wait(PATIENCE)
        return translate(model, codec, texts, *args, **settings)

    monkeypatch.setattr("allyouneed.serve.backend.translate", search)
    responses: dict[str, Any] = {}
    with running([folder]) as (url, backend):

        def post(name: str, q: str | list[str]) -> None:
            body = {"q": q, "source": "en", "target": "de"}
            responses[name] = httpx.post(f"{url}/translate", json=body).json()["translatedText"]

        config = backend.models["numbers-de"].search
        first = threading.Thread(target=post, args=("long", long))
        first.start()
        assert started.wait(PATIENCE)
        second = threading.Thread(target=post, args=("short", short))
        second.start()
        until(lambda: len(backend.engines["numbers-de"].queue) == len(long) - 12 + 1)
        resume.set()
        first.join()
        second.join()
    assert batches == [long[:12], [short], long[12:24], long[24:]]
    wanted = [translate(bundle.model, bundle.codec, texts, config) for texts in batches]
    best = [[answers[0].text for answers in batch] for batch in wanted]
    assert responses == {"long": [*best[0], *best[2], *best[3]], "short": best[1][0]}
