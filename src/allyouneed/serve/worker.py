"""The request queue of an engine, and the base class of its worker threads.

The event loop enqueues requests and receives their events. It never blocks on a worker, and a worker never blocks on a
client: at most one response is buffered for a slow reader. A disconnect or a deadline marks a request as cancelled.

Several workers may process the rows of one request. Its remaining rows are therefore counted in its event loop, where
events arrive in order: "done" always follows all other events.
"""

import asyncio
import logging
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from allyouneed.decode.running_batch import GeneratedToken, Row
from allyouneed.errors import UserError
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
    ) -> None:
        self.rows, self.operation, self.items, self.wait_for_all = list(rows), operation, list(items), wait_for_all
        self.results: list[Any] = [None] * len(self.items)
        self.remaining = self.size
        self.cancelled = False
        self.record = current_record()
        self.loop = asyncio.get_running_loop()
        self.events: list[GeneratedToken | Refusal | None] = []  # not consumed yet; None means done
        self.has_events = asyncio.Event()

    @property
    def size(self) -> int:
        """Number of queue entries that it occupies."""
        return len(self.rows) + len(self.items)


Event = GeneratedToken | Refusal | None  # None: an item is done


class RequestQueue:
    """Rows and items that wait for a worker. Hold `changed` while modifying it."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.rows: deque[tuple[PendingRequest, Row]] = deque()
        self.items: dict[PendingRequest, list[int]] = {}  # in the order in which requests are served
        self.closed = False

    def __len__(self) -> int:
        return len(self.rows) + sum(map(len, self.items.values()))

    def add(self, request: PendingRequest) -> None:
        """Enqueue all rows and items of a request."""
        self.rows.extend((request, row) for row in request.rows)
        if request.items:
            self.items[request] = list(range(len(request.items)))
        self.changed.notify_all()

    def drop_cancelled(self) -> None:
        """Remove the entries of cancelled requests."""
        if any(request.cancelled for request in self._requests()):
            self.rows = deque(entry for entry in self.rows if not entry[0].cancelled)
            self.items = {request: items for request, items in self.items.items() if not request.cancelled}

    def close(self) -> set[PendingRequest]:
        """Accept no more requests, and return those that were still waiting."""
        left = self._requests()
        self.rows, self.items, self.closed = deque(), {}, True
        self.changed.notify_all()
        return left

    def _requests(self) -> set[PendingRequest]:
        return {*(request for request, _ in self.rows), *self.items}


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
                self.queue.drop_cancelled()
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
