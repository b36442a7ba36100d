"""Corpora of every format: the same texts, whatever the file; patterns, shards, folders; recipes are written again."""

import bz2
import gzip
import json
import lzma
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

import pyarrow
import pyarrow.feather
import pyarrow.parquet
import pytest

from allyouneed.config import Config, parse
from allyouneed.errors import ConfigError, DataError, DependencyError, UserError
from allyouneed.tasks import TASKS
from allyouneed.tasks.language import LanguageConfig
from allyouneed.tasks.translation import TranslationConfig
from allyouneed.text import arrow
from allyouneed.text.corpora import PairCorpus, TextCorpus
from allyouneed.text.corpus_settings import PairCorpora, pairs, written

PAIRS = [
    ("A café & <tea>.", "Ein Café & <Tee>."),
    ("two", "zwei"),
    ("", "leer"),
    ("😀 \u2028 x", "drei\tvier".replace("\t", " ")),
]


def tmx(rows: list[tuple[str, str]]) -> str:
    def variant(code: str, text: str) -> str:
        return f'<tuv xml:lang="{code}"><seg>{escape(text)}</seg></tuv>'

    units = "".join(f"<tu>{variant('en', source)}{variant('de', target)}</tu>\n" for source, target in rows)
    return f'<?xml version="1.0"?>\n<tmx version="1.4"><header srclang="en"/><body>\n{units}</body></tmx>'


def write_tsv(path: Path, rows: list[tuple[str, str]]) -> None:
    path.write_text("".join(f"{source}\t{target}\n" for source, target in rows), encoding="utf-8")


def write_json(path: Path, rows: list[tuple[str, str]]) -> None:
    path.write_text("".join(json.dumps({"source": a, "target": b, "id": 7}) + "\n" for a, b in rows))


def table(rows: list[tuple[str, str]]) -> pyarrow.Table:
    return pyarrow.table({"id": list(range(len(rows))), "source": [a for a, _ in rows], "target": [b for _, b in rows]})


def write_stream(path: Path, rows: list[tuple[str, str]]) -> None:
    with pyarrow.ipc.new_stream(path, table(rows).schema) as writer:
        writer.write_table(table(rows), max_chunksize=2)


def write_dataset(path: Path, rows: list[tuple[str, str]]) -> None:
    """Write a folder as `datasets.save_to_disk` does."""
    path.mkdir()
    names = [f"data-{number:05}-of-00002.arrow" for number in range(2)]
    for name, part in zip(names, (rows[:1], rows[1:]), strict=True):
        write_stream(path / name, part)
    (path / "state.json").write_text(json.dumps({"_data_files": [{"filename": name} for name in names]}))
    (path / "dataset_info.json").write_text("{}")


WRITERS: dict[str, Callable[[Path, list[tuple[str, str]]], Any]] = {
    "x.tsv": write_tsv,
    "plain": write_tsv,
    "x.jsonl": write_json,
    "x.ndjson": write_json,
    "x.tmx": lambda path, rows: path.write_text(tmx(rows), encoding="utf-8"),
    "x.parquet": lambda path, rows: pyarrow.parquet.write_table(table(rows), path, row_group_size=2),
    "x.feather": lambda path, rows: pyarrow.feather.write_feather(table(rows), path),
    "x.arrow": write_stream,
    "folder": write_dataset,
}


@pytest.mark.parametrize("name", WRITERS)
def test_every_format_holds_the_same_pairs(name: str, tmp_path: Path) -> None:
    WRITERS[name](tmp_path / name, PAIRS)
    assert list(pairs([str(tmp_path / name)])) == PAIRS


@pytest.mark.no_shapes
@pytest.mark.parametrize("pack", [".gz", ".bz2", ".xz", ".zst"])
@pytest.mark.parametrize("name", ["x.jsonl", "x.tmx"])
def test_compressed_files_are_read_as_they_are(name: str, pack: str, tmp_path: Path) -> None:
    rows = [(f"source {number}", f"target {number}") for number in range(3000)]
    WRITERS[name](tmp_path / name, rows)
    raw, path = (tmp_path / name).read_bytes(), tmp_path / (name + pack)
    if pack == ".zst":
        with pyarrow.output_stream(path, compression="zstd") as file:
            file.write(raw)
    else:
        path.write_bytes({".gz": gzip, ".bz2": bz2, ".xz": lzma}[pack].compress(raw))
    assert list(pairs([str(path)])) == rows


