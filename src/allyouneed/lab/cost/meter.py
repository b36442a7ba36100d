"""The cost of one layer, counted and measured on this machine.

    count_flops    torch's FLOP counter over a forward pass; attention uses its math backend, since the counter does
                   not see fused kernels
    seconds        CPU time of one thread for a forward and backward pass, which depends less on other processes
    peak_bytes     peak memory of the same pass in torch's allocator, beyond weights and inputs, from the allocations
                   and frees that its profiler records. Internal buffers of libraries (oneDNN, BLAS) are not included.

One sequence, float32. An exponent is the slope of a least-squares line through logarithms.
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
    """Return the FLOPs of a forward pass over one sequence, as counted by torch."""
    mixer, x_BTD = built(config, role, length, width)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter, torch.no_grad():
        mixer(x_BTD)
    return int(counter.get_total_flops())


def built(config: MixerConfig, role: Role, length: int, width: int) -> tuple[Mixer, Tensor]:
    """Return a random layer and a random sequence for it, always with the same seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return config.build(width, role=role), torch.randn(1, length, width)


class Pass:
    """A repeatable forward and backward pass."""

    def __init__(self, config: MixerConfig, role: Role, length: int, width: int) -> None:
        self._mixer, x_BTD = built(config, role, length, width)
        self._x_BTD = x_BTD.requires_grad_()

    def run(self) -> None:
        """Run once; gradients accumulate."""
        y_BTD, _ = self._mixer(self._x_BTD)
        y_BTD.backward(torch.ones_like(y_BTD))

    def _clear_gradients(self) -> None:
        self._x_BTD.grad = None
        self._mixer.zero_grad(set_to_none=True)

    def seconds(self) -> float:
        """Return the CPU time of one pass."""
        self._clear_gradients()
        start = time.process_time()
        self.run()
        return time.process_time() - start

    def peak_bytes(self) -> int:
        """Return the peak memory of one pass."""
        self._clear_gradients()
        return peak_bytes(self.run)


def peak_bytes(work: Callable[[], object]) -> int:
    """Return the peak bytes that torch allocated during `work`, beyond those allocated before."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # otherwise the profiler prints log lines
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        work()
    assert profiler.profiler is not None
    events = profiler.profiler.kineto_results.events()
    changes = sorted((event.start_ns(), event.nbytes()) for event in events if event.name() == "[memory]")
    return int(max(np.cumsum([size for _, size in changes]), default=0))


@contextmanager
def one_thread() -> Iterator[None]:
    """Run torch on one thread within this context."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@dataclass(frozen=True)
class Exponent:
    """The power p of a fit y ~ x^p."""

    value: float
    low: float  # lowest and highest exponent of single repetitions
    high: float

    def text(self) -> str:
        """Format as 1.98, or 1.98 (1.95 to 2.03) if repetitions differ."""
        if self.low == self.high:
            return f"{self.value:.2f}"
        return f"{self.value:.2f} ({self.low:.2f} to {self.high:.2f})"


def exponent(sizes: Sequence[int], repetitions: Sequence[Sequence[float]]) -> Exponent:
    """Fit the exponent to the medians over repetitions, each of which has one value per size."""
    slopes = [_slope(sizes, values) for values in repetitions]
    medians = [float(np.median(values)) for values in zip(*repetitions, strict=True)]
    return Exponent(_slope(sizes, medians), min(slopes), max(slopes))


def _slope(sizes: Sequence[int], values: Sequence[float]) -> float:
    if len(sizes) < 2 or min(values) <= 0:
        return math.nan
    return float(np.polyfit(np.log(sizes), np.log(values), 1)[0])
