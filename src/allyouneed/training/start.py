"""Where a run begins: with random weights, or with those of a model folder (another run's, or a compiled program's)."""

from typing import Annotated

from pydantic import Field

from allyouneed.config import Config
from allyouneed.errors import ConfigError, FolderError
from allyouneed.folder import fill_model, load_folder, model_tensors
from allyouneed.models import Model
from allyouneed.text.codec import Codec


class StartConfig(Config):
    """A model folder whose weights are those before the first step."""

    folder: str
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]  # of its weights: they are what counts, wherever they lie

    def fill(self, model: Model, codec: Codec) -> None:
        """Copies the weights into a model whose ids are those of `codec`."""
        bundle = load_folder(self.folder)
        if bundle.sha256 != self.sha256:
            raise FolderError(
                f"{self.folder}: its weights are not those that the recipe names (their sha256 differs); "
                "was it trained or compiled again?"
            )
        if not bundle.codec.means_the_same(codec):
            raise ConfigError(
                f"{self.folder}: its ids mean other tokens or classes than those of the task's data, so that its "
                "weights are of no use here"
            )
        fill_model(model, model_tensors(bundle.model), bundle.path)


def described(start: StartConfig | None) -> str:
    """What a run begins with, in words."""
    return "random weights" if start is None else f"the weights of {start.folder} (sha256 {start.sha256[:12]})"