def test_chosen_columns_and_fields(tmp_path: Path) -> None:
    (tmp_path / "x.tsv").write_text("id\tde\ten\n1\teins\tone\n")
    (tmp_path / "x.jsonl").write_text(
        '{"translation": {"en": "one", "de": "eins"}}\n\n{"translation": {"en": null, "de": "x\\ny"}}\n'
    )
    struct = pyarrow.table({"translation": [{"en": "one", "de": "eins"}, None, {"en": None, "de": "x\ny"}]})
    pyarrow.parquet.write_table(struct, tmp_path / "x.parquet")

    def read(name: str, **chosen: object) -> list[tuple[str, str]]:
        return list(pairs([{"files": str(tmp_path / name), **chosen}]))

    assert read("x.tsv", source="en", target="de") == [("one", "eins")]
    assert read("x.tsv", source=3, target=2) == [("en", "de"), ("one", "eins")]
    nested = {"source": "translation.en", "target": "translation.de"}
    assert read("x.jsonl", **nested) == [("one", "eins"), ("", "x y")]  # a text of a pair is one line
    assert read("x.parquet", **nested) == [("one", "eins"), ("", ""), ("", "x y")]


def test_markup_and_languages_of_tmx(tmp_path: Path) -> None:
    text = 'Press <bpt i="1">&lt;b></bpt><hi>this</hi><ept i="1">&lt;/b></ept>\n   now.'
    first = f'<tuv xml:lang="EN-us"><seg>{text}</seg></tuv>'
    others = "".join(f'<tuv lang="{code}"><seg>{code}</seg></tuv>' for code in ("fr", "de", "de-AT"))
    head = '<!DOCTYPE tmx SYSTEM "tmx14.dtd"><tmx><header srclang="en-US"/><body>'
    memory = f"{head}<tu>{first}{others}</tu><tu>{first}</tu></body></tmx>"
    (tmp_path / "x.tmx").write_text(memory, encoding="utf-16")
    chosen = {"files": str(tmp_path / "x.tmx"), "source": "de", "target": "en"}
    assert list(pairs([chosen])) == [("de", "Press this now."), ("", "Press this now.")]
    with pytest.raises(DataError, match=r"which languages\? Its first unit has: EN-us, fr, de, de-AT; its header"):
        list(pairs([chosen["files"]]))


def test_patterns_give_shards_in_the_order_of_their_names(tmp_path: Path) -> None:
    for number in (2, 0, 1):
        (tmp_path / f"part-{number}.en").write_text(f"e{number}\n")
        (tmp_path / f"part-{number}.de").write_text(f"d{number}\n")
        write_tsv(tmp_path / f"more-{number}.tsv", [(f"s{number}", f"t{number}")])
    split = [str(tmp_path / f"part-*.{side}") for side in ("en", "de")]
    assert list(pairs(split)) == [("e0", "d0"), ("e1", "d1"), ("e2", "d2")]
    assert list(pairs([str(tmp_path / "more-*.tsv")])) == [("s0", "t0"), ("s1", "t1"), ("s2", "t2")]
    shards = list(PairCorpus(files=tuple(split)).shards())
    assert [(shard.unit, list(shard.rows())) for shard in shards] == [("line", [(f"e{n}", f"d{n}")]) for n in range(3)]
    (tmp_path / "part-1.de").rename(tmp_path / "part-3.de")
    with pytest.raises(DataError, match=r"part-1.en has no partner among .*part-\*.de \(the next one is .*part-2.de\)"):
        list(pairs(split))
    (tmp_path / "part-3.de").unlink()
    with pytest.raises(DataError, match=r"matches 3 files, .* matches 2; each source file needs its target file"):
        list(pairs(split))
    with pytest.raises(DataError, match="no file has a name like this"):
        list(pairs([str(tmp_path / "none-*.tsv")]))


def test_documents_of_a_language_model(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / f"{name}.txt").write_text(f"{name}\nmore\n")
    (tmp_path / "x.jsonl").write_text('{"text": "first\\nline"}\n{"text": "second"}\n')
    assert list(TextCorpus(files=(str(tmp_path / "*.txt"),)).documents()) == [None, "a\nmore\n", None, "b\nmore\n"]
    assert list(TextCorpus(files=(str(tmp_path / "x.jsonl"),)).documents()) == [None, "first\nline", None, "second"]


class _Holder(Config):
    train: PairCorpora


