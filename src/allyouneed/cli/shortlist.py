"""`allyouneed shortlist`: add a vocabulary shortlist to a model, for faster translation."""

from typing import Annotated

import typer

from allyouneed.cli.model_options import ModelFolder, pair_files


def command(
    model: ModelFolder,
    best: Annotated[
        int, typer.Option(min=1, help="Target words allowed by each source word: its most probable translations.")
    ] = 50,
    always: Annotated[
        int, typer.Option(min=0, help="Target words that are always allowed: the most frequent ones.")
    ] = 100,
    source: Annotated[
        str | None, typer.Option(help="File of source texts to learn from, one per line (with --reference).")
    ] = None,
    reference: Annotated[str | None, typer.Option(help="File of their translations, one per line.")] = None,
    data: Annotated[str | None, typer.Option(help="TSV file to learn from: source TAB translation.")] = None,
) -> None:
    """Add a vocabulary shortlist to a model, for faster decoding.

    A shortlist holds the target words that a source allows. With it, translate --shortlist, evaluate --shortlist and
    serve --shortlist score a few hundred words in each step instead of all. Word translations are learnt from the
    model's own training pairs (IBM Model 1), or from files. The command reports how many words of the validation
    references are still allowed or, with files, how many words of the model's own answers. Larger --best and --always
    allow more.
    """
    from allyouneed.cli.progress import progress
    from allyouneed.cli.terminal import note
    from allyouneed.errors import ConfigError
    from allyouneed.folder import add_shortlist
    from allyouneed.shortlist.build import learn_shortlist, open_for_shortlist

    files = pair_files(source, reference, data)
    if data is not None and source is not None:
        raise ConfigError("give one of --data, or --source and --reference")
    with open_for_shortlist(model) as bundle:
        with progress() as show:
            shortlist, notes = learn_shortlist(
                bundle, files, best=best, always=always, progress=lambda part: show(part, "learning word translations")
            )
        for line in notes:
            note(line)
        add_shortlist(bundle, shortlist)
    print(f"{bundle.path}: {shortlist.signature} (use it: allyouneed translate {model} --shortlist)")
