"""The initial weights of a run: random, or those of a model folder (of another run, or of a compiled program)."""

from typing import Annotated

from pydantic import Field

from allyouneed.config import Config
from allyouneed.errors import ConfigError, FolderError
from allyouneed.folder import load_folder
from allyouneed.models import Model
from allyouneed.text.codec import Codec
from allyouneed.training.process_group import is_rank0
from allyouneed.weights import fill_model, model_tensors


class StartConfig(Config):
    """A model folder that holds the initial weights."""

    folder: str
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]  # of its weights, wherever the folder is

    def fill(self, model: Model, codec: Codec) -> None:
        """Copy the weights into a model whose ids are those of `codec`."""
        bundle = load_folder(self.folder, announce=is_rank0())
        if bundle.sha256 != self.sha256:
            raise FolderError(
                f"{self.folder}: its weights are not those in the recipe (their sha256 differs); "
                "was it trained or compiled again?"
            )
        if not bundle.codec.same_ids_as(codec):
            raise ConfigError(
                f"{self.folder}: its ids map to other tokens or classes than the ids of the task's data, so its "
                "weights cannot be used here"
            )
        fill_model(model, model_tensors(bundle.model), bundle.path)


def describe_start(start: StartConfig | None) -> str:
    """Describe the initial weights of a run."""
    return "random weights" if start is None else f"the weights of {start.folder} (sha256 {start.sha256[:12]})"
