"""Averaged weights: the model that is evaluated and kept is smoother than the one that is trained.

    ema    a = d a + (1 - d) w after each step, with d = min(decay, (1 + t) / (10 + t)): the start is forgotten
    last   the mean of the last `count` snapshots, `every` steps apart (section 6.1: the last 5 checkpoints)

Paper: Polyak and Juditsky 1992; Vaswani et al. 2017, section 6.1.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Literal

import torch
from pydantic import Field, PositiveInt, SerializeAsAny
from torch import Tensor

from allyouneed.config import Config, choice
from allyouneed.errors import FolderError
from allyouneed.torch_private import foreach_lerp_
from allyouneed.training.optimizer import Parameters


class Average:
    """No average: the model's own weights. The base of those that keep copies."""

    def __init__(self, model: Parameters) -> None:
        self.parameters = {name: one for name, one in model.named_parameters() if one.requires_grad}
        self.copies: list[dict[str, Tensor]] = []

    def update(self, step: int) -> None:
        """Follow the weights after step number `step` (the first is 1)."""

    def tensors(self) -> dict[str, Tensor]:
        """Return the copies as a checkpoint stores them."""
        return {f"{i}/{name}": value for i, copy in enumerate(self.copies) for name, value in copy.items()}

    def load_tensors(self, tensors: dict[str, Tensor]) -> None:
        """Restore the copies that `tensors()` returned."""
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
        """Put the mean of the copies, if any, into the model while this context is open."""
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


class MovingAverage(Average):
    """An exponential moving average."""

    def __init__(self, model: Parameters, decay: float) -> None:
        super().__init__(model)
        self.decay = decay
        self.copies = [self._copy()]

    @torch.no_grad()
    def update(self, step: int) -> None:
        decay = min(self.decay, (1 + step) / (10 + step))
        averaged = [self.copies[0][name] for name in self.parameters]
        foreach_lerp_(averaged, list(self.parameters.values()), 1 - decay)


class LastSnapshots(Average):
    """The mean of the last snapshots."""

    def __init__(self, model: Parameters, count: int, every: int) -> None:
        super().__init__(model)
        self.count, self.every = count, every

    def update(self, step: int) -> None:
        if step % self.every == 0:
            self.copies = [*self.copies, self._copy()][-self.count :]


class AverageConfig(Config):
    """How weights are averaged."""

    type: str

    def build(self, model: Parameters) -> Average:
        """Start to average the parameters of a model."""
        raise NotImplementedError


class NoAverageConfig(AverageConfig):
    type: Literal["none"] = "none"

    def build(self, model: Parameters) -> Average:
        return Average(model)


class EmaConfig(AverageConfig):
    type: Literal["ema"] = "ema"
    decay: float = Field(default=0.998, gt=0, lt=1)

    def build(self, model: Parameters) -> Average:
        return MovingAverage(model, self.decay)


class LastConfig(AverageConfig):
    type: Literal["last"] = "last"
    count: PositiveInt = 5  # snapshots
    every: PositiveInt = 500  # steps between snapshots

    def build(self, model: Parameters) -> Average:
        return LastSnapshots(model, self.count, self.every)


AVERAGES: dict[str, type[AverageConfig]] = {"none": NoAverageConfig, "ema": EmaConfig, "last": LastConfig}

AnyAverage = Annotated[SerializeAsAny[AverageConfig], choice(AVERAGES, default="none")]
