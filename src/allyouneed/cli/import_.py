"""`allyouneed import`: convert a Hugging Face folder to a model folder."""

from pathlib import Path
from typing import Annotated

import typer


def command(
    folder: Annotated[
        Path,
        typer.Argument(
            help="A folder with config.json, model.safetensors and tokenizer.json (or SentencePiece models)."
        ),
    ],
    out: Annotated[Path, typer.Option(help="The model folder to write.")],
) -> None:
    """Convert a Hugging Face folder to a model folder. No code in it is run; unknown fields are errors."""
    from allyouneed.cli.terminal import note
    from allyouneed.interop.hf.load import import_folder

    for line in import_folder(folder, out):
        note(line)
    print(out)
