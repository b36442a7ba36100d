"""`allyouneed translate MODEL FILE`: translate a document and keep its structure."""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from allyouneed.errors import ConfigError, DataError, StorageError

if TYPE_CHECKING:
    from allyouneed.decode import Answer
    from allyouneed.documents.pieces import Document
    from allyouneed.documents.placement import Matrix
    from allyouneed.documents.translation import Pair, Result
    from allyouneed.folder import Bundle
    from allyouneed.text.sentences import SentenceSplitter

DocumentFile = Annotated[
    Path | None, typer.Argument(help="A document. Without it, the lines of standard input are translated.")
]
DocumentFormat = Annotated[
    Literal["auto", "text", "html", "markdown", "po", "xliff", "srt", "docx"],
    typer.Option("--format", help="Format of the document. auto: by the ending of its name."),
]
DocumentOut = Annotated[
    Path | None, typer.Option(help="File for the translated document.", show_default="standard output")
]
Answers = Callable[[list[str]], "list[list[Answer]]"]
ROWS = 1024  # sentences that are translated at once
BINARY = ("docx",)


def open_document(file: Path | None, kind: str, out: Path | None) -> "Document":
    """Return the document of a file, or of standard input. Refuse what cannot be written before a model is loaded."""
    from allyouneed.documents.files import LARGEST, format_of, read_bytes, read_document

    if file is None:
        if kind == "auto":
            raise ConfigError(
                "--format: a document from standard input needs its format (--format html); lines need neither it "
                "nor --out: `> FILE`"
            )
        raw, where = sys.stdin.buffer.read(LARGEST + 1), "standard input"
    else:
        kind = format_of(file) if kind == "auto" else kind
        raw, where = read_bytes(file), str(file)
    if kind in BINARY and out is None:
        raise ConfigError(f"{where}: a {kind} file is not text; state the file to write: --out translated.{kind}")
    if out is not None and file is not None and out.exists() and out.samefile(file):
        raise ConfigError(f"--out {out}: is the document itself; choose another name")
    return read_document(raw, kind, where)


def translate_file(
    document: "Document", bundle: "Bundle", splitter: "SentenceSplitter", answer: "Answers", out: Path | None
) -> None:
    """Translate a document, and write it to `out` or to standard output."""
    from allyouneed.evaluation.settings import between_languages, require_generator

    require_generator(bundle)
    result = _run(document, splitter, _best(bundle, answer), _aligner(bundle), between_languages(bundle))
    raw = document.write(result.segments)
    if out is None:
        sys.stdout.buffer.write(raw)
        sys.stdout.flush()
    else:
        try:
            out.write_bytes(raw)
        except OSError as error:
            raise StorageError(f"{out}: cannot be written: {error.strerror or error}") from None
    _note_places(result)


def _run(
    document: "Document",
    splitter: "SentenceSplitter",
    translate: Callable[[list[str]], list[str]],
    align: "Callable[[Sequence[Pair]], Sequence[Matrix | None]]",
    check: bool,
) -> "Result":
    from allyouneed.documents.translation import Texts, translate_document

    steps = translate_document(document, splitter, check)
    request = next(steps)
    while True:
        found = translate(request.texts) if isinstance(request, Texts) else align(request.pairs)
        try:
            request = steps.send(found)
        except StopIteration as end:
            result: Result = end.value
            return result


def _best(bundle: "Bundle", answer: "Answers") -> Callable[[list[str]], list[str]]:
    """Return a function from sentences to their best translations. A sentence that occurs twice is translated once."""
    from allyouneed.text.checks import require_short, room

    most = room(bundle.codec, bundle.model.longest_source)

    def translate(texts: list[str]) -> list[str]:
        known: dict[str, str] = {}
        different = list(dict.fromkeys(texts))
        for text in different:
            try:
                require_short(bundle.codec.source, [text], "the document", most=most)
            except DataError:
                raise DataError(f"the document: a sentence of too many tokens: {text[:60]}..; split it") from None
        for start in range(0, len(different), ROWS):
            part = different[start : start + ROWS]
            known |= {text: ranked[0].text for text, ranked in zip(part, answer(part), strict=True)}
        return [known[text] for text in texts]

    return translate


def _aligner(bundle: "Bundle") -> "Callable[[Sequence[Pair]], Sequence[Matrix | None]]":
    """Return the alignment of pairs by the model, or None for each if it has no attention on the source."""
    from allyouneed.decode.align import align, can_align

    def run(pairs: "Sequence[Pair]") -> "Sequence[Matrix | None]":
        if not pairs or not can_align(bundle.model, bundle.codec):
            return [None] * len(pairs)
        items = [(pair.source, pair.source_words, pair.target, pair.target_words) for pair in pairs]
        return [None if found is None else found.tolist() for found in align(bundle.model, bundle.codec, items)]

    return run


def _note_places(result: "Result") -> None:
    """Print what the user should look at on standard error."""
    from allyouneed.cli.line_notes import note_doubts, places
    from allyouneed.cli.terminal import note

    if result.kept:
        note(f"not translated, because tags or placeholders would be lost: {places(result.kept)}")
    note_doubts(result.doubts)
