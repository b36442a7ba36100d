"""bAbI: stories, questions, facts; malformed files are refused with their line."""

from pathlib import Path

import pytest
import torch

from allyouneed.config import parse
from allyouneed.errors import ConfigError, DataError
from allyouneed.tasks.babi import SEPARATOR, BabiConfig, BabiData, Question, read_questions
from allyouneed.text.specials import BOS, PAD, UNK
from helpers import shared_data

STORY = (
    "1 Mary moved to the bathroom.\n"
    "2 John went to the hallway.\n"
    "3 Where is Mary? \tbathroom\t1\n"
    "4 Mary got the milk there.\n"
    "5 What is Mary carrying?\tmilk\t4 1\n"
    "1 Daniel left the apple.\n"
    "2 What is Daniel carrying?\tmilk,apple\t\n"
)
TEST = "1 John got the apple.\n2 What is John carrying?\tapple,football\t1\n"


def files(folder: Path, train: str = STORY * 4, test: str = TEST) -> str:
    (folder / "en").mkdir()
    (folder / "en" / "qa7_counting_train.txt").write_text(train)
    (folder / "en" / "qa7_counting_test.txt").write_text(test)
    return str(folder)


def data(folder: Path, **settings: object) -> BabiData:
    tree = {"folder": files(folder), "task": 7, **settings}
    return parse(BabiConfig, tree).prepare(folder / "data", 0)


def test_questions_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text(STORY)
    first, second, third = read_questions(tmp_path / "file")
    story = ("mary moved to the bathroom", "john went to the hallway")
    assert first == Question(story, "where is mary", "bathroom", (0,))
    # The question between them is not a sentence, so line 4 is the third sentence.
    assert second == Question((*story, "mary got the milk there"), "what is mary carrying", "milk", (2, 0))
    assert third == Question(("daniel left the apple",), "what is daniel carrying", "milk,apple", ())
    assert third.text == "daniel left the apple . what is daniel carrying"


def test_batches_hold_every_question_of_an_epoch_once(tmp_path: Path) -> None:
    babi = data(tmp_path, batch=4)
    assert babi.notes == [
        "train: 11 questions",
        "valid: 1 questions",
        "test: 1 questions",
        "test: 1 answers do not occur in training and count as wrong",
    ]
    assert babi.epoch == 3
    assert babi.codec.source is not None
    assert babi.codec.classes is not None
    assert babi.codec.classes[SEPARATOR] == "."
    assert babi.sizes.shared
    for epoch in range(2):
        seen, rows = [], []
        for index in range(3 * epoch, 3 * epoch + 3):
            batch = babi.batch(5, index)
            assert batch.source_BS is not None
            assert batch.class_B is not None
            assert (batch.source_BS[:, 0] == BOS).all()
            assert batch.source_mask_BS is None or torch.equal(batch.source_mask_BS, batch.source_BS != PAD)
            rows.append(batch.tokens)
            for row, number in zip(batch.source_BS, batch.class_B, strict=True):
                text = babi.codec.source.decode(row.tolist())
                assert row[row != PAD].tolist() == babi.codec.encode_source(text)
                seen.append((text, babi.codec.classes[number]))
        assert sorted(rows) == [3, 4, 4]
        questions = [*read_questions(tmp_path / "en" / "qa7_counting_train.txt")][:11]
        assert sorted(seen) == sorted((one.text, one.answer) for one in questions)
    orders = [torch.cat([row for index in range(3) for row in _rows(babi, seed, index)]) for seed in (5, 5, 6)]
    assert torch.equal(orders[0], orders[1])
    assert not torch.equal(orders[0], orders[2])


def _rows(babi: BabiData, seed: int, index: int) -> list[torch.Tensor]:
    source_BS = babi.batch(seed, index).source_BS
    assert source_BS is not None
    return [row[row != PAD] for row in source_BS]


def test_held_out_questions_with_their_facts(tmp_path: Path) -> None:
    babi = data(tmp_path)
    assert babi.examples("valid") == [("daniel left the apple . what is daniel carrying", "milk,apple")]
    assert babi.facts("valid") == [()]
    assert babi.examples("test") == [("john got the apple . what is john carrying", "apple,football")]
    assert babi.facts("test") == [(0,)]
    (batch,) = babi.held_out("test")
    assert batch.class_B is not None
    assert batch.class_B.tolist() == [UNK]  # the answer does not occur in training, so it is never predicted
    (score,) = babi.measure(["milk"], ["apple,football"])
    assert (score.name, score.value) == ("accuracy", 0.0)


@pytest.mark.parametrize(
    ("train", "message"),
    [
        ("1 Mary moved.\n3 Where is Mary?\ta\t1\n", r"_train.txt: line 2: numbered 3 after 1; should be 2"),
        ("Mary moved.\n", r"_train.txt: line 1: 'Mary moved.'; should be a number, a blank and"),
        ("1 Mary moved.\n2 ...\n", r"_train.txt: line 2: has no word"),
        ("1 Mary moved.\n2 Where?\ta\n", r"_train.txt: line 2: 2 columns; should be 3"),
        ("1 Mary moved.\n2 Where?\ta b\t1\n", r"_train.txt: line 2: answer 'a b'; should be a word"),
        (
            "1 Mary moved.\n2 Where?\ta\t2\n",
            r"_train.txt: line 2: fact '2'; should be the number of an earlier sentence",
        ),
        ("1 Mary moved.\n", r"_train.txt: no question"),
        ("", r"_train.txt: no question"),
        (STORY, r"_train.txt: 3 questions; should hold at least 10"),
    ],
)
def test_bad_files(train: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=message):
        parse(BabiConfig, {"folder": files(tmp_path, train), "task": 7}).prepare(tmp_path / "data", 0)


def test_a_missing_file(tmp_path: Path) -> None:
    folder = files(tmp_path)
    with pytest.raises(DataError, match=r"en: no file qa8_\*_train.txt; task.folder should hold"):
        parse(BabiConfig, {"folder": folder, "task": [7, 8]}).prepare(tmp_path / "data", 0)


@pytest.mark.parametrize("wrong", [0, 21, [], [3, 3], "some"])
def test_impossible_tasks(wrong: object) -> None:
    with pytest.raises(ConfigError, match="task"):
        parse(BabiConfig, {"task": wrong})


def test_the_official_files() -> None:
    folder = shared_data("qa", "babi", "en")
    for number in range(1, 21):
        for split in ("train", "test"):
            (path,) = folder.glob(f"qa{number}_*_{split}.txt")
            questions = read_questions(path)
            assert len(questions) in (1000, 999, 995, 996, 998), (
                path
            )  # in some official files a few questions are missing
            assert all(one.story and one.facts for one in questions), path
            assert all(max(one.facts) < len(one.story) for one in questions), path
