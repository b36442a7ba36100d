"""Forged TMX, JSONL, compressed and Arrow files: refused in one line that names the place, in bounded memory."""

import gzip
import io
import lzma
import tracemalloc
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from allyouneed.errors import DataError
from allyouneed.text import compressed
from allyouneed.text.corpus_settings import pairs
from allyouneed.text.records import LONGEST_TEXT
from allyouneed.text.tmx import LONGEST_TOKEN

HEAD = '<tmx version="1.4"><header srclang="en"/><body>'
UNIT = '<tu><tuv xml:lang="en"><seg>a</seg></tuv><tuv xml:lang="de"><seg>b</seg></tuv></tu>\n'
LOL = "".join(f'<!ENTITY l{n + 1} "{f"&l{n};" * 10}">' for n in range(9))
GOOD_JSON = '{"source": "a", "target": "b"}\n'

TEXTS = {  # name of the file: content, parts of the message
    "bomb.tmx": (
        f'<!DOCTYPE tmx [<!ENTITY l0 "lol">{LOL}]>\n{HEAD}&l9;</body></tmx>',
        ["line 1: declares a document type"],
    ),
    "file.tmx": (
        f'<!DOCTYPE tmx [<!ENTITY x SYSTEM "file:///etc/passwd">]>{HEAD}{UNIT.replace("a<", "&x;<")}',
        ["line 1: declares a document type"],
    ),
    "entity.tmx": (
        f'<!DOCTYPE tmx SYSTEM "tmx14.dtd">\n{HEAD}\n{UNIT.replace(">a<", ">&nbsp;<")}</body></tmx>',
        ["line 3: the entity &nbsp; is not defined"],
    ),
    "cut.tmx": (HEAD + UNIT + "<tu><tuv", ["line 2: is not XML: unclosed token"]),
    "deep.tmx": (HEAD + UNIT + "<tu>" * 100, ["line 2: more than 64 elements inside each other"]),
    "token.tmx": (
        HEAD + UNIT + f'<tu x="{"y" * (LONGEST_TOKEN + 200_000)}">',
        ["line 2: a tag or comment of more than"],
    ),
    "long.tmx": (HEAD + UNIT.replace(">a<", f">{'é' * (LONGEST_TEXT // 2 + 1)}<"), ["line 1: a segment of more than"]),
    "html.tmx": ("<html><body>x</body></html>", ["line 1: is a document of type 'html', should be tmx"]),
    "code.tmx": ('<?xml version="1.0" encoding="klingon"?>' + HEAD, ["line 1:", "unknown encoding"]),
    "empty.tmx": ("", ["is not XML: no element found"]),
    "deep.jsonl": (GOOD_JSON + '{"source": ' + "[" * 100_000, ["line 2: is nested too deeply"]),
    "long.jsonl": (GOOD_JSON + '{"source": "' + "x" * LONGEST_TEXT + '"}', ["line 2: longer than"]),
    "not.jsonl": (GOOD_JSON + "{'source': 1}\n", ["line 2: is not JSON: Expecting property name"]),
    "list.json": ('[{"source": "a"}]', ["line 1: is a JSON list; there should be one object a line"]),
    "field.jsonl": (
        '{"en": "a", "de": "b"}\n',
        ["line 1: has no field 'source'; it has: en, de; choose one: source ="],
    ),
    "type.jsonl": ('{"source": ["a"], "target": "b"}\n', ["line 1: source: is a list, should be a text"]),
    "half.jsonl": (
        '{"source": "x\\ud800", "target": "b"}\n',
        ["source: character 2 is half of a surrogate pair (U+D800)"],
    ),
    "nul.jsonl": ('{"source": "a", "target": "\\u0000"}\n', ["line 1: target: character 1 is NUL"]),
    "digits.jsonl": ('{"source": ' + "9" * 5000 + ', "target": "b"}\n', ["line 1: is not JSON"]),
    "name.tsv": ("a\tb\n", ["line 1: has no field 'en'; it has: a, b"]),
}


@pytest.mark.no_shapes
@pytest.mark.parametrize("name", TEXTS)
def test_refused_in_one_line_that_names_the_place(name: str, tmp_path: Path) -> None:
    content, parts = TEXTS[name]
    (tmp_path / name).write_text(content, encoding="utf-8")
    chosen = {"source": "en", "target": "de"} if name == "name.tsv" else {}
    tracemalloc.start()
    with pytest.raises(DataError) as error:
        list(pairs([{"files": str(tmp_path / name), **chosen}]))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    message = str(error.value)
    assert message.startswith(f"{tmp_path / name}: ")
    assert "\n" not in message
    for part in parts:
        assert part in message
    assert peak < 64 << 20


