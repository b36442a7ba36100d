"""The type of a run's products, if the recipe leaves it open (`train.precision = "auto"`).

bfloat16 is chosen where it pays: on a CPU that multiplies it faster, which is measured in some milliseconds, and for
stacks of blocks that are wide enough. It is float32 for everything else. A run chooses when it begins. The recipe in
its folder states the type, so that it is the same after an interruption, on whatever machine.
"""

import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

from allyouneed.block import Block
from allyouneed.models import Model
from allyouneed.sizes import Sizes
from allyouneed.training.process_group import ProcessGroup
from allyouneed.training.progress import ProgressListener
from allyouneed.training.recipe import Precision, Recipe
from allyouneed.training.recipe_files import precision_of_run, with_precision

# Of products. Measured gains of a whole step: 1.4 at width 128, 1.3 at 96, 1.1 at 64, none at 32. Models below 128 are
# trained in seconds, often on tasks where every token must be right, so they are not rounded for less.
LEAST_WIDTH = 128
# Processors with bfloat16 products have factors near 2, others below 1. What is between is disturbed by other work and
# measured again, so that the load does not change the choice.
LEAST_FACTOR, CLEARLY_SLOWER, ATTEMPTS = 1.3, 0.7, 4
FAR_SLOWER = 0.25  # without instructions for bfloat16, it is less than a tenth
ROWS = 1024  # of the measured product
LEAST, MOST, ENOUGH = 3, 20, 0.1  # repetitions, and seconds of a core after which it has been measured enough


@dataclass(frozen=True)
class Shape:
    """A linear layer."""

    outputs: int
    inputs: int


def settle_precision(
    recipe: Recipe, folder: Path, device: torch.device, group: ProcessGroup, listener: ProgressListener
) -> Recipe:
    """Return the recipe with the precision of the run in the folder; choose it if the run is new."""

    def settle() -> Precision:
        stored = folder / "recipe.toml"
        settled = with_precision(recipe, precision_of_run(stored)) if stored.exists() else recipe
        if settled.train.precision == "auto":
            return _choose(recipe, device, listener)
        if settled.train.precision == "bfloat16" and device.type == "cpu":
            _warn(recipe, listener)
        return settled.train.precision

    return with_precision(recipe, group.on_rank0(settle))


def _warn(recipe: Recipe, listener: ProgressListener) -> None:
    """Note that a recipe of another machine, or a run that resumes, is far slower here."""
    shape = _shape_of(recipe)
    if shape is not None and (factor := speed_factor(shape)) < FAR_SLOWER:
        listener.note(
            f"products in bfloat16: on this machine they take {1 / factor:.0f} times as long as in float32; a new run "
            "with train.precision=float32 would be faster"
        )


def _shape_of(recipe: Recipe) -> Shape | None:
    with torch.device("meta"):
        return common_shape(recipe.model.build(Sizes(8, 8, shared=True)))


def _choose(recipe: Recipe, device: torch.device, listener: ProgressListener) -> Precision:
    if device.type != "cpu" or recipe.train.deterministic:  # a measurement is not repeatable
        return "float32"
    shape = _shape_of(recipe)
    if shape is None or min(shape.outputs, shape.inputs) < LEAST_WIDTH:
        return "float32"
    factor = 0.0
    for _ in range(ATTEMPTS):
        factor = max(factor, speed_factor(shape))
        if not CLEARLY_SLOWER < factor < LEAST_FACTOR:
            break
    chosen: Precision = "bfloat16" if factor >= LEAST_FACTOR else "float32"
    listener.note(
        f"products in {chosen}: measured on this machine, those of {shape.inputs} x {shape.outputs} in bfloat16 are "
        f"{factor:.2g} times as fast as in float32; train.precision=float32 or bfloat16 decides otherwise"
    )
    return chosen


def common_shape(model: Model) -> Shape | None:
    """Return the shape of linear layers inside blocks that has the most weights; None if there are no such layers.

    Models without blocks compute most of their products in float32 anyway: recurrences and memories.
    """
    layers = {
        layer
        for block in model.modules()
        if isinstance(block, Block)
        for layer in block.modules()
        if isinstance(layer, nn.Linear)
    }
    weights: Counter[Shape] = Counter()
    for layer in layers:
        weights[Shape(layer.out_features, layer.in_features)] += layer.weight.numel()
    return max(weights, key=lambda shape: (weights[shape], shape.outputs, shape.inputs), default=None)


def speed_factor(shape: Shape) -> float:
    """Return how many times as fast a product in bfloat16 is as one in float32, conversions included, on one core."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as in training; `thread_time` does not see other threads
    try:
        x, weight = torch.ones(ROWS, shape.inputs), torch.ones(shape.outputs, shape.inputs)
        wide = half = float("inf")
        began = time.thread_time()
        for number in range(MOST + 1):
            times = [_seconds(x, weight, products) for products in (torch.float32, torch.bfloat16)]
            if number:  # the first products prepare the kernels
                wide, half = min(wide, times[0]), min(half, times[1])
            if half > wide / FAR_SLOWER or (number >= LEAST and time.thread_time() - began > ENOUGH):
                break
        return wide / max(half, 1e-9)
    finally:
        torch.set_num_threads(threads)


def _seconds(x: torch.Tensor, weight: torch.Tensor, products: torch.dtype) -> float:
    before = time.thread_time()
    F.linear(x.to(products), weight.to(products)).float()
    return time.thread_time() - before
