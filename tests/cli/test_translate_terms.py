"""`translate` with a glossary, kept terms and prefixes, by a barely trained model."""

import pytest
from cli_commands import Commands


def test_outputs_use_terms_and_prefixes(run: Commands, numbers: str) -> None:
    (run.folder / "terms.tsv").write_text("# English\tGerman\ntwo\tzwei\tzweie\nseven hundred\tsiebenhundert\n")
    (run.folder / "prefixes.txt").write_text("ein\n\n\nzehn\n")
    given = "forty-two two\nnine\n\nSeven hundred and one\n"
    terms = ["--glossary", "terms.tsv", "--keep", "nine", "--beam", "2", "--max-length", "60"]
    done = run("translate", numbers, *terms, "--prefixes", "prefixes.txt", given=given)
    assert done.status == 0, done.err
    one, two, three, four = done.out.split("\n")[:4]
    assert one.startswith("ein")
    assert "zwei" in one
    assert "nine" in two
    assert three == ""
    assert four.startswith("zehn")
    assert "siebenhundert" in four
    same = run("translate", numbers, "--prefix", "ein", "--beam", "1", given="two\nnine\n")
    assert all(line.startswith("ein") for line in same.out.splitlines())


def test_a_missing_term_is_noted(run: Commands, numbers: str) -> None:
    done = run("translate", numbers, "--keep", "nine", "--max-length", "2", given="one\nnine\n")
    assert "no output with all terms was found: line 2 (nine); a larger --max-length may help" in done.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--match-case"], "--match-case: has no effect without --glossary or --keep"),
        (["--prefix", "a", "--prefixes", "b"], "--prefix and --prefixes: give one of them"),
        (["--keep", "a", "--engine", "ctranslate2"], "--keep: --engine ctranslate2 cannot constrain outputs"),
        (["--format", "text", "--prefix", "a"], "--prefix: is for the lines of standard input"),
    ],
)
def test_refusals_before_a_model_is_loaded(run: Commands, arguments: list[str], message: str) -> None:
    done = run("translate", "no-model", *arguments, given="")
    assert done.status == 2
    assert message in done.err


def test_bad_files(run: Commands, numbers: str) -> None:
    (run.folder / "bad.tsv").write_text("two\t\n")
    assert "bad.tsv: line 1: an empty term" in run("translate", numbers, "--glossary", "bad.tsv", given="two\n").err
    assert "cannot write" in run("translate", numbers, "--prefix", "₿", given="two\n").err
    (run.folder / "one.txt").write_text("ein\n")
    done = run("translate", numbers, "--prefixes", "one.txt", given="two\nnine\n")
    assert "--prefixes: 1 lines, but the input has more" in done.err
