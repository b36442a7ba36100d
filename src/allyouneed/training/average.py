"""Averaged weights: the model that is evaluated and kept is smoother than the one that is trained.

    ema    a = d a + (1 - d) w after each step, with d = min(decay, (1 + t) / (10 + t)): the start is forgotten
    last   the mean of the last `count` snapshots, `every` steps apart (section 6.1: the last 5 checkpoints)

Paper: Polyak and Juditsky 1992; Vaswani et al. 2017, section 6.1.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch
from pydantic import Field, PositiveInt
from torch import Tensor

from allyouneed.config import Config
from allyouneed.errors import FolderError
from allyouneed.torch_private import foreach_lerp_
from allyouneed.training.optimizer import Parameters


class AverageConfig(Config):
    type: Literal["none", "ema", "last"] = "none"
    decay: float = Field(default=0.998, gt=0, lt=1)  # ema
    count: PositiveInt = 5  # last
    every: PositiveInt = 500  # last: steps between snapshots


class Average:
    """Follows a model's parameters."""

    def __init__(self, config: AverageConfig, model: Parameters) -> None:
        self.config = config
        self.parameters = dict(model.named_parameters())
        self.copies: list[dict[str, Tensor]] = []
        if config.type == "ema":
            self.copies = [self._copy()]

    @torch.no_grad()
    def update(self, step: int) -> None:
        """After step number `step` (the first is 1)."""
        if self.config.type == "ema":
            decay = min(self.config.decay, (1 + step) / (10 + step))
            averaged = [self.copies[0][name] for name in self.parameters]
            foreach_lerp_(averaged, list(self.parameters.values()), 1 - decay)
        elif self.config.type == "last" and step % self.config.every == 0:
            self.copies = [*self.copies[-(self.config.count - 1) :], self._copy()][-self.config.count :]

    def tensors(self) -> dict[str, Tensor]:
        """What a checkpoint keeps."""
        return {f"{i}/{name}": value for i, copy in enumerate(self.copies) for name, value in copy.items()}

    def load_tensors(self, tensors: dict[str, Tensor]) -> None:
        """As it was when `tensors` was taken."""
        copies: dict[int, dict[str, Tensor]] = {}
        for key, value in tensors.items():
            number, _, name = key.partition("/")
            parameter = self.parameters[name]
            if value.shape != parameter.shape or value.dtype != parameter.dtype:
                raise FolderError(f"averaged weights: {name} has another shape or type than the model's")
            copies.setdefault(int(number), {})[name] = value.to(parameter.device).clone()
        if any(copy.keys() != self.parameters.keys() for copy in copies.values()):
            raise FolderError("averaged weights: some of the model's are missing")
        self.copies = [copies[number] for number in sorted(copies)]

    @contextmanager
    def swapped_in(self) -> Iterator[None]:
        """While this is open, the model holds the averaged weights."""
        if not self.copies:
            yield
            return
        trained = self._copy()
        self._write({name: torch.stack([copy[name] for copy in self.copies]).mean(0) for name in self.parameters})
        try:
            yield
        finally:
            self._write(trained)

    def _copy(self) -> dict[str, Tensor]:
        return {name: parameter.detach().clone() for name, parameter in self.parameters.items()}

    @torch.no_grad()
    def _write(self, values: dict[str, Tensor]) -> None:
        for name, parameter in self.parameters.items():
            parameter.copy_(values[name])
