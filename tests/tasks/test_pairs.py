"""Translation, number words and dates: prepared pairs, addressed batches, unseen test items, scores with signatures."""

from pathlib import Path

import pytest
import torch

from allyouneed.config import parse
from allyouneed.errors import ConfigError, DataError
from allyouneed.tasks import TASKS, Batch
from allyouneed.tasks.numbers import DatesConfig, NumbersConfig, number_languages, number_words
from allyouneed.tasks.pairs import PairData, PairTask
from allyouneed.tasks.translation import TranslationConfig
from allyouneed.text.specials import BOS, EOS, PAD
from helpers import shared_data

SMALL = {"pairs": 60, "valid": 12, "test": 13, "up_to": 200, "batch_tokens": 128, "max_length": 64}


@pytest.fixture
def numbers(tmp_path: Path) -> PairData:
    return NumbersConfig.model_validate(SMALL).prepare(tmp_path / "data", 1)


def equal(one: Batch, other: Batch) -> bool:
    fields = ("source_BS", "source_mask_BS", "input_BT", "output_BT", "class_B")
    pairs = [(getattr(one, name), getattr(other, name)) for name in fields]
    return all((a is None and b is None) or (a is not None and b is not None and torch.equal(a, b)) for a, b in pairs)


def test_batches_hold_the_ids_of_the_texts(numbers: PairData) -> None:
    codec = numbers.codec
    known = set()
    for index in range(numbers.epoch or 0):
        batch = numbers.batch(5, index)
        assert batch.source_BS is not None
        assert batch.input_BT is not None
        assert batch.output_BT is not None
        assert codec.source is not None
        assert batch.source_BS.dtype == torch.int64
        for source, given, output in zip(batch.source_BS, batch.input_BT, batch.output_BT, strict=True):
            length = int((output != PAD).sum())
            assert given[0] == BOS
            assert output[length - 1] == EOS
            assert given[1:length].tolist() == output[: length - 1].tolist()
            assert not given[length:].any()
            english, german = codec.source.decode(source.tolist()), codec.decode_target(output.tolist())
            assert source[source != PAD].tolist() == codec.encode_source(english)
            assert output[:length].tolist() == codec.encode_target(german)
            known.add((english, german))
        valid = batch.source_mask_BS
        assert (batch.source_BS != PAD).all() if valid is None else torch.equal(valid, batch.source_BS != PAD)
    assert len(known) == 60
    assert ("one", "eins") in known | set(numbers.examples("valid")) | set(numbers.examples("test"))


def test_test_items_are_not_in_training(numbers: PairData) -> None:
    assert numbers.codec.source is not None
    seen: set[str] = set()
    for index in range(3 * (numbers.epoch or 0)):
        batch = numbers.batch(0, index)
        assert batch.source_BS is not None
        seen |= {numbers.codec.source.decode(row.tolist()) for row in batch.source_BS}
    valid, test = ({source for source, _ in numbers.examples(split)} for split in ("valid", "test"))
    assert (len(seen), len(valid), len(test)) == (60, 12, 13)
    assert not seen & valid
    assert not seen & test
    assert not valid & test


def test_held_out_batches_hold_every_item_once(numbers: PairData) -> None:
    rows = sum(batch.output_BT.shape[0] for batch in numbers.held_out("test") if batch.output_BT is not None)
    assert rows == 13
    tokens = sum(batch.tokens for batch in numbers.held_out("test"))
    assert tokens == sum(len(numbers.codec.encode_target(german)) for _, german in numbers.examples("test"))


def test_prepared_again_is_the_same_and_other_seeds_are_not(numbers: PairData, tmp_path: Path) -> None:
    config = NumbersConfig.model_validate(SMALL)
    for folder in ("data", "elsewhere"):
        again = config.prepare(tmp_path / folder, 1)
        assert all(equal(again.batch(5, index), numbers.batch(5, index)) for index in range(9))
    assert config.prepare(tmp_path / "data", 2).examples("test") != numbers.examples("test")


def test_changed_sources_are_prepared_again(tmp_path: Path) -> None:
    for name in ("train", "valid"):
        (tmp_path / name).write_text("a b\tx y\nc\tz\n")
    files = {name: str(tmp_path / name) for name in ("train", "valid")}
    config = TranslationConfig.model_validate({**files, "tokenizer": {"kind": "words"}})
    assert config.prepare(tmp_path / "d", 0).notes == [
        "train: 2 pairs",
        "valid: 2 pairs",
        "valid: 2 of 2 pairs also in train",
    ]
    (tmp_path / "train").write_text("a b\tx y\nc\tz\nd\tw\n")
    data = config.prepare(tmp_path / "d", 0)
    assert data.notes[0] == "train: 3 pairs"
    with pytest.raises(ConfigError, match="test: the recipe has no such data"):
        list(data.held_out("test"))
    with pytest.raises(ConfigError, match="test: the recipe has no such data"):
        data.examples("test")


