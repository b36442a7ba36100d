"""Planted defects are found, each as its kind and none else; clean pairs have none."""

import gzip
import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from planted import FRENCH, clean_pairs, planted, sentence

from allyouneed.corpus.clean import DROPPED, write_clean
from allyouneed.corpus.examine import Examination
from allyouneed.corpus.kinds import KINDS, Rules, dropped_kinds
from allyouneed.corpus.report import in_words, write_page
from allyouneed.errors import ConfigError, DataError
from allyouneed.text.corpora import LabelCorpus, PairCorpus, TextCorpus


def examine(corpora: list[Any], held_out: list[Any] | None = None, rules: Rules | None = None) -> Examination:
    return Examination(corpora, held_out or [], rules or Rules(), lambda part, text: None)


def found_kinds(examination: Examination) -> list[list[str]]:
    return [kinds for _, _, chunk in examination.chunks() for kinds in chunk]


def write_tsv(path: Path, rows: list[Any]) -> Path:
    path.write_text("".join("\t".join(row) + "\n" for row in rows), encoding="utf-8", newline="\n")
    return path


def pair_corpus(path: Path) -> PairCorpus:
    return PairCorpus(files=(str(path),))


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tsv(tmp_path_factory.mktemp("corpus") / "pairs.tsv", planted()[0])


def test_each_planted_defect_is_found_as_its_kind(corpus: Path) -> None:
    rows, kinds = planted()
    examination = examine([pair_corpus(corpus)])
    found = found_kinds(examination)
    expected = [[kinds[number]] if number in kinds else [] for number in range(len(rows))]
    wrong = {
        number: (found[number], expected[number]) for number in range(len(rows)) if found[number] != expected[number]
    }
    assert not wrong
    assert examination.findings.counts == Counter(kinds.values())
    assert set(kinds.values()) | {"held-out", "unlike"} == set(KINDS)


def test_clean_pairs_have_no_defect(tmp_path: Path) -> None:
    assert not any(found_kinds(examine([pair_corpus(write_tsv(tmp_path / "a.tsv", clean_pairs(800)))])))


def test_noise_is_unlike_all_others(tmp_path: Path) -> None:
    rows = [*clean_pairs(500), ("qx zzv wkq jjx vvq pqz xkj zzq", "xq vzz qkw xjj qvv zqp jkx qzz")]
    assert found_kinds(examine([pair_corpus(write_tsv(tmp_path / "a.tsv", rows))]))[-1] == ["unlike"]


def test_a_third_language_is_found(tmp_path: Path) -> None:
    """As one, or as a text that is unlike all others."""
    chooser, rows = random.Random(2), clean_pairs(500)
    rows += [(one[0], sentence(chooser, FRENCH)) for one in clean_pairs(20, seed=3)]
    found = found_kinds(examine([pair_corpus(write_tsv(tmp_path / "a.tsv", rows))]))
    assert not any(found[:500])
    assert all(kinds in (["language"], ["unlike"]) for kinds in found[500:])


def test_two_sides_of_one_language_are_not_compared(tmp_path: Path) -> None:
    english = [one[0] for one in clean_pairs(600)]
    path = write_tsv(tmp_path / "a.tsv", list(zip(english[:300], english[300:], strict=True)))
    examination = examine([pair_corpus(path)])
    assert not any(found_kinds(examination))
    assert any("look like one language" in line for line in in_words("a.tsv", examination, ("source", "target")))


def test_held_out_rows_are_found_in_the_data(tmp_path: Path) -> None:
    rows = clean_pairs(400)
    words = rows[50][0].split(" ")
    near = " ".join([*words[:-1], "windows"]).capitalize()
    held = [(near, "anderes"), (rows[7][0], rows[7][1]), *clean_pairs(50, seed=9)]
    train, test = write_tsv(tmp_path / "train.tsv", rows), write_tsv(tmp_path / "test.tsv", held)
    examination = examine([pair_corpus(train)], [pair_corpus(test)])
    found = found_kinds(examination)
    assert [number for number, kinds in enumerate(found) if kinds] == [7, 50]
    assert found[7] == found[50] == ["held-out"]
    assert (examination.findings.held_out, examination.findings.held_out_found) == (52, 2)
    strict = examine([pair_corpus(train)], [pair_corpus(test)], Rules(near=1))
    assert [number for number, kinds in enumerate(found_kinds(strict)) if kinds] == [7]


def test_labels_and_running_text(tmp_path: Path) -> None:
    """The columns of labels are in the order that the task has by default, unless they are chosen."""
    rows = [("yes" if number % 2 else "no", one[0]) for number, one in enumerate(clean_pairs(300))]
    rows += [rows[3], ("", rows[4][1]), ("no", rows[5][1] + " Ã¤")]
    labels = LabelCorpus(files=(str(write_tsv(tmp_path / "labels.tsv", rows)),))
    assert found_kinds(examine([labels], [labels], Rules(near=1)))[:300] == [["held-out"]] * 300
    write_tsv(tmp_path / "other.tsv", [row[::-1] for row in rows])
    chosen = LabelCorpus(files=(str(tmp_path / "other.tsv"),), text=1, label=2)
    assert found_kinds(examine([chosen])) == found_kinds(examine([labels]))
    assert found_kinds(examine([labels]))[300:] == [["duplicate"], ["empty"], ["mojibake"]]
    lines = [one[0] for one in clean_pairs(300)]
    (tmp_path / "a.txt").write_text("\n".join([*lines, "", "", lines[2] + " \ufffd"]) + "\n", encoding="utf-8")
    assert found_kinds(examine([TextCorpus(files=(str(tmp_path / "a.txt"),))]))[300:] == [[], [], ["replacement"]]


