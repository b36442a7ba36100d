"""The worker thread for everything that is not token-by-token decoding: beam searches, scores, classes.

Requests are split into items. Items of one kind, from several requests, run as one batch:

    the first request in the queue:   as many of its items as fill a batch;  if items remain, it moves to the end
    other requests of its kind:       all of their items, while they fit

A request therefore waits for at most one batch of each earlier request, not for all of their items. A request that
needs several batches does not delay one that fills only part of a batch.
"""

import threading
from collections import deque
from collections.abc import Sequence

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
        self._split: PendingRequest | None = None  # the request that the last batch served in part

    def has_work(self) -> bool:
        """Return True if items are queued."""
        return bool(self.queue.items)

    def work(self) -> None:
        """Process one batch."""
        batch: list[tuple[PendingRequest, int]] = []
        with self.queue.changed:
            queue = self.queue.items
            if self._split in queue:  # it had its turn: requests that have arrived since come first
                queue[self._split] = queue.pop(self._split)
            self._split = None
            first = next(iter(queue), None)
            if first is None or first.operation is None:
                return
            operation = first.operation
            free = max(1, self._rows // operation.rows)
            for request in [one for one in queue if one.operation is not None and one.operation.key == operation.key]:
                if request is first or len(queue[request]) <= free:
                    items = queue.pop(request)
                    batch += [(request, item) for item in items[:free]]
                    if items[free:]:
                        queue[request], self._split = items[free:], request
                    free -= len(items[:free])
        for request in {request for request, _ in batch}:
            request.record.mark_taken()
        self.run_batch(batch, lambda part: self._run_items(operation, part))

    def refuse(self, refusal: Refusal) -> None:
        """Do nothing: between two batches no items are in progress."""

    def _run_items(self, operation: BatchOperation, batch: Sequence[tuple[PendingRequest, int]]) -> None:
        with SEARCH_LOCK, torch.inference_mode():
            results = operation.run([request.items[item] for request, item in batch])
        for (request, item), result in zip(batch, results, strict=True):
            request.results[item] = result
            self.emit(request, None)
