"""`translate` with documents, alignments and notes: whatever a barely trained model writes, the structure stays."""

import re
from collections import Counter
from pathlib import Path

import pytest
from cli_commands import Commands

NUMBERS = ["forty-one", "two", "seven hundred", "nine thousand and ten", "fifty-six"]


def test_200_fragments_and_200_messages_of_a_real_model(run: Commands, numbers: str) -> None:
    html = "".join(
        f"<p>{NUMBERS[n % 5]} <b>{NUMBERS[n % 3]} <i>{n}</i></b> <img src={n}> <a href=/{n}>{NUMBERS[n % 4]}</a>.</p>\n"
        for n in range(200)
    )
    messages = "".join(f'msgid "{NUMBERS[n % 5]} %(n{n})s <b>two</b> {{{n}}}"\nmsgstr ""\n\n' for n in range(200))
    (run.folder / "page.html").write_text(html)
    (run.folder / "de.po").write_text(f'msgid ""\nmsgstr "Language: de\\n"\n\n{messages}')
    done = run("translate", numbers, "page.html", "--beam", "1", "--max-length", "12", "--out", "out.html")
    assert (done.status, done.out) == (0, ""), done.err
    found = (run.folder / "out.html").read_text()
    tags = re.compile("<.*?>")
    assert Counter(tags.findall(found)) == Counter(tags.findall(html))
    for ours, theirs in zip(html.splitlines(), found.splitlines(), strict=True):
        assert Counter(tags.findall(ours)) == Counter(tags.findall(theirs))
        assert re.search("\\d+", tags.sub("", ours)).group() in tags.sub("", theirs)  # type: ignore[union-attr]
    done = run("translate", numbers, "de.po", "--beam", "1", "--max-length", "12")
    assert done.status == 0, done.err
    pairs = re.findall(r'msgid "(.+)"\nmsgstr "(.*)"', done.out)
    assert len(pairs) == 200
    parts = re.compile(r"%\(\w+\)s|</?b>|\{\d+\}")
    assert all(Counter(parts.findall(ours)) == Counter(parts.findall(theirs)) for ours, theirs in pairs)


def test_documents_from_standard_input(run: Commands, numbers: str) -> None:
    done = run("translate", numbers, "--format", "html", "--beam", "1", given="<h1>two</h1><hr><code>two</code>")
    assert done.status == 0, done.err
    assert re.fullmatch("<h1>.*</h1><hr><code>two</code>", done.out)
    line = run("translate", numbers, "--beam", "1", given="two\n")
    assert done.out.startswith(f"<h1>{line.out.strip()}</h1>")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--format", "docx"], "state the file to write: --out translated.docx"),
        (["--out", "x.html"], "--format: a document from standard input needs its format"),
        (["a.pdf"], "a.pdf: no format is known for this ending"),
        (["gone.html"], "gone.html: cannot be read: No such file"),
        (["page.txt", "--n-best", "2"], "--n-best: is for the lines of standard input"),
        (["page.txt", "--align"], "--align: is for the lines of standard input"),
        (["page.txt", "--out", "page.txt"], "is the document itself"),
        (["page.txt", "--format", "xliff"], "page.txt: line 1: not XML"),
    ],
)
def test_refusals_before_a_model_is_loaded(run: Commands, arguments: list[str], message: str) -> None:
    (run.folder / "page.txt").write_text("two")
    done = run("translate", "no-model", *arguments)
    assert done.status == 2
    assert message in done.err
    assert len(done.err.splitlines()) == 1


def test_word_alignments(run: Commands, numbers: str, classifier: str) -> None:
    done = run("translate", numbers, "--align", "--beam", "1", given="forty-one\n\nnine thousand and ten\n")
    assert done.status == 0, done.err
    rows = [line.split("\t") for line in done.out.splitlines()]
    assert rows[1] == ["", ""]
    for source, (target, links) in zip(["forty-one", "nine thousand and ten"], rows[::2], strict=True):
        pairs = [tuple(map(int, link.split("-"))) for link in links.split()]
        assert pairs == sorted(set(pairs))
        assert {i for i, _ in pairs} == set(range(len(source.split()))) or not target.split()
        assert {j for _, j in pairs} == set(range(len(target.split())))
    plain = run("translate", numbers, "--beam", "1", given="forty-one\n\nnine thousand and ten\n")
    assert plain.out.splitlines() == [row[0] for row in rows]
    refused = run("translate", classifier, "--align", given="nice\n")
    assert refused.status == 2
    assert "--align needs a model with attention" in refused.err
    refused = run("translate", classifier, "--format", "text", given="nice\n")
    assert (refused.status, "a classifier does not generate text" in refused.err) == (2, True)


def test_notes_on_translations_that_may_be_wrong(run: Commands, numbers: str, tmp_path: Path) -> None:
    long = "nine hundred and eighty-seven thousand six hundred and fifty-four"
    done = run("translate", numbers, "--max-length", "3", "--beam", "1", given=f"two\n{long}\n{long}\n")
    assert done.status == 0
    assert "check the translation (much shorter than the source): line 2, line 3" in done.err
    (tmp_path / "a.txt").write_text(f"two\n\n{long}\n")
    done = run("translate", numbers, str(tmp_path / "a.txt"), "--max-length", "3", "--beam", "1")
    assert "check the translation (much shorter than the source): line 3" in done.err
    assert done.out.count("\n") == 3
