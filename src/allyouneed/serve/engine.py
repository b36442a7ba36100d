"""The engine of a model: one thread that decodes for everybody at once.

    forever:  let waiting rows join the batch;  one step of all rows;  one piece of other work (beam searches, scores)

Rows join and leave between steps (`decode/running.py`), so nobody waits for the slowest of a batch, and the weights are
read once for all. Work that is no walk of rows (beam search, scoring, classes) is cut into pieces, and pieces of one
kind from several requests run as one batch.

The event loop hands in tickets and hears of tokens; it never waits for the engine, nor the engine for a reader: what a
slow reader has not taken yet is at most one answer. Whoever stops waiting (a hang-up, a deadline) cancels the ticket,
and its rows leave the batch before the next step.
"""

import asyncio
import logging
import math
import threading
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch

from allyouneed.decode.running import Row, Running, Said
from allyouneed.errors import UserError
from allyouneed.serve.config import ServeConfig
from allyouneed.serve.errors import Refusal
from allyouneed.serve.metrics import Metrics
from allyouneed.serve.models import Served

PREFILL = 4096  # tokens of prompts and sources that are read at once
# A state is copied as a whole for those who join, so a full batch takes several in at once: at least one for so many
# rows, but nobody waits longer than so many steps.
TOGETHER, PATIENCE = 8, 4
LONGEST_RETRY = 60  # seconds that a refused client is told to wait, at most
# Searches set how many threads torch uses, for the whole process and back again: they take turns.
SEARCHES = threading.Lock()

log = logging.getLogger(__name__)
Asked = TypeVar("Asked")  # a row, or the number of an item


@dataclass(frozen=True)
class Work:
    """Something that is done for many items at once: equal keys may run together."""

    key: Hashable
    run: Callable[[Sequence[Any]], Sequence[Any]]
    rows: int = 1  # of a batch that one item needs


class Ticket:
    """What one request waits for: the tokens of its rows, or the results of its items."""

    def __init__(self, rows: Sequence[Row] = (), work: Work | None = None, items: Sequence[Any] = ()) -> None:
        self.rows, self.work, self.items = list(rows), work, list(items)
        self.results: list[Any] = [None] * len(self.items)
        self.left = len(self.rows) + len(self.items)
        self.cancelled = False
        self.loop = asyncio.get_running_loop()
        self.events: asyncio.Queue[Said | Refusal | None] = asyncio.Queue()  # None: all is done

    @property
    def size(self) -> int:
        """How much of the queue it takes."""
        return len(self.rows) + len(self.items)


@dataclass
class _Queue:
    """What waits, guarded by the lock of the engine."""

    rows: deque[tuple[Ticket, Row]] = field(default_factory=deque)
    items: deque[tuple[Ticket, int]] = field(default_factory=deque)

    def __len__(self) -> int:
        return len(self.rows) + len(self.items)

    def forget_cancelled(self) -> None:
        """Whoever went away makes room for others."""
        if any(ticket.cancelled for ticket, _ in (*self.rows, *self.items)):
            self.rows = deque(one for one in self.rows if not one[0].cancelled)
            self.items = deque(one for one in self.items if not one[0].cancelled)


