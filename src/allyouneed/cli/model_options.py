"""Options that several commands share, and how they open a model for inference."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from allyouneed.config import override
from allyouneed.errors import ConfigError

if TYPE_CHECKING:
    from allyouneed.folder import Bundle
    from allyouneed.shortlist.table import Shortlist


ModelFolder = Annotated[str, typer.Argument(help="Model folder or run folder.")]
Data = Annotated[
    str | None,
    typer.Option(
        help="File in the format of the task (TSV, JSONL, TMX, Parquet; for a language model also text), a pattern, or "
        'a table as in a recipe: \'{files="test.jsonl", source="en", target="de"}\' (docs/data.md).'
    ),
]
Adapter = Annotated[
    str | None, typer.Option(help="Adapter folder of LoRA, or its run folder, that belongs to the model.")
]
Device = Annotated[str, typer.Option(help="Device: cpu, cuda, cuda:1.")]


Int8 = Annotated[bool, typer.Option("--int8", help="Multiply matrices in int8: faster, slightly less accurate.")]
Listed = Annotated[
    bool,
    typer.Option(
        "--shortlist",
        help="Restrict decoding to the model's shortlist (see `allyouneed shortlist`): faster with large vocabularies "
        "and beams; outputs may differ slightly.",
    ),
]
Engine = Annotated[
    Literal["torch", "ctranslate2"],
    typer.Option(help="Inference engine. Both give the same outputs for a trained model."),
]

SourceLanguage = Annotated[
    str | None,
    typer.Option("--from", help="Language of the source, of a multilingual model.", show_default="the model's own"),
]
TargetLanguage = Annotated[
    str | None,
    typer.Option("--to", help="Language of the target, of a multilingual model.", show_default="the model's choice"),
]


def open_model(
    folder: str,
    device: str = "cpu",
    sets: Sequence[str] = (),
    int8: bool = False,
    engine: str = "torch",
    adapter: str | None = None,
    others: Sequence[str] = (),
) -> "Bundle":
    """Load the model of a folder, optimized for inference. CTranslate2 converts the plain model itself.

    `others`: folders of models that form an ensemble with it.
    """
    from allyouneed.folder import load_folder
    from allyouneed.malloc import keep_freed_memory
    from allyouneed.pipeline import load

    if engine == "ctranslate2":
        return load_folder(folder, device, sets, adapter=adapter)
    keep_freed_memory()
    return load(folder, device=device, sets=sets, int8=int8, adapter=adapter, ensemble=others)


def in_languages(bundle: "Bundle", source: str | None, target: str | None) -> "Bundle":
    """Return a multilingual model for two of its languages; None keeps its own."""
    from allyouneed.evaluation.settings import in_languages as codec_in_languages

    return replace(bundle, codec=codec_in_languages(bundle, source, target))


def shortlist_of(bundle: "Bundle", wanted: bool) -> "Shortlist | None":
    """Return the shortlist of a folder if `wanted`."""
    if not wanted:
        return None
    from allyouneed.shortlist.build import require_shortlist

    return require_shortlist(bundle)


def corpora_of(data: str) -> Any:
    """Return the corpora of --data: a name, or a table or list as a recipe has them."""
    return override({}, [f"data={data}"])["data"] if data.startswith(("[", "{")) else [data]


def pair_files(source: str | None, reference: str | None, data: str | None) -> Any:
    """Return the files of --source and --reference, or of --data, or none. Callers refuse both."""
    if (source is None) != (reference is None):
        raise ConfigError("--source and --reference need each other; give both, or --data")
    if data is not None:
        return corpora_of(data)
    return [source, reference] if source is not None and reference is not None else []


def check_engine(engine: str, device: str, shortlist: bool = False) -> None:
    """Raise ConfigError if an engine is not installed, or does not support the device or shortlists."""
    if engine == "ctranslate2":
        from allyouneed.interop.ctranslate2.files import require_package
        from allyouneed.interop.ctranslate2.vmap import refuse_shortlist

        refuse_shortlist(shortlist)

        require_package()
        if device != "cpu":
            raise ConfigError(
                f"--engine ctranslate2 runs on the cpu, not on --device {device}; --engine torch runs on both"
            )
