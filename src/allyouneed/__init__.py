"""allyouneed: is attention all you need? Try it on your own data.

`import allyouneed` stays cheap: torch is imported when something needs it, so that `allyouneed --help` is quick. It
sets how OpenMP's threads wait (`openmp.py`), which has an effect only before torch is imported.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from allyouneed.openmp import wait_passively
from allyouneed.version import __version__

if TYPE_CHECKING:
    from allyouneed.pipeline import Pipeline
    from allyouneed.training import Recipe

    Files = str | Path | Sequence[Any] | Mapping[str, Any]  # corpora: names, tables, or lists of them (docs/data.md)

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
    recipe: "str | Path | Recipe | None",
    out: str | Path,
    *,
    start: str | Path | None = None,
    task: str | None = None,
    train: "Files | None" = None,
    valid: "Files | None" = None,
    test: "Files | None" = None,
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

    `start`: a model folder whose weights the run starts from, with its model, tokenizers and recipe, as with `train
    --from` (docs/tuning.md). `recipe` may then be None, and needs no section for the model. `train`, `valid` and `test`
    are the data, as a recipe has them; `task` is another type of task.
    """
    from allyouneed.training.api import changes, task_changes, train_recipe

    given = changes({"minutes": minutes, "steps": steps, "tokens": tokens, "flops": flops}, seed)
    given |= task_changes(task, {"train": train, "valid": valid, "test": test})
    return load(train_recipe(recipe, out, given, sets, device, progress, start), device=device)
