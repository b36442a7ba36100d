"""`allyouneed evaluate`: scores with signatures, on held-out data or on files."""

from typing import Annotated, Literal

import typer

from allyouneed.cli.model_options import (
    Adapter,
    Data,
    Device,
    Int8,
    Listed,
    ModelFolder,
    SourceLanguage,
    TargetLanguage,
    in_languages,
    open_model,
    pair_files,
    shortlist_of,
)


def command(
    model: ModelFolder,
    split: Annotated[
        Literal["valid", "test"] | None,
        typer.Option(help="Held-out split of the model's task.", show_default="test if there is one"),
    ] = None,
    source: Annotated[str | None, typer.Option(help="File of source texts, one per line (with --reference).")] = None,
    reference: Annotated[str | None, typer.Option(help="File of expected outputs, one per line.")] = None,
    data: Data = None,
    beam: Annotated[
        int | None, typer.Option(help="Beam size; 1 is greedy search.", show_default="from the recipe")
    ] = None,
    length_penalty: Annotated[
        float | None,
        typer.Option(help="Exponent of the length penalty; 0 disables it.", show_default="from the recipe"),
    ] = None,
    sets: Annotated[
        list[str] | None,
        typer.Option(
            "--set", help="Override a setting that does not affect the weights: --set model.mixer.memory=512."
        ),
    ] = None,
    source_language: SourceLanguage = None,
    target_language: TargetLanguage = None,
    int8: Int8 = False,
    shortlist: Listed = False,
    adapter: Adapter = None,
    device: Device = "cpu",
) -> None:
    """Score a model on held-out data or on files.

    Prints the metrics of the model's task: BLEU and chrF (sacreBLEU), exact match, accuracy, perplexity, bits per
    character.
    """
    from allyouneed.cli.terminal import note
    from allyouneed.errors import ConfigError
    from allyouneed.evaluation.measure import evaluate_files, evaluate_split
    from allyouneed.evaluation.settings import search_config
    from allyouneed.words import printable

    files = pair_files(source, reference, data)
    if (data is not None) + (source is not None) + (split is not None) > 1:
        raise ConfigError("give one of --split, --data, or --source and --reference")
    opened = open_model(model, device, sets or (), int8, adapter=adapter)
    bundle = in_languages(opened, source_language, target_language)
    search = search_config(bundle, {"beam": beam, "length_penalty": length_penalty})
    listed = shortlist_of(bundle, shortlist)
    if files:
        scores = evaluate_files(bundle, files, search, note, listed)
    else:
        scores = evaluate_split(bundle, split, search, note, listed)
    for score in scores:
        chosen = [f"{name}:{tag}" for name, tag in (("from", source_language), ("to", target_language)) if tag]
        signature = "|".join([score.signature, *(sets or ()), *chosen, *(["int8"] if int8 else [])])
        print(f"{score.name} = {score.value:.4f}  {printable(signature)}")
