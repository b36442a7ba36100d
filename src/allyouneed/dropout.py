"""Dropout with masks made from raw random bits: about six times cheaper on a CPU than drawing a float for each element.

    y_i = x_i m_i / (1 - p),   m_i = 0 with probability p, else 1

On a CPU, one random byte decides about one element, so p is rounded to 1/256 and the scale fits the rounded p exactly.
Measured on 4096 x 128 float32, one thread: F.dropout 5.6 ms; this 0.9 ms (bits 0.3; mask, forward, backward 0.2 each).
Two details matter. Comparing bytes directly *into a float tensor* is vectorised, while a boolean mask costs three to
five times as much in each later product. `random_()` without bounds leaves the top bit of an int64 at zero, which would
drop every eighth element twice as often.

Each thread has its own generator, seeded by the training loop from (seed, step, micro-batch): a resumed run
drops the same elements as an uninterrupted one.
Paper: Srivastava et al. 2014, JMLR 15; Vaswani et al. 2017, section 5.4 (where it is applied).
"""

import threading

import torch
from torch import Tensor, nn

_local = threading.local()


def seed_dropout(seed: int, device: torch.device | str = "cpu") -> None:
    """Seed the masks that this thread draws from now on."""
    generator = torch.Generator(device)
    generator.manual_seed(seed)
    _local.generator = generator


def _generator(device: torch.device) -> torch.Generator | None:
    """Return this thread's generator if it was seeded for this kind of device; None means torch's global one."""
    generator: torch.Generator | None = getattr(_local, "generator", None)
    return generator if generator is not None and generator.device.type == device.type else None


def dropout_mask(like: Tensor, p: float) -> Tensor:
    """Return a tensor shaped like `like` of zeros (with probability p) and 1 / (1 - p)."""
    if like.device.type != "cpu":
        return torch.empty_like(like).bernoulli_(1 - p, generator=_generator(like.device)).div_(1 - p)
    generator = _generator(like.device)
    words = torch.empty((like.numel() + 7) // 8, dtype=torch.int64).random_(-(2**63), None, generator=generator)
    dropped = min(round(p * 256), 255)  # avoids division by zero for p near 1
    mask = torch.empty(like.shape, dtype=like.dtype)
    torch.ge(words.view(torch.uint8)[: like.numel()].view(like.shape), dropped, out=mask)
    return mask.mul_(256 / (256 - dropped))


def uniform(shape: tuple[int, ...], device: torch.device) -> Tensor:
    """Return uniform numbers in [0, 1) from the generator of the masks."""
    return torch.rand(shape, generator=_generator(device), device=device)


class Dropout(nn.Module):
    """Dropout with `dropout_mask`; `add` computes the residual form x + dropout(y) in one pass."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, y: Tensor) -> Tensor:
        """Return y, with some elements dropped in training mode."""
        return y * dropout_mask(y, self.p) if self.training and self.p else y

    def add(self, x: Tensor, y: Tensor) -> Tensor:
        """Return x + dropout(y)."""
        return torch.addcmul(x, y, dropout_mask(x, self.p)) if self.training and self.p else x + y
