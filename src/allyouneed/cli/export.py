"""`allyouneed export`: a model folder in the form of another program."""

from pathlib import Path
from typing import Annotated

import typer

TARGETS = ("hf", "ctranslate2", "onnx")  # the lines of interop.EXPORTS, which needs torch


def command(
    model: Annotated[str, typer.Argument(help="A model folder, or the run folder that holds one.")],
    to: Annotated[str, typer.Option(help=f"{', '.join(TARGETS)}.")],
    out: Annotated[Path, typer.Option(help="The folder that is written; an export of the same kind is replaced.")],
    quantization: Annotated[
        str | None, typer.Option(help="Of a ctranslate2 folder: float32, int16, int8.", show_default="float32")
    ] = None,
) -> None:
    """Write a model for another program.

    hf: a folder that Hugging Face's transformers loads. ctranslate2, onnx: folders that these engines run; both engines
    are compared with ours first, and a folder that disagrees is not written.
    """
    from allyouneed.cli.progress import progress
    from allyouneed.cli.terminal import note
    from allyouneed.errors import ConfigError, unknown_name
    from allyouneed.folder import load_folder
    from allyouneed.interop import EXPORTS
    from allyouneed.interop.output_folder import require_safe_output

    if to not in EXPORTS:
        raise ConfigError(f"--to {to}: {unknown_name(to, EXPORTS)}")
    require_safe_output(out, Path(model), to)  # of a run folder all; an exporter knows the model folder in it alone
    bundle = load_folder(model)
    with progress() as report:
        lines = EXPORTS[to](bundle, out, quantization, report)
    for line in lines:
        note(line)
    print(out)