def test_long_pairs_are_skipped_and_counted(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("a b c d\tx\na\tx\na\tx x x x x\n")
    settings = {"train": str(tmp_path / "x"), "valid": str(tmp_path / "x"), "tokenizer": {"kind": "words"}}
    data = TranslationConfig.model_validate({**settings, "max_length": 4}).prepare(tmp_path / "d", 0)
    assert data.notes[:2] == ["train: 1 pairs", "train: 2 of 3 skipped: longer than max_length=4 tokens"]
    (tmp_path / "x").write_text("a b c d\tx\n")
    with pytest.raises(DataError, match=r"none of 1 pairs can be used: 1 longer than max_length=4"):
        TranslationConfig.model_validate({**settings, "max_length": 4}).prepare(tmp_path / "d", 0)


def test_shared_and_separate_vocabularies(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("a b\tx y z\n" * 3)
    settings = {"train": str(tmp_path / "x"), "valid": str(tmp_path / "x"), "tokenizer": {"kind": "words"}}
    sizes = [
        TranslationConfig.model_validate({**settings, "shared": shared}).prepare(tmp_path / "d", 0).sizes
        for shared in (True, False)
    ]
    assert [(size.source, size.target, size.shared) for size in sizes] == [(9, 9, True), (6, 7, False)]


@pytest.mark.parametrize(
    ("number", "language", "words"),
    [
        (101_000, "de", "einhunderteintausend"),
        (701_345, "de", "siebenhunderteintausenddreihundertfünfundvierzig"),
        (1234, "en", "one thousand two hundred and thirty-four"),
        (21_000, "es", "veintiún mil"),
        (31_000, "es", "treinta y un mil"),
        (101_000_000, "es", "ciento un millones"),
        (41, "es", "cuarenta y uno"),
        (1000, "sv", "ettusen"),
        (500, "cs", "pět set"),
        (200, "cs", "dvě stě"),
        (1300, "cs", "tisíc tři sta"),
        (2300, "nl", "tweeduizend driehonderd"),
        (2000, "nl", "tweeduizend"),
    ],
)
def test_known_errors_of_num2words_are_corrected(number: int, language: str, words: str) -> None:
    assert number_words(number, language) == words


@pytest.mark.no_shapes
def test_every_language_writes_numbers() -> None:
    for language in number_languages():
        texts = {number_words(number, language) for number in (0, 7, 41, 350, 999)}
        assert len(texts) == 5
        assert all(text == " ".join(text.split()) for text in texts)
    with pytest.raises(ConfigError, match="num2words cannot write 999,999 in 'am'"):
        number_words(999_999, "am")


def test_dates(tmp_path: Path) -> None:
    settings = {"pairs": 40, "valid": 5, "test": 6, "first_year": 1973, "last_year": 1973, "styles": ["full"]}
    data = DatesConfig.model_validate(settings).prepare(tmp_path, 3)
    everything = DatesConfig.model_validate({**settings, "pairs": 354}).prepare(tmp_path, 3)
    assert not {source for source, _ in data.examples("test")} & {source for source, _ in data.examples("valid")}
    assert len({source for source, _ in everything.examples("test")}) == 6
    for language, words in (
        ("de", "Samstag, 19. Mai 1973"),
        ("hu", "1973. május 19., szombat"),
        ("ja", "1973年5月19日土曜日"),
    ):
        config = DatesConfig.model_validate({**settings, "pairs": 354, "target": language})
        pairs = [pair for split in ("train", "valid", "test") for pair in config.rows(split, 0)]
        assert len(pairs) == 365
        assert ("Saturday, May 19, 1973", words) in pairs


@pytest.mark.parametrize(
    ("task", "settings", "message"),
    [
        ("numbers", {"target": "dee"}, "unknown name 'dee' .did you mean 'de'"),
        ("numbers", {"up_to": 1000}, "there are only 1,001 numbers; raise up_to"),
        ("numbers", {"max_length": 64, "batch_tokens": 32}, "max_length=64 is more than batch_tokens=32"),
        ("numbers", {"shared": True, "target_tokenizer": {"kind": "bytes"}}, "drop target_tokenizer"),
        ("dates", {"source": "xx"}, "unknown name 'xx'"),
        ("dates", {"source": "arn"}, "no month names for 'arn'"),
        ("dates", {"first_year": 2000, "last_year": 1999}, "is after"),
        ("dates", {"first_year": 2000, "last_year": 2000}, "only 366 days"),
        ("translation", {"train": "x"}, "valid: is missing"),
        ("translation", {"train": ["a", "b", "c"], "valid": "x"}, "train"),
        ("translation", {"train": "a", "valid": "b", "tset": "c"}, "did you mean 'test'"),
    ],
)
def test_impossible_settings(task: str, settings: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as error:
        parse(TASKS[task], settings)
    assert "\n" not in str(error.value)


def test_scores_carry_their_signatures(numbers: PairData) -> None:
    references = [german for _, german in numbers.examples("test")]
    scores = numbers.measure([*references[1:], "falsch"], references)
    assert [score.name for score in scores] == ["exact", "bleu", "chrf"]
    assert numbers.measure(references, references)[0].value == 1
    assert scores[0].value < 1
    assert "n:13" in scores[0].signature
    assert "case:mixed" in scores[1].signature
    assert "tok:char" in scores[1].signature


def test_multi30k(tmp_path: Path) -> None:
    folder = shared_data("translation", "multi30k")
    files = {"train": "val", "valid": "test_2016_flickr", "test": "test_2016_flickr"}
    tree = {split: [str(folder / f"{name}.{side}") for side in ("en", "de")] for split, name in files.items()}
    config: PairTask = TranslationConfig.model_validate({**tree, "tokenizer": {"size": 1000}, "batch_tokens": 1024})
    data = config.prepare(tmp_path, 0)
    assert data.notes == ["train: 1,014 pairs", "valid: 1,000 pairs", "test: 1,000 pairs"]
    assert data.codec.target is not None
    for _, german in data.examples("test"):
        assert data.codec.decode_target(data.codec.encode_target(german)) == german
    scores = data.measure(*([german for _, german in data.examples("test")],) * 2)
    assert [score.name for score in scores] == ["bleu", "chrf", "exact"]
    assert scores[0].value == pytest.approx(100)
