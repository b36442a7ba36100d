"""Captioning: pictures as ids and as text, splits in which the emoji or only its drawing is new, and bad files."""

from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.image import imsave

from allyouneed.config import parse
from allyouneed.errors import DataError
from allyouneed.randomness import generator
from allyouneed.tasks.captioning import (
    SIDE,
    VALUES,
    CaptioningConfig,
    CaptioningData,
    read_sheet,
    read_table,
    shifted,
)
from allyouneed.tasks.scores import word_scores
from allyouneed.text.pictures import image_text
from allyouneed.text.specials import BOS, EOS, PAD
from helpers import shared_data

COLUMNS = "index\tsplit\thexcode\ten"
SPLITS = ["train", "val", "test", "train", "train", "test", "train"]


def sheet(font: str) -> np.ndarray:
    return np.random.default_rng(len(font)).integers(0, 256, (SIDE, 50 * SIDE, 3), dtype=np.uint8)


def files(folder: Path) -> str:
    for font in ("twemoji", "noto"):
        imsave(folder / f"{font}_32px.png", sheet(font))
        rows = [f"{i}\t{split}\t1F60{i}\tface number {'x' * i}" for i, split in enumerate(SPLITS)]
        (folder / f"{font}_captions.tsv").write_text("\n".join([COLUMNS, *rows]) + "\n")
    return str(folder)


def data(folder: Path, **settings: object) -> CaptioningData:
    tree = {"folder": files(folder), "tokenizer": {"kind": "words", "size": 50}, **settings}
    return parse(CaptioningConfig, tree).prepare(folder / "data", 0)


def test_a_sheet_is_split_into_pictures(tmp_path: Path) -> None:
    files(tmp_path)
    pictures = read_sheet(tmp_path / "noto_32px.png")
    assert pictures.shape == (50, VALUES)
    assert np.array_equal(pictures[7].reshape(SIDE, SIDE, 3), sheet("noto")[:, 7 * SIDE : 8 * SIDE])


def test_batches_and_texts_hold_the_same_ids(tmp_path: Path) -> None:
    captions = data(tmp_path)
    batches = list(captions.held_out("test"))
    texts = captions.examples("test")
    assert captions.codec.source is not None
    assert captions.sizes.source == captions.codec.source.size == 260
    assert [name for _, name in texts] == ["face number xx", "face number xxxxx"] * 2
    (batch,) = batches
    assert batch.source_BS is not None
    assert sorted(batch.source_BS.tolist()) == sorted(captions.codec.encode_sources([text for text, _ in texts]))
    assert batch.source_BS.shape == (4, VALUES + 1)
    assert int(batch.source_BS[:, :-1].min()) >= 4


def test_an_epoch_holds_every_picture_once_and_a_batch_one_length(tmp_path: Path) -> None:
    captions = data(tmp_path, batch=3, shift=0)
    assert captions.epoch == 3
    seen = []
    for index in range(3, 6):
        batch = captions.batch(1, index)
        assert batch.source_BS is not None
        assert batch.input_BT is not None
        assert batch.output_BT is not None
        assert bool((batch.input_BT[:, 0] == BOS).all())
        assert torch.equal(batch.input_BT[:, 1:][batch.output_BT[:, :-1] > EOS], batch.output_BT[batch.output_BT > EOS])
        assert bool((batch.output_BT != PAD).all())
        seen += [tuple(row) for row in batch.source_BS.tolist()]
        again = captions.batch(1, index).source_BS
        assert again is not None
        assert torch.equal(again, batch.source_BS)
    wanted = [i for i, split in enumerate(SPLITS) if split == "train"]
    assert len(set(seen)) == len(seen) == 2 * len(wanted)
    assert {row[:-1] for row in seen} == {tuple(row) for row in _as_ids(tmp_path, wanted).tolist()}


def _as_ids(folder: Path, wanted: list[int]) -> np.ndarray:
    sheets = [read_sheet(folder / f"{font}_32px.png")[wanted] for font in ("twemoji", "noto")]
    return np.concatenate(sheets).astype(int) + 4


def test_a_shifted_picture_is_the_picture_elsewhere_on_white() -> None:
    images = np.zeros((40, VALUES), dtype=np.uint8)
    images.reshape(40, SIDE, SIDE, 3)[:, 10, 20] = [1, 2, 3]
    out = shifted(images, 2, generator(1, 0)).reshape(40, SIDE, SIDE, 3)
    places = set()
    for image in out:
        (row,), (column,) = np.nonzero(image[..., 0] == 1)
        assert image[row, column].tolist() == [1, 2, 3]
        places.add((row - 10, column - 20))
        assert (image == 255).all(axis=-1).sum() == SIDE * SIDE - (SIDE - abs(row - 10)) * (SIDE - abs(column - 20))
    assert {down for down, _ in places} == {right for _, right in places} == {-2, -1, 0, 1, 2}
    assert shifted(images, 0, generator(1, 0)) is images


def test_a_new_drawing_of_a_known_emoji(tmp_path: Path) -> None:
    captions = data(tmp_path, held_out="drawing")
    assert captions.notes == ["train: 11 pictures", "valid: 1 pictures", "test: 2 pictures"]
    noto = read_sheet(tmp_path / "noto_32px.png")
    assert [text for text, _ in captions.examples("test")] == [image_text(noto[i]) for i in (2, 5)]
    with pytest.raises(DataError, match="a new drawing needs two fonts"):
        data(tmp_path, held_out="drawing", fonts=["noto"])


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("0\ttrain\t1F600", "line 2: 3 columns; should be 4"),
        ("1\ttrain\t1F600\tface", "line 2: index '1' in split 'train'; should be 0"),
        ("0\tdev\t1F600\tface", "line 2: index '0' in split 'dev'"),
    ],
)
def test_a_wrong_table_is_refused_with_its_line(tmp_path: Path, line: str, message: str) -> None:
    (tmp_path / "table").write_text(f"{COLUMNS}\n{line}\n")
    with pytest.raises(DataError, match=message):
        read_table(tmp_path / "table", "noto", "en")
    with pytest.raises(DataError, match="no column de"):
        read_table(tmp_path / "table", "noto", "de")


def test_a_wrong_sheet_is_refused(tmp_path: Path) -> None:
    (tmp_path / "text.png").write_text("no picture")
    with pytest.raises(DataError, match="not readable as a PNG"):
        read_sheet(tmp_path / "text.png")
    imsave(tmp_path / "small.png", np.zeros((SIDE, SIDE, 3), dtype=np.uint8))
    with pytest.raises(DataError, match="1600 pixels wide"):
        read_sheet(tmp_path / "small.png")


def test_words_are_counted_in_any_order() -> None:
    recall, precision = word_scores(["the Red red car", ""], ["car: red", "blue bus stop"])
    assert recall.value == 2 / 5
    assert precision.value == 2 / 4


def test_no_first_code_point_is_in_two_splits_of_the_shared_data() -> None:
    task = CaptioningConfig(folder=str(shared_data("captioning/emoji")))
    splits: dict[str, set[str]] = {}
    for one in task.pictures():
        splits.setdefault(one.code.split("-")[0], set()).add(one.split)
    assert len(splits) > 1000
    assert all(len(found) == 1 for found in splits.values())
