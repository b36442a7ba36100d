"""`allyouneed shortlist`: which words a source allows, for faster translation."""

from typing import Annotated

import typer

from allyouneed.cli.model_options import pair_files


def command(
    model: Annotated[str, typer.Argument(help="A model folder, or the run folder that holds one.")],
    best: Annotated[
        int, typer.Option(min=1, help="Words that each source word allows: its likeliest translations.")
    ] = 50,
    always: Annotated[int, typer.Option(min=0, help="Words that every source allows: the most frequent ones.")] = 100,
    source: Annotated[
        str | None, typer.Option(help="Source texts to learn from, one a line (with --reference).")
    ] = None,
    reference: Annotated[str | None, typer.Option(help="Their translations, one a line.")] = None,
    data: Annotated[str | None, typer.Option(help="A TSV file to learn from: source TAB translation.")] = None,
) -> None:
    """Put a shortlist into a model folder: which words a source allows.

    With it, translate --shortlist, evaluate --shortlist and serve --shortlist look at some hundred words in each step
    instead of all. Which words translate which is learnt from the model's own training pairs (IBM Model 1), or from
    files. It tells how many words of the references of the validation split are still allowed or, with files, of what
    the model itself says to some of their texts; more --best and --always allow more.
    """
    from allyouneed.cli.progress import progress
    from allyouneed.cli.terminal import note
    from allyouneed.errors import ConfigError
    from allyouneed.folder import add_shortlist
    from allyouneed.shortlist.build import learn_shortlist, opened

    files = pair_files(source, reference, data)
    if data is not None and source is not None:
        raise ConfigError("give one of --data, or --source and --reference")
    with opened(model) as bundle:
        with progress() as tell:
            shortlist, notes = learn_shortlist(
                bundle, files, best=best, always=always, progress=lambda part: tell(part, "which words translate which")
            )
        for line in notes:
            note(line)
        add_shortlist(bundle, shortlist)
    print(f"{bundle.path}: {shortlist.signature} (use it: allyouneed translate {model} --shortlist)")
