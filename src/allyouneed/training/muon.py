"""Muon: momentum, then the nearest orthogonal matrix, for the matrices inside the blocks.

    M = mu M + (1 - mu) G;   U = (1 - mu) G + mu M;   O = NewtonSchulz_5(U) ~ (U U^T)^(-1/2) U
    W = (1 - lr wd) W - lr s O

An update of full rank moves all directions of a matrix alike, where Adam's is dominated by a few. s = max(1, rows /
columns)^(1/2) keeps the size of the output's change independent of the shape.

Cost: five times three matrix products per matrix and step; here a few per cent of a step, as equal shapes are stacked
into one.
Source: Jordan et al. 2024, "Muon: an optimizer for hidden layers in neural networks".
Differs: W^Q, W^K and W^V, stored as one matrix, are orthogonalised apart: every matrix that is two or three squares
high is cut into them, a feed-forward layer of twice the width too.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

# (rows of a matrix, their update) -> (the update of all rows, the slice of those rows)
Gather = Callable[[Tensor, Tensor], tuple[Tensor, slice]]

COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # of the quintic that pushes singular values towards 1 in five steps


def orthogonalise(matrix_NRD: Tensor, steps: int = 5) -> Tensor:
    """Return stacked matrices with all singular values pushed to about 1 (0.7 to 1.2)."""
    a, b, c = COEFFICIENTS
    tall = matrix_NRD.shape[-2] > matrix_NRD.shape[-1]
    x = matrix_NRD.mT if tall else matrix_NRD
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(steps):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if tall else x


class Muon(torch.optim.Optimizer):
    def __init__(
        self,
        params: Iterable[Tensor],
        lr: float,
        momentum: float = 0.95,
        weight_decay: float = 0.0,
        gather: Gather | None = None,
    ) -> None:
        """`gather`: for parameters that are only some rows of their matrices."""
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})
        self._gather = gather

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Make one update of every matrix that has a gradient."""
        for task in self.tasks(1):
            task()

    @torch.no_grad()
    def tasks(self, shares: int) -> list[Callable[[], None]]:
        """Return the update as `shares` independent tasks of about equal work, for threads."""
        pieces: list[list[Callable[[], None]]] = [[] for _ in range(shares)]
        last: list[Callable[[], None]] = []
        for group in self.param_groups:
            by_shape: dict[torch.Size, list[tuple[Tensor, Tensor]]] = {}
            for weight in group["params"]:
                if weight.grad is None:
                    continue
                update = self._momentum(weight, group["momentum"])
                if self._gather is not None:
                    weight, update = self._all_rows(weight, update, group["lr"] * group["weight_decay"], last)
                for part, piece in zip(_parts(weight), _parts(update), strict=True):
                    by_shape.setdefault(part.shape, []).append((part, piece))
            for pairs in by_shape.values():
                for share, tasks in enumerate(pieces):
                    tasks.append(partial(_apply, pairs[share::shares], group["lr"], group["weight_decay"]))
        pieces[0] += last
        return [partial(_in_turn, tasks) for tasks in pieces]

    def _all_rows(
        self, rows: Tensor, update: Tensor, decay: float, last: list[Callable[[], None]]
    ) -> tuple[Tensor, Tensor]:
        """Return a substitute for the whole matrix to update; `last` then applies its change to our rows."""
        assert self._gather is not None
        whole, ours = self._gather(rows, update)
        moved = torch.zeros_like(whole)
        last.append(partial(_follow, rows, moved[ours], decay))
        return moved, whole

    def _momentum(self, weight: Tensor, momentum: float) -> Tensor:
        assert weight.grad is not None
        state = self.state[weight]
        if "momentum" not in state:
            state["momentum"] = torch.zeros_like(weight)
        state["momentum"].lerp_(weight.grad, 1 - momentum)
        return weight.grad.lerp(state["momentum"], momentum)


@torch.no_grad()
def _follow(rows: Tensor, moved: Tensor, decay: float) -> None:
    rows.mul_(1 - decay).add_(moved)


def _in_turn(tasks: Sequence[Callable[[], None]]) -> None:
    for task in tasks:
        task()


@torch.no_grad()
def _apply(pairs: Sequence[tuple[Tensor, Tensor]], lr: float, weight_decay: float) -> None:
    """Orthogonalize the updates of matrices of one shape in one stack, then apply them."""
    if not pairs:
        return
    rows, columns = pairs[0][0].shape
    step = lr * max(1.0, rows / columns) ** 0.5
    stacked_NRD = orthogonalise(torch.stack([update for _, update in pairs]))
    for (weight, _), direction in zip(pairs, stacked_NRD.unbind(0), strict=True):
        weight.mul_(1 - lr * weight_decay).sub_(direction, alpha=step)


def _parts(matrix: Tensor) -> list[Tensor]:
    """Split a matrix of two or three stacked squares into them; return any other as it is."""
    rows, columns = matrix.shape
    return list(matrix.split(columns)) if rows in (2 * columns, 3 * columns) else [matrix]