@pytest.mark.no_shapes
@pytest.mark.parametrize("pack", ["gz", "zst", "xz"])
def test_a_bomb_is_unpacked_no_further_than_one_line(pack: str, tmp_path: Path) -> None:
    path, zeros = tmp_path / f"x.tsv.{pack}", b"0" * (64 << 20)
    if pack == "zst":
        with pyarrow.output_stream(path, compression="zstd") as file:
            file.write(zeros)
    else:
        path.write_bytes(gzip.compress(zeros, 1) if pack == "gz" else lzma.compress(zeros, preset=0))
    assert path.stat().st_size < 1 << 20
    del zeros
    tracemalloc.start()
    with pytest.raises(DataError, match=r"line 1: longer than 4,194,304 bytes"):
        list(pairs([str(path)]))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 24 << 20


def test_a_dictionary_that_is_too_large_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compressed, "LARGEST_DICTIONARY", 4 << 20)
    (tmp_path / "x.tsv.xz").write_bytes(lzma.compress(b"a\tb\n"))  # of 8 MiB
    with pytest.raises(DataError, match=r"x.tsv.xz: unpacking needs too much memory; pack it again with a usual xz"):
        list(pairs([str(tmp_path / "x.tsv.xz")]))


@pytest.mark.parametrize("pack", ["gz", "zst", "xz"])
def test_a_file_that_ends_in_the_middle(pack: str, tmp_path: Path) -> None:
    path, lines = tmp_path / f"x.tsv.{pack}", b"".join(b"a%d\tb\n" % number for number in range(9999))
    if pack == "zst":
        with pyarrow.output_stream(path, compression="zstd") as file:
            file.write(lines)
    else:
        path.write_bytes(gzip.compress(lines) if pack == "gz" else lzma.compress(lines))
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(DataError, match=rf"x.tsv.{pack}: damaged, or not .*; copy it again"):
        list(pairs([str(path)]))


def parquet(**columns: object) -> bytes:
    file = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table(columns), file)
    return file.getvalue()


def repeated(word: str, count: int) -> pyarrow.Array:
    return pyarrow.DictionaryArray.from_arrays(pyarrow.array([0] * count, pyarrow.int32()), [word])


def stream(array: pyarrow.Array) -> bytes:
    sink = io.BytesIO()
    batch = pyarrow.record_batch({"source": array, "target": array})
    with pyarrow.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue()


def bad_array(offsets: list[int], data: bytes) -> pyarrow.Array:
    buffer = pyarrow.array(offsets, pyarrow.int32()).buffers()[1]
    return pyarrow.Array.from_buffers(pyarrow.string(), len(offsets) - 1, [None, buffer, pyarrow.py_buffer(data)])


TEXT = ["text"] * 100
BINARY = {
    "cut.parquet": (lambda: parquet(source=TEXT, target=TEXT)[:-30], "cannot be read as Parquet or Arrow"),
    "text.parquet": (lambda: b"source\ttarget\n" * 50, "cannot be read as Parquet or Arrow"),
    "empty.arrow": (lambda: b"", "cannot be read as Parquet or Arrow"),
    "columns.parquet": (
        lambda: parquet(en=TEXT, more=[{"x": 1}] * 100),
        "has no field 'source'; it has: en, more.x; choose one: source =",
    ),
    "lists.parquet": (
        lambda: parquet(source=[["a"]], target=["b"]),
        r"column 'source' holds list<.*>, should hold texts; choose another one",
    ),
    "bytes.parquet": (lambda: parquet(source=[b"a"], target=["b"]), "column 'source' holds binary, should hold texts"),
    "utf8.arrow": (lambda: stream(bad_array([0, 2, 4], b"ab\xff\xfe")), "Invalid UTF8"),
    "offset.arrow": (lambda: stream(bad_array([0, 900_000_000, 4], b"abcd")), "cannot be read as Parquet or Arrow"),
    "nul.parquet": (lambda: parquet(source=["a", "\0"], target=["b", "c"]), "row 2: source: character 1 is NUL"),
    "long.parquet": (lambda: parquet(source=["x" * (LONGEST_TEXT + 1)], target=["b"]), "row 1: source: longer than"),
    # 768 MiB of text in a file of some kilobytes: each of 64 rows is the same word of the dictionary.
    "bomb.parquet": (lambda: parquet(source=repeated("x" * (12 << 20), 64), target=["b"] * 64), "more than 640 MiB"),
}


@pytest.mark.no_shapes
@pytest.mark.parametrize("name", BINARY)
def test_arrow_files_that_lie(name: str, tmp_path: Path) -> None:
    make, message = BINARY[name]
    (tmp_path / name).write_bytes(make())
    with pytest.raises(DataError, match=message) as error:
        list(pairs([str(tmp_path / name)]))
    assert str(error.value).startswith(f"{tmp_path / name}: ")
    assert "\n" not in str(error.value)
