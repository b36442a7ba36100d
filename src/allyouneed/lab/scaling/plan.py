"""The grid of a scaling study: one recipe in several sizes, each with several budgets.

A size is written as

    64                                  the width; layers and hidden sizes keep the recipe's ratio to it
    64x2                                the width and the number of layers
    model.width=64 model.layers=2       settings, as in --set, for models without a width

The number of heads does not change. With `lr_power` p the peak learning rate is multiplied by (recipe's width /
width)^p: a rate tuned for one size would bend the curves. With Muon this applies to all parameters but the matrices
of the blocks, whose updates have the same norm at every width.

N counts trained parameters without embedding tables, positions and output projection (as in Kaplan et al.). C is the
FLOP count declared by the model, forward and backward, including attention and output projection. D counts predicted
tokens.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from allyouneed.errors import ConfigError
from allyouneed.lab.jobs import Job
from allyouneed.models import Model
from allyouneed.models.base import Head
from allyouneed.models.parts.stack import Embedding
from allyouneed.tasks import TaskData
from allyouneed.training import Recipe, load_recipe

Unit = Literal["flops", "tokens"]
WIDEST = 4  # the best size is searched up to this multiple of the widest grid size
MOST_TRIED = 64  # approximate number of candidate sizes
# Evaluate only once, at the end: before the end of the schedule the loss is not comparable.
FAIR = ("train.evaluate_every=1.0", "train.patience=0", "train.metric=loss")


@dataclass(frozen=True)
class ScalingPlan:
    """The grid of runs."""

    recipe: str
    sizes: str  # as on the command line: 32x2,48x2,64x2
    budgets: tuple[float, ...]
    unit: Unit = "flops"
    seeds: tuple[int, ...] = (1,)
    sets: tuple[str, ...] = ()
    lr_power: float = 0.0

    @property
    def question(self) -> str:
        """Identify the folder's purpose: sizes, budgets and seeds can be added."""
        return f"scaling {self.recipe}"

    def load(self, *more: str) -> Recipe:
        """Load the recipe with further settings."""
        return load_recipe(self.recipe, None, [*self.sets, *FAIR, *more])


@dataclass(frozen=True)
class Size:
    """A model size: its name and its settings."""

    name: str
    sets: tuple[str, ...]


@dataclass(frozen=True)
class MeasuredSize:
    """A model size with its parameter count and cost."""

    size: Size
    parameters: int  # without embeddings and output projection
    flops_per_token: float  # forward and backward

    @property
    def name(self) -> str:
        """Return the name of the size."""
        return self.size.name


@dataclass(frozen=True)
class GridJob:
    """A job with its coordinates in the grid."""

    job: Job
    size: MeasuredSize
    budget: float
    seed: int


def read_sizes(plan: ScalingPlan) -> list[Size]:
    """Parse the sizes of a plan."""
    names = [name.strip() for name in plan.sizes.split(",") if name.strip()]
    sizes = [read_size(plan, name) for name in names]
    if len({size.sets for size in sizes}) < len(sizes) or not sizes:
        raise ConfigError(f"--sizes {plan.sizes!r}: should be distinct sizes: 32,48,64 or 32x2,48x2,64x2")
    return sizes


def read_size(plan: ScalingPlan, text: str) -> Size:
    """Parse one size."""
    if "=" in text:
        return _size_of_settings(plan, text)
    match = re.fullmatch(r"(\d+)(?:x(\d+))?", text)
    if match is None or 0 in (int(match[1]), int(match[2] or 1)):
        raise ConfigError(f"--sizes: {text!r}: should be a width (64), width and layers (64x2), or settings")
    recipe = plan.load()
    fields = recipe.model.model_dump()
    if not isinstance(fields.get("width"), int):
        raise ConfigError(
            f"--sizes: model {recipe.model.type!r} has no width; write settings: 'model.size=64 model.layers=2'"
        )
    ratio = int(match[1]) / fields["width"]
    names = [name for name in ("layers", "encoder_layers", "decoder_layers") if isinstance(fields.get(name), int)]
    layers = [int(match[2]) if match[2] else max(1, round(fields[name] * ratio)) for name in names]
    sets = [f"model.width={match[1]}", *(f"model.{name}={count}" for name, count in zip(names, layers, strict=True))]
    if isinstance(fields.get("hidden"), int):
        sets.append(f"model.hidden={max(1, round(fields['hidden'] * ratio))}")
    sets += _rate(plan, recipe, ratio)
    return Size(f"{match[1]}x{layers[0]}" if layers else match[1], tuple(sets))


