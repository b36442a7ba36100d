"""The initial weights of a run: random, or those of a model folder (of another run, imported, or compiled).

A run that starts from a folder is trained with the folder's tokenizers, whatever its data: an id keeps its meaning. An
encoder that gets other classes keeps its body, and its head is new.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from pydantic import Field
from torch import Tensor

from allyouneed.config import Config
from allyouneed.errors import ConfigError, FolderError
from allyouneed.folder import OUTLINE, FolderSizes, folder_head, folder_recipe, load_folder
from allyouneed.models import Model
from allyouneed.sizes import Sizes
from allyouneed.tasks import TaskConfig, TaskData
from allyouneed.text.codec import Codec
from allyouneed.training.process_group import is_rank0
from allyouneed.weights import fill_model, model_tensors
from allyouneed.words import counted

HEAD = ("head.", "transform.")  # the weights of an encoder that depend on its classes


class StartConfig(Config):
    """A model folder that holds the initial weights."""

    folder: str
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]  # of its weights, wherever the folder is

    def prepare(self, task: TaskConfig, run: Path, seed: int) -> TaskData:
        """Prepare the data of a run in the ids of the folder, with the sizes of its model.

        A run that has begun needs the folder no longer: it has a copy of the tokenizers.
        """
        begun = (run / OUTLINE).is_dir()
        if not begun:
            self.require_same_weights(folder_recipe(self.folder)[1])
        config, codec = folder_head(run / OUTLINE if begun else self.folder)
        try:
            data = task.prepare_with(codec, run / "data", seed)
        except ConfigError as error:
            raise ConfigError(f"{self.folder}: cannot be trained on this task: {error}") from None
        data.sizes = _sizes(config.sizes, codec, data.codec)
        return data

    def fill(self, model: Model, codec: Codec) -> list[str]:
        """Copy the weights into a model whose ids are those of `codec`; return the weights that stay random."""
        bundle = load_folder(self.folder, announce=is_rank0())
        self.require_same_weights(bundle.sha256)
        tensors = model_tensors(bundle.model)
        if bundle.codec.same_ids_as(codec):
            fill_model(model, tensors, bundle.path)
            return []
        if model.kind != "encoder" or codec.per_position or not _same_source(bundle.codec, codec):
            raise ConfigError(
                f"{self.folder}: its ids map to other tokens or classes than the ids of the task's data, so its "
                "weights cannot be used here"
            )
        body, fresh = _with_new_head(model, tensors)
        fill_model(model, body, bundle.path)
        return fresh

    def require_same_weights(self, sha256: str) -> None:
        """Raise FolderError if the folder has other weights than those of the recipe."""
        if sha256 != self.sha256:
            raise FolderError(
                f"{self.folder}: its weights are not those in the recipe (their sha256 differs); "
                "was it trained or compiled again?"
            )


def _same_source(ours: Codec, theirs: Codec) -> bool:
    """Return whether two encoders read the same ids."""
    if ours.source is None or theirs.source is None or theirs.target is not None:
        return False
    return ours.source.to_json() == theirs.source.to_json()


def _sizes(stored: FolderSizes, own: Codec, codec: Codec) -> Sizes:
    """Return the sizes of the folder's model; of an encoder with other classes, with their number."""
    sizes = Sizes(**stored.model_dump())
    if codec.classes is None or codec.classes == own.classes:
        return sizes
    return Sizes(sizes.source, len(codec.classes))


def _with_new_head(model: Model, tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], list[str]]:
    """Return the tensors of a model with another head, which keeps its random weights, and the names of these.

    A transform before the head stays as it was trained, if the model still has it.
    """
    own = model_tensors(model)
    fresh = [name for name in own if name.startswith(HEAD[0]) or (name.startswith(HEAD) and name not in tensors)]
    body = {name: tensor for name, tensor in tensors.items() if name in own or not name.startswith(HEAD)}
    return {**body, **{name: own[name].clone() for name in fresh}}, fresh


def describe_start(start: StartConfig | None) -> str:
    """Describe the initial weights of a run."""
    return "random weights" if start is None else f"the weights of {start.folder} (sha256 {start.sha256[:12]})"


def describe_new(model: Model, fresh: list[str]) -> str:
    """Describe the weights of a model that stay random, for a note; empty if there are none."""
    if not fresh:
        return ""
    count = sum(model_tensors(model)[name].numel() for name in fresh)
    return f"; {counted(count, 'weight')} of its head are new and random: {', '.join(fresh)}"
