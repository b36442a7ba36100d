"""Where the weights of a run are: whole in each process (alone, or DDP), or shared out by rows (FSDP2).

    none, ddp   each process has the model; gradients are summed once a step, after all of its micro-batches
    fsdp        `shards.py`

Both give the same steps: a step's micro-batches are dealt to the processes that there are, masks and data are those of
the micro-batch, and the loss is divided by what all of them count. So a run is the same with any number of processes,
but for the order in which numbers are added.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor, nn

from allyouneed.errors import ConfigError
from allyouneed.folder import fill_model, model_tensors
from allyouneed.models import Model
from allyouneed.tasks.base import Loss
from allyouneed.training.muon import Gather
from allyouneed.training.process_group import ProcessGroup
from allyouneed.training.recipe import TrainConfig


class Parallelism(Protocol):
    """A model in training, wherever its weights are. All processes call the same methods in the same order."""

    shared_out: bool  # whether every process keeps something else

    @property
    def gather_matrix(self) -> Gather | None:
        """For optimisers that need all rows of a matrix; None: they have them."""

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """What this process updates and averages."""

    def loss(self, segments: Iterator[Loss]) -> tuple[Tensor, Tensor]:
        """The next segment of a micro-batch: what is minimised, and the summed loss."""

    def add_gradients(self) -> None:
        """After all micro-batches: the gradients of all processes, summed, on what `named_parameters` gives."""

    def norm(self) -> Tensor:
        """Of the whole gradient."""

    def fill(self, tensors: Mapping[str, Tensor], where: Path) -> None:
        """Copies whole tensors into the model."""

    def cut(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """What this process keeps of whole states of optimisers and averages."""

    def tensors(self) -> dict[str, Tensor]:
        """What this process keeps of the model."""

    def gather(self) -> Model | None:
        """The model in one piece, as it is now, in the first process."""


class Whole:
    """Every process has the whole model."""

    shared_out = False
    gather_matrix: Gather | None = None

    def __init__(self, model: Model, team: ProcessGroup) -> None:
        self.model, self.team = model, team

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        yield from self.model.named_parameters()

    def loss(self, segments: Iterator[Loss]) -> tuple[Tensor, Tensor]:
        loss = next(segments)
        return loss.objective, loss.total

    def add_gradients(self) -> None:
        self.team.add_gradients(list(self.model.parameters()))

    def norm(self) -> Tensor:
        return nn.utils.get_total_norm([p.grad for p in self.model.parameters() if p.grad is not None])

    def fill(self, tensors: Mapping[str, Tensor], where: Path) -> None:
        fill_model(self.model, tensors, where)

    def cut(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return dict(tensors)

    def tensors(self) -> dict[str, Tensor]:
        return model_tensors(self.model)

    def gather(self) -> Model | None:
        return self.model


def require_dealt(config: TrainConfig, team: ProcessGroup) -> None:
    """Refuses micro-batches that cannot be dealt to the processes."""
    if config.accumulate < team.size:
        raise ConfigError(
            f"train.accumulate={config.accumulate}: {team.size} processes share the micro-batches of a step, so there "
            f"must be {team.size} or more; smaller ones, if the step is to stay as large as it is"
        )
    if team.size > 1 and config.parallel == "fsdp":
        if config.accumulate % team.size:
            raise ConfigError(
                f"train.accumulate={config.accumulate}: with train.parallel='fsdp' all {team.size} processes run side "
                f"by side, so it must be a multiple of {team.size}"
            )
        if config.workers > 1:
            raise ConfigError(
                f"train.workers={config.workers}: with train.parallel='fsdp' a process has one replica; use 0 or 1, "
                "and more processes"
            )


def place(model: Model, config: TrainConfig, team: ProcessGroup, device: torch.device, *, twice: bool) -> Parallelism:
    """A model, ready to be trained by this team. `twice`: a block runs more than once for one loss."""
    if team.size == 1 or config.parallel != "fsdp":
        return Whole(model, team)
    from allyouneed.training.shards import Shards

    return Shards(model, team, device, one_unit=twice)
