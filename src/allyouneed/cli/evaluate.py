"""`allyouneed evaluate`: scores with signatures, on held-out data or on given files."""

from typing import Annotated, Literal

import typer

from allyouneed.cli.model_options import Device, Int8, Listed, open_model, pair_files, shortlist_of


def command(
    model: Annotated[str, typer.Argument(help="A model folder, or the run folder that holds one.")],
    split: Annotated[
        Literal["valid", "test"] | None,
        typer.Option(help="Of the model's own task.", show_default="test if there is one"),
    ] = None,
    source: Annotated[str | None, typer.Option(help="Source texts, one a line (with --reference).")] = None,
    reference: Annotated[str | None, typer.Option(help="What should come out, one a line.")] = None,
    data: Annotated[
        str | None, typer.Option(help="TSV file like the task's own; for a language model a text file.")
    ] = None,
    beam: Annotated[int | None, typer.Option(help="Hypotheses side by side.", show_default="the recipe's")] = None,
    length_penalty: Annotated[float | None, typer.Option(help="Alpha.", show_default="the recipe's")] = None,
    sets: Annotated[
        list[str] | None,
        typer.Option("--set", help="Any setting that is no part of the weights: --set model.mixer.memory=512."),
    ] = None,
    int8: Int8 = False,
    shortlist: Listed = False,
    device: Device = "cpu",
) -> None:
    """Measure a model on held-out data or on files.

    BLEU and chrF (sacreBLEU), exact match, accuracy, perplexity, bits per character: what its task can be measured by.
    """
    from allyouneed.cli.terminal import note
    from allyouneed.errors import ConfigError
    from allyouneed.evaluation.measure import evaluate_files, evaluate_split
    from allyouneed.evaluation.settings import search_config
    from allyouneed.words import printable

    files = pair_files(source, reference, data)
    if (data is not None) + (source is not None) + (split is not None) > 1:
        raise ConfigError("give one of --split, --data, or --source and --reference")
    bundle = open_model(model, device, sets or (), int8)
    search = search_config(bundle, {"beam": beam, "length_penalty": length_penalty})
    listed = shortlist_of(bundle, shortlist)
    if files:
        scores = evaluate_files(bundle, files, search, note, listed)
    else:
        scores = evaluate_split(bundle, split, search, note, listed)
    for score in scores:
        signature = "|".join([score.signature, *(sets or ()), *(["int8"] if int8 else [])])
        print(f"{score.name} = {score.value:.4f}  {printable(signature)}")
