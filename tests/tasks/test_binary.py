"""Binary arithmetic: right answers, lowest bits first, batches of one length that grows along the curriculum."""

from pathlib import Path

import pytest

from allyouneed.config import parse
from allyouneed.tasks import TASKS
from allyouneed.tasks.algorithms import AlgorithmData, Dice
from allyouneed.tasks.binary import BinaryTask

NAMES = ("binary-addition", "binary-multiplication")


def make(name: str, **settings: object) -> tuple[BinaryTask, AlgorithmData]:
    config = parse(TASKS[name], {"lengths": [2, 9], "batch": 8, "valid": 30, "test": 31, **settings})
    assert isinstance(config, BinaryTask)
    return config, config.prepare(Path("unused"), 3)


def number(bits: str) -> int:
    """sum_i b_i 2^i."""
    return sum(2**place for place, bit in enumerate(bits) if bit == "1")


@pytest.mark.parametrize("name", NAMES)
def test_answers_are_right_and_their_length_follows_from_the_question(name: str) -> None:
    config, _ = make(name)
    for draw in range(200):
        source, target = config.draw(Dice(draw), (1, 70))
        left, right = source.split(config.sign)
        assert len(left) == len(right)
        if name == "binary-addition":
            assert number(target) == number(left) + number(right)
            assert len(target) == len(left) + 1
        else:
            assert number(target) == number(left) * number(right)
            assert len(target) == 2 * len(left)
        assert len(target) + 1 <= len(source) + 1  # with end tokens: an answer fits the image of its question


def test_the_example_in_the_docs() -> None:
    config, _ = make("binary-addition")
    assert config.answer(number("1011"), number("0110"), 4) == (number("11001"), 5)


def lengths_of(data: AlgorithmData, indices: range) -> list[int]:
    """Return the bits of the operands of some batches; each batch has one length."""
    found = []
    for index in indices:
        batch = data.batch(1, index)
        assert batch.source_BS is not None
        assert batch.source_mask_BS is None
        found.append((batch.source_BS.shape[1] - 2) // 2)
    return found


@pytest.mark.parametrize("name", NAMES)
def test_lengths_grow_along_the_curriculum(name: str) -> None:
    config, data = make(name, curriculum=70)
    assert [config.longest(index) for index in (0, 9, 10, 35, 69, 70, 10_000)] == [2, 2, 3, 5, 8, 9, 9]
    rising = lengths_of(data, range(70))
    assert all(2 <= length <= config.longest(index) for index, length in enumerate(rising))
    at_their_longest = sum(length == config.longest(index) for index, length in enumerate(rising))
    assert 0.6 < at_their_longest / 70 < 0.95
    assert set(lengths_of(data, range(70, 270))) == set(range(2, 10))


def test_without_a_curriculum_the_first_batches_have_all_lengths() -> None:
    config, data = make("binary-addition")
    assert config.longest(0) == 9
    assert 9 in lengths_of(data, range(5))


def test_any_batch_at_any_time() -> None:
    first, again = (make("binary-addition", curriculum=70)[1].batch(1, 40).source_BS for _ in range(2))
    assert first is not None
    assert again is not None
    assert first.equal(again)


def test_held_out_items_are_never_trained_on() -> None:
    _, data = make("binary-addition")
    assert data.codec.source is not None
    held_out = {source for split in ("valid", "test") for source, _ in data.examples(split)}  # type: ignore[arg-type]
    trained = set()
    for index in range(60):
        batch = data.batch(0, index)
        assert batch.source_BS is not None
        trained |= {data.codec.source.decode(row) for row in batch.source_BS.tolist()}
    assert len(held_out) == 61
    assert not trained & held_out
