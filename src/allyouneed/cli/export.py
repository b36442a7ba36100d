"""`allyouneed export`: write a model for another program."""

from pathlib import Path
from typing import Annotated

import typer

from allyouneed.cli.model_options import Adapter

TARGETS = ("hf", "ctranslate2", "onnx", "int8")  # the keys of interop.EXPORTS, whose import needs torch


def command(
    model: Annotated[str, typer.Argument(help="Model folder or run folder.")],
    to: Annotated[str, typer.Option(help=f"The target: {', '.join(TARGETS)}.")],
    out: Annotated[Path, typer.Option(help="Folder to write; replaces an earlier export to the same target.")],
    quantization: Annotated[
        str | None,
        typer.Option(
            help="The type of the weights. With --to ctranslate2: float32, int16 or int8. With --to hf: float32, "
            "bfloat16 or float16.",
            show_default="float32; with --to hf the type of the imported model",
        ),
    ] = None,
    adapter: Adapter = None,
) -> None:
    """Write a model for another program.

    hf: a folder for Hugging Face's transformers. ctranslate2, onnx: a folder for that engine. These two are compared
    with our engine first; if they disagree, nothing is written. int8: a model folder of ours with its matrices in int8.
    """
    from allyouneed.cli.progress import progress
    from allyouneed.cli.terminal import note
    from allyouneed.errors import ConfigError, unknown_name
    from allyouneed.folder import load_folder
    from allyouneed.interop import EXPORTS
    from allyouneed.interop.int8 import is_rounded
    from allyouneed.interop.output_folder import require_safe_output

    if to not in EXPORTS:
        raise ConfigError(f"--to {to}: {unknown_name(to, EXPORTS)}")
    # Protects the whole run folder; exporters see only the model folder in it.
    if to == "int8":
        require_safe_output(out, Path(model), "model", is_rounded)
    else:
        require_safe_output(out, Path(model), to)
    bundle = load_folder(model, adapter=adapter)
    with progress() as report:
        lines = EXPORTS[to](bundle, out, quantization, report)
    for line in lines:
        note(line)
    print(out)
