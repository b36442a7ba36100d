"""Optimizers, and their state as named tensors: Adam as in the paper, AdamW, Muon, RMSProp, SGD with momentum."""

from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Literal, Protocol

import torch
from pydantic import Field, NonNegativeFloat, PositiveFloat, SerializeAsAny
from torch import Tensor, nn

from allyouneed.config import Config, choice
from allyouneed.errors import ConfigError, FolderError
from allyouneed.training.muon import Gather, Muon
from allyouneed.training.workers import Workers

Groups = list[dict[str, Any]]  # of parameters, as torch's optimizers take them
Beta = Annotated[float, Field(ge=0, lt=1)]


class Parameters(Protocol):
    """A model, or the rows of its parameters that this process holds."""

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]: ...


class OptimizerConfig(Config):
    """An optimizer. The defaults are those of the paper (section 5.3)."""

    type: str
    lr: PositiveFloat = 7e-4  # the peak of the schedule

    def build(
        self, model: Parameters, gather: Gather | None = None, products: torch.dtype | None = None
    ) -> "Optimizers":
        """Return optimizers for all parameters of a model.

        `gather`: for parameters that are only rows of matrices; `products`: the type of Muon's matrix products.
        """
        names: dict[Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
        return Optimizers(names, [self.rule(_groups(names, self.decay))])

    def check_model(self, model: Parameters) -> None:
        """Raise ConfigError if the optimizer does not suit the parameters of a model that is to be trained anew."""

    @property
    def decay(self) -> float:
        """The weight decay of matrices. Vectors are never decayed."""
        return 0.0

    def rule(self, groups: Groups) -> torch.optim.Optimizer:
        """Return torch's optimizer for these groups of parameters."""
        raise NotImplementedError


class _WithDecay(OptimizerConfig):
    weight_decay: NonNegativeFloat = 0.0

    @property
    def decay(self) -> float:
        return self.weight_decay


class _AdamSettings(OptimizerConfig):
    beta1: Beta = 0.9
    beta2: Beta = 0.98
    epsilon: PositiveFloat = 1e-9

    def rule(self, groups: Groups) -> torch.optim.Optimizer:
        # Fused is about three times faster than the default on a CPU.
        betas = (self.beta1, self.beta2)
        return torch.optim.AdamW(groups, lr=self.lr, betas=betas, eps=self.epsilon, fused=True)


class AdamConfig(_AdamSettings):
    type: Literal["adam"] = "adam"


class AdamWConfig(_WithDecay, _AdamSettings):
    type: Literal["adamw"] = "adamw"


class MuonConfig(_WithDecay, _AdamSettings):
    """Muon for the matrices inside blocks, AdamW, with beta1, beta2 and epsilon, for the rest."""

    type: Literal["muon"] = "muon"
    lr: PositiveFloat = 7e-4  # the peak for everything but the blocks' matrices
    matrix_lr: PositiveFloat = 0.02  # the peak for the blocks' matrices
    momentum: Beta = 0.95  # of Muon

    def check_model(self, model: Parameters) -> None:
        if not any(_is_block_matrix(name, parameter) for name, parameter in model.named_parameters()):
            raise ConfigError(
                "train.optimizer: muon updates the matrices inside blocks, and this model has none; use adamw"
            )

    def build(
        self, model: Parameters, gather: Gather | None = None, products: torch.dtype | None = None
    ) -> "Optimizers":
        names: dict[Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
        matrices = [parameter for parameter, name in names.items() if _is_block_matrix(name, parameter)]
        inside = set(matrices)
        rest = {parameter: name for parameter, name in names.items() if parameter not in inside}
        if not matrices:  # a run that an earlier version started; `check_model` refuses new ones
            return Optimizers(names, [self.rule(_groups(rest, self.decay))])
        muon = Muon(matrices, self.matrix_lr, self.momentum, self.weight_decay, gather, products)
        others = [self.rule(_groups(rest, self.decay))] if rest else []  # none if they are frozen
        return Optimizers(names, [*others, muon])


class RmspropConfig(_WithDecay):
    type: Literal["rmsprop"] = "rmsprop"
    momentum: Beta = 0.95
    beta2: Beta = 0.98  # of the running mean of squares
    epsilon: PositiveFloat = 1e-9

    def rule(self, groups: Groups) -> torch.optim.Optimizer:
        return torch.optim.RMSprop(
            groups, lr=self.lr, alpha=self.beta2, eps=self.epsilon, momentum=self.momentum, foreach=True
        )


class SgdConfig(_WithDecay):
    """Stochastic gradient descent with Nesterov's momentum."""

    type: Literal["sgd"] = "sgd"
    momentum: Beta = 0.95  # 0: none

    def rule(self, groups: Groups) -> torch.optim.Optimizer:
        return torch.optim.SGD(groups, lr=self.lr, momentum=self.momentum, nesterov=self.momentum > 0, fused=True)


OPTIMIZERS: dict[str, type[OptimizerConfig]] = {
    "adam": AdamConfig,
    "adamw": AdamWConfig,
    "muon": MuonConfig,
    "rmsprop": RmspropConfig,
    "sgd": SgdConfig,
}

AnyOptimizer = Annotated[SerializeAsAny[OptimizerConfig], choice(OPTIMIZERS, default="adam")]


def _is_block_matrix(name: str, parameter: Tensor) -> bool:
    return parameter.ndim == 2 and ".blocks." in f".{name}" and "position" not in name


def _groups(parameters: Iterable[Tensor], decay: float) -> Groups:
    """Return matrices, which are decayed, and vectors, which are not."""
    matrices, vectors = [p for p in parameters if p.ndim >= 2], [p for p in parameters if p.ndim < 2]
    groups = [{"params": matrices, "weight_decay": decay}, {"params": vectors, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]


class Optimizers:
    """The optimizers of all parameters of a model, with one learning-rate factor for all."""

    def __init__(self, names: dict[Tensor, str], optimizers: list[torch.optim.Optimizer]) -> None:
        self.names, self.all = names, optimizers
        self._peaks = [[group["lr"] for group in optimizer.param_groups] for optimizer in self.all]

    def step(self, factor: float, workers: Workers | None = None) -> None:
        """Make one update at `factor` times the peak learning rates. Workers share Muon's matrices."""
        for optimizer, peaks in zip(self.all, self._peaks, strict=True):
            for group, peak in zip(optimizer.param_groups, peaks, strict=True):
                group["lr"] = peak * factor
            if isinstance(optimizer, Muon) and workers is not None:
                workers.side_by_side(optimizer.tasks(len(workers.replicas)))
            else:
                optimizer.step()

    def tensors(self) -> dict[str, Tensor]:
        """Return the state as named tensors: `decoder.blocks.0.mixer.output.weight/exp_avg`."""
        return {
            f"{self.names[parameter]}/{key}": value
            for optimizer in self.all
            for parameter, state in optimizer.state.items()
            for key, value in state.items()
        }

    def load_tensors(self, tensors: dict[str, Tensor]) -> None:
        """Restore the state that `tensors()` returned."""
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


# Fused optimizers do not check the size of their state: it must be complete, and have the shape of its parameter.
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
