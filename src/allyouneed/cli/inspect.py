"""`allyouneed inspect`: write a page and a picture of what a model does with a text."""

from pathlib import Path
from typing import Annotated

import typer

from allyouneed.cli.model_options import Device, open_model
from allyouneed.cli.stdin import text_argument


def command(
    model: Annotated[str, typer.Argument(help="Model folder or run folder.")],
    text: Annotated[str, typer.Argument(help="Input text.", callback=text_argument)],
    target: Annotated[
        str | None,
        typer.Option(help="Output to inspect.", show_default="the model's own output", callback=text_argument),
    ] = None,
    out: Annotated[Path, typer.Option(help="Output folder.")] = Path("inspect"),
    max_tokens: Annotated[int | None, typer.Option(help="Maximum number of new tokens.", min=0)] = None,
    device: Device = "cpu",
) -> None:
    """Show token probabilities and attention weights for one text.

    Writes an HTML file and a PNG.
    """
    from allyouneed.cli.terminal import one_line
    from allyouneed.evaluation.settings import sentence_splitter
    from allyouneed.inspection.inspect import inspect_text
    from allyouneed.inspection.page import PAGE, PICTURE, write_inspection
    from allyouneed.storage import refuse_foreign

    refuse_foreign(out, "a folder of an inspection", (PAGE, PICTURE), (PICTURE,))
    bundle = open_model(model, device)
    found = inspect_text(bundle, text, target, new_tokens=max_tokens)
    pieces = len(sentence_splitter(bundle).split_lines(text).pieces)
    page, picture = write_inspection(out, bundle, text, found, pieces)
    print(one_line(found.answer))
    if pieces > 1:
        print(f"`translate` translates this text in {pieces} pieces; here the model reads it as a whole.")
    if found.note:
        print(found.note)
    print(page)
    print(picture)
