"""Run batches concurrently on the cores of a CPU, and the steps of a single batch on one core.

Decoding takes many small steps. Two OpenMP threads that share one small step mostly wait for each other. Two Python
threads that each decode their own batch on one core meet only at the end, because torch releases the GIL inside its
operations. A core that another process takes then costs its share of the work, and no more.

A single batch has long prompts read by all of torch's threads. Short ones and its steps run on the threads of the
kernels, which share large products only (kernels/threads.c); what remains for torch is too small to share. On two cores
with six busy processes each, a prompt of six tokens takes 90 ms instead of 1,300.
"""

from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from contextvars import copy_context
from itertools import chain, islice
from typing import TypeVar

import torch

from allyouneed import kernels
from allyouneed.inference.optimize import is_optimized
from allyouneed.models import Model

Batch = TypeVar("Batch")
Result = TypeVar("Result")


MAX_WORKERS = 4  # more would wait for the interpreter between operations


def worker_count(device: torch.device) -> int:
    """Return how many batches can run concurrently."""
    return min(MAX_WORKERS, torch.get_num_threads()) if device.type == "cpu" else 1


def run_concurrently(
    work: Callable[[Batch], Result], batches: Iterable[Batch], device: torch.device
) -> Generator[tuple[Batch, Result]]:
    """Yield each batch with its result, in order of completion. No gradients are recorded.

    Batches are taken from the iterable as they are needed. Close the iterator if you do not exhaust it.
    """
    waiting, count = iter(batches), worker_count(device)
    first = list(islice(waiting, count))
    if len(first) < 2:
        for batch in chain(first, waiting):
            yield batch, work(batch)
        return

    def run(batch: Batch) -> Result:
        with torch.inference_mode():  # a mode of the thread, not of the process
            return work(batch)

    # OpenMP keeps its number of threads per calling thread, but threads that start later inherit the number set last:
    # it is restored at the end.
    threads = torch.get_num_threads()
    pool = ThreadPoolExecutor(len(first), initializer=torch.set_num_threads, initargs=(max(1, threads // len(first)),))
    pending: dict[Future[Result], Batch] = {}

    def submit(more: Iterable[Batch]) -> None:
        pending.update({pool.submit(copy_context().run, run, batch): batch for batch in more})

    try:
        submit(first)
        submit(islice(waiting, len(first)))  # no worker waits for the caller
        while pending:
            done, _ = wait(pending, return_when=FIRST_COMPLETED)
            submit(islice(waiting, len(done)))
            for future in done:
                yield pending.pop(future), future.result()
    finally:
        pool.shutdown(cancel_futures=True)
        torch.set_num_threads(threads)


@contextmanager
def kernel_threads(model: Model, rows: int) -> Iterator[None]:
    """Run decoding steps of this many rows on the threads of the kernels instead of torch's, if they compute them."""
    threads = torch.get_num_threads()
    by_kernels = threads > 1 and is_optimized(model) and kernels.usable(model.head.like)
    if not by_kernels or not kernels.few_rows(rows):
        yield
        return
    torch.set_num_threads(1)
    try:
        with kernels.several_threads(threads):
            yield
    finally:
        torch.set_num_threads(threads)
