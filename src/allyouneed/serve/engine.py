"""The engine of a model: worker threads that serve all of its requests.

A decode worker per core generates tokens (`decode_worker.py`). One batch worker does everything else: beam searches,
scores, classes (`batch_worker.py`). This module runs in the event loop: it enqueues requests and yields their events.
"""

import asyncio
import math
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import torch

from allyouneed.decode.base import device_of
from allyouneed.decode.running_batch import GeneratedToken, Row
from allyouneed.decode.threads import worker_count
from allyouneed.serve.batch_worker import BatchWorker
from allyouneed.serve.clients import CURRENT_CLIENT
from allyouneed.serve.config import ServeConfig
from allyouneed.serve.decode_worker import DecodeWorker, DecodeWorkers
from allyouneed.serve.errors import Refusal
from allyouneed.serve.metrics import Metrics
from allyouneed.serve.models import Served
from allyouneed.serve.slices import SliceTurns, TimeSlice
from allyouneed.serve.worker import BatchOperation, PendingRequest, RequestQueue, Worker, bytes_of, closing, deliver

LONGEST_RETRY = 60  # seconds; upper bound of Retry-After
CAPACITY_INTERVAL = 0.05  # seconds between two looks at a full queue


class Deadline:
    """The seconds that a request may still wait for its tokens. Time that its reader takes does not count."""

    def __init__(self, seconds: float) -> None:
        self.left = seconds

    async def wait(self, event: asyncio.Event) -> None:
        """Wait for an event. Raise TimeoutError if no time is left."""
        loop = asyncio.get_running_loop()
        before = loop.time()
        async with asyncio.timeout(self.left):
            await event.wait()
        self.left -= loop.time() - before


