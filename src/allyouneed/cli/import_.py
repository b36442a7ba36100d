"""`allyouneed import`: a model of Hugging Face as a model folder."""

from pathlib import Path
from typing import Annotated

import typer


def command(
    folder: Annotated[Path, typer.Argument(help="A folder with config.json, model.safetensors and tokenizer.json.")],
    out: Annotated[Path, typer.Option(help="The model folder that is written.")],
) -> None:
    """Make a model folder out of a Hugging Face folder. Nothing in it is run; what is not understood is refused."""
    from allyouneed.cli.terminal import note
    from allyouneed.interop.hf.load import import_folder

    for line in import_folder(folder, out):
        note(line)
    print(out)