@pytest.mark.parametrize(
    ("given", "corpora"),
    [
        (["a.en", "a.de"], 1),
        ("a.tsv", 1),
        (["a.tsv", "b.tmx"], 2),
        ([["a.en", "a.de"], ["b.en", "b.de"], "c.jsonl"], 3),
        ([{"files": "a"}, {"files": "b"}], 2),
        ([{"files": ["a.tsv", "b.tsv"]}], 1),
        ({"files": "x.tmx", "source": "en", "target": "de"}, 1),
        ([{"files": "x.parquet", "source": "a.b", "target": "c", "weight": 2.5}, "c.tsv"], 2),
    ],
)
def test_a_recipe_writes_what_it_reads(given: Any, corpora: int) -> None:
    holder = parse(_Holder, {"train": given})
    assert len(holder.train) == corpora
    dumped = holder.model_dump(mode="json", exclude_none=True)
    assert parse(_Holder, dumped) == holder
    assert written(holder.train) == dumped["train"]
    if given in (["a.en", "a.de"], [["a.en", "a.de"], ["b.en", "b.de"], "c.jsonl"]):
        assert dumped["train"] == given


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            ["a.en", "a.de", "b.en"],
            r"3 files of plain text; give \[source file, target file\], or a list of such lists",
        ),
        ([], "no file is given"),
        (7, "should be the name of a file, a table with files, or a list of these"),
        ({"files": "x.tmx", "sauce": "en"}, "unknown name 'sauce'.*did you mean 'source'"),
        ({"files": "x.tmx", "source": "en"}, "choose all of source, target, or none"),
        ({"files": "x.jsonl", "source": 1, "target": 2}, "columns have numbers in TSV files only"),
        ({"files": ["a.tmx", "b.tsv"]}, "files of several formats: tmx, tsv; give each as a corpus"),
        ({"files": "x.tsv", "weight": 0}, "weight: Input should be greater than 0"),
    ],
)
def test_settings_that_cannot_be_meant(given: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse(_Holder, {"train": given})


def test_folders_of_datasets(tmp_path: Path) -> None:
    write_dataset(tmp_path / "train", PAIRS)
    (tmp_path / "dataset_dict.json").write_text('{"splits": ["train"]}')
    with pytest.raises(DataError, match="has several splits; give one of them: train"):
        list(pairs([str(tmp_path)]))
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"is a folder without state.json of `datasets`; give its files by a pattern"):
        list(pairs([str(tmp_path / "empty")]))
    state = tmp_path / "train" / "state.json"
    for text, message in [
        ("[", "does not list data files"),
        ('{"_data_files": [{"filename": "../x.arrow"}]}', "'../x.arrow' is not the name of a file in this folder"),
        ('{"_data_files": []}', "lists no data files"),
        ('{"_data_files": [{"filename": "a.arrow"}], "_indices_files": [1]}', "selects rows by an index"),
    ]:
        state.write_text(text)
        with pytest.raises(DataError, match=message):
            list(pairs([str(tmp_path / "train")]))


def test_without_pyarrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    WRITERS["x.parquet"](tmp_path / "x.parquet", PAIRS)
    monkeypatch.setattr(arrow, "find_spec", lambda name: None)
    with pytest.raises(DependencyError, match=r"x.parquet: is read with pyarrow.*pip install 'allyouneed\[arrow\]'"):
        list(pairs([str(tmp_path / "x.parquet")]))


def test_a_reader_that_stops_early_ends_its_process(tmp_path: Path) -> None:
    pyarrow.parquet.write_table(table(PAIRS * 20_000), tmp_path / "x.parquet")
    rows = pairs([str(tmp_path / "x.parquet")])
    assert next(rows) == PAIRS[0]
    del rows  # a child that is left would be a ResourceWarning, which is an error here


@pytest.mark.parametrize("task", ["translation", "language", "classification"])
def test_tasks_prepare_the_same_data_from_any_format(task: str, tmp_path: Path) -> None:
    rows = [(f"one {number}", f"eins {number % 3}") for number in range(20)]
    sides = {"translation": ("source", "target"), "classification": ("text", "label"), "language": ("text", "label")}[
        task
    ]
    (tmp_path / "x.tsv").write_text("".join(f"{a}\t{b}\n" for a, b in rows))
    (tmp_path / "x.jsonl").write_text("".join(json.dumps(dict(zip(sides, row, strict=True))) + "\n" for row in rows))
    found = []
    for name in ("x.tsv", "x.jsonl"):
        chosen = {} if name == "x.jsonl" else dict(zip(sides, (1, 2), strict=True))
        if task == "language":
            chosen = {"text": 1} if chosen else {}
        given = {"files": str(tmp_path / name), **chosen}
        settings: dict[str, Any] = {"train": [given], "valid": [given], "tokenizer": {"kind": "words"}}
        if task == "language":
            settings["context"] = 5
        data = TASKS[task].model_validate(settings).prepare(tmp_path / f"data-{name}", 1)
        found.append(
            [(name, value.tolist()) for name, value in vars(data.batch(3, 2)).items() if hasattr(value, "tolist")]
        )
    assert found[0] == found[1]


