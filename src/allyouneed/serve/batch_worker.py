"""The worker thread for everything that is not token-by-token decoding: beam searches, scores, classes.

Requests are split into items. Items of one kind, from several requests, run as one batch:

    the first request in the queue:   as many of its items as fill a batch;  if items remain, it moves to the end
    other requests of its kind:       all of their items, while they fit

Clients take turns, batch by batch, and so do the requests of a client. A client therefore waits for at most one batch
of each other client, however many requests those have sent. A request that needs several batches does not delay one
that fills only part of a batch.
"""

import threading
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import zip_longest

import torch

from allyouneed.serve.errors import Refusal
from allyouneed.serve.worker import BatchOperation, PendingRequest, RequestQueue, Worker


class FairLock:
    """A first-come, first-served lock. `threading.Lock` tends to return to the thread that has just released it."""

    def __init__(self) -> None:
        self._mutex, self._held = threading.Lock(), False
        self.waiters: deque[threading.Lock] = deque()

    def __enter__(self) -> None:
        with self._mutex:
            if not self._held:
                self._held = True
                return
            turn = threading.Lock()
            turn.acquire()
            self.waiters.append(turn)
        turn.acquire()

    def __exit__(self, *_: object) -> None:
        with self._mutex:
            if self.waiters:
                self.waiters.popleft().release()  # still held, now by the next waiter
            else:
                self._held = False


# A search sets torch's thread count for the whole process and restores it, so the engines take turns.
SEARCH_LOCK = FairLock()


class BatchWorker(Worker):
    """Processes queued items, in batches of one kind with at most `rows` rows."""

    def __init__(self, name: str, queue: RequestQueue, threads: int, rows: int) -> None:
        super().__init__(name, queue, threads)
        self._rows = rows
        self._first: PendingRequest | None = None  # the request that had the last turn

    def has_work(self) -> bool:
        """Return True if items are queued."""
        return bool(self.queue.items)

    def work(self) -> None:
        """Process one batch."""
        batch: list[tuple[PendingRequest, int]] = []
        with self.queue.changed:
            clients = self.queue.items
            self._end_turn(clients)
            in_turn = _alternating(clients.values())
            if not in_turn or in_turn[0].operation is None:
                return
            first, operation = in_turn[0], in_turn[0].operation
            self._first, free = first, max(1, self._rows // operation.rows)
            for request in [one for one in in_turn if one.operation is not None and one.operation.key == operation.key]:
                if request is first or len(clients[request.client][request]) <= free:
                    taken = self.queue.take_items(request, free)
                    batch += [(request, item) for item in taken]
                    free -= len(taken)
        for request in {request for request, _ in batch}:
            request.record.mark_taken()
        self.run_batch(batch, lambda part: self._run_items(operation, part))

    def _end_turn(self, clients: dict[str, dict[PendingRequest, list[int]]]) -> None:
        """Move the last client and its request to the end: those that have arrived since come first."""
        last, self._first = self._first, None
        if last is not None and last.client in clients:
            part = clients[last.client] = clients.pop(last.client)
            if last in part:
                part[last] = part.pop(last)

    def refuse(self, refusal: Refusal) -> None:
        """Do nothing: between two batches no items are in progress."""

    def _run_items(self, operation: BatchOperation, batch: Sequence[tuple[PendingRequest, int]]) -> None:
        with SEARCH_LOCK, torch.inference_mode():
            results = operation.run([request.items[item] for request, item in batch])
        for (request, item), result in zip(batch, results, strict=True):
            request.results[item] = result
            self.emit(request, None)


def _alternating(clients: Iterable[Iterable[PendingRequest]]) -> list[PendingRequest]:
    """Return the first request of each client, then the second of each, and so on."""
    rounds = zip_longest(*clients)
    return [request for each in rounds for request in each if request is not None]
