"""`allyouneed translate`: translate (or classify) standard input, line by line."""

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from allyouneed.cli.model_options import (
    Device,
    Engine,
    Int8,
    Listed,
    ModelFolder,
    SourceLanguage,
    TargetLanguage,
    check_engine,
    in_languages,
    open_model,
    shortlist_of,
)

if TYPE_CHECKING:
    from allyouneed.cli.progress import LineMeter
    from allyouneed.decode import Answer, SearchConfig
    from allyouneed.decode.sentences import Translate
    from allyouneed.folder import Bundle
    from allyouneed.shortlist.table import Shortlist
    from allyouneed.text.sentences import SentenceSplitter


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
    sentences: Annotated[
        Literal["auto", "always", "never"],
        typer.Option(
            help="Split a line into sentences, translate each and join the results. auto: if the line has more "
            "sentences than a line of the training data usually had."
        ),
    ] = "auto",
    source_language: SourceLanguage = None,
    target_language: TargetLanguage = None,
    device: Device = "cpu",
) -> None:
    """Translate or classify each line of standard input."""
    from allyouneed.cli.progress import line_meter
    from allyouneed.cli.stdin import line_batches
    from allyouneed.decode.sentences import in_pieces
    from allyouneed.evaluation.settings import require_source, search_config, sentence_splitter

    check_engine(engine, device, shortlist)
    bundle = in_languages(open_model(model, device, int8=int8, engine=engine), source_language, target_language, engine)
    require_source(bundle, "translate")
    changes = {"beam": beam, "length_penalty": length_penalty, "n_best": n_best, "max_length": max_length}
    search = search_config(bundle, changes)
    splitter = sentence_splitter(bundle, sentences)
    before = 0  # lines of earlier batches
    unknown: list[int] = []
    with line_meter() as meter:
        if engine == "ctranslate2":
            answer_whole = _in_ctranslate2(bundle, search, int8, scores, meter)
        else:
            answer_whole = _in_torch(bundle, search, shortlist_of(bundle, shortlist), meter)
        answer_texts = in_pieces(splitter, answer_whole, search.n_best)
        for texts in line_batches(check=_checker(bundle, splitter, unknown)):
            meter.begin(texts)
            answers = iter(answer_texts([text for text in texts if text.strip()]))
            for number, text in enumerate(texts, start=before + 1):
                _print(next(answers) if text.strip() else [None], number if search.n_best > 1 else None, scores)
            before += len(texts)
            sys.stdout.flush()
            meter.end()
    _note_unknown(unknown)


def _note_unknown(unknown: Sequence[int]) -> None:
    """Note the lines with unknown text."""
    from allyouneed.cli.terminal import note

    if unknown:
        where = f"line {unknown[0]} has" if len(unknown) == 1 else f"{len(unknown):,} lines (first: {unknown[0]}) have"
        note(f"{where} text that the model did not see in training; the answer may be meaningless")


def _checker(bundle: "Bundle", splitter: "SentenceSplitter", unknown: list[int]) -> Callable[[str, int], None]:
    """Return a check of a line, given the lines before it. Lines with unknown text are added to `unknown`."""
    from allyouneed.cli.stdin import NAME
    from allyouneed.text.checks import require_known, require_short, unknown_words

    def check(text: str, before: int) -> None:
        for piece in splitter.split(text).pieces:
            require_short(bundle.codec.source, [piece], str(NAME), before)
        require_known(bundle.codec, [text], str(NAME), before, bundle.model.longest_source)
        if bundle.codec.source is not None and unknown_words(bundle.codec.source, text):
            unknown.append(before + 1)

    return check


def _print(answers: "Sequence[Answer | None]", number: int | None, scores: bool) -> None:
    """Print the answers for one line; None is that of an empty one."""
    from allyouneed.cli.terminal import one_line

    for answer in answers:
        columns = [] if number is None else [str(number)]
        columns += [f"{answer.score if answer else 0.0:.4f}"] if scores else []
        print(*columns, one_line(answer.text) if answer else "", sep="\t")


def _in_torch(
    bundle: "Bundle", search: "SearchConfig", shortlist: "Shortlist | None", meter: "LineMeter"
) -> "Translate":
    from allyouneed.decode import translate

    def answer(texts: list[str]) -> "list[list[Answer]]":
        meter.expect(len(texts))
        return translate(bundle.model, bundle.codec, texts, search, meter.advance, shortlist)

    return answer


def _in_ctranslate2(
    bundle: "Bundle", search: "SearchConfig", int8: bool, scores: bool, meter: "LineMeter"
) -> "Translate":
    from allyouneed.decode.translate import as_answers
    from allyouneed.interop.ctranslate2.engine import CTranslate2Engine

    engine, codec = CTranslate2Engine(bundle, int8), bundle.codec

    def answer(texts: list[str]) -> "list[list[Answer]]":
        meter.expect(len(texts))
        found = engine.search(codec.encode_sources(texts), search, meter.advance, exact=scores)
        return as_answers(codec, found)

    return answer
