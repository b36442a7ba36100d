"""Opening a model that a command will only predict with."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from allyouneed.errors import ConfigError

if TYPE_CHECKING:
    from allyouneed.folder import Bundle
    from allyouneed.shortlist.table import Shortlist


Device = Annotated[str, typer.Option(help="cpu, cuda, cuda:1.")]


Int8 = Annotated[bool, typer.Option("--int8", help="Weights and products in bytes: faster, a little less exact.")]
Listed = Annotated[
    bool,
    typer.Option(
        "--shortlist",
        help="Only words that the source allows (`allyouneed shortlist` says which): faster with large vocabularies "
        "and beams; answers may differ a little.",
    ),
]
Engine = Annotated[
    Literal["torch", "ctranslate2"],
    typer.Option(help="What computes; ctranslate2 gives the same answers, once a model is trained."),
]


def open_model(folder: str, device: str = "cpu", sets: Sequence[str] = (), int8: bool = False) -> "Bundle":
    """Load the model of a folder, optimized for inference."""
    from allyouneed.malloc import keep_freed_memory
    from allyouneed.pipeline import load

    check_device(device)
    keep_freed_memory()
    return load(folder, device=device, sets=sets, int8=int8)


def shortlist_of(bundle: "Bundle", wanted: bool) -> "Shortlist | None":
    """The shortlist of a folder, if one is wanted."""
    if not wanted:
        return None
    from allyouneed.shortlist.build import require_shortlist

    return require_shortlist(bundle)


def pair_files(source: str | None, reference: str | None, data: str | None) -> list[str]:
    """The files that --source and --reference, or --data, name; none, if neither is given. Callers refuse both."""
    if (source is None) != (reference is None):
        raise ConfigError("--source and --reference belong together; give both, or --data")
    if data is not None:
        return [data]
    return [source, reference] if source is not None and reference is not None else []


def check_engine(engine: str, device: str, shortlist: bool = False) -> None:
    """Refuses an engine that is not there, or not for this device or shortlists."""
    if engine == "ctranslate2":
        from allyouneed.interop.ctranslate2.files import require_package
        from allyouneed.interop.ctranslate2.vmap import refuse_shortlist

        refuse_shortlist(shortlist)

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
