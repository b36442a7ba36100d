"""`allyouneed score`: how probable are given texts?"""

import sys
from typing import Annotated

import typer

from allyouneed.cli.model_options import Device, open_model


def command(
    model: Annotated[str, typer.Argument(help="A model folder, or the run folder that holds one.")],
    device: Device = "cpu",
) -> None:
    """How probable are the lines of standard input?

    Prints log probability (nats) and number of tokens, parted by a TAB. A line is source TAB target (text TAB class);
    for a language model it is a text.
    """
    from allyouneed.cli.stdin import NAME, line_batches
    from allyouneed.evaluation.probabilities import score_lines

    bundle = open_model(model, device)
    number = 0
    for lines in line_batches():
        for scored in score_lines(bundle, lines, str(NAME), number):
            print("" if scored is None else f"{scored.logprob:.6f}\t{scored.tokens}")
        sys.stdout.flush()
        number += len(lines)
