"""`allyouneed translate`: translate (or classify) standard input, line by line."""

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from allyouneed.cli.model_options import (
    Device,
    Engine,
    Int8,
    Listed,
    ModelFolder,
    check_engine,
    open_model,
    shortlist_of,
)

if TYPE_CHECKING:
    from allyouneed.decode import Answer, SearchConfig
    from allyouneed.folder import Bundle
    from allyouneed.shortlist.table import Shortlist

Translate = Callable[[list[str]], "list[list[Answer]]"]


def command(
    model: ModelFolder,
    beam: Annotated[
        int | None, typer.Option(help="Beam size; 1 is greedy search.", show_default="from the recipe")
    ] = None,
    length_penalty: Annotated[
        float | None,
        typer.Option(help="Exponent of the length penalty; 0 disables it.", show_default="from the recipe"),
    ] = None,
    n_best: Annotated[
        int | None, typer.Option(help="Number of outputs per line; each starts with its line number.")
    ] = None,
    max_length: Annotated[
        int | None, typer.Option(help="Maximum output length in tokens.", show_default="source length + 50")
    ] = None,
    scores: Annotated[bool, typer.Option("--scores", help="Print the score before each output.")] = False,
    engine: Engine = "torch",
    int8: Int8 = False,
    shortlist: Listed = False,
    device: Device = "cpu",
) -> None:
    """Translate or classify each line of standard input."""
    from allyouneed.cli.stdin import NAME, line_batches
    from allyouneed.cli.terminal import note, one_line
    from allyouneed.evaluation.settings import require_source, search_config
    from allyouneed.text.checks import require_known, require_short, unknown_words

    check_engine(engine, device, shortlist)
    bundle = open_model(model, device, int8=int8, engine=engine)
    require_source(bundle, "translate")
    changes = {"beam": beam, "length_penalty": length_penalty, "n_best": n_best, "max_length": max_length}
    search = search_config(bundle, changes)
    if engine == "ctranslate2":
        answer_texts = _in_ctranslate2(bundle, search, int8, scores)
    else:
        answer_texts = _in_torch(bundle, search, shortlist_of(bundle, shortlist))
    number, unknown = 0, []

    def check(text: str, before: int) -> None:
        require_short(bundle.codec.source, [text], str(NAME), before)
        require_known(bundle.codec, [text], str(NAME), before)
        if bundle.codec.source is not None and unknown_words(bundle.codec.source, text):
            unknown.append(before + 1)

    for texts in line_batches(check=check):
        filled = [text for text in texts if text.strip()]
        answers = iter(answer_texts(filled))
        for text in texts:
            number += 1
            for answer in next(answers) if text.strip() else [None]:
                columns = [str(number)] if search.n_best > 1 else []
                columns += [f"{answer.score if answer else 0.0:.4f}"] if scores else []
                print(*columns, one_line(answer.text) if answer else "", sep="\t")
        sys.stdout.flush()
    if unknown:
        where = f"line {unknown[0]} has" if len(unknown) == 1 else f"{len(unknown):,} lines (first: {unknown[0]}) have"
        note(f"{where} text that the model did not see in training; the answer may be meaningless")


def _in_torch(bundle: "Bundle", search: "SearchConfig", shortlist: "Shortlist | None") -> Translate:
    from allyouneed.decode import translate

    return lambda texts: translate(bundle.model, bundle.codec, texts, search, shortlist=shortlist)


def _in_ctranslate2(bundle: "Bundle", search: "SearchConfig", int8: bool, scores: bool) -> Translate:
    from allyouneed.decode.translate import as_answers
    from allyouneed.interop.ctranslate2.engine import CTranslate2Engine

    engine, codec = CTranslate2Engine(bundle, int8), bundle.codec
    return lambda texts: as_answers(codec, engine.search(codec.encode_sources(texts), search, exact=scores))
