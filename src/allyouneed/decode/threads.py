"""Run batches concurrently on the cores of a CPU.

Decoding takes many small steps. Two OpenMP threads that share one small step mostly wait for each other. Two Python
threads that each decode their own batch on one core meet only at the end, because torch releases the GIL inside its
operations. A single batch keeps torch's own threads: they do help to stream the weights.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextvars import copy_context
from typing import TypeVar

import torch

Batch = TypeVar("Batch")
Result = TypeVar("Result")


MAX_WORKERS = 4  # more would wait for the interpreter between operations


def worker_count(device: torch.device) -> int:
    """Return how many batches can run concurrently."""
    return min(MAX_WORKERS, torch.get_num_threads()) if device.type == "cpu" else 1


def run_concurrently(
    work: Callable[[Batch], Result], batches: Sequence[Batch], device: torch.device
) -> Iterator[tuple[Batch, Result]]:
    """Yield each batch with its result, in order of completion. No gradients are recorded."""
    count = min(worker_count(device), len(batches))
    if count < 2:
        for batch in batches:
            yield batch, work(batch)
        return

    def run(batch: Batch) -> Result:
        with torch.inference_mode():  # a mode of the thread, not of the process
            return work(batch)

    # OpenMP keeps its number of threads per calling thread, but threads that start later inherit the number set last:
    # it is restored at the end.
    threads = torch.get_num_threads()
    pool = ThreadPoolExecutor(count, initializer=torch.set_num_threads, initargs=(max(1, threads // count),))
    try:
        pending = {pool.submit(copy_context().run, run, batch): batch for batch in batches}
        for future in as_completed(pending):
            yield pending.pop(future), future.result()
    finally:
        pool.shutdown(cancel_futures=True)
        torch.set_num_threads(threads)
