"""`allyouneed embed`: a vector for each text."""

import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Annotated, Literal

import typer

from allyouneed.cli.model_options import Adapter, Device, Int8, ModelFolder
from allyouneed.cli.stdin import MOST_LINES, line_batches
from allyouneed.words import counted

MOST_NAMED = 5  # lines that a message names


def command(
    model: ModelFolder,
    file: Annotated[Path | None, typer.Argument(help="A text on each line.", show_default="standard input")] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Output: .jsonl, .npy or .parquet (extra: arrow).", show_default="JSON on standard output"),
    ] = None,
    pool: Annotated[
        Literal["mean", "cls", "last"],
        typer.Option(help="The mean of all positions, the first one (of an encoder), or the last one."),
    ] = "mean",
    normalize: Annotated[bool, typer.Option(help="Scale each vector to length 1.")] = True,
    max_length: Annotated[
        int | None,
        typer.Option(min=1, help="Tokens of a text that are read, its special ones included.", show_default="all"),
    ] = None,
    int8: Int8 = False,
    adapter: Adapter = None,
    device: Device = "cpu",
) -> None:
    """Print the vector of each line as a JSON list, or write the vectors of all lines to a file.

    A text of more tokens than the model can read is truncated to its first ones, and a line on standard error states
    how many texts were.
    """
    from allyouneed.decode.vector_files import open_vectors
    from allyouneed.malloc import keep_freed_memory
    from allyouneed.pipeline import load
    from allyouneed.text.lines import lines

    keep_freed_memory()
    bundle = load(model, device=device, int8=int8, adapter=adapter)
    batches: Iterator[list[str]] = line_batches() if file is None else _batches(lines(file))
    number, truncated = 0, list[int]()
    with open_vectors(out) as vectors:
        for batch in batches:
            found = bundle.embed(batch, pool=pool, normalize=normalize, max_length=max_length)
            vectors.extend([one.vector_D for one in found])
            truncated += [number + place for place, one in enumerate(found, start=1) if one.left_out]
            number += len(batch)
    if truncated:
        named = ", ".join(f"{line:,}" for line in truncated[:MOST_NAMED]) + ", ..." * (len(truncated) > MOST_NAMED)
        what = f"of {counted(number, 'text')}, {len(truncated):,} had more tokens than are read and were truncated"
        print(f"{what}: line {named}", file=sys.stderr)


def _batches(lines: Iterator[str]) -> Iterator[list[str]]:
    while batch := list(islice(lines, MOST_LINES)):
        yield batch
