"""The thread of an engine for all that is no walk of rows: beam searches, scores, classes.

Requests are cut into items, and items of one kind from several requests run as one batch: a piece.
"""

import threading
from collections import deque
from collections.abc import Sequence

import torch

from allyouneed.serve.errors import Refusal
from allyouneed.serve.worker import Ticket, Waiting, Work, Worker

# Searches set how many threads torch uses, for the whole process and back again: they take turns.
SEARCHES = threading.Lock()


class Pieces(Worker):
    """Does waiting items, as many of one kind as make a batch of `rows`."""

    def __init__(self, name: str, waiting: Waiting, threads: int, rows: int) -> None:
        super().__init__(name, waiting, threads)
        self._rows = rows

    def has_work(self) -> bool:
        """Items wait."""
        return bool(self.waiting.items)

    def work(self) -> None:
        """One piece."""
        piece: list[tuple[Ticket, int]] = []
        with self.waiting.changed:
            others: deque[tuple[Ticket, int]] = deque()
            work: Work | None = None
            while self.waiting.items:
                ticket, item = self.waiting.items.popleft()
                assert ticket.work is not None
                work = work or ticket.work
                room = (len(piece) + 1) * work.rows <= self._rows or not piece
                (piece if ticket.work.key == work.key and room else others).append((ticket, item))
            self.waiting.items = others
        if work is not None:
            self.together(piece, lambda some: self._do(work, some))

    def refuse(self, refusal: Refusal) -> None:
        """Between two pieces it has nothing in its hands."""

    def _do(self, work: Work, piece: Sequence[tuple[Ticket, int]]) -> None:
        with SEARCHES, torch.inference_mode():
            found = work.run([ticket.items[item] for ticket, item in piece])
        for (ticket, item), result in zip(piece, found, strict=True):
            ticket.results[item] = result
            self.hear(ticket, None)
