"""A lower bound of the memory that training needs, to refuse absurd batches before any data is read."""

import os
from pathlib import Path

from torch import nn

from allyouneed.errors import ConfigError
from allyouneed.training.recipe import Recipe

CGROUP = Path("/sys/fs/cgroup/memory.max")


def require_memory(recipe: Recipe, model: nn.Module) -> None:
    """Raise ConfigError if the activations of one batch cannot fit into the memory of this machine."""
    bound, available = recipe.task.largest_batch(), machine_memory()
    if bound is None or available is None:
        return
    (setting, tokens), each = bound, bytes_per_token(model)
    if tokens * each > available:
        raise ConfigError(
            f"task.{setting}: a batch of {tokens:,} tokens takes at least {tokens * each / 2**30:,.0f} GiB with this "
            f"model, but this machine has {available / 2**30:,.0f} GiB: less than {available // each:,} tokens fit; "
            "use smaller batches, and train.accumulate for large steps"
        )


def bytes_per_token(model: nn.Module) -> int:
    """Return how many bytes of activations training keeps for each token, at least.

    The gradient of a matrix needs the input that was multiplied with it, in 4 bytes a number. Matrices that share
    their input (queries, keys and values) keep their outputs instead.
    """
    return 4 * max(1, sum(weight.shape[-1] for weight in model.parameters() if weight.ndim == 2))


def machine_memory() -> int | None:
    """Return the bytes of memory that this machine, or its container, has; None if the system does not report it."""
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return None
    try:
        return min(total, int(CGROUP.read_text()))
    except (OSError, ValueError):  # no container, or no limit: "max"
        return total
