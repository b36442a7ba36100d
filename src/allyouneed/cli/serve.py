"""`allyouneed serve`: models behind an HTTP API, and the page that shows them."""

from typing import Annotated

import typer


def command(
    models: Annotated[list[str], typer.Argument(help="Model folders, or run folders; NAME=FOLDER names one.")],
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port to listen on.")] = 8000,
) -> None:
    """Serve models over HTTP: translation, completions, scores, attention, and a page that shows them."""
