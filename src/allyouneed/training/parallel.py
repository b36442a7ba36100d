"""Where the weights of a run are: whole in each process (alone, or DDP), or sharded by rows (FSDP2).

    none, ddp   each process has the model; gradients are summed once a step, after all of its micro-batches
    fsdp        `shards.py`

Both make the same steps: a step's micro-batches are dealt to the processes, dropout masks and data belong to the
micro-batch, and the loss is divided by the count over all processes. So a run is the same with any number of processes,
except for the order in which numbers are added.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Protocol, final

import torch
from torch import Tensor, nn

from allyouneed.errors import ConfigError
from allyouneed.models import Model
from allyouneed.tasks.base import Loss
from allyouneed.training.lora import Lora
from allyouneed.training.muon import Gather
from allyouneed.training.process_group import ProcessGroup
from allyouneed.training.recipe import TrainConfig
from allyouneed.weights import fill_model, model_tensors


class Parallelism(Protocol):
    """A model in training, wherever its weights are. All processes call the same methods in the same order."""

    sharded: bool  # whether every process holds other rows

    @property
    def gather_matrix(self) -> Gather | None:
        """For optimizers that need all rows of a matrix; None if they have them."""

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield the parameters that this process updates and averages."""

    def loss(self, segments: Iterator[Loss]) -> tuple[Tensor, Tensor]:
        """Compute the next segment of a micro-batch; return the objective and the summed loss."""

    def add_gradients(self) -> None:
        """Leave the gradients of all processes, summed, on `named_parameters`. Call it after all micro-batches."""

    def norm(self) -> Tensor:
        """Return the norm of the whole gradient."""

    def fill(self, tensors: Mapping[str, Tensor], where: Path) -> None:
        """Copy whole tensors into the model."""

    def cut(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return this process's rows of the state of optimizers and averages."""

    def tensors(self) -> dict[str, Tensor]:
        """Return the model's tensors that this process holds."""

    def gather(self) -> Model | None:
        """Return the whole model with its present weights on rank 0, None elsewhere. All processes call this."""


class Whole:
    """A model that every process holds as a whole."""

    sharded = False
    gather_matrix: Gather | None = None

    def __init__(self, model: Model, group: ProcessGroup) -> None:
        self.model, self.group = model, group

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        yield from ((name, one) for name, one in self.model.named_parameters() if one.requires_grad)

    def loss(self, segments: Iterator[Loss]) -> tuple[Tensor, Tensor]:
        loss = next(segments)
        return loss.objective, loss.total

    def add_gradients(self) -> None:
        self.group.add_gradients(list(self.model.parameters()))

    def norm(self) -> Tensor:
        return nn.utils.get_total_norm([p.grad for _, p in self.named_parameters() if p.grad is not None])

    def fill(self, tensors: Mapping[str, Tensor], where: Path) -> None:
        fill_model(self.model, tensors, where)

    def cut(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return dict(tensors)

    def tensors(self) -> dict[str, Tensor]:
        return model_tensors(self.model)

    def gather(self) -> Model | None:
        return self.model


@final
class Adapted(Whole):
    """A model whose matrices follow the thin ones of LoRA, which are what is trained."""

    def __init__(self, model: Model, group: ProcessGroup, lora: Lora) -> None:
        super().__init__(model, group)
        self.lora = lora

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        yield from self.lora.named_parameters()

    def add_gradients(self) -> None:
        super().add_gradients()
        self.lora.take_gradients()


def require_divisible(config: TrainConfig, group: ProcessGroup) -> None:
    """Raise ConfigError if the micro-batches of a step cannot be dealt to the processes."""
    if config.accumulate < group.size:
        raise ConfigError(
            f"train.accumulate={config.accumulate}: {group.size} processes share the micro-batches of a step, so there "
            f"must be at least {group.size}; make them smaller to keep the size of a step"
        )
    if group.size > 1 and config.parallel == "fsdp":
        if config.accumulate % group.size:
            raise ConfigError(
                f"train.accumulate={config.accumulate}: with train.parallel='fsdp' all {group.size} processes run side "
                f"by side, so it must be a multiple of {group.size}"
            )
        if config.workers > 1:
            raise ConfigError(
                f"train.workers={config.workers}: with train.parallel='fsdp' a process has one replica; use 0 or 1, "
                "and more processes"
            )


def parallelize(
    model: Model, config: TrainConfig, group: ProcessGroup, device: torch.device, *, runs_twice: bool
) -> Parallelism:
    """Prepare a model for training by this group. `runs_twice`: a block runs more than once for one loss."""
    if config.lora is not None:
        return Adapted(model, group, Lora(model, config.lora))
    if group.size == 1 or config.parallel != "fsdp":
        return Whole(model, group)
    from allyouneed.training.shards import Shards

    return Shards(model, group, device, one_unit=runs_twice)
