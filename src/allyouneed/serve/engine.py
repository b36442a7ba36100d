"""The engine of a model: threads that decode for everybody at once.

A lane for each core walks rows (`lane.py`); one more thread does what is no walk of rows: beam searches, scores,
classes (`pieces.py`). This is the side of the event loop, which hands in tickets and hears what came of them.
"""

import asyncio
import math
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import torch

from allyouneed.decode.base import device_of
from allyouneed.decode.running_batch import Row, Said
from allyouneed.decode.threads import lanes
from allyouneed.serve.batch_worker import BatchWorker
from allyouneed.serve.config import ServeConfig
from allyouneed.serve.decode_worker import DecodeWorker, DecodeWorkers
from allyouneed.serve.errors import Refusal
from allyouneed.serve.metrics import Metrics
from allyouneed.serve.models import Served
from allyouneed.serve.worker import Ticket, Waiting, Work, Worker, closing, deliver

LONGEST_RETRY = 60  # seconds that a refused client is told to wait, at most


class Engine:
    """Decodes for all requests to one model."""

    def __init__(self, served: Served, config: ServeConfig, metrics: Metrics) -> None:
        self.served, self.config, self.metrics = served, config, metrics
        self.waiting = Waiting()
        self._seconds = 1.0  # that a request took lately
        model, threads = served.bundle.model, torch.get_num_threads()
        self.lanes = DecodeWorkers(threads)
        count = min(lanes(device_of(model)), config.batch) if served.says_text else 0
        for number in range(count):
            room = config.batch // count + (number < config.batch % count)
            DecodeWorker(served.name, model, room, self.waiting, self.lanes, metrics)
        pieces = BatchWorker(f"pieces of {served.name}", self.waiting, threads, config.batch)
        self._workers: list[Worker] = [*self.lanes.all, pieces]
        metrics.waiting.labels(served.name).set_function(lambda: len(self.waiting))
        metrics.running.labels(served.name).set_function(self.lanes.rows)

    def start(self) -> None:
        """Begins to work."""
        for worker in self._workers:
            worker.start()

    def close(self) -> None:
        """Ends all work; whoever still waits is told so."""
        with self.waiting.changed:
            left = self.waiting.close()
        deliver([(ticket, closing()) for ticket in left])
        for worker in self._workers:
            worker.join()

    def walk(self, rows: Sequence[Row], patient: bool = False) -> AsyncGenerator[Said]:
        """The tokens of some rows, as they come. A patient reader hears only the last token of each, once all are
        done: it costs less. Closing the iteration takes the rows out of the batch."""
        return self._events(self._submit(Ticket(rows, patient=patient)))

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
                    await ticket.news.wait()
                ticket.news.clear()
                events, ticket.events = ticket.events, []
                for event in events:
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

    def require_room(self, size: int, param: str | None = None) -> None:
        """Refuses what the queue has no room for; asked before texts are tokenised, too: a refusal costs nothing."""
        if self.waiting.closed:
            raise closing()
        if size > self.config.queue:  # nor will it ever have: whoever tries again would try for ever
            message = f"{size} answers in one request; the queue holds at most {self.config.queue}: ask for fewer"
            message = f"{message} at once, or start the server with a larger --queue"
            raise Refusal(400, f"{param}: {message}" if param else message, param=param, code="larger_than_queue")
        if len(self.waiting) + size > self.config.queue:
            self.metrics.refused.labels(self.served.name).inc()
            message = f"{len(self.waiting)} answers wait already, of at most {self.config.queue}; try again later"
            raise Refusal(429, message, code="queue_full", retry=self._retry())

    def _submit(self, ticket: Ticket) -> Ticket:
        with self.waiting.changed:
            self.require_room(ticket.size)
            self.waiting.add(ticket)
        return ticket

    def _retry(self) -> int:
        """Seconds until the queue is likely to have room."""
        rounds = 1 + len(self.waiting) / self.config.batch
        return min(LONGEST_RETRY, max(1, math.ceil(rounds * self._seconds)))
