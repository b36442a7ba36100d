"""`allyouneed translate`: translate (or classify) standard input line by line, or a document."""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from allyouneed.cli.choice_options import (
    ChoiceOptions,
    Epsilon,
    Mbr,
    MbrFrom,
    ReverseModel,
    ReverseWeight,
    SampleOptions,
    Seed,
    Similarity,
    Temperature,
    With,
)
from allyouneed.cli.constraint_options import (
    ConstraintOptions,
    GlossaryFile,
    Keep,
    MatchCase,
    OutputRules,
    Prefix,
    PrefixFile,
)
from allyouneed.cli.model_options import (
    Adapter,
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
from allyouneed.cli.translate_document import DocumentFile, DocumentFormat, DocumentOut, open_document, translate_file
from allyouneed.errors import ConfigError

if TYPE_CHECKING:
    from allyouneed.cli.progress import LineMeter
    from allyouneed.decode import Answer, SearchConfig
    from allyouneed.decode.choice import DecisionRule
    from allyouneed.decode.sentences import Translate
    from allyouneed.documents.pieces import Document
    from allyouneed.folder import Bundle
    from allyouneed.shortlist.table import Shortlist
    from allyouneed.text.sentences import Sentences, SentenceSplitter


Align = Annotated[
    bool, typer.Option("--align", help="Print the word alignment after each output: i-j, from the source's word 0.")
]

Beam = Annotated[int | None, typer.Option(help="Beam size; 1 is greedy search.", show_default="from the recipe")]
LengthPenalty = Annotated[
    float | None, typer.Option(help="Exponent of the length penalty; 0 disables it.", show_default="from the recipe")
]
NBest = Annotated[int | None, typer.Option(help="Number of outputs per line; each starts with its line number.")]
MaxLength = Annotated[
    int | None, typer.Option(help="Maximum output length in tokens.", show_default="source length + 50")
]
SentenceSplit = Annotated[
    Literal["auto", "always", "never"],
    typer.Option(
        help="Split a line into sentences, translate each and join the results. auto: if the line has more "
        "sentences than a line of the training data usually had."
    ),
]


def command(
    model: ModelFolder,
    file: DocumentFile = None,
    format_: DocumentFormat = "auto",
    out: DocumentOut = None,
    beam: Beam = None,
    length_penalty: LengthPenalty = None,
    n_best: NBest = None,
    max_length: MaxLength = None,
    scores: Annotated[bool, typer.Option("--scores", help="Print the score before each output.")] = False,
    align: Align = False,
    others: With = None,
    mbr: Mbr = None,
    mbr_from: MbrFrom = None,
    utility: Similarity = None,
    temperature: Temperature = None,
    epsilon: Epsilon = None,
    seed: Seed = None,
    reverse: ReverseModel = None,
    reverse_weight: ReverseWeight = None,
    engine: Engine = "torch",
    int8: Int8 = False,
    shortlist: Listed = False,
    sentences: SentenceSplit = "auto",
    glossary: GlossaryFile = None,
    match_case: MatchCase = False,
    keep: Keep = None,
    prefix: Prefix = None,
    prefixes: PrefixFile = None,
    source_language: SourceLanguage = None,
    target_language: TargetLanguage = None,
    adapter: Adapter = None,
    device: Device = "cpu",
) -> None:
    """Translate or classify each line of standard input, or translate a document."""
    check_engine(engine, device, shortlist)
    document = None
    if file is not None or format_ != "auto" or out is not None:
        _refuse_for_documents({"--n-best": n_best, "--scores": scores, "--align": align})
        document = open_document(file, format_, out)
    samples = SampleOptions(temperature, epsilon, seed)
    ways = ChoiceOptions(tuple(others or ()), mbr, mbr_from, utility, samples, reverse, reverse_weight)
    ways.require_support(engine, shortlist)
    wanted = ConstraintOptions(glossary, match_case, tuple(keep or ()), prefix, prefixes)
    wanted.require_support(engine, document is not None)
    opened = open_model(model, device, int8=int8, engine=engine, adapter=adapter, others=ways.others)
    bundle = in_languages(opened, source_language, target_language)
    changes = {"beam": beam, "length_penalty": length_penalty, "n_best": n_best, "max_length": max_length}
    search = _search(bundle, changes)
    choice = ways.choice(device, int8, source_language, target_language)
    choice.check(bundle.codec, search, wanted.given, shortlist)
    work = _Work(bundle, search, choice, wanted.rules(bundle), shortlist_of(bundle, shortlist), engine, int8)
    work.run(sentences, document, out, _Columns(search.n_best > 1, scores, align))


def _search(bundle: "Bundle", changes: Mapping[str, object]) -> "SearchConfig":
    from allyouneed.evaluation.settings import require_source, search_config

    require_source(bundle, "translate")
    return search_config(bundle, changes)


def _refuse_for_documents(options: Mapping[str, object]) -> None:
    for name, value in options.items():
        if value:
            raise ConfigError(f"{name}: is for the lines of standard input, not for a document")


@dataclass(frozen=True)
class _Columns:
    """What is printed beside each output."""

    numbers: bool
    scores: bool
    alignments: bool


@dataclass(frozen=True)
class _Work:
    """A model and how it translates."""

    bundle: "Bundle"
    search: "SearchConfig"
    choice: "DecisionRule"
    rules: OutputRules
    shortlist: "Shortlist | None"
    engine: str
    int8: bool

    def run(self, sentences: "Sentences", document: "Document | None", out: Path | None, columns: _Columns) -> None:
        """Translate a document, or the lines of standard input."""
        from allyouneed.cli.progress import line_meter
        from allyouneed.decode.sentences import in_pieces
        from allyouneed.evaluation.settings import sentence_splitter

        splitter = sentence_splitter(self.bundle, sentences)
        with line_meter() as meter:
            if self.engine == "ctranslate2":
                answer_whole = _in_ctranslate2(self.bundle, self.search, self.int8, columns.scores, meter)
            else:
                answer_whole = _in_torch(self, meter)
            if document is not None:
                translate_file(document, self.bundle, splitter, meter.measured(answer_whole), out)
            else:
                answer = in_pieces(splitter, answer_whole, self.search.n_best)
                _translate_lines(self.bundle, splitter, answer, meter, columns, self.rules)


def _translate_lines(
    bundle: "Bundle",
    splitter: "SentenceSplitter",
    answer_texts: "Translate",
    meter: "LineMeter",
    columns: _Columns,
    rules: OutputRules,
) -> None:
    """Translate the lines of standard input as they arrive, and note those that need a look."""
    from allyouneed.cli.line_notes import LineNotes
    from allyouneed.cli.stdin import line_batches

    aligned = _alignments(bundle, splitter) if columns.alignments else None
    notes, before = LineNotes(bundle), 0  # lines of earlier batches
    for texts in line_batches(check=_checker(bundle, splitter, notes.unknown)):
        meter.begin(texts)
        begins = rules.line_prefixes(len(texts), before)
        filled = [(text, begin) for text, begin in zip(texts, begins, strict=True) if text.strip()]
        answers = iter(answer_texts([text for text, _ in filled], [begin for _, begin in filled]))
        for number, text in enumerate(texts, start=before + 1):
            found: Sequence[Answer | None] = next(answers) if text.strip() else [None]
            for answer in found:
                cells = [] if not columns.numbers else [str(number)]
                cells += [f"{answer.score if answer else 0.0:.4f}"] if columns.scores else []
                print(*cells, *_output(text, answer, aligned), sep="\t")
            if found[0] is not None:
                notes.add(number, text, found[0].text)
                notes.add_missing(number, rules.missing(splitter.split(text).pieces, found[0].text))
        before += len(texts)
        sys.stdout.flush()
        meter.end()
    notes.print()


def _checker(bundle: "Bundle", splitter: "SentenceSplitter", unknown: list[int]) -> Callable[[str, int], None]:
    """Return a check of a line, given the lines before it. Lines with unknown text are added to `unknown`."""
    from allyouneed.cli.stdin import NAME
    from allyouneed.text.checks import require_known, require_short, room, unknown_words

    most = room(bundle.codec, bundle.model.longest_source)

    def check(text: str, before: int) -> None:
        for piece in splitter.split(text).pieces:
            require_short(bundle.codec.source, [piece], str(NAME), before, most)
        require_known(bundle.codec, [text], str(NAME), before, bundle.model.longest_source)
        if bundle.codec.source is not None and unknown_words(bundle.codec.source, text):
            unknown.append(before + 1)

    return check


def _output(source: str, answer: "Answer | None", aligned: "Callable[[str, Answer], str] | None") -> list[str]:
    """Return the columns of an output: its text, and the alignment."""
    from allyouneed.cli.terminal import one_line

    text = one_line(answer.text) if answer else ""
    return [text] if aligned is None else [text, aligned(source, answer) if answer else ""]


def _alignments(bundle: "Bundle", splitter: "SentenceSplitter") -> "Callable[[str, Answer], str]":
    """Return a function from a text and its translation to the links of their words."""
    from allyouneed.decode.align import can_align
    from allyouneed.decode.sentences import align_pieces

    if not can_align(bundle.model, bundle.codec):
        raise ConfigError(f"{bundle.path}: --align needs a model with attention from the translation to its source")

    def aligned(source: str, answer: "Answer") -> str:
        return " ".join(f"{i}-{j}" for i, j in align_pieces(bundle.model, bundle.codec, splitter, source, answer))

    return aligned


def _in_torch(work: _Work, meter: "LineMeter") -> "Translate":
    from allyouneed.decode.choice import choose

    model, codec = work.bundle.model, work.bundle.codec

    def answer(texts: list[str], prefixes: Sequence[str] = ()) -> "list[list[Answer]]":
        meter.expect(len(texts))
        constraints = work.rules.constraints(texts, prefixes)
        return choose(model, codec, texts, work.search, work.choice, meter.advance, work.shortlist, constraints)

    return answer


def _in_ctranslate2(
    bundle: "Bundle", search: "SearchConfig", int8: bool, scores: bool, meter: "LineMeter"
) -> "Translate":
    from allyouneed.decode.translate import as_answers
    from allyouneed.interop.ctranslate2.engine import CTranslate2Engine

    engine, codec = CTranslate2Engine(bundle, int8), bundle.codec

    def answer(texts: list[str], prefixes: Sequence[str] = ()) -> "list[list[Answer]]":
        meter.expect(len(texts))  # prefixes are refused before
        found = engine.search(codec.encode_sources(texts), search, meter.advance, exact=scores)
        return as_answers(codec, found)

    return answer