def test_clean_writes_every_row_once(corpus: Path, tmp_path: Path) -> None:
    """Kept rows are unchanged and in order; dropped ones are listed with their place and reasons."""
    rows, kinds = planted()
    corpora = [pair_corpus(corpus)]
    examination = examine(corpora)
    done = write_clean(tmp_path, examination, corpora, dropped_kinds((), ()))
    kept = [row for number, row in enumerate(rows) if kinds.get(number) in (None, "unnormalised")]
    assert (tmp_path / "pairs.tsv").read_text(encoding="utf-8") == "".join("\t".join(row) + "\n" for row in kept)
    dropped = [json.loads(line) for line in (tmp_path / DROPPED).read_bytes().splitlines()]
    expected = {number: kind for number, kind in kinds.items() if kind != "unnormalised"}
    assert [one["where"] for one in dropped] == [f"{corpus}: line {number + 1}" for number in expected]
    assert [one["reasons"] for one in dropped] == [[kind] for kind in expected.values()]
    assert [(one["source"], one["target"]) for one in dropped] == [rows[number] for number in expected]
    assert (done.kept, done.dropped) == (len(kept), len(expected))
    page = write_page(tmp_path, "pairs", examination, Rules(), ("source", "target"), done)
    assert json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))["clean"]["dropped"] == len(expected)
    assert page.read_text(encoding="utf-8").count("<img") == 3


FORMATS = {
    "tsv with other columns and a header": (
        "a.tsv",
        "id\ten\tde\n7\tone\teins\n8\t\tzwei\n9\tthree\tdrei\n",
        {"source": "en", "target": "de"},
        "id\ten\tde\n7\tone\teins\n9\tthree\tdrei\n",
        "line 3",
    ),
    "jsonl with other fields": (
        "a.jsonl",
        '{"t": {"en": "one", "de": "eins"}, "x": 1}\n\n{"t": {"en": "", "de": "b"}}\n{"t":{"en":"c","de":"d"}}\n',
        {"source": "t.en", "target": "t.de"},
        '{"t": {"en": "one", "de": "eins"}, "x": 1}\n{"t":{"en":"c","de":"d"}}\n',
        "record 2",
    ),
    "tmx becomes jsonl": (
        "a.tmx",
        '<tmx version="1.4"><header srclang="en"/><body>'
        '<tu><tuv xml:lang="en"><seg>one</seg></tuv><tuv xml:lang="de"><seg>eins</seg></tuv></tu>'
        '<tu><tuv xml:lang="en"><seg></seg></tuv><tuv xml:lang="de"><seg>b</seg></tuv></tu></body></tmx>',
        {},
        '{"source": "one", "target": "eins"}\n',
        "unit 2",
    ),
}


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("packed", [False, True])
def test_outputs_have_the_format_of_the_input(name: str, packed: bool, tmp_path: Path) -> None:
    file, text, chosen, expected, place = FORMATS[name]
    path = tmp_path / (f"{file}.gz" if packed else file)
    path.write_bytes(gzip.compress(text.encode()) if packed else text.encode())
    corpora = [PairCorpus(files=(str(path),), **chosen)]
    out = tmp_path / "out"
    out.mkdir()
    write_clean(out, examine(corpora), corpora, dropped_kinds((), ()))
    assert (out / file.replace(".tmx", ".jsonl")).read_text(encoding="utf-8") == expected
    assert json.loads((out / DROPPED).read_text(encoding="utf-8"))["where"] == f"{path}: {place}"


def test_parallel_files_of_the_same_name_stay_apart(tmp_path: Path) -> None:
    for side, text in (("en", "one\n\ntwo\n"), ("de", "eins\nnull\nzwei\n")):
        (tmp_path / side).mkdir()
        (tmp_path / side / "a.txt").write_text(text, encoding="utf-8")
    corpora = [PairCorpus(files=(str(tmp_path / "en" / "a.txt"), str(tmp_path / "de" / "a.txt")))]
    out = tmp_path / "out"
    out.mkdir()
    write_clean(out, examine(corpora), corpora, dropped_kinds((), ()))
    assert (out / "en" / "a.txt").read_text(encoding="utf-8") == "one\ntwo\n"
    assert (out / "de" / "a.txt").read_text(encoding="utf-8") == "eins\nzwei\n"


def test_files_that_would_have_one_name_are_refused(tmp_path: Path) -> None:
    write_tsv(tmp_path / "a.tsv", [("a", "b")])
    (tmp_path / "a.tsv.gz").write_bytes(gzip.compress(b"c\td\n"))
    corpora = [pair_corpus(tmp_path / "a.tsv"), pair_corpus(tmp_path / "a.tsv.gz")]
    with pytest.raises(ConfigError, match=r"two files would be written as a\.tsv; rename one"):
        write_clean(tmp_path, examine(corpora), corpora, dropped_kinds((), ()))


def test_which_kinds_are_dropped() -> None:
    default = {name for name, kind in KINDS.items() if kind.dropped}
    assert dropped_kinds(["unlike"], ["ratio", "long"]) == (default | {"unlike"}) - {"ratio", "long"}
    with pytest.raises(ConfigError, match=r"unknown name 'ratios' \(did you mean 'ratio'"):
        dropped_kinds(["ratios"], [])
    with pytest.raises(ConfigError, match="both name long"):
        dropped_kinds(["long"], ["long"])


@pytest.mark.parametrize(("text", "message"), [("", "has no rows"), ("a\t\nb\t\n", "a side is empty in all rows")])
def test_a_corpus_without_content_is_refused(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match=message):
        examine([pair_corpus(tmp_path / "a.tsv")])
