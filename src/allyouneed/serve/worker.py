"""What waits for an engine, and the threads that work on it.

The event loop hands in tickets and hears of tokens; it never waits for a worker, nor a worker for a reader: what a slow
reader has not taken yet is at most one answer. Whoever stops waiting (a hang-up, a deadline) cancels the ticket.

A ticket's rows may be in several hands. So it is counted down where its events arrive, in its event loop: whoever is
told that all is done has heard everything before.
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

from allyouneed.decode.running_batch import Row, Said
from allyouneed.errors import UserError
from allyouneed.serve.errors import Refusal

log = logging.getLogger(__name__)
Asked = TypeVar("Asked")  # a row, or the number of an item


@dataclass(frozen=True)
class Work:
    """Something that is done for many items at once: equal keys may run together."""

    key: Hashable
    run: Callable[[Sequence[Any]], Sequence[Any]]
    rows: int = 1  # of a batch that one item needs


class Ticket:
    """What one request waits for: the tokens of its rows, or the results of its items.

    Who is patient is not woken before everything is there, and hears of the last token of a row only: the row has all.
    """

    def __init__(
        self, rows: Sequence[Row] = (), work: Work | None = None, items: Sequence[Any] = (), patient: bool = True
    ) -> None:
        self.rows, self.work, self.items, self.patient = list(rows), work, list(items), patient
        self.results: list[Any] = [None] * len(self.items)
        self.left = self.size
        self.cancelled = False
        self.loop = asyncio.get_running_loop()
        self.events: list[Said | Refusal | None] = []  # that were not taken yet; None: all is done
        self.news = asyncio.Event()

    @property
    def size(self) -> int:
        """How much of the queue it takes."""
        return len(self.rows) + len(self.items)


Event = Said | Refusal | None  # None: an item is done


class Waiting:
    """What waits. It is changed with its lock only."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.rows: deque[tuple[Ticket, Row]] = deque()
        self.items: dict[Ticket, list[int]] = {}  # whose turn is next comes first
        self.closed = False

    def __len__(self) -> int:
        return len(self.rows) + sum(map(len, self.items.values()))

    def add(self, ticket: Ticket) -> None:
        """All that a request asks for."""
        self.rows.extend((ticket, row) for row in ticket.rows)
        if ticket.items:
            self.items[ticket] = list(range(len(ticket.items)))
        self.changed.notify_all()

    def forget_cancelled(self) -> None:
        """Whoever went away makes room for others."""
        if any(ticket.cancelled for ticket in self._tickets()):
            self.rows = deque(one for one in self.rows if not one[0].cancelled)
            self.items = {ticket: items for ticket, items in self.items.items() if not ticket.cancelled}

    def close(self) -> set[Ticket]:
        """Nothing is taken any more; whoever waited."""
        left = self._tickets()
        self.rows, self.items, self.closed = deque(), {}, True
        self.changed.notify_all()
        return left

    def _tickets(self) -> set[Ticket]:
        return {*(ticket for ticket, _ in self.rows), *self.items}


class Worker(ABC):
    """A thread: it waits until there is something to do, does a round of it, and tells whoever waited."""

    def __init__(self, name: str, waiting: Waiting, threads: int) -> None:
        self.name, self.waiting = name, waiting
        self._threads = threads  # torch's own, at the beginning
        self._heard: list[tuple[Ticket, Event]] = []
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Begins to work."""
        self._thread.start()

    def join(self) -> None:
        """Waits for its end, which comes after the queue was closed."""
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        torch.set_num_threads(self._threads)  # a setting of the calling thread, or else the one that was made last
        while True:
            with self.waiting.changed:
                self.waiting.changed.wait_for(lambda: self.waiting.closed or self.has_work())
                if self.waiting.closed:
                    break
                self.waiting.forget_cancelled()
            try:
                self.work()
            except Exception as error:  # no request may take the worker with it
                log.exception("%s", self.name)
                self.refuse(refusal_of(error))
            self.tell()
        self.refuse(closing())
        self.tell()

    @abstractmethod
    def has_work(self) -> bool:
        """Whether there is something to do, asked with the lock."""

    @abstractmethod
    def work(self) -> None:
        """Some of it."""

    @abstractmethod
    def refuse(self, refusal: Refusal) -> None:
        """Whatever it has in its hands is given up."""

    def together(
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
                    self.hear(one[0], refusal_of(error))

    def hear(self, ticket: Ticket, event: Event) -> None:
        """Something to tell."""
        self._heard.append((ticket, event))

    def tell(self) -> None:
        """Hands over what was heard."""
        if self._heard:
            heard, self._heard = self._heard, []
            deliver(heard)


def deliver(heard: Sequence[tuple[Ticket, Event]]) -> None:
    """From any thread; one call for each event loop, usually the only one."""
    for loop in {ticket.loop for ticket, _ in heard}:
        mine = [(ticket, event) for ticket, event in heard if ticket.loop is loop]
        try:
            loop.call_soon_threadsafe(_arrive, mine)
        except RuntimeError:  # the loop has ended, and with it whoever waited
            continue


def _arrive(heard: Iterable[tuple[Ticket, Event]]) -> None:
    for ticket, event in heard:
        if event is not None:
            ticket.events.append(event)
        if event is None or (isinstance(event, Said) and event.end is not None):
            ticket.left -= 1
            if not ticket.left:
                ticket.events.append(None)
        if not ticket.patient or not ticket.left or isinstance(event, Refusal):
            ticket.news.set()


def closing() -> Refusal:
    """What is said while the server shuts down."""
    return Refusal(503, "the server is shutting down", code="shutting_down", retry=5)


def refusal_of(error: Exception) -> Refusal:
    """What a client is told of an exception in the engine."""
    if isinstance(error, UserError):
        return Refusal(400, str(error))
    log.error("a request failed", exc_info=error)
    return Refusal(500, "internal error")
