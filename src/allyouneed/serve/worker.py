"""The request queue of an engine, and the base class of its worker threads.

The event loop enqueues requests and receives their events. It never blocks on a worker, and a worker never blocks on a
client: the rows of a reader that lags leave the batch until it has caught up. A disconnect or a deadline marks a
request as cancelled.

Several workers may process the rows of one request. Its remaining rows are therefore counted in its event loop, where
events arrive in order: "done" always follows all other events.
"""

import asyncio
import logging
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from allyouneed.decode.running_batch import GeneratedToken, Row
from allyouneed.errors import UserError
from allyouneed.serve.clients import CURRENT_CLIENT
from allyouneed.serve.errors import Refusal
from allyouneed.serve.request_record import current_record

log = logging.getLogger(__name__)
Unit = TypeVar("Unit")  # a row, or the index of an item


@dataclass(frozen=True)
class BatchOperation:
    """A function of many items. Items of operations with equal keys may share a batch."""

    key: Hashable
    run: Callable[[Sequence[Any]], Sequence[Any]]
    rows: int = 1  # rows of a batch that one item occupies


class PendingRequest:
    """A request in the engine: it waits for the tokens of its rows, or for the results of its items.

    `wait_for_all`: wake the client once, on completion, with the last token of each row only. The row holds them all.
    """

    def __init__(
        self,
        rows: Sequence[Row] = (),
        operation: BatchOperation | None = None,
        items: Sequence[Any] = (),
        wait_for_all: bool = True,
        max_backlog: int = 1 << 20,
    ) -> None:
        self.rows, self.operation, self.items, self.wait_for_all = list(rows), operation, list(items), wait_for_all
        self.client = CURRENT_CLIENT.get()
        self.results: list[Any] = [None] * len(self.items)
        self.remaining = self.size
        self.cancelled = False
        self.record = current_record()
        self.loop = asyncio.get_running_loop()
        self.events: list[GeneratedToken | Refusal | None] = []  # not consumed yet; None means done
        self.has_events = asyncio.Event()
        self.backlog = Backlog(max_backlog)

    @property
    def size(self) -> int:
        """Number of queue entries that it occupies."""
        return len(self.rows) + len(self.items)


class Backlog:
    """The bytes of a response that are generated but not read. Above the limit its reader lags, down to half of it."""

    def __init__(self, limit: int) -> None:
        self.lags = False
        self.bytes = 0
        self._limit, self._lock = limit, threading.Lock()

    def grow(self, size: int) -> None:
        """Count bytes that were generated. Called by workers."""
        with self._lock:
            self.bytes += size
            self.lags = self.lags or self.bytes > self._limit

    def shrink(self, size: int) -> bool:
        """Count bytes that were read. Return True if the reader has caught up."""
        with self._lock:
            self.bytes -= size
            caught_up = self.lags and self.bytes <= self._limit // 2
            self.lags = self.lags and not caught_up
        return caught_up


def bytes_of(alternatives: int) -> int:
    """Estimate the memory of a token with this many alternatives: its tuple, and for each a tuple, an id, a number."""
    return 128 + 128 * alternatives


Event = GeneratedToken | Refusal | None  # None: an item is done


class RequestQueue:
    """Rows and items that wait for a worker. Hold `changed` while modifying it.

    Clients take turns, and so do the requests of a client. The rows of a request whose reader lags wait until the
    reader has caught up.
    """

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.rows: dict[str, dict[PendingRequest, deque[Row]]] = {}  # by client and request, both in order of turns
        self.items: dict[str, dict[PendingRequest, list[int]]] = {}
        self.closed = False

    def __len__(self) -> int:
        with self.changed:
            return sum(map(self.size_of, {*self.rows, *self.items}))

    def size_of(self, client: str) -> int:
        """Return the number of entries of one client."""
        with self.changed:
            parts: list[dict[PendingRequest, Any]] = [self.rows.get(client, {}), self.items.get(client, {})]
            return sum(len(entries) for part in parts for entries in part.values())

    def clients_with(self, client: str) -> int:
        """Return the number of clients that have entries or are this one."""
        with self.changed:
            return len({*self.rows, *self.items, client})

    @property
    def ready(self) -> int:
        """Number of entries that a worker could process now."""
        with self.changed:
            return self.ready_rows + sum(len(items) for part in self.items.values() for items in part.values())

    def add(self, request: PendingRequest) -> None:
        """Enqueue all rows and items of a request."""
        if request.rows:
            self.rows.setdefault(request.client, {})[request] = deque(request.rows)
        if request.items:
            self.items.setdefault(request.client, {})[request] = list(range(len(request.items)))
        self.changed.notify_all()

    def put_back(self, entries: Sequence[tuple[PendingRequest, Row]]) -> None:
        """Enqueue suspended rows again, before the other rows of their requests. A closed queue refuses them."""
        if self.closed:
            deliver([(request, closing()) for request in dict(entries)])
            return
        for request, row in reversed([entry for entry in entries if not entry[0].cancelled]):
            self.rows.setdefault(request.client, {}).setdefault(request, deque()).appendleft(row)
        self.changed.notify_all()

    @property
    def ready_rows(self) -> int:
        """Number of rows that may join a batch."""
        return sum(len(rows) for part in self.rows.values() for request, rows in part.items() if is_ready(request))

    @property
    def saved_states(self) -> int:
        """Number of suspended rows that keep their state."""
        every = (row for part in self.rows.values() for rows in part.values() for row in rows)
        return sum(row.saved is not None for row in every)

    def ready_clients(self) -> list[str]:
        """Return the clients whose rows may join a batch, in order of turns."""
        return [client for client, part in self.rows.items() if any(map(is_ready, part))]

    def next_client(self, running: Mapping[str, int]) -> str | None:
        """Return the client whose row should join next: the one with the fewest running rows, then by turns."""
        return min(self.ready_clients(), key=lambda client: running.get(client, 0), default=None)

    def next_row(self, client: str) -> tuple[PendingRequest, Row]:
        """Return the row of a client that should join next."""
        request = next(filter(is_ready, self.rows[client]))
        return request, self.rows[client][request][0]

    def take(self, request: PendingRequest) -> None:
        """Remove the first row of a request. Its client and the request move to the end of their turns."""
        client, part = request.client, self.rows.pop(request.client)
        rows = part.pop(request)
        rows.popleft()
        if rows:
            part[request] = rows
        if part:
            self.rows[client] = part

    def take_items(self, request: PendingRequest, most: int) -> list[int]:
        """Remove and return the first items of a request."""
        part = self.items[request.client]
        taken, part[request] = part[request][:most], part[request][most:]
        if not part[request]:
            self._discard(self.items, request)
        return taken

    def cancel(self, request: PendingRequest) -> None:
        """Remove the entries of a request. Rows that are running leave before the next step."""
        request.cancelled = True
        self._discard(self.rows, request)
        self._discard(self.items, request)

    def _discard(self, clients: dict[str, dict[PendingRequest, Unit]], request: PendingRequest) -> None:
        part = clients.get(request.client, {})
        part.pop(request, None)
        if not part:
            clients.pop(request.client, None)

    def close(self) -> set[PendingRequest]:
        """Accept no more requests, and return those that were still waiting."""
        left = self._requests()
        self.rows, self.items, self.closed = {}, {}, True
        self.changed.notify_all()
        return left

    def _requests(self) -> set[PendingRequest]:
        parts: list[dict[PendingRequest, Any]] = [*self.rows.values(), *self.items.values()]
        return {request for part in parts for request in part}


