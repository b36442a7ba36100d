"""What an optimizer step changes: the weights, the optimizers' state and the averaged weights."""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path

import torch
from torch import Tensor

from allyouneed.mixers import Mixer
from allyouneed.models import Model
from allyouneed.training.parallel import Adapted, Parallelism
from allyouneed.training.recipe import TrainConfig
from allyouneed.training.workers import Workers
from allyouneed.weights import model_tensors


class TrainState:
    """A model with its optimizers and its average: the tensors of a checkpoint."""

    def __init__(self, model: Model, config: TrainConfig, parallelism: Parallelism) -> None:
        self.model, self.config, self.parallelism = model, config, parallelism
        self.lora = parallelism.lora if isinstance(parallelism, Adapted) else None
        self._start_optimizers()

    def _start_optimizers(self) -> None:
        products = torch.bfloat16 if self.config.precision == "bfloat16" else None
        self.optimizers = self.config.optimizer.build(self.parallelism, self.parallelism.gather_matrix, products)
        self.average = self.config.average.build(self.parallelism)

    def update(self, step: int, factor: float, workers: Workers) -> None:
        """Apply the gradients at `factor` times the peak learning rate. The first step is number 1."""
        self.optimizers.step(factor, workers)
        if self.lora is not None:
            self.lora.merge()
        self.average.update(step)

    def end_step(self, step: int) -> None:
        """Drop the gradients, and change what depends on the step alone."""
        for module in self.model.modules():
            if isinstance(module, Mixer | Model):
                module.after_step(step)
        for _, parameter in self.parallelism.named_parameters():
            parameter.grad = None

    def restart(self, fresh: Model, folder: Path) -> None:
        """Replace the weights by those of a fresh model, and forget optimizers and average."""
        self.parallelism.fill(model_tensors(fresh), folder)
        self._start_optimizers()

    def averaged(self) -> AbstractContextManager[None]:
        """Put the averaged weights into the model while the context is open."""
        return self.average.swapped_in()

    def tensors(self) -> dict[str, dict[str, Tensor]]:
        """Return the parts of a checkpoint that this process holds."""
        parts = {"model": self.parallelism.tensors(), "optimizer": self.optimizers.tensors()}
        parts |= {} if self.lora is None else {"lora": self.lora.tensors()}
        return parts | ({"average": self.average.tensors()} if self.average.copies else {})

    def load_tensors(self, parts: Mapping[str, dict[str, Tensor]], path: Path) -> None:
        """Restore the whole tensors of a checkpoint."""
        self.parallelism.fill(parts["model"], path)
        if self.lora is not None:
            self.lora.fill(parts["lora"], path)
        self.optimizers.load_tensors(self.parallelism.cut(parts["optimizer"]))
        self.average.load_tensors(self.parallelism.cut(parts.get("average", {})))
