"""The processes of one run: who is first, who does what, and how they agree.

    torchrun --nproc-per-node 2 -m allyouneed train RECIPE --set train.parallel=ddp

torchrun says through the environment how many there are; alone, everything here returns at once. The first process
prepares data, prints, logs, evaluates, saves and looks at the clock; the others wait for it, and end when it does. What
is agreed upon travels as numbers or as JSON, never as pickled objects.

A process that dies closes its connections, so that the others fail in whatever they wait for, and do not hang. Without
connections that close (a host that loses its power) a step ends after `STEP`, and waiting for the first after `WORK`.
"""

import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Literal, NoReturn, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from allyouneed.errors import ConfigError, TrainingError, UserError
from allyouneed.training.workers import usable_cores

T = TypeVar("T")
Parallel = Literal["none", "ddp", "fsdp"]

STEP = timedelta(minutes=10)  # what a process may be behind the others within a step
WORK = timedelta(days=1)  # what the first process may need to prepare, evaluate or save
# How the libraries below torch say that a process is gone.
_LOST = ("connection", "gloo", "nccl", "timed out", "timeout", "broken pipe", "socket", "peer", "store")


class Elsewhere(UserError):
    """Another process of the run has failed, and says why: this one ends without a word."""

    def __init__(self, status: int) -> None:
        super().__init__("")
        self.status = status


def is_first() -> bool:
    """Whether this process is the one that talks."""
    return os.environ.get("RANK", "0") == "0"


@contextmanager
def said_once() -> Iterator[None]:
    """A mistake that every process of a run finds by itself is said by the first."""
    try:
        yield
    except UserError as error:
        if is_first():
            raise
        raise Elsewhere(error.status) from error


