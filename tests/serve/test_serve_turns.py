"""Searches, scores and classes of several requests: each has its turn, whatever the others want."""

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
from serve_folders import running, translator

from allyouneed.decode import translate
from allyouneed.folder import load_folder
from allyouneed.serve.batch_worker import BatchWorker, Turns
from allyouneed.serve.worker import Ticket, Waiting, Work

pytestmark = pytest.mark.no_shapes


def until(true: Callable[[], bool], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it never came true"
        time.sleep(0.01)


class Desk:
    """BatchWorker of at most 12 rows, one at a time as a test calls for them, and what was in each."""

    def __init__(self) -> None:
        self.waiting, self._pieces = Waiting(), []
        self._worker = BatchWorker("pieces", self.waiting, 1, 12)

    def ask(self, items: str, key: str = "search", rows: int = 3) -> Ticket:
        ticket = Ticket(work=Work(key, self._run, rows), items=items)
        with self.waiting.changed:
            self.waiting.add(ticket)
        return ticket

    def piece(self) -> str:
        self._worker.work()
        return self._pieces.pop() if self._pieces else ""

    def _run(self, items: Sequence[Any]) -> Sequence[Any]:
        self._pieces.append("".join(items))
        return [item.upper() for item in items]


def at_a_desk(scene: Callable[[Desk], None]) -> None:
    async def main() -> None:  # tickets belong to an event loop
        scene(Desk())

    asyncio.run(main())


def test_a_request_of_many_pieces_lets_others_pass_after_each() -> None:
    def scene(desk: Desk) -> None:
        long = desk.ask("abcdefghij")
        assert desk.piece() == "abcd"
        short = desk.ask("x")
        assert len(desk.waiting) == 7
        assert desk.piece() == "x"
        desk.ask("y")  # nor does one after another keep the long one from its turn
        assert desk.piece() == "efgh"
        assert desk.piece() == "yij"
        assert not desk.waiting.items
        assert (long.results, short.results) == (list("ABCDEFGHIJ"), ["X"])

    at_a_desk(scene)


def test_small_requests_run_together() -> None:
    def scene(desk: Desk) -> None:
        for items in ("ab", "c", "defghi", "jk", "l"):
            desk.ask(items)
        assert desk.piece() == "abcl"  # four have room: all of the first, and others as a whole
        assert desk.piece() == "defg"
        assert desk.piece() == "jkhi"
        assert desk.piece() == ""

    at_a_desk(scene)


def test_kinds_take_turns_and_whatever_is_too_wide_runs_alone() -> None:
    def scene(desk: Desk) -> None:
        desk.ask("abcdefgh")
        desk.ask("xyz", "score", 1)
        desk.ask("vw", "wide", 100)
        assert [desk.piece() for _ in range(6)] == ["abcd", "xyz", "v", "efgh", "w", ""]

    at_a_desk(scene)


def test_whoever_goes_away_leaves_the_queue() -> None:
    def scene(desk: Desk) -> None:
        long = desk.ask("abcdefgh")
        assert desk.piece() == "abcd"
        desk.ask("x")
        long.cancelled = True
        desk.waiting.forget_cancelled()
        assert [desk.piece(), desk.piece()] == ["x", ""]
        left = desk.ask("y")
        with desk.waiting.changed:
            assert desk.waiting.close() == {left}
        assert len(desk.waiting) == 0

    at_a_desk(scene)


def test_a_lock_goes_to_whoever_waits_and_not_back() -> None:
    turns, had = Turns(), []

    def take() -> None:
        with turns:
            had.append("other")

    other = threading.Thread(target=take)
    with turns:
        other.start()
        until(lambda: len(turns.waiting) == 1)
        had.append("first")
    with turns:
        had.append("first again")
    other.join()
    assert had == ["first", "other", "first again"]
    with turns:
        pass


def test_a_line_does_not_wait_for_all_lines_of_another_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And what both are told is what each is told alone."""
    folder = translator(tmp_path, "numbers", beam=5)
    bundle = load_folder(folder)
    long, short = [f"{word} hundred" for word in "abcdefghijklmnopqrstuvwxyz"], "one"
    asked: list[list[str]] = []
    begun, go_on = threading.Event(), threading.Event()

    def searched(model: Any, codec: Any, texts: Sequence[str], *args: Any, **settings: Any) -> Any:
        asked.append(list(texts))
        begun.set()
        assert go_on.wait(60)
        return translate(model, codec, texts, *args, **settings)

    monkeypatch.setattr("allyouneed.serve.backend.translate", searched)
    said: dict[str, Any] = {}
    with running([folder]) as (url, backend):

        def ask(name: str, q: str | list[str]) -> None:
            body = {"q": q, "source": "en", "target": "de"}
            said[name] = httpx.post(f"{url}/translate", json=body, timeout=60).json()["translatedText"]

        config = backend.models["numbers-de"].search
        first = threading.Thread(target=ask, args=("long", long))
        first.start()
        assert begun.wait(60)
        second = threading.Thread(target=ask, args=("short", short))
        second.start()
        until(lambda: len(backend.engines["numbers-de"].waiting) == len(long) - 12 + 1)
        go_on.set()
        first.join()
        second.join()
    assert asked == [long[:12], [short], long[12:24], long[24:]]
    wanted = [translate(bundle.model, bundle.codec, texts, config) for texts in asked]
    best = [[answers[0].text for answers in piece] for piece in wanted]
    assert said == {"long": [*best[0], *best[2], *best[3]], "short": best[1][0]}
