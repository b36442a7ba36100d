"""Tasks on vectors of bits: right answers, batches without padding, ids in the order of numbers, wrong bits counted."""

from pathlib import Path

import pytest
import torch

from allyouneed.config import parse
from allyouneed.errors import ConfigError
from allyouneed.tasks import TASKS
from allyouneed.tasks.algorithms import AlgorithmData
from allyouneed.tasks.bits import BitsTask, bit_errors
from allyouneed.text.specials import EOS

SMALL: dict[str, dict[str, object]] = {
    "copy-bits": {"lengths": [1, 5]},
    "repeat-copy": {"lengths": [1, 3], "repeats": [1, 3]},
    "recall-bits": {"lengths": [2, 4], "item": 2},
    "priority-sort": {"lengths": [2, 5], "keep": 3},
}


def make(name: str, **settings: object) -> AlgorithmData:
    config = parse(TASKS[name], {**SMALL[name], "batch": 16, "valid": 30, "test": 31, **settings})
    assert isinstance(config, BitsTask)
    return config.prepare(Path("unused"), 3)


def right(name: str, source: str) -> str:
    """Return the right answer, computed in another way than in the task."""
    words = source.split()
    if name == "copy-bits":
        return source
    if name == "repeat-copy":
        *vectors, mark, count = words
        assert mark == "x"
        return " ".join(vectors * int(count, 2))
    if name == "recall-bits":
        given, query = source.removeprefix("; ").split(" ? ")
        items = given.split(" ; ")
        return items[items.index(query) + 1]
    pairs = sorted(zip(words[1::2], words[::2], strict=True), reverse=True)
    return " ".join(vector for _, vector in pairs[:3])


@pytest.mark.parametrize("name", SMALL)
def test_answers_are_right_and_held_out_items_are_not_in_training(name: str) -> None:
    data = make(name)
    assert data.codec.source is not None
    train = {}
    for index in range(40):
        batch = data.batch(0, index)
        assert batch.source_BS is not None
        assert batch.output_BT is not None
        for source, target in zip(batch.source_BS.tolist(), batch.output_BT.tolist(), strict=True):
            train[data.codec.source.decode(source)] = data.codec.decode_target(target)
    held_out = dict(data.examples("valid")) | dict(data.examples("test"))
    assert len(held_out) == 61
    for source, target in [*train.items(), *held_out.items()]:
        assert right(name, source) == target
    assert not train.keys() & held_out.keys()


@pytest.mark.parametrize("name", SMALL)
def test_a_training_batch_has_one_length(name: str) -> None:
    data = make(name)
    shapes = set()
    for index in range(30):
        batch = data.batch(1, index)
        assert batch.source_BS is not None
        assert batch.output_BT is not None
        assert batch.source_mask_BS is None
        assert torch.equal(batch.output_BT[:, -1], torch.full((16,), EOS))
        shapes.add((batch.source_BS.shape[1], batch.output_BT.shape[1]))
    assert len(shapes) > 2
    again = make(name).batch(1, 29).source_BS
    assert again is not None
    assert torch.equal(again, batch.source_BS)


@pytest.mark.parametrize("name", SMALL)
def test_ids_of_vectors_are_in_the_order_of_numbers(name: str) -> None:
    data = make(name, bits=5)
    assert data.codec.source is not None
    assert data.codec.source.encode(" ".join(f"{n:05b}" for n in range(32))) == list(range(4, 36))
    assert data.sizes.source == 4 + 32 + {"copy-bits": 0, "repeat-copy": 1, "recall-bits": 2, "priority-sort": 0}[name]


def test_wrong_bits_are_counted() -> None:
    assert bit_errors(["0101 1111"], ["0101 1111"]).value == 0
    assert bit_errors(["0101 1110", "0000"], ["0101 1111", "0001"]).value == 2 / 12
    assert bit_errors(["0101"], ["0101 1111"]).value == 4 / 8  # one is missing
    assert bit_errors(["0101 1111 1"], ["0101 1111"]).value == 4 / 12  # one extra
    assert bit_errors(["0101 x"], ["0101 1111"]).value == 4 / 8  # malformed
    assert bit_errors([""], ["0101"]).value == 1
    assert not bit_errors([""], ["0101"]).higher_is_better


def test_scores_are_exact_match_and_bit_errors() -> None:
    scores = make("copy-bits").measure(["00000000", "1"], ["00000001", "1"])
    assert [(score.name, score.value) for score in scores] == [("exact", 0.5), ("bit_errors", 1 / 9)]


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("repeat-copy", {"repeats": [3, 2]}, "fewest, most"),
        ("repeat-copy", {"repeats": [1, 256]}, "below 256"),
        ("recall-bits", {"lengths": [1, 3]}, "at least 2 items"),
        ("recall-bits", {"bits": 1, "item": 1}, "too few different items"),
        ("priority-sort", {"bits": 2}, "at least 5 different priorities"),
    ],
)
def test_impossible_settings(name: str, settings: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make(name, **settings)