def _size_of_settings(plan: ScalingPlan, text: str) -> Size:
    """Parse a size written as settings. The learning rate follows the width if only the width is given."""
    sets = text.split()
    given = dict(one.split("=", 1) for one in sets if "=" in one)
    recipe = plan.load()
    width, base = given.get("model.width", ""), recipe.model.model_dump().get("width")
    more = []
    if isinstance(base, int) and width.isdecimal() and int(width) and "train.optimizer.lr" not in given:
        more = _rate(plan, recipe, int(width) / base)
    return Size(text.replace("model.", "").replace(" ", "_"), (*sets, *more))


def _rate(plan: ScalingPlan, recipe: Recipe, ratio: float) -> list[str]:
    """Return the learning rate setting of a model `ratio` times as wide as the recipe's."""
    return [f"train.optimizer.lr={recipe.train.optimizer.lr * ratio**-plan.lr_power:.6g}"] if plan.lr_power else []


def candidates(plan: ScalingPlan, data: TaskData) -> list[MeasuredSize]:
    """Return candidate sizes of a larger run: multiples of the grid's widths up to `WIDEST`, or the grid itself."""
    given = [name.strip() for name in plan.sizes.split(",")]
    depths = {name.partition("x")[2] for name in given}
    if any("=" in name for name in given) or len(depths) > 1:
        return [measure(plan, size, data) for size in read_sizes(plan)]
    (depth,) = depths
    widths = [int(name.partition("x")[0]) for name in given]
    step = math.gcd(*widths)  # multiples of it are divisible by the heads, as the given widths are
    span = WIDEST * max(widths) - min(widths)
    wanted = range(min(widths), min(widths) + span + 1, step * max(1, span // (MOST_TRIED * step)))
    return [measure(plan, read_size(plan, f"{width}x{depth}" if depth else str(width)), data) for width in wanted]


def measure(plan: ScalingPlan, size: Size, data: TaskData) -> MeasuredSize:
    """Measure a size for this data, without allocating weights."""
    recipe = plan.load(*size.sets)
    with torch.device("meta"):
        model = recipe.model.build(data.sizes)
    return MeasuredSize(size, count_without_tables(model), flops_per_token(model, data, recipe))


def count_without_tables(model: Model) -> int:
    """Count trained parameters without embeddings, positions and output projection."""
    tables = {
        parameter
        for module in model.modules()
        if isinstance(module, Embedding | Head)
        for parameter in module.parameters()
    }
    return sum(parameter.numel() for parameter in model.parameters() if parameter not in tables)


def flops_per_token(model: Model, data: TaskData, recipe: Recipe, batches: int = 4) -> float:
    """Return forward and backward FLOPs per predicted token of training batches, as the training loop counts them."""
    flops = tokens = 0.0
    for number in range(batches):
        batch = data.batch(recipe.seed, number)
        source = 0 if batch.source_BS is None else batch.source_BS.shape[1]
        target = 0 if batch.input_BT is None else batch.input_BT.shape[1]
        flops += 3.0 * batch.examples * model.flops(source, target)
        tokens += batch.tokens
    return flops / tokens


def require_budgets(plan: ScalingPlan) -> None:
    """Raise ConfigError unless all budgets are positive, finite and distinct."""
    fair = all(0 < budget < math.inf for budget in plan.budgets)
    if not plan.budgets or not fair or len(set(plan.budgets)) < len(plan.budgets):
        raise ConfigError("--budgets: should be distinct numbers above 0: 1e11,2e11,4e11")


def grid(plan: ScalingPlan, sizes: Sequence[MeasuredSize]) -> list[GridJob]:
    """Return all runs of a plan."""
    jobs = [
        job_of(plan, size, budget, seed, plan.unit) for budget in plan.budgets for size in sizes for seed in plan.seeds
    ]
    names = [item.job.name for item in jobs]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigError(f"--sizes, --budgets: two runs would have the name {twice[0]}; choose values further apart")
    return jobs


def job_of(plan: ScalingPlan, size: MeasuredSize, budget: float, seed: int, unit: Unit) -> GridJob:
    """Return one run of the grid."""
    amount = repr(float(budget)) if unit == "flops" else str(round(budget))
    recipe = plan.load(*size.size.sets, f"train.budget.{unit}={amount}", f"seed={seed}")
    # The first seed has no suffix, so that its runs are reused when seeds are added.
    name = f"{size.name}-{short(budget)}" + (f"-seed{seed}" if seed > 1 else "")
    return GridJob(Job(re.sub(r"[^\w.=+-]", "_", name), recipe), size, budget, seed)


def short(value: float) -> str:
    """Format a number compactly: 1.25e11, 250000."""
    return f"{value:.3g}".replace("e+", "e").replace("e0", "e")
