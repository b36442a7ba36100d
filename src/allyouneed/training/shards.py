"""FSDP2: each process holds an equal share of the rows of every parameter and of its optimizer state.

A block's rows are gathered when it runs, forward and backward; its gradient is summed and scattered afterwards.
Parameters outside of blocks (embeddings, the head) form one more such unit. Optimizers and averages see the rows of
this process as ordinary tensors. They work element by element, except for Muon, which gathers.

Rows are distributed as by `torch.chunk`: the first processes have ceil(rows / processes) each, the last may have none.
Paper: Zhao et al. 2023, arXiv:2304.11277; Rajbhandari et al. 2020, arXiv:1910.02054 (ZeRO, stage 3).
"""

import copy
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, Shard

from allyouneed.block import Block
from allyouneed.errors import ConfigError
from allyouneed.models import Model
from allyouneed.tasks.base import Loss
from allyouneed.training.process_group import ProcessGroup
from allyouneed.weights import model_tensors, require_same_tensors


def rows_of(count: int, rank: int, size: int) -> slice:
    """Return the rows of a tensor that one process holds."""
    share = -(-count // size)
    return slice(min(rank * share, count), min((rank + 1) * share, count))


class _Step(nn.Module):
    """The loss of one segment as a module: FSDP2 hooks `forward`, but the loss calls other methods of a model."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model

    def forward(self, segments: Iterator[Loss]) -> tuple[Tensor, Tensor]:
        loss = next(segments)
        return loss.objective, loss.total


class Shards:
    """A model sharded by FSDP2: this process holds some rows of every parameter. Implements `parallel.Parallelism`."""

    sharded = True

    def __init__(self, model: Model, group: ProcessGroup, device: torch.device, *, one_unit: bool) -> None:
        """`one_unit`: shard the model as one unit, for graphs in which a block runs twice."""
        _require_rows(model)
        # The blocks return their states as views; training never writes into them.
        warnings.filterwarnings("ignore", message="FSDP2-wrapped module")
        self.group, self.model = group, model
        self.whole = copy.deepcopy(model) if group.is_rank0 else None
        self._mesh = init_device_mesh(device.type, (group.size,))
        for block in [] if one_unit else _units(model):
            fully_shard(block, mesh=self._mesh)
        root = _Step(model)
        self._root: Any = fully_shard(root, mesh=self._mesh)
        for module in root.modules():
            if isinstance(module, FSDPModule):
                module.set_force_sum_reduction_for_comms(True)  # gloo has no other reduction
                module.set_gradient_divide_factor(1.0)  # the loss is already divided by the count over all processes
        self._parameters: dict[str, DTensor] = dict(model.named_parameters())  # type: ignore[arg-type]
        self._rows = {name: nn.Parameter(p.to_local().detach()) for name, p in self._parameters.items()}
        self._names: dict[Tensor, str] = {rows: name for name, rows in self._rows.items()}

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield the rows of this process. They share memory with the model's parameters."""
        yield from self._rows.items()

    def loss(self, segments: Iterator[Loss]) -> tuple[Tensor, Tensor]:
        """Return the next segment's objective and its summed loss."""
        with self.group.explain_lost_process():
            objective, total = self._root(segments)
        return objective, total

    def add_gradients(self) -> None:
        """Move the gradients to the rows. The backward passes have summed and scattered them."""
        for name, parameter in self._parameters.items():
            grad: Any = parameter.grad
            self._rows[name].grad = None if grad is None else grad.to_local()
            parameter.grad = None

    def norm(self) -> Tensor:
        """Return the norm of the norms of all processes' rows."""
        mine = nn.utils.get_total_norm([rows.grad for rows in self._rows.values() if rows.grad is not None])
        squared = self.group.sum([float(mine) ** 2])[0]
        return mine.new_tensor(squared**0.5)

    def fill(self, tensors: Mapping[str, Tensor], where: Path) -> None:
        """Copy this process's rows from whole tensors, whose names and shapes must be exactly those of the model."""
        own = model_tensors(self.model)
        require_same_tensors(own, tensors, where)
        for name, tensor in own.items():
            if name in self._rows:
                self._rows[name].data.copy_(self._cut(tensors[name]))
            else:
                tensor.copy_(tensors[name])

    def cut(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return this process's rows of each tensor; scalars are kept by every process."""
        return {name: self._cut(tensor) for name, tensor in tensors.items()}

    def _cut(self, whole: Tensor) -> Tensor:
        return whole[rows_of(whole.shape[0], self.group.rank, self.group.size)] if whole.ndim else whole

    def tensors(self) -> dict[str, Tensor]:
        """Return the rows of this process; rank 0 adds the buffers, which all processes have."""
        rows = {name: rows.data for name, rows in self._rows.items()}
        buffers = {name: tensor for name, tensor in model_tensors(self.model).items() if name not in rows}
        return rows | (buffers if self.group.is_rank0 else {})

    @torch.no_grad()
    def gather(self) -> Model | None:
        """Return the whole model on rank 0, in a copy that is reused. All processes must call this."""
        own = {} if self.whole is None else model_tensors(self.whole)
        self._root.reshard()
        with self.group.explain_lost_process():
            for name, tensor in model_tensors(self.model).items():
                whole = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
                if own:
                    own[name].copy_(whole)
        return self.whole

    def gather_matrix(self, weight: Tensor, update: Tensor) -> tuple[Tensor, slice]:
        """Return all rows of an update, and the slice that belongs to this process."""
        shape = self._parameters[self._names[weight]].shape
        shared = DTensor.from_local(update, self._mesh, [Shard(0)], run_check=False, shape=shape, stride=(shape[1], 1))
        with self.group.explain_lost_process():
            return shared.full_tensor(), rows_of(shape[0], self.group.rank, self.group.size)


def _require_rows(model: nn.Module) -> None:
    """Raise ConfigError for parameters that FSDP2 cannot shard."""
    for name, parameter in model.named_parameters():
        if parameter.ndim == 0:
            raise ConfigError(f"train.parallel='fsdp': {name} is a scalar, which has no rows; use 'ddp'")
        if not parameter.is_contiguous():
            raise ConfigError(
                f"train.parallel='fsdp': {name} is not contiguous in memory (a convolution in a faster memory "
                "format); use 'ddp'"
            )


def _units(model: nn.Module) -> list[Block]:
    """Return the blocks that share no parameter with another one (some relative positions do)."""
    blocks = [module for module in model.modules() if isinstance(module, Block)]
    owners = Counter(parameter for block in blocks for parameter in set(block.parameters()))
    return [block for block in blocks if all(owners[parameter] == 1 for parameter in block.parameters())]