def is_ready(request: PendingRequest) -> bool:
    """Return True if the rows of a request may be decoded now."""
    return not request.backlog.lags


class Worker(ABC):
    """A thread that waits for work, processes one round of it, and delivers the events of that round."""

    def __init__(self, name: str, queue: RequestQueue, threads: int) -> None:
        self.name, self.queue = name, queue
        self._threads = threads  # torch's intra-op threads at the start
        self._events: list[tuple[PendingRequest, Event]] = []
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def join(self) -> None:
        """Wait for the thread to end. Close the queue first."""
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        torch.set_num_threads(self._threads)  # per calling thread; otherwise inherited from whichever call came last
        while True:
            with self.queue.changed:
                self.queue.changed.wait_for(lambda: self.queue.closed or self.has_work())
                if self.queue.closed:
                    break
            try:
                self.work()
            except Exception as error:  # a request must not end the worker
                log.exception("%s", self.name)
                self.refuse(refusal_of(error))
            self.flush()
        self.refuse(closing())
        self.flush()

    @abstractmethod
    def has_work(self) -> bool:
        """Return True if there is something to do. Called with the lock held."""

    @abstractmethod
    def work(self) -> None:
        """Process one round of work."""

    @abstractmethod
    def refuse(self, refusal: Refusal) -> None:
        """Abandon everything in progress, with this refusal."""

    def run_batch(
        self,
        units: Sequence[tuple[PendingRequest, Unit]],
        run: Callable[[Sequence[tuple[PendingRequest, Unit]]], None],
    ) -> None:
        """Run all units as one batch. If that fails, run each alone, so that only the failing ones are refused."""
        try:
            run(units)
        except Exception:
            for unit in units:
                try:
                    run([unit])
                except Exception as error:
                    self.emit(unit[0], refusal_of(error))

    def emit(self, request: PendingRequest, event: Event) -> None:
        """Buffer an event until the next `flush`."""
        self._events.append((request, event))

    def flush(self) -> None:
        """Deliver the buffered events."""
        if self._events:
            events, self._events = self._events, []
            deliver(events)


def deliver(events: Sequence[tuple[PendingRequest, Event]]) -> None:
    """Pass events to their event loops, from any thread: one call per loop, and usually there is one loop."""
    for loop in {request.loop for request, _ in events}:
        own = [(request, event) for request, event in events if request.loop is loop]
        try:
            loop.call_soon_threadsafe(_receive, own)
        except RuntimeError:  # the loop has ended, and its requests with it
            continue


def _receive(events: Iterable[tuple[PendingRequest, Event]]) -> None:
    for request, event in events:
        if event is not None:
            request.events.append(event)
        if event is None or (isinstance(event, GeneratedToken) and event.end is not None):
            request.remaining -= 1
            if not request.remaining:
                request.events.append(None)
        if not request.wait_for_all or not request.remaining or isinstance(event, Refusal):
            request.has_events.set()


def closing() -> Refusal:
    """Return the refusal for requests that arrive while the server shuts down."""
    return Refusal(503, "the server is shutting down", code="shutting_down", retry=5)


def refusal_of(error: Exception) -> Refusal:
    """Return the refusal for an exception in the engine."""
    if isinstance(error, UserError):
        return Refusal(400, str(error))
    log.error("a request failed", exc_info=error)
    return Refusal(500, "internal error")
