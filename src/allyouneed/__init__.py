"""allyouneed: is attention all you need? Try it on your own data.

`import allyouneed` stays cheap: torch is imported when something needs it, so that `allyouneed --help` is quick.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from allyouneed.version import __version__

if TYPE_CHECKING:
    from allyouneed.folder import Bundle
    from allyouneed.training import Recipe

__all__ = ["__version__", "load", "train"]


def load(folder: str) -> "Bundle":
    """A ready model from a model folder: its weights, its tokenisers and the task it was trained for."""
    from allyouneed.folder import load_folder

    return load_folder(folder)


def train(
    recipe: "str | Path | Recipe",
    out: str | Path,
    *,
    minutes: float | None = None,
    steps: int | None = None,
    tokens: int | None = None,
    flops: float | None = None,
    seed: int | None = None,
    sets: Sequence[str] = (),
    device: str = "cpu",
    progress: bool = True,
) -> "Bundle":
    """Train a recipe in the run folder `out`, or resume the run there; return the best model, ready for use.

    `recipe` is a path, the name of a built-in recipe, or a `Recipe`. The settings are those of `allyouneed train`: at
    most one budget (`minutes`, `steps`, `tokens` or `flops`), and dotted settings such as `sets=["model.layers=3"]`.
    `progress` shows a progress bar on standard error, or lines if that is not a terminal.
    """
    from allyouneed.training.api import train_recipe

    budget = {"minutes": minutes, "steps": steps, "tokens": tokens, "flops": flops}
    return load(str(train_recipe(recipe, Path(out), budget, seed, sets, device, progress)))
