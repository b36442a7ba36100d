"""`allyouneed data`: find defects of corpora (`check`), drop them (`clean`), hold rows out (`split`).

`back-translate` and `prepare` are in files of their own.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from allyouneed.cli import back_translate, data_prepare
from allyouneed.cli.data_files import corpora_of_files
from allyouneed.errors import ConfigError

if TYPE_CHECKING:
    from allyouneed.corpus.kinds import Rules
    from allyouneed.text.corpora import Corpus

app = typer.Typer(rich_markup_mode=None)

Files = Annotated[
    list[str],
    typer.Argument(
        help="Two files of plain text (source and target), or files, patterns and tables as in a recipe: "
        '\'{files="web-*.jsonl", source="en", target="de"}\' (docs/data.md).'
    ),
]
Rows = Annotated[
    Literal["pairs", "labels", "text"],
    typer.Option(help="What a row is: source and target, text and label, or a text."),
]
HeldOutFiles = Annotated[
    str | None,
    typer.Option(
        "--held-out",
        help='Find rows that are nearly the same as these: a file, or a list: \'["test.en", "test.de"]\'.',
    ),
]
Ratio = Annotated[
    float, typer.Option(help="Largest factor between the ratio of lengths of a pair and the median of all.")
]
Longest = Annotated[int, typer.Option(help="Most characters of a text.")]
Near = Annotated[float, typer.Option(help="Share of n-grams in common with a held-out text, from which on it is near.")]


@app.callback(invoke_without_command=True)
def _data(context: typer.Context) -> None:
    """Check, clean and split corpora; make pairs of texts in one language; prepare the data of a run."""
    if context.invoked_subcommand is None:
        print(context.get_help())


@app.command("check")
def check(
    files: Files,
    rows: Rows = "pairs",
    held_out: HeldOutFiles = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for a page with pictures, and a list of all rows with defects.")
    ] = None,
    ratio: Ratio = 3.0,
    longest: Longest = 2000,
    near: Near = 0.8,
) -> None:
    """Find defects: duplicates, empty sides, unequal lengths, wrong languages, broken encodings, near-copies.

    Prints each kind with its count, its share and examples. Changes nothing.
    """
    from allyouneed.cli.progress import progress
    from allyouneed.corpus.clean import write_defects
    from allyouneed.corpus.examine import Examination
    from allyouneed.corpus.report import in_words, write_page
    from allyouneed.text.corpus_settings import described

    rules, corpora = _rules(ratio, longest, near), corpora_of_files(files, rows)
    held = corpora_of_files([held_out], rows, like=corpora) if held_out is not None else []
    with _output(out, [*corpora, *held]) as folder:
        with progress() as show:
            examination = Examination(corpora, held, rules, show)
            write_defects(folder, examination)
        name, sides = described(corpora), corpora[0].sides
        _print(in_words(name, examination, sides))
        if folder is not None:
            write_page(folder, name, examination, rules, sides)
    if out is not None:
        print(f"report: {out / 'report.html'}")


@app.command("clean")
def clean(
    files: Files,
    out: Annotated[Path, typer.Option(help="Folder for the kept rows, the dropped rows and the report.")],
    rows: Rows = "pairs",
    held_out: HeldOutFiles = None,
    drop: Annotated[
        list[str] | None, typer.Option(help="Drop this kind of defect, too. May be repeated (docs/data.md).")
    ] = None,
    keep: Annotated[list[str] | None, typer.Option(help="Keep rows with this kind of defect. May be repeated.")] = None,
    ratio: Ratio = 3.0,
    longest: Longest = 2000,
    near: Near = 0.8,
) -> None:
    """Write the rows without defects, in the format of their files, and the others with their reasons.

    Kept rows are not changed. `dropped.jsonl` has each row that was dropped, with its file, its number and its reasons.
    """
    from allyouneed.cli.progress import progress
    from allyouneed.corpus.clean import write_clean
    from allyouneed.corpus.examine import Examination
    from allyouneed.corpus.kinds import dropped_kinds
    from allyouneed.corpus.report import in_words, write_page
    from allyouneed.text.corpus_settings import described

    dropped = dropped_kinds(drop or (), keep or ())
    rules, corpora = _rules(ratio, longest, near), corpora_of_files(files, rows)
    held = corpora_of_files([held_out], rows, like=corpora) if held_out is not None else []
    with _output(out, [*corpora, *held]) as folder:
        assert folder is not None
        with progress() as show:
            examination = Examination(corpora, held, rules, show)
            cleaned = write_clean(folder, examination, corpora, dropped)
        name, sides = described(corpora), corpora[0].sides
        write_page(folder, name, examination, rules, sides, cleaned)
    _print(in_words(name, examination, sides, cleaned))
    print(f"rows: {out} (dropped ones: {out / 'dropped.jsonl'}; report: {out / 'report.html'})")


@app.command("split")
def split(
    files: Files,
    out: Annotated[Path, typer.Option(help="Folder for the folders train, valid and test.")],
    rows: Rows = "pairs",
    valid: Annotated[float, typer.Option(help="Share of the rows for validation.")] = 0.02,
    test: Annotated[float, typer.Option(help="Share of the rows for testing.")] = 0.02,
    seed: Annotated[int, typer.Option(help="Another seed gives another split.")] = 0,
) -> None:
    """Split rows into train, valid and test, in the format of their files.

    A hash of the source (or text) decides, so the split is the same everywhere, and duplicates are on one side.
    """
    from allyouneed.cli.progress import progress
    from allyouneed.corpus.split import SPLITS, require_shares, write_split
    from allyouneed.words import counted

    require_shares(valid, test)
    corpora = corpora_of_files(files, rows)
    with _output(out, corpora) as folder:
        assert folder is not None
        with progress() as show:
            counts = write_split(folder, corpora, (valid, test), seed, show)
    for name, count in zip(SPLITS, counts, strict=True):
        print(f"{out / name}: {counted(count, 'row')}")


app.command("back-translate")(back_translate.command)
app.command("prepare")(data_prepare.command)


def _rules(ratio: float, longest: int, near: float) -> "Rules":
    from allyouneed.config import parse
    from allyouneed.corpus.kinds import Rules

    return parse(Rules, {"ratio": ratio, "longest": longest, "near": near}, "options")


def _print(lines: list[str]) -> None:
    from allyouneed.words import printable

    for line in lines:
        print(printable(line))


@contextmanager
def _output(out: Path | None, corpora: "list[Corpus]") -> Iterator[Path | None]:
    """Yield a folder that appears under its name when all is written, and not after an error or an interruption."""
    from allyouneed.storage import new_folder, require_replaceable, sweep
    from allyouneed.text.corpus_settings import sources_of

    if out is None:
        yield None
        return
    for path in sources_of(corpora).values():
        if path.resolve().is_relative_to(out.resolve()):
            raise ConfigError(f"--out {out}: holds {path}, which is read; choose another folder")
    sweep(out.parent, out.name)
    require_replaceable(out)
    _require_own(out)
    with new_folder(out) as folder:
        yield folder


def _require_own(out: Path) -> None:
    """Raise ConfigError if a folder has files that `data` did not write: they would be lost."""
    from allyouneed.corpus.split import SPLITS
    from allyouneed.storage import MANIFEST, compare_listing

    if not (out / MANIFEST).is_file():
        return  # new or empty
    sealed, faults = compare_listing(out)
    names = set(sealed.files)
    split = {Path(name).parts[0] for name in names} <= set(SPLITS)
    if not split and not {"report.html", "report.json"} <= names:
        raise ConfigError(f"--out {out}: was not written by `allyouneed data` and would be lost; choose another folder")
    added = [fault.name for fault in faults if fault.name not in names]
    if added:
        raise ConfigError(f"--out {out}: {added[0]} was added later and would be lost; choose another folder")
