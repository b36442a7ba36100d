"""Exports a model as a model folder of ours whose matrices are in int8: a quarter of float32, half of bfloat16.

Each row of a matrix is multiplied by its own scale. A loaded folder computes in int8, as with `--int8`, without
rounding the weights again; embeddings are rounded, too. Where no kernel runs (no C compiler, another device, training)
the weights are float32 with the rounded values.
"""

from pathlib import Path

from allyouneed.config import parse
from allyouneed.errors import ConfigError
from allyouneed.folder import WEIGHTS, Bundle, save_folder
from allyouneed.inference.optimize import packable_parameters
from allyouneed.interop.export_notes import shortlist_note
from allyouneed.interop.output_folder import require_safe_output
from allyouneed.training.recipe import Recipe
from allyouneed.weights import RoundedTensors, model_tensors


def export_folder(bundle: Bundle, out: Path) -> list[str]:
    """Write the folder and return notes for the user."""
    require_safe_output(out, bundle.path, "model", is_rounded)
    packable = packable_parameters(bundle.model)
    matrices = {name for name, one in bundle.model.named_parameters() if one in packable and one.ndim == 2}
    if not matrices:
        raise ConfigError(f"{bundle.path}: {bundle.model.config.type}: has no matrices of a Transformer to round")
    tensors = {
        name: tensor.float() if name in matrices else tensor for name, tensor in model_tensors(bundle.model).items()
    }
    recipe = parse(Recipe, bundle.recipe)
    save_folder(out, bundle.model, bundle.codec, recipe, bundle.card, RoundedTensors(tensors, matrices))
    size = (out / WEIGHTS).stat().st_size
    before = sum(tensor.nbytes for tensor in tensors.values())
    return [
        f"{len(matrices)} matrices in int8: {size:,} bytes instead of {before:,} in float32",
        *shortlist_note(bundle, "`allyouneed shortlist` makes one for the new folder"),
    ]


def is_rounded(folder: Path) -> bool:
    """Return whether a model folder is an export of this kind, which can be repeated."""
    from allyouneed.storage import open_tensors

    return any(name.endswith(".scale") for name in open_tensors(folder / WEIGHTS).places)