class Engine:
    """Serves all requests to one model."""

    def __init__(self, served: Served, config: ServeConfig, metrics: Metrics) -> None:
        self.served, self.config, self.metrics = served, config, metrics
        self.queue = RequestQueue()
        self._turns = SliceTurns()
        self._seconds = 1.0  # moving average of the time of a request
        model, threads = served.bundle.model, torch.get_num_threads()
        self.decode_workers = DecodeWorkers(threads)
        count = min(worker_count(device_of(model)), config.batch) if served.generates_text else 0
        for index in range(count):
            capacity = config.batch // count + (index < config.batch % count)
            DecodeWorker(served.name, model, capacity, self.queue, self.decode_workers, metrics)
        batch_worker = BatchWorker(f"batch worker of {served.name}", self.queue, threads, config.batch)
        self._workers: list[Worker] = [*self.decode_workers.workers, batch_worker]
        metrics.waiting.labels(served.name).set_function(self.queue.__len__)
        metrics.running.labels(served.name).set_function(self.decode_workers.rows)

    def start(self) -> None:
        """Start all workers."""
        for worker in self._workers:
            worker.start()

    def close(self) -> None:
        """Stop all workers, and refuse the requests that still wait."""
        with self.queue.changed:
            left = self.queue.close()
        deliver([(request, closing()) for request in left])
        for worker in self._workers:
            worker.join()
        self.decode_workers.workers.clear()  # they refer to each other: a cycle that would keep the model

    def generate(
        self, rows: Sequence[Row], wait_for_all: bool = False, deadline: Deadline | None = None
    ) -> AsyncGenerator[list[GeneratedToken]]:
        """Yield the tokens of the rows as they are decoded: all that have arrived since the last time.

        `wait_for_all` yields only the last token of each row, when all rows are done: it is cheaper. Closing the
        iterator removes the rows from the batch. Decoding pauses while the tokens that have not been consumed take
        more than `max_backlog` bytes. Several calls for the same request share its `deadline`.
        """
        request = PendingRequest(rows, wait_for_all=wait_for_all, max_backlog=self.config.max_backlog)
        return self._events(self._submit(request), deadline or self.deadline())

    def deadline(self) -> Deadline:
        """Return the time that a request may take."""
        return Deadline(self.config.deadline)

    def time_slice(self) -> TimeSlice:
        """Return the slice of a computation in the event loop, such as that of one long response."""
        return TimeSlice(self._turns)

    async def run(self, operation: BatchOperation, items: Sequence[Any], deadline: Deadline | None = None) -> list[Any]:
        """Return the results of an operation on some items."""
        if not items:
            return []
        request = self._submit(PendingRequest(operation=operation, items=items))
        async for _ in self._events(request, deadline or self.deadline()):
            pass
        return request.results

    async def _events(self, request: PendingRequest, deadline: Deadline) -> AsyncGenerator[list[GeneratedToken]]:
        start = request.loop.time()
        try:
            while True:
                await deadline.wait(request.has_events)
                request.has_events.clear()
                events, request.events = request.events, []
                if tokens := [event for event in events if isinstance(event, GeneratedToken)]:
                    yield tokens
                    self._count_read(request, tokens)
                for event in events:
                    if isinstance(event, Refusal):
                        raise event
                if None in events:
                    self._seconds += 0.1 * (request.loop.time() - start - self._seconds)
                    return
        except TimeoutError:
            message = f"not done within {self.config.deadline:g} seconds; send a smaller request, or try again later"
            raise Refusal(503, message, code="deadline_exceeded", retry=self._retry()) from None
        finally:
            with self.queue.changed:
                self.queue.cancel(request)

    def _count_read(self, request: PendingRequest, tokens: Sequence[GeneratedToken]) -> None:
        """Let decoding continue if the reader has caught up."""
        size = 0 if request.wait_for_all else sum(bytes_of(len(token.top)) for token in tokens)
        if request.backlog.shrink(size):
            with self.queue.changed:
                self.queue.changed.notify_all()

    @property
    def most_of_client(self) -> tuple[int, str]:
        """How many answers the queue holds of one client, and the option that limits it."""
        return min((self.config.queue, "--queue"), (self.config.client_queue, "--limit client_queue"))

    def require_capacity(self, size: int, param: str | None = None) -> None:
        """Refuse a request that does not fit into the queue. Also called before tokenization, to refuse cheaply."""
        if self.queue.closed:
            raise closing()
        most, option = self.most_of_client
        if size > most:  # it can never fit, so a retry would not help
            message = f"{size} answers in one request; the queue holds at most {most} of a client: request fewer"
            message = f"{message}, or start the server with a larger {option}"
            raise Refusal(400, f"{param}: {message}" if param else message, param=param, code="larger_than_queue")
        if found := self._overflow(size):
            self.metrics.refused.labels(self.served.name).inc()
            raise Refusal(429, f"{found}; try again later", code="queue_full", retry=self._retry())

    def _overflow(self, size: int) -> str | None:
        """Return what is full if this many answers of the client do not fit into the queue now."""
        config, client = self.config, CURRENT_CLIENT.get()
        most, _ = self.most_of_client
        own, ready = self.queue.size_of(client), self.queue.ready
        if own + size > most:
            return f"your queue is full: {own} of {most} answers"
        # The rows of a lagging reader count for its client only, and every client may use an equal share.
        if ready + size > config.queue and own + size > config.queue // self.queue.clients_with(client):
            return f"the queue is full: {ready} of {config.queue} answers"
        return None

    async def wait_for_capacity(self, size: int, deadline: Deadline) -> None:
        """Wait until this many answers of the client fit into the queue, at most until the deadline."""
        while deadline.left > 0 and not self.queue.closed and self._overflow(size):
            await asyncio.sleep(CAPACITY_INTERVAL)
            deadline.left -= CAPACITY_INTERVAL

    def _submit(self, request: PendingRequest) -> PendingRequest:
        with self.queue.changed:
            self.require_capacity(request.size)
            request.record.mark_queued()
            self.queue.add(request)
        return request

    def _retry(self) -> int:
        """Estimate the seconds until the queue has capacity."""
        rounds = 1 + len(self.queue) / self.config.batch
        return min(LONGEST_RETRY, max(1, math.ceil(rounds * self._seconds)))