def test_the_wrong_direction_of_one_corpus_is_refused(tmp_path: Path) -> None:
    english = [f"the house number {n} is very old" for n in range(20)]
    german = [f"das haus nummer {n} ist sehr alt" for n in range(20)]
    write_tsv(tmp_path / "a.tsv", list(zip(english, german, strict=True)))
    write_tsv(tmp_path / "b.tsv", list(zip(german, english, strict=True)))
    files = [str(tmp_path / name) for name in ("a.tsv", "b.tsv")]
    config = TranslationConfig.model_validate({"train": files, "valid": files[0], "tokenizer": {"kind": "words"}})
    with pytest.raises(
        DataError, match=r"task.train: .*b.tsv: source and target are swapped.* in the order of .*a.tsv"
    ):
        config.prepare(tmp_path / "data", 1)


def test_splits_of_a_language_model_need_plain_text(tmp_path: Path) -> None:
    for name in ("x.jsonl", "*.txt"):
        with pytest.raises(ConfigError, match="split cuts one file into parts"):
            parse(LanguageConfig, {"train": name, "split": [0.9, 0.1]})


def test_fields_of_training_are_used_for_evaluation(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text('{"en": "one", "de": "eins"}\n')
    train = [{"files": "web.tmx", "source": "xx", "target": "yy"}, {"files": "w.jsonl", "source": "en", "target": "de"}]
    task = TranslationConfig.model_validate({"train": train, "valid": "v.tsv"})
    assert list(task.read_pairs([str(tmp_path / "x.jsonl")])) == [("one", "eins")]
    chosen = {"files": str(tmp_path / "x.jsonl"), "source": "de", "target": "en"}
    assert list(task.read_pairs([chosen])) == [("eins", "one")]


def test_plain_text_has_no_columns(tmp_path: Path) -> None:
    for name in ("a.en", "a.de"):
        (tmp_path / name).write_text("x\n")
    files = [str(tmp_path / name) for name in ("a.en", "a.de")]
    with pytest.raises(DataError, match=r"a.en and .*a.de: plain text has no columns"):
        list(pairs([{"files": files, "source": "en", "target": "de"}]))
    with pytest.raises(DataError, match=r"a.en: plain text has no columns"):
        list(TextCorpus(files=(files[0],), text="x").documents())


def test_a_stored_recipe_is_read_without_its_data(tmp_path: Path) -> None:
    names = [str(tmp_path / name) for name in ("first", "second", "third")]
    for name in names:
        write_dataset(Path(name), PAIRS)
    chosen = {"files": names[0], "text": "source"}
    text = LanguageConfig.model_validate({"train": chosen, "valid": chosen})
    holder = parse(_Holder, {"train": names})
    assert len(holder.train) == 3
    stored = [text.model_dump(mode="json", exclude_none=True), holder.model_dump(mode="json", exclude_none=True)]
    for name in names:
        shutil.rmtree(name)
    assert parse(LanguageConfig, stored[0]) == text
    assert parse(_Holder, stored[1]) == holder


def test_languages_come_from_names_or_fields() -> None:
    def languages(train: Any) -> object:
        return TranslationConfig.model_validate({"train": train, "valid": train}).languages()

    assert languages(["a.en.zst", "a.de.zst"]) == ("en", "de")
    assert languages({"files": "x.tmx", "source": "en-GB", "target": "de"}) == ("en-GB", "de")
    assert languages({"files": "x.parquet", "source": "translation.en", "target": "translation.de"}) == ("en", "de")
    assert languages("x.tsv") is None
    with pytest.raises(UserError, match="their names are in the order de en"):
        TranslationConfig.model_validate(
            {"train": ["a.en", "a.de"], "valid": {"files": "x.tmx", "source": "de", "target": "en"}}
        ).prepare(Path("nowhere"), 1)
