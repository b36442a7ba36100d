"""Opening a model that a command will only predict with."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from allyouneed.errors import ConfigError

if TYPE_CHECKING:
    from allyouneed.folder import Bundle


Device = Annotated[str, typer.Option(help="cpu, cuda, cuda:1.")]


Int8 = Annotated[bool, typer.Option("--int8", help="Weights and products in bytes: faster, a little less exact.")]
Engine = Annotated[
    Literal["torch", "ctranslate2"], typer.Option(help="What computes; ctranslate2 gives the same translations.")
]


def open_model(folder: str, device: str = "cpu", sets: Sequence[str] = (), int8: bool = False) -> "Bundle":
    """The model of a folder, its memory laid out for prediction."""
    from allyouneed.folder import load_folder
    from allyouneed.malloc import keep_freed_memory
    from allyouneed.models.layout import lay_out_for_prediction

    check_device(device)
    keep_freed_memory()
    bundle = load_folder(folder, device, sets)
    lay_out_for_prediction(bundle.model, int8)
    return bundle


def check_engine(engine: str, device: str) -> None:
    """Refuses an engine that is not there, or not for this device."""
    if engine == "ctranslate2":
        from allyouneed.interop.ctranslate2.files import require_package

        require_package()
        if device != "cpu":
            raise ConfigError(f"--engine ctranslate2 runs on the cpu, not on --device {device}; torch runs on both")


def check_device(name: str) -> None:
    """Refuses a device that is not there."""
    import torch

    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:  # torch raises either, depending on the kind of device
        reason = str(error).splitlines()[0]
        raise ConfigError(f"--device {name}: not usable here: {reason}; cpu always is") from None
