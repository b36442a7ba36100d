"""Generated tasks: right answers, addressed batches, held-out items that never occur in training."""

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from allyouneed.config import parse
from allyouneed.errors import ConfigError
from allyouneed.tasks import TASKS, Batch
from allyouneed.tasks.algorithms import AlgorithmData, AlgorithmTask, Dice, ListOpsConfig, list_value
from helpers import shared_data

SMALL: dict[str, dict[str, object]] = {
    "copy": {"lengths": [1, 5]},
    "reverse": {"lengths": [1, 5]},
    "sort": {"lengths": [2, 5], "symbols": 12},
    "addition": {"lengths": [1, 3]},
    "associative-recall": {"lengths": [1, 4], "keys": 5},
    "listops": {"lengths": [4, 30], "depth": 4, "arguments": 4},
}


def make(name: str, **settings: object) -> tuple[AlgorithmTask, AlgorithmData]:
    config = parse(TASKS[name], {**SMALL[name], "batch": 16, "valid": 30, "test": 31, **settings})
    assert isinstance(config, AlgorithmTask)
    return config, config.prepare(Path("unused"), 3)


def right(name: str, source: str) -> str:
    """Return the right answer, computed in another way than in the task."""
    words = source.split()
    if name == "copy":
        return source
    if name == "reverse":
        return " ".join(words[::-1])
    if name == "sort":
        return " ".join(sorted(words, key=lambda word: (len(word), word)))
    if name == "addition":
        left, right = source.split("+")
        return f"{int(left) + int(right)}"
    if name == "associative-recall":
        return words[words.index(words[-1]) + 1]
    return str(evaluate(words))


def evaluate(tokens: list[str]) -> int:
    stack: list[str | int] = []
    for token in tokens:
        if token != "]":
            stack.append(int(token) if token.isdigit() else token)
            continue
        values: list[int] = []
        while isinstance(top := stack.pop(), int):
            values.insert(0, top)
        stack.append(list_value(top, values))
    (value,) = stack
    assert isinstance(value, int)
    return value


def texts(data: AlgorithmData, batch: Batch) -> list[tuple[str, str]]:
    assert batch.source_BS is not None
    assert data.codec.source is not None
    sources = [data.codec.source.decode(row.tolist()) for row in batch.source_BS]
    if data.codec.classes is not None:
        assert batch.class_B is not None
        return list(zip(sources, [data.codec.classes[number] for number in batch.class_B], strict=True))
    assert batch.output_BT is not None
    return list(zip(sources, [data.codec.decode_target(row.tolist()) for row in batch.output_BT], strict=True))


@pytest.mark.parametrize("name", SMALL)
def test_answers_are_right_and_held_out_items_are_not_in_training(name: str) -> None:
    _, data = make(name)
    valid, test = (dict(data.examples(split)) for split in ("valid", "test"))
    train = dict(pair for index in range(30) for pair in texts(data, data.batch(0, index)))
    for items in (train, valid, test):
        assert items
        for source, target in items.items():
            assert right(name, source) == target
    assert not train.keys() & valid.keys()
    assert not train.keys() & test.keys()
    assert not valid.keys() & test.keys()
    assert sum(len(texts(data, batch)) for batch in data.held_out("test")) == len(test)
    assert [pair for batch in data.held_out("valid") for pair in texts(data, batch)] == data.examples("valid")


@pytest.mark.parametrize("name", SMALL)
def test_addressed_by_seed_and_index(name: str) -> None:
    _, data = make(name)
    _, again = make(name)
    assert texts(data, data.batch(1, 7)) == texts(again, again.batch(1, 7))
    assert texts(data, data.batch(1, 7)) != texts(data, data.batch(1, 8))
    assert texts(data, data.batch(1, 7)) != texts(data, data.batch(2, 7))
    assert data.examples("test") == again.examples("test")


def test_test_lengths_may_differ() -> None:
    _, data = make("copy", test_lengths=[40, 44])
    assert {len(source.split()) for source, _ in data.examples("test")} == {40, 41, 42, 43, 44}
    assert max(len(source.split()) for source, _ in data.examples("valid")) <= 5


def test_few_items_are_split_and_reported() -> None:
    _, data = make("copy", lengths=[1, 1], symbols=40)
    assert 0 < len(data.examples("test")) < 31
    assert "only" in data.notes[0]
    assert len({source for index in range(20) for source, _ in texts(data, data.batch(0, index))}) > 5


def test_impossible_settings() -> None:
    with pytest.raises(ConfigError, match="shortest, longest"):
        make("copy", lengths=[5, 1])
    with pytest.raises(ConfigError, match="need at least 6 different keys"):
        make("associative-recall", lengths=[1, 6])
    with pytest.raises(ConfigError, match="no held-out item"):
        make("listops", depth=2, arguments=2, lengths=[500, 600])


def test_list_values() -> None:
    assert [list_value(name, [9, 1, 4, 8]) for name in ("[MIN", "[MAX", "[MED", "[SM")] == [1, 9, 6, 2]
    assert list_value("[MED", [9, 1, 4]) == 4
    assert list_value("[MED", [1, 2]) == 1


def test_listops_agrees_with_the_published_rules() -> None:
    rows = shared_data("longrange", "listops_lra_sample.tsv").read_text().split("\n")[:50]
    codec = ListOpsConfig().codec()
    for row in rows:
        label, source = row.split("\t")
        assert str(evaluate(source.split())) == label
        assert codec.source is not None
        assert codec.source.decode(codec.source.encode(source)) == source
    assert codec.source.size == 15 + 4  # type: ignore[union-attr]


@given(low=st.integers(-5, 5), span=st.integers(0, 5), seed=st.integers())
def test_dice_stay_within_their_range(low: int, span: int, seed: int) -> None:
    draws = {Dice(seed, index).between(low, low + span) for index in range(60)}
    assert draws <= set(range(low, low + span + 1))


def test_dice_give_fixed_numbers() -> None:
    # Fixed numbers: if they change, every resumed run changes its data.
    assert [Dice(1, "train", 2).below(1000), Dice(1, "train", 3).below(1000)] == [777, 89]


def test_padding_has_a_mask() -> None:
    _, data = make("copy")
    batch = data.batch(0, 0)
    assert batch.source_BS is not None
    assert batch.source_mask_BS is not None
    assert torch.equal(batch.source_mask_BS, batch.source_BS != 0)
