"""Adjust the widths of a model until it has as many parameters as the baseline, within 5 %.

The hidden width of a Transformer's feed-forward layers is changed if that suffices (as for SwiGLU: Shazeer 2020).
Otherwise all widths of the model are scaled together, which keeps its proportions. The last width is then adjusted
alone if the steps of the first (which must be divisible by the number of heads) are too coarse. Widths that the
comparison itself varies do not change.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from allyouneed.config import parse
from allyouneed.errors import ConfigError
from allyouneed.sizes import Sizes
from allyouneed.training import Recipe

TOLERANCE = 0.05
MOST_TIMES = 16  # largest factor by which a width may grow
# The widths that may be adjusted, the most important one first.
WIDTHS: dict[str, tuple[str, ...]] = {
    "encoder-decoder": ("width", "hidden"),
    "decoder": ("width", "hidden"),
    "encoder": ("width", "hidden"),
    "seq2seq": ("width", "embedding"),
    "bytenet": ("width",),
    "convs2s": ("channels", "width"),
    "ntm": ("hidden",),
    "memn2n": ("width",),
    "neural-gpu": ("channels",),
}


def count_parameters(recipe: Recipe, sizes: Sizes) -> int:
    """Count the trained parameters of the recipe's model without allocating them."""
    with torch.device("meta"):
        return recipe.model.build(sizes).parameter_count()


def with_parameters(recipe: Recipe, wanted: int, sizes: Sizes, name: str, held: frozenset[str] = frozenset()) -> Recipe:
    """Return the recipe with widths that give `wanted` parameters; widths in `held` do not change."""
    if _is_near(count_parameters(recipe, sizes), wanted):
        return recipe
    model = recipe.model.model_dump()
    widths = {
        field: model[field]
        for field in WIDTHS.get(recipe.model.type, ())
        if field not in held and model[field] is not None
    }
    if not widths:
        raise ConfigError(
            f"{name}: --equal parameters has no width to adjust: {recipe.model.type!r} has "
            f"{', '.join(WIDTHS.get(recipe.model.type, ())) or 'none'}, and varied widths do not change"
        )

    def count(changed: Mapping[str, int]) -> int:
        return count_parameters(_changed(recipe, changed), sizes)

    best = _hidden_alone(widths, wanted, count) or _scale(widths, _step(model), wanted, count)
    if not _is_near(count(best), wanted) and len(widths) > 1:
        last = list(widths)[-1]
        size = _nearest(lambda size: count({**best, last: size}), wanted, MOST_TIMES * widths[last])
        best = {**best, last: size}
    if not _is_near(count(best), wanted):
        sized = ", ".join(f"{field} {size}" for field, size in best.items())
        raise ConfigError(
            f"{name}: --equal parameters: the nearest to {wanted:,} is {count(best):,} ({sized}), "
            f"more than {TOLERANCE:.0%} away"
        )
    return _changed(recipe, best)


def _hidden_alone(
    widths: Mapping[str, int], wanted: int, count: Callable[[Mapping[str, int]], int]
) -> dict[str, int] | None:
    """Change the hidden width alone, if between half and twice the present one suffices; else None."""
    if "hidden" not in widths or len(widths) == 1:
        return None
    old = widths["hidden"]
    best = {**widths, "hidden": _nearest(lambda size: count({**widths, "hidden": size}), wanted, 2 * old)}
    return best if 2 * best["hidden"] >= old and _is_near(count(best), wanted) else None


def _scale(
    widths: Mapping[str, int], step: int, wanted: int, count: Callable[[Mapping[str, int]], int]
) -> dict[str, int]:
    """Scale all widths by one factor; the first is a multiple of the step."""
    (first, size), *others = widths.items()

    def scaled(steps: int) -> dict[str, int]:
        factor = steps * step / size
        return {first: steps * step} | {field: max(2, 2 * round(old * factor / 2)) for field, old in others}

    return scaled(_nearest(lambda steps: count(scaled(steps)), wanted, math.ceil(MOST_TIMES * size / step)))


def _nearest(count: Callable[[int], int], wanted: int, most: int) -> int:
    """Return the number from 1 to `most` whose count, an increasing function, is nearest to `wanted`."""
    low, high = 1, most
    while low < high:
        middle = (low + high) // 2
        low, high = (middle + 1, high) if count(middle) < wanted else (low, middle)
    return min((number for number in (low - 1, low) if number), key=lambda number: abs(count(number) - wanted))


def _step(model: Mapping[str, Any]) -> int:
    """Return the step of the width: heads divide it evenly, and rotary positions need pairs."""
    return 2 * math.lcm(1, *_heads(model))


def _heads(tree: Any) -> Iterator[int]:
    if isinstance(tree, Mapping):
        for name, value in tree.items():
            if name == "heads" and isinstance(value, int):
                yield value
            yield from _heads(value)
    elif isinstance(tree, list | tuple):
        for value in tree:
            yield from _heads(value)


def _is_near(found: int, wanted: int) -> bool:
    return abs(found - wanted) <= TOLERANCE * wanted


def _changed(recipe: Recipe, sizes: Mapping[str, int]) -> Recipe:
    tree = recipe.model_dump(mode="json")
    return parse(Recipe, {**tree, "model": {**tree["model"], **sizes}})
