"""The processes of one run: ranks, shared work, and agreement.

    torchrun --nproc-per-node 2 -m allyouneed train RECIPE --set train.parallel=ddp

torchrun sets ranks and sizes in the environment. With one process, every method here returns at once. Rank 0 prepares
data, prints, logs, evaluates, saves and reads the clock; the other ranks wait for it, and end when it ends. Messages
between processes are numbers or JSON, never pickled objects.

A process that dies closes its connections, so the others fail in the operation they wait for instead of hanging. If
connections do not close (a host loses power), a step fails after `STEP_TIMEOUT`, waiting for rank 0 after
`RANK0_TIMEOUT`.
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

STEP_TIMEOUT = timedelta(minutes=10)  # how far a process may fall behind the others within a step
RANK0_TIMEOUT = timedelta(days=1)  # for rank 0 to prepare, evaluate or save
# Words by which the libraries below torch report a lost process.
_LOST = ("connection", "gloo", "nccl", "timed out", "timeout", "broken pipe", "socket", "peer", "store")


class ReportedElsewhere(UserError):
    """Another process of the run reports the error: this one exits with the same status and no message."""

    def __init__(self, status: int) -> None:
        super().__init__("")
        self.status = status


def is_rank0() -> bool:
    """Return whether this process prints and writes, from the environment alone."""
    return os.environ.get("RANK", "0") == "0"


@contextmanager
def report_once() -> Iterator[None]:
    """Let rank 0 alone report an error that every process of a run finds by itself."""
    try:
        yield
    except UserError as error:
        if is_rank0():
            raise
        raise ReportedElsewhere(error.status) from error


class ProcessGroup:
    """The processes of a run, seen from one of them."""

    def __init__(self, parallel: Parallel = "none") -> None:
        self.rank, self.size = _environment_number("RANK", 0), _environment_number("WORLD_SIZE", 1)
        self.local_rank = _environment_number("LOCAL_RANK", 0)
        self.local_size = _environment_number("LOCAL_WORLD_SIZE", self.size)
        self._parent = os.getppid()
        self._owns_group = False
        self._slow_group: Any = None  # with a timeout long enough for what rank 0 does alone
        if self.size > 1 and parallel == "none":
            raise ConfigError(
                f"train.parallel is 'none', but {self.size} processes were started: set it to 'ddp' or 'fsdp', "
                "or start one process, without torchrun"
            )

    @property
    def is_rank0(self) -> bool:
        """Whether this process prints and writes."""
        return self.rank == 0

    @property
    def cores(self) -> int:
        """This process's share of the machine's cores."""
        return max(1, usable_cores() // self.local_size)

    def device(self, name: str) -> torch.device:
        """Return the device of this process: with several accelerators, the one of its local rank."""
        return torch.device(f"{name}:{self.local_rank}" if self.size > 1 and name == "cuda" else name)

    def join(self, device: torch.device) -> None:
        """Connect to the other processes."""
        if self.size == 1:
            return
        with self.explain_lost_process():
            if not dist.is_initialized():
                if device.type == "cuda":
                    torch.cuda.set_device(device)
                dist.init_process_group("cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo", timeout=STEP_TIMEOUT)
                self._owns_group = True
            self._slow_group = dist.new_group(backend="gloo", timeout=RANK0_TIMEOUT)

    def leave(self) -> None:
        """Disconnect after success. A process that fails just exits."""
        if self._owns_group:
            dist.destroy_process_group()
            self._owns_group = False

    @contextmanager
    def explain_lost_process(self) -> Iterator[None]:
        """Turn the library errors that follow the loss of another process into a TrainingError of one line."""
        try:
            yield
        except RuntimeError as error:
            if self.size == 1 or not any(word in str(error).lower() for word in _LOST):
                raise
            reason = str(error).strip().splitlines()[0][:200]
            raise TrainingError(
                f"process {self.rank} of {self.size}: another process of this run has ended or cannot be reached "
                f"({reason}); the same command resumes from the last checkpoint"
            ) from error

    # --- work ---

    def share(self, count: int) -> range:
        """Return the micro-batches of this process, dealt round-robin as `Workers` deals them to threads."""
        return range(self.rank, count, self.size)

    def on_rank0(self, work: Callable[[], T]) -> T:
        """Run `work` on rank 0 and return its result (JSON) on every rank. If it fails, all ranks fail."""
        if self.size == 1:
            return work()
        error: UserError | None = None
        message: dict[str, Any] = {}
        if self.is_rank0:
            try:
                message = {"value": work()}
            except UserError as failed:
                error, message = failed, {"status": failed.status}
        message = self._broadcast_message(message)
        if error is not None:
            raise error
        if "status" in message:
            raise ReportedElsewhere(message["status"])
        value: T = message["value"]
        return value

    def on_every_rank(self, work: Callable[[], T]) -> T:
        """Run `work` on every rank. If it fails on one, all fail, and rank 0 reports why."""
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
        message = self._broadcast_message({"line": str(error)}, failing)["line"]
        if self.is_rank0 and error is None:
            error = UserError(f"process {failing} of {self.size}: {message}")
        if self.is_rank0 and error is not None:
            error.status = int(failures[failing])
            raise error
        raise ReportedElsewhere(int(failures[failing]))

    def rank0_first(self, work: Callable[[], T]) -> T:
        """Run `work` on rank 0, then on the other ranks, which find the files that rank 0 has written."""
        done: list[T] = []
        self.on_rank0(lambda: done.append(work()))
        return self.on_every_rank(lambda: done[0] if done else work())

    def fail(self, error: UserError) -> NoReturn:
        """Raise an error that all ranks found at the same point; rank 0 reports it."""
        raise error if self.is_rank0 else ReportedElsewhere(error.status)

    # --- agreement ---

    def sum(self, numbers: Sequence[float]) -> list[float]:
        """Return the sums over all processes, identical in every bit on each of them."""
        if self.size == 1:
            return list(numbers)
        sums = torch.tensor(numbers, dtype=torch.float64)
        with self.explain_lost_process():
            dist.all_reduce(sums)
        return sums.tolist()

    def from_rank0(self, number: float) -> float:
        """Return rank 0's number on every rank."""
        return number if self.size == 1 else self.sum([number if self.is_rank0 else 0.0])[0]

    def per_micro_batch(self, mine: Sequence[float], count: int) -> list[float]:
        """Return one number for each of the `count` micro-batches of a step, from the processes that ran them."""
        if self.size == 1:
            return list(mine)
        numbers = [0.0] * count
        for place, value in zip(self.share(count), mine, strict=True):
            numbers[place] = value
        return self.sum(numbers)

    def agree(self, seconds: float, save: bool, stop: bool) -> tuple[float, bool, bool]:
        """Return rank 0's clock, whether rank 0 is due to save, and whether any process must stop."""
        stop = stop or self._is_orphaned()
        if self.size == 1:
            return seconds, save, stop
        rank0 = [seconds, save] if self.is_rank0 else [0.0, 0.0]
        seconds, saves, stops = self.sum([*rank0, stop])
        return seconds, saves > 0, stops > 0

    def _is_orphaned(self) -> bool:
        """Return whether the process that started this one (torchrun) is gone."""
        return self.size > 1 and os.getppid() != self._parent

    # --- tensors ---

    def add_gradients(self, parameters: Sequence[Tensor], bucket_bytes: int = 32 << 20) -> None:
        """Replace every gradient by the sum over all processes. A missing gradient counts as zero."""
        if self.size == 1:
            return
        with self.explain_lost_process():
            pending = [(bucket, *_send(bucket)) for bucket in _buckets(parameters, bucket_bytes)]
            for bucket, flat, work in pending:
                work.wait()
                _receive(bucket, flat)

    def broadcast(self, tensors: Sequence[Tensor]) -> None:
        """Copy rank 0's tensors to all ranks, so that they start from the same bits on any mix of machines."""
        if self.size == 1:
            return
        with self.explain_lost_process():
            for tensor in tensors:
                dist.broadcast(tensor, 0)

    def _broadcast_message(self, message: dict[str, Any], source: int = 0) -> dict[str, Any]:
        """Send a JSON message from one process to all."""
        data = json.dumps(message).encode() if self.rank == source else b""
        size = torch.tensor([len(data)])
        with self.explain_lost_process():
            dist.broadcast(size, source, group=self._slow_group)
            text = torch.empty(int(size), dtype=torch.uint8)
            if self.rank == source:
                text.copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))
            dist.broadcast(text, source, group=self._slow_group)
        received: dict[str, Any] = json.loads(bytes(text.tolist()))
        return received


def _environment_number(name: str, default: int) -> int:
    text = os.environ.get(name)
    if text is None:
        return default
    if not text.isascii() or not text.isdigit():
        raise ConfigError(f"environment variable {name}={text!r}: should be a number, as torchrun sets it")
    return int(text)


def _buckets(parameters: Sequence[Tensor], most: int) -> Iterator[list[Tensor]]:
    """Yield runs of neighbouring parameters of one dtype, each with at most `most` bytes if it has several."""
    bucket: list[Tensor] = []
    free = float(most)
    for parameter in parameters:
        size = parameter.numel() * parameter.element_size()
        if bucket and (size > free or parameter.dtype != bucket[0].dtype):
            yield bucket
            bucket, free = [], float(most)
        bucket.append(parameter)
        free -= size
    if bucket:
        yield bucket


@torch.no_grad()
def _send(bucket: Sequence[Tensor]) -> tuple[Tensor, Any]:
    """Start to sum a bucket's gradients as one vector, followed by one flag per parameter: has it a gradient?"""
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
