"""Batches side by side on the cores of a CPU.

Decoding takes many small steps. Two OpenMP threads that share one small step mostly wait for each other; two Python
threads that each decode a batch of their own on one core meet only at the end, as torch releases the GIL inside its
operations. One batch alone keeps torch's own threads: they do help to stream the weights.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextvars import copy_context
from typing import TypeVar

import torch

Batch = TypeVar("Batch")
Result = TypeVar("Result")


MOST = 4  # more worker_count would wait for the interpreter between operations


def worker_count(device: torch.device) -> int:
    """How many batches can run side by side."""
    return min(MOST, torch.get_num_threads()) if device.type == "cpu" else 1


def run_concurrently(
    work: Callable[[Batch], Result], batches: Sequence[Batch], device: torch.device
) -> Iterator[tuple[Batch, Result]]:
    """Each batch with its result, in the order in which they are done. No gradients are kept."""
    count = min(worker_count(device), len(batches))
    if count < 2:
        for batch in batches:
            yield batch, work(batch)
        return

    def alone(batch: Batch) -> Result:
        with torch.inference_mode():  # a mode of the thread, not of the process
            return work(batch)

    # OpenMP keeps the number of its threads for each calling thread apart, but threads that begin later inherit the
    # number set last: it is set back at the end.
    threads = torch.get_num_threads()
    pool = ThreadPoolExecutor(count, initializer=torch.set_num_threads, initargs=(max(1, threads // count),))
    try:
        waiting = {pool.submit(copy_context().run, alone, batch): batch for batch in batches}
        for future in as_completed(waiting):
            yield waiting.pop(future), future.result()
    finally:
        pool.shutdown(cancel_futures=True)
        torch.set_num_threads(threads)
