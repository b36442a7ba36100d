"""A lane of an engine: a thread that decodes some rows side by side.

    forever:  let waiting rows join the batch;  one step of all rows

Rows join and leave between steps (`decode/running_batch.py`), so no row waits for the slowest of a batch, and the
weights are read once for all. A step is many small operations, which one core does best (`decode/threads.py`), so each
core has a lane of its own: all rows, waiting and running, are shared out evenly.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from allyouneed.decode.running_batch import Row, RunningBatch, Said
from allyouneed.models import Model
from allyouneed.serve.errors import Refusal
from allyouneed.serve.metrics import Metrics
from allyouneed.serve.worker import Ticket, Waiting, Worker, refusal_of

PREFILL = 4096  # tokens of prompts and sources that are read at once
# A state is copied as a whole for those who join, so a full batch takes several in at once: at least one for so many
# rows, but nobody waits longer than so many steps.
TOGETHER, PATIENCE = 4, 8


@dataclass
class DecodeWorkers:
    """What the lanes of an engine know of each other."""

    threads: int  # of torch, for all of them together
    all: "list[DecodeWorker]" = field(default_factory=list)

    def rows(self) -> int:
        """That are running."""
        return sum(len(lane.owner) for lane in self.all)

    def share(self, waiting: int) -> int:
        """How many rows a lane has when all are shared out."""
        return math.ceil((self.rows() + waiting) / len(self.all))

    def threads_each(self) -> int:
        """Of torch, for each lane that has something to do."""
        return max(1, self.threads // max(1, sum(bool(lane.owner) for lane in self.all)))


class DecodeWorker(Worker):
    """Decodes at most `room` rows at a time."""

    def __init__(
        self, name: str, model: Model, room: int, waiting: Waiting, lanes: DecodeWorkers, metrics: Metrics
    ) -> None:
        super().__init__(f"lane {len(lanes.all)} of {name}", waiting, lanes.threads)
        self._model_name, self._room, self._lanes, self._metrics = name, room, lanes, metrics
        self._running = RunningBatch(model)
        self._waited = 0  # steps, for others to join with
        self.owner: dict[Row, Ticket] = {}  # of running rows; a row is itself, not its content
        lanes.all.append(self)

    def has_work(self) -> bool:
        """Whoever is idle takes the first row that comes: its share is at least one."""
        return bool(self.owner or self.waiting.rows)

    def work(self) -> None:
        """Takes rows in, and makes a step."""
        self._forget_cancelled()
        fresh = self._admitted()
        threads = self._lanes.threads_each()
        if threads != torch.get_num_threads():
            torch.set_num_threads(threads)
        if fresh:
            self.together(fresh, self._join)
        if self._running.rows:
            begun, rows = time.perf_counter(), len(self._running.rows)
            self._step()
            self._metrics.step(self._model_name, rows, time.perf_counter() - begun)

    def refuse(self, refusal: Refusal) -> None:
        """All running rows are given up."""
        for ticket in set(self.owner.values()):
            self.hear(ticket, refusal)
        self.owner.clear()
        self._running.remove(self._running.rows)

    def _forget_cancelled(self) -> None:
        gone = [row for row, ticket in self.owner.items() if ticket.cancelled]
        if gone:
            self._running.remove(gone)
            for row in gone:
                del self.owner[row]

    def _admitted(self) -> list[tuple[Ticket, Row]]:
        """Waiting rows that are to join, as many as there is room for and as fit into one reading."""
        fresh: list[tuple[Ticket, Row]] = []
        rows = len(self._running.rows)
        with self.waiting.changed:
            queue = self.waiting.rows
            room = min(self._room, self._lanes.share(len(queue))) - rows
            if min(room, len(queue)) * TOGETHER < rows and self._waited < PATIENCE:
                self._waited += 1
                return fresh
            longest, self._waited = 0, 0
            while queue and len(fresh) < room:
                longest = max(longest, queue[0][1].length)
                if fresh and longest * (len(fresh) + 1) > PREFILL:
                    break
                fresh.append(queue.popleft())
            self.owner.update({row: ticket for ticket, row in fresh})  # other lanes count them from now on
        return fresh

    def _join(self, fresh: Sequence[tuple[Ticket, Row]]) -> None:
        try:
            said = self._running.add([row for _, row in fresh])
        except Exception:
            for _, row in fresh:
                self.owner.pop(row, None)
            raise
        self.owner.update({row: ticket for ticket, row in fresh})
        self._hear(said)

    def _step(self) -> None:
        try:
            self._hear(self._running.step())
        except Exception as error:
            failing = self._running.failing() or [(row, error) for row in self._running.rows]
            for row, reason in failing:
                self.hear(self.owner.pop(row), refusal_of(reason))
            self._running.remove([row for row, _ in failing])

    def _hear(self, said: Sequence[Said]) -> None:
        for one in said:
            ticket = self.owner[one.row] if one.end is None else self.owner.pop(one.row)
            if one.end is not None or not ticket.patient:
                self.hear(ticket, one)
        self._metrics.tokens.labels(self._model_name).inc(len(said))
