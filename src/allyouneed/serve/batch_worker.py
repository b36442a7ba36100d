"""The thread of an engine for all that is no walk of rows: beam searches, scores, classes.

Requests are cut into items, and items of one kind from several requests run as one batch: a piece.

    the first request in the queue:   as many of its items as make a piece;  if it has more, it is the last one then
    others of its kind:               all of their items, as far as there is room

So a request waits for a piece of each that came before, not for all that those want; and one that is cut into several
pieces does not make those slower that need a part of one.
"""

import threading
from collections import deque
from collections.abc import Sequence

import torch

from allyouneed.serve.errors import Refusal
from allyouneed.serve.worker import Ticket, Waiting, Work, Worker


class Turns:
    """A lock that goes to whoever has waited for it longest; one of `threading` goes to whoever is quick, and that is
    usually the one who has just had it."""

    def __init__(self) -> None:
        self._changing, self._taken = threading.Lock(), False
        self.waiting: deque[threading.Lock] = deque()

    def __enter__(self) -> None:
        with self._changing:
            if not self._taken:
                self._taken = True
                return
            turn = threading.Lock()
            turn.acquire()
            self.waiting.append(turn)
        turn.acquire()

    def __exit__(self, *_: object) -> None:
        with self._changing:
            if self.waiting:
                self.waiting.popleft().release()  # it stays taken, by the next one
            else:
                self._taken = False


# Searches set how many threads torch uses, for the whole process and back again: the engines take turns.
SEARCHES = Turns()


class BatchWorker(Worker):
    """Does waiting items, as many of one kind as make a batch of `rows`."""

    def __init__(self, name: str, waiting: Waiting, threads: int, rows: int) -> None:
        super().__init__(name, waiting, threads)
        self._rows = rows
        self._cut: Ticket | None = None  # the request of which the last piece did a part

    def has_work(self) -> bool:
        """Items wait."""
        return bool(self.waiting.items)

    def work(self) -> None:
        """One piece."""
        piece: list[tuple[Ticket, int]] = []
        with self.waiting.changed:
            queue = self.waiting.items
            if self._cut in queue:  # it had its turn; now those who have come meanwhile
                queue[self._cut] = queue.pop(self._cut)
            self._cut = None
            first = next(iter(queue), None)
            if first is None or first.work is None:
                return
            work = first.work
            room = max(1, self._rows // work.rows)
            for ticket in [one for one in queue if one.work is not None and one.work.key == work.key]:
                if ticket is first or len(queue[ticket]) <= room:
                    items = queue.pop(ticket)
                    piece += [(ticket, item) for item in items[:room]]
                    if items[room:]:
                        queue[ticket], self._cut = items[room:], ticket
                    room -= len(items[:room])
        self.together(piece, lambda some: self._do(work, some))

    def refuse(self, refusal: Refusal) -> None:
        """Between two pieces it has nothing in its hands."""

    def _do(self, work: Work, piece: Sequence[tuple[Ticket, int]]) -> None:
        with SEARCHES, torch.inference_mode():
            found = work.run([ticket.items[item] for ticket, item in piece])
        for (ticket, item), result in zip(piece, found, strict=True):
            ticket.results[item] = result
            self.hear(ticket, None)
