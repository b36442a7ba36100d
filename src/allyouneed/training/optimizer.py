"""Adam as in the paper, AdamW, Muon for the matrices with AdamW for the rest, and what came before them: RMSProp and
stochastic gradient descent with momentum; and their state as named tensors."""

from collections.abc import Iterator
from typing import Any, Literal, Protocol

import torch
from pydantic import Field, NonNegativeFloat, PositiveFloat
from torch import Tensor, nn

from allyouneed.config import Config
from allyouneed.errors import FolderError
from allyouneed.training.muon import Gather, Muon
from allyouneed.training.workers import Workers


class Parameters(Protocol):
    """A model, or the part of its numbers that this process keeps."""

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]: ...


class OptimizerConfig(Config):
    """Defaults are those of the paper (section 5.3)."""

    type: Literal["adam", "adamw", "muon", "rmsprop", "sgd"] = "adam"
    lr: PositiveFloat = 7e-4  # the peak of the schedule; with muon: of everything but the blocks' matrices
    matrix_lr: PositiveFloat = 0.02  # muon only: the peak for the blocks' matrices
    momentum: float = Field(default=0.95, ge=0, lt=1)  # muon, rmsprop and sgd (Nesterov's, if any)
    beta1: float = Field(default=0.9, ge=0, lt=1)  # adam, adamw, and muon for the rest
    beta2: float = Field(default=0.98, ge=0, lt=1)  # the same, and rmsprop: how long squares are remembered
    epsilon: PositiveFloat = 1e-9
    weight_decay: NonNegativeFloat = 0.0  # all but adam, on matrices

    def build(self, model: Parameters, gather: Gather | None = None) -> "Optimizers":
        return Optimizers(self, model, gather)


class Optimizers:
    """All parameters of a model, each with the rule that suits it; one learning-rate factor for all."""

    def __init__(self, config: OptimizerConfig, model: Parameters, gather: Gather | None = None) -> None:
        self.names: dict[Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
        blocks = {
            parameter
            for name, parameter in model.named_parameters()
            if config.type == "muon" and parameter.ndim == 2 and ".blocks." in f".{name}" and "position" not in name
        }
        rest = [parameter for parameter in self.names if parameter not in blocks]
        decay = config.weight_decay if config.type != "adam" else 0.0
        groups = [
            {"params": [p for p in rest if p.ndim >= 2], "weight_decay": decay},
            {"params": [p for p in rest if p.ndim < 2], "weight_decay": 0.0},
        ]
        self.all: list[torch.optim.Optimizer] = [_rule(config, [group for group in groups if group["params"]])]
        if blocks:
            matrices = [parameter for parameter in self.names if parameter in blocks]
            self.all.append(Muon(matrices, config.matrix_lr, config.momentum, config.weight_decay, gather))
        self._peaks = [[group["lr"] for group in optimizer.param_groups] for optimizer in self.all]

    def step(self, factor: float, workers: Workers | None = None) -> None:
        """One update at `factor` times the peak learning rates; workers share what can be shared."""
        for optimizer, peaks in zip(self.all, self._peaks, strict=True):
            for group, peak in zip(optimizer.param_groups, peaks, strict=True):
                group["lr"] = peak * factor
            if isinstance(optimizer, Muon) and workers is not None:
                workers.side_by_side(optimizer.tasks(len(workers.replicas)))
            else:
                optimizer.step()

    def tensors(self) -> dict[str, Tensor]:
        """The state as named tensors: `decoder.blocks.0.mixer.output.weight/exp_avg`."""
        return {
            f"{self.names[parameter]}/{key}": value
            for optimizer in self.all
            for parameter, state in optimizer.state.items()
            for key, value in state.items()
        }

    def load_tensors(self, tensors: dict[str, Tensor]) -> None:
        """The state as it was when `tensors` was taken."""
        parameters = {name: parameter for parameter, name in self.names.items()}
        owners = {p: o for o in self.all for group in o.param_groups for p in group["params"]}
        for optimizer in self.all:
            optimizer.state.clear()
        states: dict[str, dict[str, Tensor]] = {}
        for key, value in tensors.items():
            name, _, field = key.rpartition("/")
            if name not in parameters:
                raise FolderError(f"optimiser state for {name!r}, which this model does not have")
            states.setdefault(name, {})[field] = value
        for name, state in states.items():
            parameter = parameters[name]
            _require_state(name, state, parameter, owners[parameter])
            owners[parameter].state[parameter].update((key, one.to(parameter.device)) for key, one in state.items())


# The fused rules read what they are given without looking at its size: a state must be whole, and like its parameter.
_FIELDS: dict[type[torch.optim.Optimizer], tuple[set[str], ...]] = {
    torch.optim.AdamW: ({"step", "exp_avg", "exp_avg_sq"},),
    torch.optim.SGD: ({"momentum_buffer"},),
    torch.optim.RMSprop: ({"step", "square_avg"}, {"step", "square_avg", "momentum_buffer"}),
    Muon: ({"momentum"},),
}


def _require_state(name: str, state: dict[str, Tensor], parameter: Tensor, owner: torch.optim.Optimizer) -> None:
    if state.keys() not in _FIELDS[type(owner)]:
        raise FolderError(
            f"optimiser state of {name!r}: {', '.join(sorted(state))} is not what {type(owner).__name__} keeps"
        )
    for field, value in state.items():
        shape, dtype = (torch.Size(), torch.float32) if field == "step" else (parameter.shape, parameter.dtype)
        if value.shape != shape or value.dtype != dtype:
            raise FolderError(
                f"optimiser state of {name!r}: {field} has shape {tuple(value.shape)} and type {value.dtype}, "
                f"should be {tuple(shape)} and {dtype}"
            )


def _rule(config: OptimizerConfig, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
    """The rule for everything but Muon's matrices."""
    if config.type == "sgd":
        momentum = config.momentum
        return torch.optim.SGD(groups, lr=config.lr, momentum=momentum, nesterov=momentum > 0, fused=True)
    if config.type == "rmsprop":
        return torch.optim.RMSprop(
            groups, lr=config.lr, alpha=config.beta2, eps=config.epsilon, momentum=config.momentum, foreach=True
        )
    # Fused is about three times faster than the default on a CPU.
    return torch.optim.AdamW(groups, lr=config.lr, betas=(config.beta1, config.beta2), eps=config.epsilon, fused=True)
