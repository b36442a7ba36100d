"""FSDP2: each process keeps an equal share of the rows of every parameter, and of all that an optimiser knows of them.

A block's rows are gathered when it runs, forward and backward, and its gradient is summed and scattered when it is
done; what belongs to no block (embeddings, the head) is one more such unit. Optimisers and averages see the rows of
this process as ordinary tensors: what they do is the same for each number, but for Muon, which gathers.

Rows are dealt as `torch.chunk` deals them: the first have ceil(rows / processes) each, the last may have none.
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
from allyouneed.folder import model_tensors, require_same_tensors
from allyouneed.models import Model
from allyouneed.tasks.base import Loss
from allyouneed.training.process_group import ProcessGroup


def rows_of(count: int, rank: int, size: int) -> slice:
    """The rows of a tensor that one process keeps."""
    share = -(-count // size)
    return slice(min(rank * share, count), min((rank + 1) * share, count))


class _Step(nn.Module):
    """One segment's loss as a module: FSDP2 acts when a module is called, and a model is used by other names."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model

    def forward(self, segments: Iterator[Loss]) -> tuple[Tensor, Tensor]:
        loss = next(segments)
        return loss.objective, loss.total


class Shards:
    """A model of which this process keeps its rows. See `parallel.Parallelism`."""

    shared_out = True

    def __init__(self, model: Model, team: ProcessGroup, device: torch.device, *, one_unit: bool) -> None:
        """`one_unit`: no block on its own, for graphs in which a block runs twice."""
        _require_rows(model)
        # The blocks hand their states out as views; nothing is ever written into them while training.
        warnings.filterwarnings("ignore", message="FSDP2-wrapped module")
        self.team, self.model = team, model
        self.whole = copy.deepcopy(model) if team.is_first else None
        self._mesh = init_device_mesh(device.type, (team.size,))
        for block in [] if one_unit else _units(model):
            fully_shard(block, mesh=self._mesh)
        root = _Step(model)
        self._root: Any = fully_shard(root, mesh=self._mesh)
        for module in root.modules():
            if isinstance(module, FSDPModule):
                module.set_force_sum_reduction_for_comms(True)  # all that gloo can do
                module.set_gradient_divide_factor(1.0)  # the loss is divided already, by what all processes have
        self._parameters: dict[str, DTensor] = dict(model.named_parameters())  # type: ignore[arg-type]
        self._rows = {name: nn.Parameter(p.to_local().detach()) for name, p in self._parameters.items()}
        self._names: dict[Tensor, str] = {rows: name for name, rows in self._rows.items()}

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """The rows of this process; they share memory with the model's."""
        yield from self._rows.items()

    def loss(self, segments: Iterator[Loss]) -> tuple[Tensor, Tensor]:
        """The next segment's objective and its total."""
        with self.team.listening():
            objective, total = self._root(segments)
        return objective, total

    def add_gradients(self) -> None:
        """The backward passes have summed and scattered them."""
        for name, parameter in self._parameters.items():
            grad: Any = parameter.grad
            self._rows[name].grad = None if grad is None else grad.to_local()
            parameter.grad = None

    def norm(self) -> Tensor:
        """That of the norms of its parts."""
        mine = nn.utils.get_total_norm([rows.grad for rows in self._rows.values() if rows.grad is not None])
        squared = self.team.sum([float(mine) ** 2])[0]
        return mine.new_tensor(squared**0.5)

    def fill(self, tensors: Mapping[str, Tensor], where: Path) -> None:
        """The rows of this process from whole tensors, which must be exactly those of the model."""
        own = model_tensors(self.model)
        require_same_tensors(own, tensors, where)
        for name, tensor in own.items():
            if name in self._rows:
                self._rows[name].data.copy_(self._cut(tensors[name]))
            else:
                tensor.copy_(tensors[name])

    def cut(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The rows of this process of each tensor; a single number is everybody's."""
        return {name: self._cut(tensor) for name, tensor in tensors.items()}

    def _cut(self, whole: Tensor) -> Tensor:
        return whole[rows_of(whole.shape[0], self.team.rank, self.team.size)] if whole.ndim else whole

    def tensors(self) -> dict[str, Tensor]:
        """The rows of this process; the first adds the buffers, which all have."""
        rows = {name: rows.data for name, rows in self._rows.items()}
        buffers = {name: tensor for name, tensor in model_tensors(self.model).items() if name not in rows}
        return rows | (buffers if self.team.is_first else {})

    @torch.no_grad()
    def gather(self) -> Model | None:
        """The model in one piece, in the first process (where it may be kept for long); all must call this."""
        own = {} if self.whole is None else model_tensors(self.whole)
        self._root.reshard()
        with self.team.listening():
            for name, tensor in model_tensors(self.model).items():
                whole = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
                if own:
                    own[name].copy_(whole)
        return self.whole

    def gather_matrix(self, weight: Tensor, update: Tensor) -> tuple[Tensor, slice]:
        """All rows of an update of which each process has its own, and which rows those are."""
        shape = self._parameters[self._names[weight]].shape
        shared = DTensor.from_local(update, self._mesh, [Shard(0)], run_check=False, shape=shape, stride=(shape[1], 1))
        with self.team.listening():
            return shared.full_tensor(), rows_of(shape[0], self.team.rank, self.team.size)


def _require_rows(model: nn.Module) -> None:
    """Refuses what FSDP2 cannot share out."""
    for name, parameter in model.named_parameters():
        if parameter.ndim == 0:
            raise ConfigError(f"train.parallel='fsdp': {name} is a single number, which has no rows; use 'ddp'")
        if not parameter.is_contiguous():
            raise ConfigError(
                f"train.parallel='fsdp': {name} does not lie in memory row by row (a convolution that is laid out for "
                "speed); use 'ddp'"
            )


def _units(model: nn.Module) -> list[Block]:
    """The blocks that share no parameter with another (some relative positions do)."""
    blocks = [module for module in model.modules() if isinstance(module, Block)]
    owners = Counter(parameter for block in blocks for parameter in set(block.parameters()))
    return [block for block in blocks if all(owners[parameter] == 1 for parameter in block.parameters())]
