"""Muon: momentum, then the nearest orthogonal matrix, for the matrices inside the blocks.

    M = mu M + (1 - mu) G;   U = (1 - mu) G + mu M;   O = NewtonSchulz_5(U) ~ (U U^T)^(-1/2) U
    W = (1 - lr wd) W - lr s O

An update of full rank moves all directions of a matrix alike, where Adam's is dominated by a few. s = max(1, rows /
columns)^(1/2) keeps the size of the output's change independent of the shape.

Cost: five times three matrix products per matrix and step, on stacks of equal shapes. With 2,048 tokens a step and
width 128 that is 15 % of a step in float32; the products may be in bfloat16, as in the source, which halves it.
Source: Jordan et al. 2024, "Muon: an optimizer for hidden layers in neural networks".
Differs: W^Q, W^K and W^V, stored as one matrix, are orthogonalised apart: every matrix that is two or three squares
high is cut into them, a feed-forward layer of twice the width too.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from allyouneed.torch_private import foreach_lerp, foreach_lerp_, foreach_mul_, foreach_sub_

# (rows of a matrix, their update) -> (the update of all rows, the slice of those rows)
Gather = Callable[[Tensor, Tensor], tuple[Tensor, slice]]

COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # of the quintic that pushes singular values towards 1 in five steps


def orthogonalise(matrix_NRD: Tensor, steps: int = 5, products: torch.dtype | None = None) -> Tensor:
    """Return stacked matrices with all singular values pushed to about 1 (0.7 to 1.2).

    `products`: the type of the matrix products; default: that of the matrices.
    """
    a, b, c = COEFFICIENTS
    tall = matrix_NRD.shape[-2] > matrix_NRD.shape[-1]
    x = matrix_NRD.mT if tall else matrix_NRD
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    if products is not None and products != x.dtype:
        x = x.to(products, memory_format=torch.contiguous_format)
    for _ in range(steps):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    x = x.to(matrix_NRD.dtype)
    return x.mT if tall else x


class Muon(torch.optim.Optimizer):
    def __init__(
        self,
        params: Iterable[Tensor],
        lr: float,
        momentum: float = 0.95,
        weight_decay: float = 0.0,
        gather: Gather | None = None,
        products: torch.dtype | None = None,
    ) -> None:
        """`gather`: for parameters that are only some rows of their matrices; `products`: as in `orthogonalise`."""
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})
        self._gather, self._products = gather, products

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
            weights = [weight for weight in group["params"] if weight.grad is not None]
            for weight, update in zip(weights, self._updates(weights, group["momentum"]), strict=True):
                if self._gather is not None:
                    weight, update = self._all_rows(weight, update, group["lr"] * group["weight_decay"], last)
                for part, piece in zip(_parts(weight), _parts(update), strict=True):
                    by_shape.setdefault(part.shape, []).append((part, piece))
            for pairs in by_shape.values():
                for share, tasks in enumerate(pieces):
                    rate = (group["lr"], group["weight_decay"])
                    tasks.append(partial(_apply, pairs[share::shares], *rate, self._products))
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

    def _updates(self, weights: Sequence[Tensor], momentum: float) -> Sequence[Tensor]:
        """Move the momenta; return what is to be orthogonalised."""
        if not weights:
            return []
        gradients = [weight.grad for weight in weights if weight.grad is not None]
        for weight in weights:
            if "momentum" not in self.state[weight]:
                self.state[weight]["momentum"] = torch.zeros_like(weight)
        momenta = [self.state[weight]["momentum"] for weight in weights]
        foreach_lerp_(momenta, gradients, 1 - momentum)
        return foreach_lerp(gradients, momenta, momentum)


@torch.no_grad()
def _follow(rows: Tensor, moved: Tensor, decay: float) -> None:
    rows.mul_(1 - decay).add_(moved)


def _in_turn(tasks: Sequence[Callable[[], None]]) -> None:
    for task in tasks:
        task()


@torch.no_grad()
def _apply(
    pairs: Sequence[tuple[Tensor, Tensor]], lr: float, weight_decay: float, products: torch.dtype | None
) -> None:
    """Orthogonalize the updates of matrices of one shape in one stack, then apply them."""
    if not pairs:
        return
    rows, columns = pairs[0][0].shape
    step = lr * max(1.0, rows / columns) ** 0.5
    stacked_NRD = orthogonalise(torch.stack([update for _, update in pairs]), products=products)
    weights = [weight for weight, _ in pairs]
    foreach_mul_(weights, 1 - lr * weight_decay)
    foreach_sub_(weights, stacked_NRD.unbind(0), alpha=step)


def _parts(matrix: Tensor) -> list[Tensor]:
    """Split a matrix of two or three stacked squares into them; return any other as it is."""
    rows, columns = matrix.shape
    return list(matrix.split(columns)) if rows in (2 * columns, 3 * columns) else [matrix]
