"""The worker threads that decode rows token by token, with continuous batching.

    forever:  let queued rows join the batch;  advance all rows by one step

Rows join and leave between steps (`decode/running_batch.py`), so no row waits for the slowest of its batch, and the
weights are read once for all rows. A step consists of many small operations, which run best on one core
(`decode/threads.py`), so each core has a decode worker. All rows, queued and running, are divided evenly among them.

Clients share the batch evenly. If it is full, the row of a client with few rows takes the place of a row of a client
with more, which is suspended. The rows of a request whose reader lags are suspended, too, until it has caught up.
"""

import math
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from allyouneed.decode.running_batch import GeneratedToken, Row, RunningBatch
from allyouneed.models import Model
from allyouneed.serve.errors import Refusal
from allyouneed.serve.metrics import Metrics
from allyouneed.serve.worker import PendingRequest, RequestQueue, Worker, bytes_of, refusal_of

PREFILL_TOKENS = 4096  # tokens of prompts and sources that one prefill reads
# A join copies the whole state. A batch therefore waits until the joining rows are at least 1 in ROWS_PER_JOIN of the
# running ones, but for at most MAX_JOIN_DELAY steps.
ROWS_PER_JOIN, MAX_JOIN_DELAY = 4, 8
# While several clients have work, rows beyond the equal share of a client leave one slot in FREE_SHARE empty, so that
# the next row of another client need not replace one of them. They return when twice as many slots are empty.
FREE_SHARE = 8


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

    @property
    def capacity(self) -> int:
        """Number of rows that can run."""
        return sum(worker.capacity for worker in self.workers)

    def threads_each(self) -> int:
        """Return the number of torch threads for each busy worker."""
        return max(1, self.threads // max(1, sum(bool(worker.owner) for worker in self.workers)))


class DecodeWorker(Worker):
    """Decodes at most `capacity` rows in one batch."""

    def __init__(
        self, name: str, model: Model, capacity: int, queue: RequestQueue, group: DecodeWorkers, metrics: Metrics
    ) -> None:
        super().__init__(f"decode worker {len(group.workers)} of {name}", queue, group.threads)
        self._model_name, self.capacity, self._group, self._metrics = name, capacity, group, metrics
        self._running = RunningBatch(model)
        self._delayed = 0  # steps since queued rows could have joined
        self.owner: dict[Row, PendingRequest] = {}  # of running rows, by identity
        group.workers.append(self)

    def has_work(self) -> bool:
        """Return True if rows run or wait. An idle worker takes the first row: its share is at least one."""
        return bool(self.owner or self.queue.ready_rows)

    def work(self) -> None:
        """Admit rows, then advance the batch by one step."""
        self._drop_cancelled()
        self._suspend([row for row, request in self.owner.items() if request.backlog.lags])
        admitted = self._admitted()
        threads = self._group.threads_each()
        if threads != torch.get_num_threads():
            torch.set_num_threads(threads)
        resumed = [entry for entry in admitted if entry[1].saved is not None]
        fresh = [entry for entry in admitted if entry[1].saved is None]
        for entries, join in ((resumed, self._resume), (fresh, self._join)):
            if entries:
                self.run_batch(entries, join)
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

    def _suspend(self, rows: Sequence[Row]) -> None:
        """Return rows to the queue. As many states are kept as rows can run; other rows are read again."""
        if not rows:
            return
        with self.queue.changed:
            kept = max(0, self._group.capacity - self.queue.saved_states)
        self._running.suspend(rows[:kept])  # copies states; the event loop must not wait for it
        self._running.remove(rows[kept:])
        with self.queue.changed:
            self.queue.put_back([(self.owner.pop(row), row) for row in rows])

    def _admitted(self) -> list[tuple[PendingRequest, Row]]:
        """Take the rows that join now from the queue: as many as fit into the batch and into one prefill."""
        admitted: list[tuple[PendingRequest, Row]] = []
        replaced: list[Row] = []
        rows = len(self._running.rows)
        with self.queue.changed:
            ready = self.queue.ready_rows
            free = min(self.capacity, self._group.share(ready)) - rows
            if min(free, ready) * ROWS_PER_JOIN < rows and self._delayed < MAX_JOIN_DELAY:
                self._delayed += 1
                return admitted
            longest, self._delayed = 0, 0
            running = Counter(request.client for request in self.owner.values())
            full, reserve = self._group.rows() >= self._group.capacity, self.capacity // FREE_SHARE
            clients = len(running.keys() | self.queue.ready_clients())
            beyond_share = free if clients < 2 else free - reserve if free >= 2 * reserve else 0
            while (client := self.queue.next_client(running)) is not None:
                request, row = self.queue.next_row(client)
                longest = max(longest, 0 if row.saved else row.length)
                if admitted and longest * (len(admitted) + 1) > PREFILL_TOKENS:
                    break
                joining = len(admitted) - len(replaced)
                if running[client] * clients >= self.capacity and joining >= beyond_share:
                    break
                if joining >= free:
                    victim = self._replaceable(running, client, replaced) if full else None
                    if victim is None:
                        break
                    replaced.append(victim)
                    running[self.owner[victim].client] -= 1
                self.queue.take(request)
                admitted.append((request, row))
                running[client] += 1
            for request, _ in admitted:
                request.record.mark_taken()
            self.owner.update({row: request for request, row in admitted})  # other workers count them from now on
        self._suspend(replaced)
        return admitted

    def _replaceable(self, running: Counter[str], client: str, replaced: Sequence[Row]) -> Row | None:
        """Return the newest row of the client with the most rows, if that client keeps at least as many as this one."""
        most, count = running.most_common(1)[0] if running else (client, 0)
        if count < running[client] + 2:
            return None
        newest = (row for row in reversed(self._running.rows) if self.owner[row].client == most)
        return next((row for row in newest if row not in replaced), None)

    def _resume(self, admitted: Sequence[tuple[PendingRequest, Row]]) -> None:
        try:
            self._running.resume([row for _, row in admitted])
        except Exception:
            for _, row in admitted:
                self.owner.pop(row, None)
            raise
        self.owner.update({row: request for request, row in admitted})

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
            if not request.wait_for_all:
                request.backlog.grow(bytes_of(len(token.top)))
            if token.end is not None or not request.wait_for_all:
                self.emit(request, token)
        self._metrics.tokens.labels(self._model_name).inc(len(tokens))
