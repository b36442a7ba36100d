"""`allyouneed shortlist`: add a vocabulary shortlist to a model, for faster translation."""

from typing import Annotated

import typer

from allyouneed.cli.model_options import Data, ModelFolder, pair_files


def command(
    model: ModelFolder,
    best: Annotated[
        int, typer.Option(min=1, help="Allowed target words per source word: its most probable translations.")
    ] = 50,
    always: Annotated[
        int, typer.Option(min=0, help="Number of most frequent target words, which are always allowed.")
    ] = 100,
    source: Annotated[
        str | None, typer.Option(help="File of source texts to learn from, one per line (with --reference).")
    ] = None,
    reference: Annotated[str | None, typer.Option(help="File of their translations, one per line.")] = None,
    data: Data = None,
) -> None:
    """Add a vocabulary shortlist to a model, for faster decoding.

    For each source text, the shortlist allows only likely target words. With --shortlist, the commands translate,
    evaluate and serve score these few hundred words in each step instead of the whole vocabulary. Likely translations
    are learned from the model's training pairs (IBM Model 1) or from files. The command reports the fraction of words
    in the validation references (with files: in the model's own outputs) that the shortlist allows. Larger values of
    --best and --always allow more words.
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
