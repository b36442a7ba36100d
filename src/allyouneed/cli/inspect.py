"""`allyouneed inspect`: what a model does with a text, as a page and a picture."""

from pathlib import Path
from typing import Annotated

import typer

from allyouneed.cli.model_options import Device, open_model
from allyouneed.cli.stdin import text_argument


def command(
    model: Annotated[str, typer.Argument(help="A model folder, or the run folder that holds one.")],
    text: Annotated[str, typer.Argument(help="The text it reads.", callback=text_argument)],
    target: Annotated[
        str | None,
        typer.Option(help="What it should say to it.", show_default="its own answer", callback=text_argument),
    ] = None,
    out: Annotated[Path, typer.Option(help="The folder that is written.")] = Path("inspect"),
    max_tokens: Annotated[int | None, typer.Option(help="Tokens that it says at most.", min=0)] = None,
    device: Device = "cpu",
) -> None:
    """Look into a model: its answer with the odds of every token, and who read whom, as one HTML file and a PNG."""
    from allyouneed.cli.terminal import one_line
    from allyouneed.inspection.inspect import look
    from allyouneed.inspection.page import write_inspection

    bundle = open_model(model, device)
    found = look(bundle, text, target, new_tokens=max_tokens)
    page, picture = write_inspection(out, bundle, text, found)
    print(one_line(found.answer))
    if found.note:
        print(found.note)
    print(page)
    print(picture)
