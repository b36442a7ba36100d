"""The worker threads that decode rows token by token, with continuous batching.

    forever:  let queued rows join the batch;  advance all rows by one step

Rows join and leave between steps (`decode/running_batch.py`), so no row waits for the slowest of its batch, and the
weights are read once for all rows. A step consists of many small operations, which run best on one core
(`decode/threads.py`), so each core has a decode worker. All rows, queued and running, are divided evenly among them.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from allyouneed.decode.running_batch import GeneratedToken, Row, RunningBatch
from allyouneed.models import Model
from allyouneed.serve.errors import Refusal
from allyouneed.serve.metrics import Metrics
from allyouneed.serve.worker import PendingRequest, RequestQueue, Worker, refusal_of

PREFILL_TOKENS = 4096  # tokens of prompts and sources that one prefill reads
# A join copies the whole state. A batch therefore waits until the joining rows are at least 1 in ROWS_PER_JOIN of the
# running ones, but for at most MAX_JOIN_DELAY steps.
ROWS_PER_JOIN, MAX_JOIN_DELAY = 4, 8


@dataclass
class DecodeWorkers:
    """The decode workers of an engine, and how they share rows and threads."""

    threads: int  # torch's threads, for all workers together
    workers: "list[DecodeWorker]" = field(default_factory=list)

    def rows(self) -> int:
        """Return the number of running rows."""
        return sum(len(worker.owner) for worker in self.workers)

    def share(self, queued: int) -> int:
        """Return the number of rows per worker when all rows are divided evenly."""
        return math.ceil((self.rows() + queued) / len(self.workers))

    def threads_each(self) -> int:
        """Return the number of torch threads for each busy worker."""
        return max(1, self.threads // max(1, sum(bool(worker.owner) for worker in self.workers)))


class DecodeWorker(Worker):
    """Decodes at most `capacity` rows in one batch."""

    def __init__(
        self, name: str, model: Model, capacity: int, queue: RequestQueue, group: DecodeWorkers, metrics: Metrics
    ) -> None:
        super().__init__(f"decode worker {len(group.workers)} of {name}", queue, group.threads)
        self._model_name, self._capacity, self._group, self._metrics = name, capacity, group, metrics
        self._running = RunningBatch(model)
        self._delayed = 0  # steps since queued rows could have joined
        self.owner: dict[Row, PendingRequest] = {}  # of running rows, by identity
        group.workers.append(self)

    def has_work(self) -> bool:
        """Return True if rows run or wait. An idle worker takes the first row: its share is at least one."""
        return bool(self.owner or self.queue.rows)

    def work(self) -> None:
        """Admit rows, then advance the batch by one step."""
        self._drop_cancelled()
        admitted = self._admitted()
        threads = self._group.threads_each()
        if threads != torch.get_num_threads():
            torch.set_num_threads(threads)
        if admitted:
            self.run_batch(admitted, self._join)
        if self._running.rows:
            start, rows = time.perf_counter(), len(self._running.rows)
            self._step()
            self._metrics.step(self._model_name, rows, time.perf_counter() - start)

    def refuse(self, refusal: Refusal) -> None:
        """Abandon all running rows."""
        for request in set(self.owner.values()):
            self.emit(request, refusal)
        self.owner.clear()
        self._running.remove(self._running.rows)

    def _drop_cancelled(self) -> None:
        cancelled = [row for row, request in self.owner.items() if request.cancelled]
        if cancelled:
            self._running.remove(cancelled)
            for row in cancelled:
                del self.owner[row]

    def _admitted(self) -> list[tuple[PendingRequest, Row]]:
        """Take the rows that join now from the queue: as many as fit into the batch and into one prefill."""
        admitted: list[tuple[PendingRequest, Row]] = []
        rows = len(self._running.rows)
        with self.queue.changed:
            queue = self.queue.rows
            free = min(self._capacity, self._group.share(len(queue))) - rows
            if min(free, len(queue)) * ROWS_PER_JOIN < rows and self._delayed < MAX_JOIN_DELAY:
                self._delayed += 1
                return admitted
            longest, self._delayed = 0, 0
            while queue and len(admitted) < free:
                longest = max(longest, queue[0][1].length)
                if admitted and longest * (len(admitted) + 1) > PREFILL_TOKENS:
                    break
                admitted.append(queue.popleft())
            for request, _ in admitted:
                request.record.mark_taken()
            self.owner.update({row: request for request, row in admitted})  # other workers count them from now on
        return admitted

    def _join(self, admitted: Sequence[tuple[PendingRequest, Row]]) -> None:
        try:
            tokens = self._running.add([row for _, row in admitted])
        except Exception:
            for _, row in admitted:
                self.owner.pop(row, None)
            raise
        self.owner.update({row: request for request, row in admitted})
        for request, _ in admitted:
            request.record.mark_first_token()
        self._emit_tokens(tokens)

    def _step(self) -> None:
        try:
            self._emit_tokens(self._running.step())
        except Exception as error:
            failing = self._running.failing() or [(row, error) for row in self._running.rows]
            for row, reason in failing:
                self.emit(self.owner.pop(row), refusal_of(reason))
            self._running.remove([row for row, _ in failing])

    def _emit_tokens(self, tokens: Sequence[GeneratedToken]) -> None:
        for token in tokens:
            request = self.owner[token.row] if token.end is None else self.owner.pop(token.row)
            if token.end is not None or not request.wait_for_all:
                self.emit(request, token)
        self._metrics.tokens.labels(self._model_name).inc(len(tokens))
