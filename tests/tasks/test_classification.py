"""Classification: labels found in training, unknown ones refused with their line."""

from pathlib import Path

import pytest
import torch

from allyouneed.config import parse
from allyouneed.errors import ConfigError, DataError
from allyouneed.tasks.classification import ClassificationConfig, ClassificationData
from allyouneed.text.specials import BOS, PAD

TRAIN = "good\ta fine film\nbad\ta dull film with no end\ngood\tfine\n\nbad\t\nso so\twell\n"
VALID = "bad\tdull\ngood\tfine and\n"


def task(folder: Path, train: str = TRAIN, valid: str = VALID, **settings: object) -> ClassificationData:
    (folder / "train").write_text(train)
    (folder / "valid").write_text(valid)
    files = {"train": str(folder / "train"), "valid": str(folder / "valid")}
    tree = {**files, "tokenizer": {"kind": "words"}, "batch_tokens": 12, "max_length": 8, **settings}
    return ClassificationConfig.model_validate(tree).prepare(folder / "data", 0)


def test_texts_and_classes(tmp_path: Path) -> None:
    data = task(tmp_path)
    assert data.codec.classes == ("bad", "good", "so so")
    assert data.sizes.target == 3
    assert data.notes == [
        "train: 4 texts",
        "train: 1 of 6 skipped: empty text and label",
        "train: 1 of 6 skipped: empty text",
        "valid: 2 texts",
    ]
    seen = []
    for index in range(data.epoch or 0):
        batch = data.batch(0, index)
        assert batch.source_BS is not None
        assert batch.class_B is not None
        assert data.codec.source is not None
        assert (batch.source_BS[:, 0] == BOS).all()
        assert batch.source_mask_BS is None or torch.equal(batch.source_mask_BS, batch.source_BS != PAD)
        for row, number in zip(batch.source_BS, batch.class_B, strict=True):
            text = data.codec.source.decode(row.tolist())
            assert row[row != PAD].tolist() == data.codec.encode_source(text)
            seen.append((text, data.codec.classes[number]))
    assert sorted(seen) == [
        ("a dull film with no end", "bad"),
        ("a fine film", "good"),
        ("fine", "good"),
        ("well", "so so"),
    ]


def test_held_out_and_scores(tmp_path: Path) -> None:
    data = task(tmp_path)
    assert data.examples("valid") == [("dull", "bad"), ("fine and", "good")]
    assert sum(batch.tokens for batch in data.held_out("valid")) == 2
    (score,) = data.measure(["bad", "bad"], ["bad", "good"])
    assert (score.name, score.value, score.signature) == ("accuracy", 0.5, "n:2|right:bad=1/1,good=0/1")
    with pytest.raises(ConfigError, match="test: the recipe has no such data"):
        data.examples("test")


def test_columns_in_the_other_order(tmp_path: Path) -> None:
    data = task(tmp_path, "a film\tgood\na\tbad\n", "a\tbad\n", columns=["text", "label"])
    assert data.codec.classes == ("bad", "good")


@pytest.mark.parametrize(
    ("train", "valid", "message"),
    [
        (
            TRAIN,
            "bad\tdull\nugly\tx\n",
            r"valid: line 2: label 'ugly' does not occur in training; known: bad, good, so so",
        ),
        (TRAIN, "bad dull\n", r"valid: line 1: 1 column; should be 2"),
        ("bad\tx\nbad\ty\n", VALID, "1 label in 2 lines"),
        ("", VALID, "0 labels in 0 lines"),
        (TRAIN, "", "none of 0 lines"),
    ],
)
def test_bad_files(train: str, valid: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=message):
        task(tmp_path, train, valid)


def test_impossible_settings() -> None:
    with pytest.raises(ConfigError, match="should be label and text"):
        parse(ClassificationConfig, {"train": "x", "valid": "y", "columns": ["text", "text"]})
    with pytest.raises(ConfigError, match="one text must fit"):
        parse(ClassificationConfig, {"train": "x", "valid": "y", "max_length": 10, "batch_tokens": 9})
