"""`allyouneed export`: a model folder in the form of another program."""

from pathlib import Path
from typing import Annotated

import typer

TARGETS = ("hf",)  # the lines of interop.EXPORTS, which needs torch


def command(
    model: Annotated[str, typer.Argument(help="A model folder, or the run folder that holds one.")],
    to: Annotated[str, typer.Option(help=f"{', '.join(TARGETS)}.")],
    out: Annotated[Path, typer.Option(help="The folder that is written.")],
) -> None:
    """Write a model for another program: hf is a folder that Hugging Face's transformers loads."""
    from allyouneed.cli.terminal import note
    from allyouneed.errors import ConfigError, unknown_name
    from allyouneed.folder import load_folder
    from allyouneed.interop import EXPORTS

    if to not in EXPORTS:
        raise ConfigError(f"--to {to}: {unknown_name(to, EXPORTS)}")
    for line in EXPORTS[to](load_folder(model), out):
        note(line)
    print(out)
