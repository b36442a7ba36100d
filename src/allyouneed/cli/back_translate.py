"""`allyouneed data back-translate`: pairs for training from texts in the target language alone."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from allyouneed.cli.model_options import (
    Adapter,
    Device,
    Int8,
    Listed,
    SourceLanguage,
    TargetLanguage,
    open_model,
)
from allyouneed.errors import ConfigError

if TYPE_CHECKING:
    from allyouneed.corpus.back_translation import BackSettings, BackTranslated
    from allyouneed.decode import SampleConfig
    from allyouneed.folder import Bundle

ReverseFolder = Annotated[
    str, typer.Argument(help="Model folder or run folder of a model from the target to the source language.")
]
Texts = Annotated[
    list[str],
    typer.Argument(
        help="Texts in the target language, one per line or record: files, patterns and tables as in a recipe: "
        '\'{files="news-*.jsonl.gz", text="de"}\' (docs/data.md).'
    ),
]
Beam = Annotated[int | None, typer.Option(help="Beam size; 1 is greedy search.", show_default="from the recipe")]
Sampled = Annotated[bool, typer.Option("--sample", help="Sample the translations instead of searching for the best.")]
Temperature = Annotated[float | None, typer.Option(help="Temperature of --sample.", show_default="1")]
TopK = Annotated[int | None, typer.Option("--top-k", help="Sample from this many most probable tokens.")]
Epsilon = Annotated[float | None, typer.Option(help="Sample from tokens of at least this probability.")]
Noise = Annotated[
    float,
    typer.Option(help="Drop each word of a translation with this probability, and move words by at most 3 places."),
]
Keep = Annotated[
    list[str] | None,
    typer.Option(help="Keep pairs whose translation is short, repeated or copied. May be repeated."),
]
SentenceSplit = Annotated[
    Literal["auto", "always", "never"], typer.Option(help="Translate a text sentence by sentence, as `translate` does.")
]


def command(
    model: ReverseFolder,
    files: Texts,
    out: Annotated[Path, typer.Option(help="Folder of the new corpus; the same command continues there.")],
    beam: Beam = None,
    sample: Sampled = False,
    temperature: Temperature = None,
    top_k: TopK = None,
    epsilon: Epsilon = None,
    noise: Noise = 0.0,
    seed: Annotated[int, typer.Option(help="Random seed of samples and noise.")] = 0,
    keep: Keep = None,
    sentences: SentenceSplit = "auto",
    source_language: SourceLanguage = None,
    target_language: TargetLanguage = None,
    int8: Int8 = False,
    shortlist: Listed = False,
    adapter: Adapter = None,
    device: Device = "cpu",
) -> None:
    """Translate texts of the target language back, and write a corpus: machine-made sources beside the texts.

    Pairs with an empty, short, repeated or copied source are dropped and listed in `dropped.jsonl`. After an
    interruption, the same command continues.
    """
    from allyouneed.cli.data_files import corpora_of_files
    from allyouneed.cli.progress import progress
    from allyouneed.corpus.back_translation import back_translate
    from allyouneed.tasks.meter import reporting_to
    from allyouneed.text.corpora import TextCorpus

    sampling = _sampling(
        sample, {"temperature": temperature, "top_k": top_k, "epsilon": epsilon}, beam, shortlist, seed
    )
    corpora = [one for one in corpora_of_files(files, "text") if isinstance(one, TextCorpus)]
    bundle = open_model(model, device, int8=int8, adapter=adapter)
    given: dict[str, object] = {"noise": noise, "seed": seed, "keep": keep or (), "sentences": sentences, "int8": int8}
    given |= {"source_language": source_language, "target_language": target_language, "shortlist": shortlist}
    settings = _settings(bundle, beam, sampling, given)
    with progress() as show, reporting_to(lambda text, fraction: show(fraction or 0.0, text)):
        made = back_translate(bundle, corpora, out, settings)
    _print(made)


def _sampling(
    sample: bool, given: Mapping[str, float | None], beam: int | None, shortlist: bool, seed: int
) -> "SampleConfig | None":
    """Return how translations are sampled; None: they are searched for."""
    from allyouneed.config import parse
    from allyouneed.decode import SampleConfig

    chosen = {name: value for name, value in given.items() if value is not None}
    if not sample:
        for name in chosen:
            raise ConfigError(f"--{name.replace('_', '-')}: has no effect without --sample; remove it")
        return None
    for name, value in (("--beam", beam is not None), ("--shortlist", shortlist)):
        if value:
            raise ConfigError(f"{name}: has no effect with --sample; remove it")
    return parse(SampleConfig, {**chosen, "seed": seed})


def _settings(
    bundle: "Bundle", beam: int | None, sampling: "SampleConfig | None", given: Mapping[str, object]
) -> "BackSettings":
    from allyouneed.config import parse
    from allyouneed.corpus.back_translation import BackSettings
    from allyouneed.evaluation.settings import require_source, search_config

    require_source(bundle, "translate")
    search = search_config(bundle, {"beam": beam})
    return parse(BackSettings, {**given, "search": search, "sample": sampling}, "options")


def _print(made: "BackTranslated") -> None:
    from allyouneed.corpus.back_translation import MEANINGS
    from allyouneed.words import counted

    for reason, count in made.reasons.most_common():
        print(f"dropped: {counted(count, 'text')}: {MEANINGS[reason]}")
    if made.empty:
        print(f"dropped: {counted(made.empty, 'empty text')}")
    print(f"pairs: {made.pairs:,} of {counted(made.texts, 'text')}")
    source, target = made.files
    print(f'for a recipe: {{ files = ["{source}", "{target}"], tag = "<BT>" }}')