class ProcessGroup:
    """The processes of a run, seen from one of them."""

    def __init__(self, parallel: Parallel = "none") -> None:
        self.rank, self.size = _number("RANK", 0), _number("WORLD_SIZE", 1)
        self.local_rank, self.local_size = _number("LOCAL_RANK", 0), _number("LOCAL_WORLD_SIZE", self.size)
        self._parent = os.getppid()
        self._ours = False
        self._patient: Any = None
        if self.size > 1 and parallel == "none":
            raise ConfigError(
                f"train.parallel is 'none', but {self.size} processes were started: set it to 'ddp' or 'fsdp', "
                "or start one process, without torchrun"
            )

    @property
    def is_first(self) -> bool:
        """Whether this is the process that talks and writes."""
        return self.rank == 0

    @property
    def cores(self) -> int:
        """Its share of the cores of this machine."""
        return max(1, usable_cores() // self.local_size)

    def device(self, name: str) -> torch.device:
        """Where this process computes: of several accelerators, its own."""
        return torch.device(f"{name}:{self.local_rank}" if self.size > 1 and name == "cuda" else name)

    def join(self, device: torch.device) -> None:
        """Meets the other processes."""
        if self.size == 1:
            return
        with self.listening():
            if not dist.is_initialized():
                if device.type == "cuda":
                    torch.cuda.set_device(device)
                dist.init_process_group("cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo", timeout=STEP)
                self._ours = True
            self._patient = dist.new_group(backend="gloo", timeout=WORK)

    def leave(self) -> None:
        """Parts from the others, at a good end; whoever fails just ends."""
        if self._ours:
            dist.destroy_process_group()
            self._ours = False

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Turns the loss of another process into one line."""
        try:
            yield
        except RuntimeError as error:
            if self.size == 1 or not any(word in str(error).lower() for word in _LOST):
                raise
            reason = str(error).strip().splitlines()[0][:200]
            raise TrainingError(
                f"process {self.rank} of {self.size}: another process of this run has ended or cannot be reached "
                f"({reason}); the same command goes on from the last checkpoint"
            ) from error

    # --- who does what ---

    def share(self, count: int) -> range:
        """The micro-batches of this process. Dealt like cards, as `Workers` deals them to threads."""
        return range(self.rank, count, self.size)

    def first(self, work: Callable[[], T]) -> T:
        """What the first process makes of `work` (JSON); the others wait for it. If it fails, all fail."""
        if self.size == 1:
            return work()
        error: UserError | None = None
        answer: dict[str, Any] = {}
        if self.is_first:
            try:
                answer = {"value": work()}
            except UserError as failed:
                error, answer = failed, {"status": failed.status}
        answer = self._tell(answer)
        if error is not None:
            raise error
        if "status" in answer:
            raise Elsewhere(answer["status"])
        value: T = answer["value"]
        return value

    def each(self, work: Callable[[], T]) -> T:
        """Every process does `work`; if one fails, all fail, and the first says why."""
        if self.size == 1:
            return work()
        error: UserError | None = None
        try:
            value = work()
        except UserError as failed:
            error = failed
        failures = self.sum([float(error.status if error else 0) if r == self.rank else 0.0 for r in range(self.size)])
        if not any(failures):
            return value
        failing = next(rank for rank, status in enumerate(failures) if status)
        message = self._tell({"line": str(error)}, failing)["line"]
        if self.is_first and error is None:
            error = UserError(f"process {failing} of {self.size}: {message}")
        if self.is_first and error is not None:
            error.status = int(failures[failing])
            raise error
        raise Elsewhere(int(failures[failing]))

    def in_turn(self, work: Callable[[], T]) -> T:
        """Every process does `work`, the first one before all others: they find what it has left for them."""
        done: list[T] = []
        self.first(lambda: done.append(work()))
        return self.each(lambda: done[0] if done else work())

    def end(self, error: UserError) -> NoReturn:
        """What all processes found at once is said by the first."""
        raise error if self.is_first else Elsewhere(error.status)

    # --- what they agree upon ---

    def sum(self, numbers: Sequence[float]) -> list[float]:
        """The sums over all processes, the same bits for each."""
        if self.size == 1:
            return list(numbers)
        sums = torch.tensor(numbers, dtype=torch.float64)
        with self.listening():
            dist.all_reduce(sums)
        return sums.tolist()

    def of_the_first(self, numbers: Sequence[float]) -> list[float]:
        """The numbers of the first process."""
        return list(numbers) if self.size == 1 else self.sum([x if self.is_first else 0.0 for x in numbers])

    def in_order(self, mine: Sequence[float], count: int) -> list[float]:
        """One number for each micro-batch of a step, whoever had it."""
        if self.size == 1:
            return list(mine)
        numbers = [0.0] * count
        for place, value in zip(self.share(count), mine, strict=True):
            numbers[place] = value
        return self.sum(numbers)

    def orphaned(self) -> bool:
        """Whether whoever started these processes is gone."""
        return self.size > 1 and os.getppid() != self._parent

    def add_gradients(self, parameters: Sequence[Tensor], bucket_bytes: int = 32 << 20) -> None:
        """Every gradient becomes the sum over all processes; where one process has none, it counts as zero."""
        if self.size == 1:
            return
        with self.listening():
            waiting = [(bucket, *_send(bucket)) for bucket in _buckets(parameters, bucket_bytes)]
            for bucket, flat, work in waiting:
                work.wait()
                _receive(bucket, flat)

    def copy_from_first(self, tensors: Sequence[Tensor]) -> None:
        """All processes begin with the same bits, whatever machines they run on."""
        if self.size == 1:
            return
        with self.listening():
            for tensor in tensors:
                dist.broadcast(tensor, 0)

    def _tell(self, message: dict[str, Any], source: int = 0) -> dict[str, Any]:
        """A message of one process to all."""
        data = json.dumps(message).encode() if self.rank == source else b""
        size = torch.tensor([len(data)])
        with self.listening():
            dist.broadcast(size, source, group=self._patient)
            text = torch.empty(int(size), dtype=torch.uint8)
            if self.rank == source:
                text.copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))
            dist.broadcast(text, source, group=self._patient)
        told: dict[str, Any] = json.loads(bytes(text.tolist()))
        return told


def _number(name: str, default: int) -> int:
    text = os.environ.get(name)
    if text is None:
        return default
    if not text.isascii() or not text.isdigit():
        raise ConfigError(f"environment variable {name}={text!r}: should be a number, as torchrun sets it")
    return int(text)


def _buckets(parameters: Sequence[Tensor], most: int) -> Iterator[list[Tensor]]:
    """Neighbours of one type, so many bytes at a time."""
    bucket: list[Tensor] = []
    room = float(most)
    for parameter in parameters:
        size = parameter.numel() * parameter.element_size()
        if bucket and (size > room or parameter.dtype != bucket[0].dtype):
            yield bucket
            bucket, room = [], float(most)
        bucket.append(parameter)
        room -= size
    if bucket:
        yield bucket


@torch.no_grad()
def _send(bucket: Sequence[Tensor]) -> tuple[Tensor, Any]:
    """Gradients on their way as one vector, and behind them for each whether there is one."""
    pieces = [torch.zeros_like(p).view(-1) if p.grad is None else p.grad.reshape(-1) for p in bucket]
    present = torch.tensor([float(p.grad is not None) for p in bucket], dtype=bucket[0].dtype, device=bucket[0].device)
    flat = torch.cat([*pieces, present])
    return flat, dist.all_reduce(flat, async_op=True)


@torch.no_grad()
def _receive(bucket: Sequence[Tensor], flat: Tensor) -> None:
    sizes = [parameter.numel() for parameter in bucket]
    *pieces, present = flat.split([*sizes, len(bucket)])
    for parameter, piece, count in zip(bucket, pieces, present.tolist(), strict=True):
        if count:
            parameter.grad = piece.view_as(parameter)