class Engine:
    """Decodes for all requests to one model, in a thread of its own."""

    def __init__(self, served: Served, config: ServeConfig, metrics: Metrics) -> None:
        self.served, self.config, self.metrics = served, config, metrics
        self._running = Running(served.bundle.model) if served.says_text else None
        self._owner: dict[Row, Ticket] = {}  # of running rows; a row is itself, not its content
        self._queue, self._lock = _Queue(), threading.Lock()
        self._wake = threading.Condition(self._lock)
        self._closed = False
        self._waited = 0  # steps, for others to join with
        self._seconds = 1.0  # that a request took lately
        self._heard: list[tuple[Ticket, Said | Refusal | None]] = []
        self._thread = threading.Thread(target=self._run, name=f"engine {served.name}", daemon=True)

    def start(self) -> None:
        """Begins to work."""
        self._thread.start()

    def close(self) -> None:
        """Ends all work; whoever still waits is told so."""
        with self._lock:
            self._closed = True
            self._wake.notify()
        if self._thread.ident is not None:
            self._thread.join()

    # --- the side of the event loop ----------------------------------------------------------------------------------

    def walk(self, rows: Sequence[Row]) -> AsyncGenerator[Said]:
        """The tokens of some rows, as they come. Closing the iteration takes the rows out of the batch."""
        return self._events(self._submit(Ticket(rows)))

    async def do(self, work: Work, items: Sequence[Any]) -> list[Any]:
        """The results of some items."""
        if not items:
            return []
        ticket = self._submit(Ticket(work=work, items=items))
        async for _ in self._events(ticket):
            pass
        return ticket.results

    async def _events(self, ticket: Ticket) -> AsyncGenerator[Said]:
        begun = ticket.loop.time()
        try:
            while True:
                # Around the waiting alone: what the reader does between events is no matter of the engine's time.
                async with asyncio.timeout_at(begun + self.config.deadline):
                    event = await ticket.events.get()
                if isinstance(event, Refusal):
                    raise event
                if event is None:
                    self._seconds += 0.1 * (ticket.loop.time() - begun - self._seconds)
                    return
                yield event
        except TimeoutError:
            message = f"not done within {self.config.deadline:g} seconds; ask for less, or try again later"
            raise Refusal(503, message, code="deadline_exceeded", retry=self._retry()) from None
        finally:
            ticket.cancelled = True

    def require_room(self, size: int) -> None:
        """Refuses what the queue has no room for; asked before texts are tokenised, too: a refusal costs nothing."""
        if self._closed:
            raise closing()
        if len(self._queue) + size > self.config.queue:
            self.metrics.refused.labels(self.served.name).inc()
            message = f"{len(self._queue)} answers wait already, of at most {self.config.queue}; try again later"
            raise Refusal(429, message, code="queue_full", retry=self._retry())

    def _submit(self, ticket: Ticket) -> Ticket:
        with self._lock:
            self.require_room(ticket.size)
            self._queue.rows.extend((ticket, row) for row in ticket.rows)
            self._queue.items.extend((ticket, item) for item in range(len(ticket.items)))
            self._wake.notify()
        return ticket

    def _retry(self) -> int:
        """Seconds until the queue is likely to have room."""
        rounds = 1 + len(self._queue) / self.config.batch
        return min(LONGEST_RETRY, max(1, math.ceil(rounds * self._seconds)))

    # --- the side of the engine's thread -----------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            with self._lock:
                while not (self._closed or len(self._queue) or self._owner):
                    self._wake.wait()
                if self._closed:
                    break
            try:
                self._round()
            except Exception as error:  # no request may take the engine with it
                log.exception("engine of %s", self.served.name)
                self._fail_running(error)
            self._tell()
        with self._lock:
            tickets = {*(ticket for ticket, _ in (*self._queue.rows, *self._queue.items)), *self._owner.values()}
            self._queue = _Queue()
        self._owner.clear()
        self._heard += [(ticket, closing()) for ticket in tickets]
        self._tell()

    def _round(self) -> None:
        with self._lock:
            self._queue.forget_cancelled()
        if self._running is not None:
            self._forget_cancelled(self._running)
            self._admit(self._running)
            if self._running.rows:
                begun, rows = time.perf_counter(), len(self._running.rows)
                self._step(self._running)
                self.metrics.step(self.served.name, rows, time.perf_counter() - begun)
            self._tell()
        self._do_piece()
        self.metrics.waiting.labels(self.served.name).set(len(self._queue))
        self.metrics.running.labels(self.served.name).set(len(self._owner))

    def _forget_cancelled(self, running: Running) -> None:
        gone = [row for row, ticket in self._owner.items() if ticket.cancelled]
        if gone:
            running.remove(gone)
            for row in gone:
                del self._owner[row]

    def _admit(self, running: Running) -> None:
        """Waiting rows join, as many as there is room for and as fit into one reading."""
        fresh: list[tuple[Ticket, Row]] = []
        with self._lock:
            ready = min(self.config.batch - len(running.rows), len(self._queue.rows))
            if ready * TOGETHER < len(running.rows) and self._waited < PATIENCE:
                self._waited += 1
                return
            longest, self._waited = 0, 0
            while self._queue.rows and len(running.rows) + len(fresh) < self.config.batch:
                longest = max(longest, self._queue.rows[0][1].length)
                if fresh and longest * (len(fresh) + 1) > PREFILL:
                    break
                fresh.append(self._queue.rows.popleft())
        if not fresh:
            return
        self._together(fresh, lambda some: self._join(running, some))

    def _together(
        self, asked: Sequence[tuple[Ticket, Asked]], run: Callable[[Sequence[tuple[Ticket, Asked]]], None]
    ) -> None:
        """All at once; if that fails, one of them may be to blame: alone, each answers for itself."""
        try:
            run(asked)
        except Exception:
            for one in asked:
                try:
                    run([one])
                except Exception as error:
                    self._heard.append((one[0], refusal_of(error)))

    def _join(self, running: Running, fresh: Sequence[tuple[Ticket, Row]]) -> None:
        said = running.add([row for _, row in fresh])
        self._owner.update({row: ticket for ticket, row in fresh})
        self._hear(said)

    def _step(self, running: Running) -> None:
        try:
            self._hear(running.step())
        except Exception as error:
            failing = running.failing() or [(row, error) for row in running.rows]
            for row, reason in failing:
                self._heard.append((self._owner.pop(row), refusal_of(reason)))
            running.remove([row for row, _ in failing])

    def _hear(self, said: Sequence[Said]) -> None:
        for one in said:
            ticket = self._owner[one.row] if one.end is None else self._owner.pop(one.row)
            self._heard.append((ticket, one))
            if one.end is not None:
                self._count_down(ticket)
        self.metrics.tokens.labels(self.served.name).inc(len(said))

    def _do_piece(self) -> None:
        """As many waiting items of one kind as make a batch."""
        piece: list[tuple[Ticket, int]] = []
        with self._lock:
            others: deque[tuple[Ticket, int]] = deque()
            work: Work | None = None
            while self._queue.items:
                ticket, item = self._queue.items.popleft()
                assert ticket.work is not None
                work = work or ticket.work
                room = (len(piece) + 1) * work.rows <= self.config.batch or not piece
                (piece if ticket.work.key == work.key and room else others).append((ticket, item))
            self._queue.items = others
        if work is None:
            return
        self._together(piece, lambda some: self._do(work, some))

    def _do(self, work: Work, piece: Sequence[tuple[Ticket, int]]) -> None:
        with SEARCHES, torch.inference_mode():
            found = work.run([ticket.items[item] for ticket, item in piece])
        for (ticket, item), result in zip(piece, found, strict=True):
            ticket.results[item] = result
            self._count_down(ticket)

    def _count_down(self, ticket: Ticket) -> None:
        ticket.left -= 1
        if not ticket.left:
            self._heard.append((ticket, None))

    def _fail_running(self, error: Exception) -> None:
        self._heard += [(ticket, refusal_of(error)) for ticket in set(self._owner.values())]
        self._owner.clear()
        if self._running is not None:
            self._running.remove(self._running.rows)

    def _tell(self) -> None:
        """Hands over what was heard; one call for each event loop, usually the only one."""
        heard, self._heard = self._heard, []
        for loop in {ticket.loop for ticket, _ in heard}:
            mine = [(ticket, event) for ticket, event in heard if ticket.loop is loop]
            try:
                loop.call_soon_threadsafe(_deliver, mine)
            except RuntimeError:  # the loop has ended, and with it whoever waited
                continue


def _deliver(heard: Sequence[tuple[Ticket, Said | Refusal | None]]) -> None:
    for ticket, event in heard:
        ticket.events.put_nowait(event)


def closing() -> Refusal:
    """What is said while the server shuts down."""
    return Refusal(503, "the server is shutting down", code="shutting_down", retry=5)


def refusal_of(error: Exception) -> Refusal:
    """What a client is told of an exception in the engine."""
    if isinstance(error, UserError):
        return Refusal(400, str(error))
    log.error("a request failed", exc_info=error)
    return Refusal(500, "internal error")
