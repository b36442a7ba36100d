"""What one layer costs, counted and measured on this machine.

    count_flops    torch's own counter over a forward pass; the attention runs by its plain backend, as the fused
                   kernels are invisible to the counter
    seconds        of a forward and backward pass: CPU time of one thread, so that what else runs weighs less
    peak_bytes     of the same pass: the most that torch's allocator had given out at once, beyond weights and inputs,
                   from the allocations and frees that its profiler saw. Buffers that a library takes by itself
                   (oneDNN's, BLAS's) are not among them.

One sequence, float32. An exponent is the slope of a line through logarithms, by least squares.
"""

import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from allyouneed.mixers import Mixer, MixerConfig, Role


def count_flops(config: MixerConfig, role: Role, length: int, width: int) -> int:
    """FLOPs of a forward pass over one sequence, as torch counts them."""
    mixer, x_BTD = built(config, role, length, width)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter, torch.no_grad():
        mixer(x_BTD)
    return int(counter.get_total_flops())


def built(config: MixerConfig, role: Role, length: int, width: int) -> tuple[Mixer, Tensor]:
    """A random layer and a random sequence for it, the same every time."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return config.build(width, role=role), torch.randn(1, length, width)


class Pass:
    """A forward and backward pass that can be repeated."""

    def __init__(self, config: MixerConfig, role: Role, length: int, width: int) -> None:
        self._mixer, x_BTD = built(config, role, length, width)
        self._x_BTD = x_BTD.requires_grad_()

    def run(self) -> None:
        """Once; gradients are added to those that are there."""
        y_BTD, _ = self._mixer(self._x_BTD)
        y_BTD.backward(torch.ones_like(y_BTD))

    def _forget(self) -> None:
        self._x_BTD.grad = None
        self._mixer.zero_grad(set_to_none=True)

    def seconds(self) -> float:
        """Of one pass on one core."""
        self._forget()
        begin = time.process_time()
        self.run()
        return time.process_time() - begin

    def peak_bytes(self) -> int:
        """Of one pass."""
        self._forget()
        return peak_bytes(self.run)


def peak_bytes(work: Callable[[], object]) -> int:
    """The most bytes that torch gave out at once during some work, beyond what was out before."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # or the profiler prints lines about itself
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        work()
    assert profiler.profiler is not None
    events = profiler.profiler.kineto_results.events()
    changes = sorted((event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]")
    return int(max(np.cumsum([size for _, size in changes]), default=0))


@contextmanager
def one_thread() -> Iterator[None]:
    """Whatever is measured inside runs on one core."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@dataclass(frozen=True)
class Exponent:
    """y grows as x to this power."""

    value: float
    low: float  # the least and the greatest of the repetitions, each fitted on its own
    high: float

    def text(self) -> str:
        """1.98, or 1.98 (1.95 to 2.03) where repetitions differ."""
        if self.low == self.high:
            return f"{self.value:.2f}"
        return f"{self.value:.2f} ({self.low:.2f} to {self.high:.2f})"


def exponent(sizes: Sequence[int], repetitions: Sequence[Sequence[float]]) -> Exponent:
    """The exponent of the medians over repetitions, each of which has a value for each size."""
    slopes = [_slope(sizes, values) for values in repetitions]
    medians = [float(np.median(values)) for values in zip(*repetitions, strict=True)]
    return Exponent(_slope(sizes, medians), min(slopes), max(slopes))


def _slope(sizes: Sequence[int], values: Sequence[float]) -> float:
    if len(sizes) < 2 or min(values) <= 0:
        return math.nan
    return float(np.polyfit(np.log(sizes), np.log(values), 1)[0])
