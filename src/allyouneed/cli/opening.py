"""Opening a model that a command will only predict with."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from allyouneed.errors import ConfigError

if TYPE_CHECKING:
    from allyouneed.folder import Bundle


Device = Annotated[str, typer.Option(help="cpu, cuda, cuda:1.")]


def open_model(folder: str, device: str = "cpu", sets: Sequence[str] = ()) -> "Bundle":
    """The model of a folder, its memory laid out for prediction."""
    from allyouneed.folder import load_folder
    from allyouneed.malloc import keep_freed_memory
    from allyouneed.models.layout import lay_out_for_prediction

    check_device(device)
    keep_freed_memory()
    bundle = load_folder(folder, device, sets)
    lay_out_for_prediction(bundle.model)
    return bundle


def check_device(name: str) -> None:
    """Refuses a device that is not there."""
    import torch

    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:  # torch raises either, depending on the kind of device
        reason = str(error).splitlines()[0]
        raise ConfigError(f"--device {name}: not usable here: {reason}; cpu always is") from None
