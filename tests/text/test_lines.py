"""Hostile text: accepted with the right number of pairs, or refused in one line that names the place."""

import os
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allyouneed.errors import DataError
from allyouneed.tasks.translation import TranslationConfig
from allyouneed.text import lines as text
from allyouneed.text.corpus_settings import pairs

GOOD = b"a b\nc d\ne f\n"
ODD = "x\u2028y\u2029z\u0085w\x0bv\x0cu\x1ct\x1ds\x1er".encode()


def task(folder: Path, source: bytes, target: bytes, **settings: object) -> TranslationConfig:
    for name, content in (("s", source), ("t", target), ("vs", GOOD), ("vt", GOOD)):
        (folder / name).write_bytes(content)
    files = [str(folder / "s"), str(folder / "t")]
    valid = [str(folder / "vs"), str(folder / "vt")]
    settings = {"tokenizer": {"kind": "bytes"}, **settings}
    return TranslationConfig.model_validate({"train": files, "valid": valid, **settings})


ACCEPTED = {  # kind: (source, target, pairs kept)
    "plain": (GOOD, GOOD, 3),
    "no final newline": (b"a\nb\nc", GOOD, 3),
    "BOM": (b"\xef\xbb\xbf" + GOOD, GOOD, 3),
    "CRLF on one side": (GOOD.replace(b"\n", b"\r\n"), GOOD, 3),
    "separators inside a line": (b"a\n" + ODD + b"\nc\n", GOOD, 3),
    "CR inside a line": (b"a\rb\nb\nc\n", GOOD, 3),
    "empty lines on both sides": (b"a\n\nc\n", b"x\n\nz\n", 2),
    "empty line on one side": (b"a\n\nc\n", GOOD, 2),
    "blank line on one side": (b"a\n \t\nc\n", GOOD, 2),
    "a single pair": (b"a\n", b"x\n", 1),
    "20,000 combining marks": (b"a\ne" + "\u0301".encode() * 20_000 + b"\nc\n", GOOD, 2),
    "2 MB word": (b"a\n" + b"w" * 2_000_000 + b"\nc\n", GOOD, 2),
    "a name like the mark of bzip2": (b"BZhang Wei lives here.\nb\nc\n", GOOD, 3),
    "special tokens": (b"<pad> </s>\n< pad > < eos >\n[PAD] <|endoftext|>\n", GOOD, 3),
    "HTML": (b"<script>alert(1)</script>\n&amp;\n<b>\n", GOOD, 3),
    "terminal escapes": (b"\x1b[31mred\n\x1b]0;title\x07\nc\n", GOOD, 3),
    "bidi controls": ("\u202eabc\n\u2066d\u2069\nc\n".encode(), GOOD, 3),
    "astral characters": ("😀\n𝔸𝔹\n🏳️‍🌈\n".encode(), GOOD, 3),
}

REFUSED = {  # kind: (source, target, message)
    "CR only": (b"a\rb\rc\r", GOOD, ["s: line 1", "CR", "LF"]),
    "UTF-16": ("a\nb\nc\n".encode("utf-16"), GOOD, ["s: line 1", "UTF-16", "iconv"]),
    "UTF-16 without BOM": ("a\nb\nc\n".encode("utf-16-le"), GOOD, ["s: line 1", "byte 2", "NUL", "UTF-16"]),
    "Latin-1": ("a\nblöd\nc\n".encode("latin-1"), GOOD, ["s: line 2", "byte 3", "0xF6", "not UTF-8"]),
    "one bad UTF-8 line": (b"a\nb\nxy\xff\n", GOOD, ["s: line 3", "byte 3", "0xFF"]),
    "encoded surrogate": (b"a\n\xed\xa0\x80\nc\n", GOOD, ["s: line 2", "byte 1", "not UTF-8"]),
    "NUL": (b"a\nb\0b\nc\n", GOOD, ["s: line 2", "byte 2", "NUL"]),
    "one line too many": (GOOD + b"g\n", GOOD, ["4 lines", "has 3", "line 4"]),
    "truncated target": (GOOD, b"a\nb", ["3 lines", "has 2", "line 3"]),
    "empty source": (b"", GOOD, ["has 0 lines", "has 3"]),
    "both empty": (b"", b"", ["s and ", "is empty"]),
    "only blanks": (b" \n\t\n", b"\n \n", ["none of 2 pairs", "empty source and target"]),
    "a line above the cap": (b"a\n" + b"w" * (text.LONGEST_LINE + 1) + b"\nc\n", GOOD, ["s: line 2", "longer than"]),
    "a long CR-only file": (b"ab\r" * 2_000_000, GOOD, ["s: line 1", "CR"]),
}


@pytest.mark.parametrize("kind", ACCEPTED)
def test_accepted_with_the_right_number_of_pairs(kind: str, tmp_path: Path) -> None:
    source, target, kept = ACCEPTED[kind]
    data = task(tmp_path, source, target).prepare(tmp_path / "data", 0)
    assert data.notes[0] == f"train: {kept} pairs"
    assert sum(data.batch(0, index).tokens > 0 for index in range(data.epoch or 0)) == data.epoch
    read = len(list(text.lines(tmp_path / "s")))
    skipped = [note for note in data.notes if note.startswith("train:") and "skipped" in note]
    assert len(skipped) == (read != kept)  # every skipped pair is reported


