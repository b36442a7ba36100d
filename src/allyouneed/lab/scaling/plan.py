"""What to run for a law of scaling: one recipe in several sizes, each with several budgets.

A size is written as

    64                                  the width; layers and hidden sizes keep their ratio to it (the recipe's aspect)
    64x2                                the width and the layers
    model.width=64 model.layers=2       settings, as after --set: for models that have no such width

The number of heads stays. With `lr_power` p the peak learning rate (with Muon: of all but the blocks' matrices, whose
updates have one norm at every width) is multiplied by (recipe's width / width)^p: a rate that suits one size alone
bends the curves.

N counts trained numbers without the tables of embeddings, positions and the last projection (as Kaplan et al. do); C is
what the model itself states, forward and backward, attention and last projection included; D counts predicted tokens.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from allyouneed.errors import ConfigError
from allyouneed.lab.runs import Job
from allyouneed.models import Model
from allyouneed.models.base import Head
from allyouneed.models.parts.stack import Embedding
from allyouneed.tasks import TaskData
from allyouneed.training import Recipe, load_recipe

Unit = Literal["flops", "tokens"]
WIDEST = 4  # times the widest of the grid: how far the best size is sought
MOST_TRIED = 64  # sizes, about
# One evaluation, at the end: what a schedule has not finished is no fair point.
FAIR = ("train.evaluate_every=1.0", "train.patience=0", "train.metric=loss")


@dataclass(frozen=True)
class Plan:
    """The grid."""

    recipe: str
    sizes: str  # as on the command line: 32x2,48x2,64x2
    budgets: tuple[float, ...]
    unit: Unit = "flops"
    seeds: tuple[int, ...] = (1,)
    sets: tuple[str, ...] = ()
    lr_power: float = 0.0

    @property
    def question(self) -> str:
        """What a folder is for: sizes, budgets and seeds can be added."""
        return f"scaling {self.recipe}"

    def load(self, *more: str) -> Recipe:
        """The recipe with further settings."""
        return load_recipe(self.recipe, None, [*self.sets, *FAIR, *more])


@dataclass(frozen=True)
class Size:
    """A size of the model: what it is called, and how it is set."""

    name: str
    sets: tuple[str, ...]


@dataclass(frozen=True)
class Measured:
    """A size, and what it has and costs."""

    size: Size
    parameters: int  # without tables
    flops_per_token: float  # forward and backward

    @property
    def name(self) -> str:
        """For tables."""
        return self.size.name


@dataclass(frozen=True)
class GridJob:
    """A job, and the place in the grid that it is for."""

    job: Job
    size: Measured
    budget: float
    seed: int


def read_sizes(plan: Plan) -> list[Size]:
    """The sizes of a plan."""
    names = [name.strip() for name in plan.sizes.split(",") if name.strip()]
    sizes = [read_size(plan, name) for name in names]
    if len({size.sets for size in sizes}) < len(sizes) or not sizes:
        raise ConfigError(f"--sizes {plan.sizes!r}: should be different sizes: 32,48,64 or 32x2,48x2,64x2")
    return sizes


def read_size(plan: Plan, text: str) -> Size:
    """One size."""
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


def _size_of_settings(plan: Plan, text: str) -> Size:
    """A size written as settings. The rate follows the width where one is among them, and no rate is."""
    sets = text.split()
    given = dict(one.split("=", 1) for one in sets if "=" in one)
    recipe = plan.load()
    width, base = given.get("model.width", ""), recipe.model.model_dump().get("width")
    more = []
    if isinstance(base, int) and width.isdecimal() and int(width) and "train.optimizer.lr" not in given:
        more = _rate(plan, recipe, int(width) / base)
    return Size(text.replace("model.", "").replace(" ", "_"), (*sets, *more))


def _rate(plan: Plan, recipe: Recipe, ratio: float) -> list[str]:
    """The learning rate of a model so many times as wide as the recipe's."""
    return [f"train.optimizer.lr={recipe.train.optimizer.lr * ratio**-plan.lr_power:.6g}"] if plan.lr_power else []


def candidates(plan: Plan, data: TaskData) -> list[Measured]:
    """Sizes that a larger run may have: of the grid's family, up to `WIDEST` times as wide; or the grid's own."""
    given = [name.strip() for name in plan.sizes.split(",")]
    depths = {name.partition("x")[2] for name in given}
    if any("=" in name for name in given) or len(depths) > 1:
        return [measure(plan, size, data) for size in read_sizes(plan)]
    (depth,) = depths
    widths = [int(name.partition("x")[0]) for name in given]
    step = math.gcd(*widths)  # what divides the given ones divides into heads
    span = WIDEST * max(widths) - min(widths)
    wanted = range(min(widths), min(widths) + span + 1, step * max(1, span // (MOST_TRIED * step)))
    return [measure(plan, read_size(plan, f"{width}x{depth}" if depth else str(width)), data) for width in wanted]


def measure(plan: Plan, size: Size, data: TaskData) -> Measured:
    """The size as a model for this data, without weights."""
    recipe = plan.load(*size.sets)
    with torch.device("meta"):
        model = recipe.model.build(data.sizes)
    return Measured(size, count_without_tables(model), flops_per_token(model, data, recipe))


def count_without_tables(model: Model) -> int:
    """Trained numbers but for embeddings, their positions, and the last projection."""
    tables = {
        parameter
        for module in model.modules()
        if isinstance(module, Embedding | Head)
        for parameter in module.parameters()
    }
    return sum(parameter.numel() for parameter in model.parameters() if parameter not in tables)


def flops_per_token(model: Model, data: TaskData, recipe: Recipe, batches: int = 4) -> float:
    """Forward and backward, for one predicted token of a training batch, as the training loop counts them."""
    flops = tokens = 0.0
    for number in range(batches):
        batch = data.batch(recipe.seed, number)
        source = 0 if batch.source_BS is None else batch.source_BS.shape[1]
        target = 0 if batch.input_BT is None else batch.input_BT.shape[1]
        flops += 3.0 * batch.examples * model.flops(source, target)
        tokens += batch.tokens
    return flops / tokens


def require_budgets(plan: Plan) -> None:
    """Refuses budgets that cannot be spent."""
    fair = all(0 < budget < math.inf for budget in plan.budgets)
    if not plan.budgets or not fair or len(set(plan.budgets)) < len(plan.budgets):
        raise ConfigError("--budgets: should be different numbers above 0: 1e11,2e11,4e11")


def grid(plan: Plan, sizes: Sequence[Measured]) -> list[GridJob]:
    """All runs of a plan."""
    jobs = [
        job_of(plan, size, budget, seed, plan.unit) for budget in plan.budgets for size in sizes for seed in plan.seeds
    ]
    names = [item.job.name for item in jobs]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigError(f"--sizes, --budgets: two runs would be called {twice[0]}; take some that differ more")
    return jobs


def job_of(plan: Plan, size: Measured, budget: float, seed: int, unit: Unit) -> GridJob:
    """One run."""
    amount = repr(float(budget)) if unit == "flops" else str(round(budget))
    recipe = plan.load(*size.size.sets, f"train.budget.{unit}={amount}", f"seed={seed}")
    # The first seed has the plain name, however many there are: more seeds keep what one has made.
    name = f"{size.name}-{short(budget)}" + (f"-seed{seed}" if seed > 1 else "")
    return GridJob(Job(re.sub(r"[^\w.=+-]", "_", name), recipe), size, budget, seed)


def short(value: float) -> str:
    """1.25e11, 250000."""
    return f"{value:.3g}".replace("e+", "e").replace("e0", "e")
