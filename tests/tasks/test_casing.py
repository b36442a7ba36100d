"""Copies in capitals and in title case: their share, both sides, the same after a resumption, none without case."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from allyouneed.config import parse
from allyouneed.errors import ConfigError
from allyouneed.tasks import pair_files, scale
from allyouneed.tasks.pairs import PairData
from allyouneed.tasks.translation import TranslationConfig
from allyouneed.text.codec import Codec
from allyouneed.text.lines import Pair
from allyouneed.text.tokenizer import control_name

ENGLISH = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
GERMAN = ["eins", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun", "Straße"]
ROWS: list[Pair] = [
    tuple(" ".join([*words, *words][n % 10 : n % 10 + 2 + n // 10]) for words in (ENGLISH, GERMAN)) for n in range(40)
]
CASING = {"upper": 0.2, "title": 0.1}


def prepared(folder: Path, rows: list[Pair] = ROWS, name: str = "data", **settings: Any) -> PairData:
    """Prepare pairs; the folder of prepared data is `name`."""
    text = "".join(f"{source}\t{target}\n" for source, target in rows)
    (folder / "train.tsv").write_text(text, encoding="utf-8")
    train = settings.pop("train", str(folder / "train.tsv"))
    given = {"tokenizer": {"size": 300}, "batch_tokens": 200, "max_length": 100, "valid": str(folder / "train.tsv")}
    return parse(TranslationConfig, given | settings | {"train": train}).prepare(folder / name, 1)


def read(data: PairData, epoch: int = 0) -> Iterator[Pair]:
    """Yield the texts of an epoch."""
    source, target = data.codec.both()
    for index in range(data.epoch or 0):
        batch = data.batch(3, epoch * (data.epoch or 0) + index)
        assert batch.source_BS is not None
        assert batch.output_BT is not None
        assert batch.source_BS.numel() <= data.task.largest_batch()[1]  # type: ignore[index]
        assert batch.output_BT.numel() <= data.task.largest_batch()[1]  # type: ignore[index]
        for ours, theirs in zip(batch.source_BS.tolist(), batch.output_BT.tolist(), strict=True):
            yield source.decode(ours), target.decode(theirs)


def ids(data: PairData, count: int = 30) -> list[Any]:
    """Return the ids of the first batches."""
    batches = [data.batch(3, index) for index in range(count)]
    return [(batch.source_BS.tolist(), batch.output_BT.tolist()) for batch in batches]  # type: ignore[union-attr]


CAPITALS = {(source.upper(), target.upper()) for source, target in ROWS}
TITLES = {(source.title(), target) for source, target in ROWS}


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_each_epoch_has_its_share_and_all_copies_take_turns(dropout: float, tmp_path: Path) -> None:
    size = 1000 if dropout else 200  # dropout makes texts longer than those that are packed
    data = prepared(tmp_path, casing=CASING, tokenizer={"size": 300, "dropout": dropout}, batch_tokens=size)
    seen = Counter[Pair]()
    for epoch in range(10):
        found = Counter(read(data, epoch))
        assert all(found[pair] == 1 for pair in ROWS)
        assert sum(found[pair] for pair in CAPITALS) == 8
        assert sum(found[pair] for pair in TITLES) == 4
        assert found.total() == 52
        seen += found
    assert {seen[pair] for pair in CAPITALS} == {2}
    assert {seen[pair] for pair in TITLES} == {1}
    assert data.notes[:3] == [
        "train: 40 pairs",
        "train: 40 pairs also in capitals",
        "train: 40 pairs also in title case",
    ]


def test_held_out_pairs_are_as_they_are(tmp_path: Path) -> None:
    data = prepared(tmp_path, casing=CASING)
    assert data.examples("valid") == ROWS
    assert sum(batch.examples for batch in data.held_out("valid")) == 40
    assert "valid: 40 of 40 pairs also in train" in data.notes


def test_a_batch_is_the_same_at_any_time_however_the_data_was_prepared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = prepared(tmp_path, casing=CASING)
    expected = ids(first)
    again = prepared(tmp_path, casing=CASING)
    assert [ids_of(again, index) for index in (17, 3)] == [expected[17], expected[3]]
    monkeypatch.setattr(pair_files, "PART_ROWS", 7)  # as many parts as a large corpus has
    assert ids(prepared(tmp_path, casing=CASING, name="parts")) == expected
    assert ids(prepared(tmp_path, casing={"upper": 0.2}, name="other")) != expected


def ids_of(data: PairData, index: int) -> Any:
    batch = data.batch(3, index)
    assert batch.source_BS is not None
    assert batch.output_BT is not None
    return batch.source_BS.tolist(), batch.output_BT.tolist()


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (folder / "prepared").iterdir()}


def test_without_copies_nothing_changes(tmp_path: Path) -> None:
    prepared(tmp_path)
    prepared(tmp_path, name="zeros", casing={"upper": 0, "title": 0})
    assert files(tmp_path / "data") == files(tmp_path / "zeros")
    assert b'"copies"' not in files(tmp_path / "data")["key.json"]


def test_scripts_without_case_have_no_copies(tmp_path: Path) -> None:
    rows = [
        (source.translate({ord(char): ord(char) + 0x4E00 for char in source.replace(" ", "")}), target)
        for source, target in ROWS
    ]
    plain = prepared(tmp_path, rows)
    cased = prepared(tmp_path, rows, name="cased", casing=CASING)
    assert ids(cased) == ids(plain)
    assert "train: 0 pairs also in capitals" in cased.notes


def test_a_target_without_case_stays(tmp_path: Path) -> None:
    rows = [(source, "狗" * (1 + number)) for number, (source, _) in enumerate(ROWS[:9])]
    found = set(read(prepared(tmp_path, rows, casing={"upper": 1.0})))
    assert found == {*rows, *((source.upper(), target) for source, target in rows)}


def test_the_tokeniser_learns_capitals(tmp_path: Path) -> None:
    def tokens(text: str, **settings: Any) -> int:
        codec: Codec = prepared(tmp_path, tokenizer={"size": 400}, **settings).codec
        return len(codec.encode_source(text))

    text = " ".join(ENGLISH)
    assert tokens(text.upper()) > 40  # letters
    assert tokens(text.upper(), casing=CASING) < 25
    assert tokens(text, casing=CASING) <= 1.2 * tokens(text)


def test_languages_decide_the_rules(tmp_path: Path) -> None:
    names = [str(tmp_path / f"train.{language}") for language in ("en", "tr")]
    for name, text in zip(names, ("it is warm", "bu ılık bir iş"), strict=True):
        Path(name).write_text(f"{text}\n" * 3, encoding="utf-8")
    found = set(read(prepared(tmp_path, train=names, valid=names, casing={"upper": 1.0})))
    assert found == {("it is warm", "bu ılık bir iş"), ("IT IS WARM", "BU ILIK BİR İŞ")}


def test_copies_have_the_weight_of_their_corpus(tmp_path: Path) -> None:
    (tmp_path / "more.tsv").write_text("a dog\tein Hund\n" * 10, encoding="utf-8")
    corpora = [str(tmp_path / "train.tsv"), {"files": str(tmp_path / "more.tsv"), "weight": 3}]
    data = prepared(tmp_path, train=corpora, casing={"upper": 0.2})
    found = Counter(read(data))
    assert found["a dog", "ein Hund"] == 30
    assert found["A DOG", "EIN HUND"] == 6
    assert sum(found[pair] for pair in CAPITALS) == 8
    assert "train: 50 pairs also in capitals" in data.notes
    assert sum("pairs" in note and "tsv" in note for note in data.notes) == 2


def test_of_a_large_corpus_fewer_copies_are_read_more_often(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    size = sum(len(f"{source}\t{target}\n".encode()) for source, target in ROWS)
    monkeypatch.setattr(scale, "TOKENIZER_BYTES", size // 4 + 1)
    data = prepared(tmp_path, casing={"upper": 0.3})
    assert "train: 10 pairs also in capitals" in data.notes
    found = Counter(read(data))
    assert sum(found[pair] for pair in CAPITALS) == 12  # 0.3 x 40
    assert set(Counter(found[pair] for pair in CAPITALS if found[pair])) == {1, 2}


def test_copies_that_are_too_long_are_left_out(tmp_path: Path) -> None:
    longest = max(len(line) for pair in ids(prepared(tmp_path), 9) for side in pair for line in side)
    data = prepared(tmp_path, name="cased", casing={"upper": 0.01}, max_length=longest + 1)
    assert data.notes[0] == "train: 40 pairs"
    assert int(data.notes[1].split()[1]) < 40
    assert not any("skipped" in note for note in data.notes)


@pytest.mark.parametrize("casing", [{"upper": 1.5}, {"title": -1}, {"lower": 0.1}, 0.1])
def test_wrong_settings(casing: Any) -> None:
    with pytest.raises(ConfigError, match="casing") as error:
        parse(TranslationConfig, {"train": "a", "valid": "b", "casing": casing})
    assert "\n" not in str(error.value)


def test_copies_have_the_tag_of_their_corpus(tmp_path: Path) -> None:
    (tmp_path / "back.tsv").write_text("a dog\tein Hund\n" * 10, encoding="utf-8")
    corpora = [str(tmp_path / "train.tsv"), {"files": str(tmp_path / "back.tsv"), "tag": "<BT>"}]
    data = prepared(tmp_path, train=corpora, casing={"upper": 0.5})
    source, _ = data.codec.both()
    tag = source.vocabulary[control_name("<BT>")]
    found = Counter[tuple[str, bool]]()
    for index in range(data.epoch or 0):
        rows = data.batch(3, index).source_BS
        assert rows is not None
        found.update((source.decode(row), row[0] == tag) for row in rows.tolist())
    assert found["a dog", True] == 10
    assert found["A DOG", True] == 5
    assert sum(count for (_, tagged), count in found.items() if tagged) == 15