@pytest.mark.parametrize("kind", REFUSED)
def test_refused_in_one_line_that_names_the_place(kind: str, tmp_path: Path) -> None:
    source, target, words = REFUSED[kind]
    with pytest.raises(DataError) as error:
        task(tmp_path, source, target).prepare(tmp_path / "data", 0)
    message = str(error.value)
    assert "\n" not in message
    for word in words:
        assert word in message, message
    assert not (tmp_path / "data" / "prepared").exists()


def test_marks_of_other_systems_are_dropped(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"\xef\xbb\xbfa\r\n\xef\xbb\xbfb\r\r\n")
    assert list(text.lines(tmp_path / "x")) == ["a", "\ufeffb\r"]
    assert "".join(text.blocks(tmp_path / "x")) == "a\n\ufeffb\r\n"


@pytest.mark.parametrize("side", ["s", "t"])
def test_separators_stay_inside_their_line(side: str, tmp_path: Path) -> None:
    task(tmp_path, b"a\n" + ODD + b"\nc\n", b"a\n" + ODD + b"\nc\n")
    assert list(text.lines(tmp_path / side))[1] == ODD.decode()


@pytest.mark.no_shapes
def test_a_2_mb_word_does_not_stop_a_bpe_tokeniser(tmp_path: Path) -> None:
    source, target, _ = ACCEPTED["2 MB word"]
    data = task(tmp_path, source, target, tokenizer={"kind": "bpe", "size": 300}).prepare(tmp_path / "data", 0)
    assert data.notes[:2] == ["train: 2 pairs", "train: 1 of 3 skipped: longer than max_length=256 tokens"]


def test_a_line_of_1_gib_is_refused_in_constant_memory(tmp_path: Path) -> None:
    path = tmp_path / "huge"
    with path.open("wb") as file:
        file.truncate(1 << 30)
    tracemalloc.start()
    with pytest.raises(DataError, match="line 1: longer than 4,194,304 bytes"):
        list(text.lines(path))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 32 << 20


@pytest.mark.no_shapes
def test_reading_takes_constant_memory(tmp_path: Path) -> None:
    path = tmp_path / "long"
    path.write_bytes((b"some words in a line " * 50 + b"\n") * 20_000)
    tracemalloc.start()
    counts = sum(1 for _ in text.lines(path)), sum(len(block) for block in text.blocks(path))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert counts == (20_000, 20_000 * 1051)
    assert peak < 8 << 20


LINES = st.lists(st.text(alphabet=st.characters(exclude_characters="\n\r\0", exclude_categories=["Cs"]), max_size=30))


@pytest.mark.no_shapes
@given(parts=LINES, end=st.sampled_from(["\n", "\r\n"]), last=st.booleans(), block=st.integers(1, 9))
def test_only_lf_ends_a_line(parts: list[str], end: str, last: bool, block: int) -> None:
    parts = [part for part in parts if not part.startswith("\ufeff")]
    content = "".join(part + end for part in parts) if last else end.join(parts)
    expected = content.replace("\r\n", "\n").split("\n")
    if expected[-1] == "":
        expected.pop()
    path = Path(os.environ.get("TMPDIR", "/tmp")) / f"lines-{os.getpid()}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(text, "BLOCK", block)
        path.write_bytes(content.encode())
        try:
            assert list(text.lines(path)) == expected
            assert "".join(text.blocks(path)) == content.replace("\r\n", "\n")
        finally:
            path.unlink()


@given(
    content=st.text(alphabet="aé😀\n", min_size=1, max_size=40), bad=st.sampled_from([b"\xff", b"\0"]), data=st.data()
)
def test_blocks_name_the_line_and_the_byte(content: str, bad: bytes, data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(content)))
    before, after = content[:cut].encode(), content[cut:].encode()
    line, byte = before.count(b"\n") + 1, len(before) - (before.rfind(b"\n") + 1) + 1
    path = Path(os.environ.get("TMPDIR", "/tmp")) / f"blocks-{os.getpid()}"
    path.write_bytes(before + bad + after)
    try:
        for read in (text.blocks, text.lines):
            with pytest.raises(DataError, match=f"line {line}: byte {byte} "):
                list(read(path))
    finally:
        path.unlink()


def test_tsv_with_a_wrong_number_of_columns(tmp_path: Path) -> None:
    (tmp_path / "x.tsv").write_text("a\tb\na\tb\tc\n")
    with pytest.raises(DataError, match=r"x.tsv: line 2: 3 columns; should be 2, separated by TABs: source, target"):
        list(pairs([str(tmp_path / "x.tsv")]))
    (tmp_path / "x.tsv").write_text("a\tb\n\nc\td\n")
    assert list(pairs([str(tmp_path / "x.tsv")])) == [("a", "b"), ("", ""), ("c", "d")]


@pytest.mark.parametrize(("name", "message"), [("missing", "no such file"), (".", "not a regular file")])
def test_not_a_file(name: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=message):
        list(text.lines(tmp_path / name))


def test_data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(text.DATA_VARIABLE, str(tmp_path))
    assert text.resolve("$DATA/a/b") == tmp_path / "a" / "b"
    assert text.resolve("a/b") == Path("a/b")
    monkeypatch.setenv(text.DATA_VARIABLE, str(tmp_path / "nowhere"))
    with pytest.raises(DataError, match=text.DATA_VARIABLE):
        text.resolve("$DATA/a")
