"""allyouneed: is attention all you need? Try it on your own data.

`import allyouneed` stays cheap: torch is imported when something needs it, so that `allyouneed --help` is quick. It
sets how OpenMP's threads wait (`openmp.py`), which has an effect only before torch is imported.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from allyouneed.openmp import wait_passively
from allyouneed.version import __version__

if TYPE_CHECKING:
    from allyouneed.pipeline import Pipeline
    from allyouneed.training import Recipe

__all__ = ["__version__", "load", "train"]

wait_passively()


def load(
    folder: str | Path,
    *,
    device: str = "cpu",
    int8: bool = False,
    sets: Sequence[str] = (),
    adapter: str | Path | None = None,
    ensemble: Sequence[str | Path] = (),
) -> "Pipeline":
    """Load a model folder, the model of a run folder or one of its checkpoints, optimized for inference.

    The result translates, generates, classifies and scores texts with the folder's own settings. `int8` is faster and
    slightly less exact; `sets` change settings that are not part of the weights, such as `task.segment=128`. `adapter`
    is a folder of LoRA that belongs to this model. `ensemble`: folders of models that translate together with this one.
    `allyouneed.folder.load_folder` loads the plain model, which can be trained and hooked.
    """
    from allyouneed.pipeline import load

    return load(folder, device=device, int8=int8, sets=sets, adapter=adapter, ensemble=ensemble)


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
) -> "Pipeline":
    """Train a recipe in the run folder `out`, or resume the run there; return the best model, ready for use.

    `recipe` is a path, the name of a built-in recipe, or a `Recipe`. The settings are those of `allyouneed train`: at
    most one budget (`minutes`, `steps`, `tokens` or `flops`), and dotted settings such as `sets=["model.layers=3"]`.
    `progress` shows a progress bar on standard error, or lines if that is not a terminal.
    """
    from allyouneed.training.api import train_recipe

    budget = {"minutes": minutes, "steps": steps, "tokens": tokens, "flops": flops}
    return load(train_recipe(recipe, out, budget, seed, sets, device, progress), device=device)
