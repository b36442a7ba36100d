"""Weights of corpora: exact shares in every epoch, the same after a resumption, never more than a batch may hold."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from allyouneed.config import parse
from allyouneed.errors import ConfigError
from allyouneed.tasks import TASKS, TaskData
from allyouneed.tasks.batching import Batches
from allyouneed.tasks.language import LanguageConfig
from allyouneed.tasks.weighting import WeightedRows

LENGTHS = st.lists(st.integers(1, 60), min_size=1, max_size=60)
WEIGHT = st.sampled_from([0.01, 0.25, 1 / 3, 0.5, 1.0, 1.4, 2.0, 3.75])


@given(
    corpora=st.lists(st.tuples(LENGTHS, WEIGHT), min_size=1, max_size=3),
    seed=st.integers(0, 9),
    epoch=st.integers(0, 20),
)
def test_an_epoch_has_the_share_of_each_corpus_within_the_budget(corpora, seed, epoch) -> None:
    lengths = np.concatenate([np.array(one) for one, _ in corpora])
    batches = Batches((lengths, lengths), 100, shares=[(len(one), weight) for one, weight in corpora])
    members = [batches.members(seed, epoch * len(batches) + number) for number in range(len(batches))]
    for group in members:
        assert len(group) * lengths[group].max() <= 100
    counts, start = Counter(np.concatenate(members).tolist()), 0
    for one, weight in corpora:
        found = [counts[start + place] for place in range(len(one))]
        assert sum(found) == max(1, round(len(one) * (weight % 1)) + len(one) * int(weight))
        assert max(found) - min(found) <= 1  # spread over the examples
        start += len(one)


@given(count=st.integers(1, 40), weight=st.sampled_from([0.01, 0.1, 0.25, 0.7, 1.5]), seed=st.integers(0, 3))
def test_every_example_is_read_equally_often(count, weight, seed) -> None:
    rows = WeightedRows(np.arange(count) % 5 + 1, [(count, weight)])
    per_epoch = len(rows.rows(seed, 0))
    counts = Counter(row for epoch in range(count) for row in rows.rows(seed, epoch).tolist())
    assert set(counts.values()) == {per_epoch} if per_epoch else not counts
    assert len(counts) == count


def prepared(task: str, folder: Path, weight: float | None) -> TaskData:
    """Prepare two corpora: 30 rows of a, and 20 rows of b with a weight."""
    sides = ("text",) if task == "language" else ("source", "target") if task == "translation" else ("text", "label")
    for name, count in (("a", 30), ("b", 20)):
        rows = [dict(zip(sides, (f"{name} {name} {n}", f"{name}"), strict=False)) for n in range(count)]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    second: Any = {"files": str(folder / "b.jsonl")} | ({} if weight is None else {"weight": weight})
    settings: dict[str, Any] = {"train": [str(folder / "a.jsonl"), second], "valid": str(folder / "a.jsonl")}
    settings |= {"tokenizer": {"kind": "words"}}
    settings |= {"context": 3, "batch": 64} if task == "language" else {"batch_tokens": 40, "max_length": 20}
    return TASKS[task].model_validate(settings).prepare(folder / "data", 1)


@pytest.mark.parametrize(("task", "weight"), [("translation", 2.0), ("translation", 0.5), ("classification", 2.5)])
def test_prepared_corpora_are_read_by_their_weights(task: str, weight: float, tmp_path: Path) -> None:
    data = prepared(task, tmp_path, weight)
    assert data.codec.source is not None
    mark, seen = data.codec.source.encode("b")[0], [0, 0]
    for index in range(data.epoch or 0):
        batch = data.batch(9, index)
        assert batch.source_BS is not None
        for row in batch.source_BS.tolist():
            seen[mark in row] += 1
    assert seen == [30, int(20 * weight)]
    again = prepared(task, tmp_path, weight)
    for index in (7, 3, 11):
        one, other = again.batch(9, index).source_BS, data.batch(9, index).source_BS
        assert one is not None
        assert other is not None
        assert one.tolist() == other.tolist()


def test_another_weight_does_not_prepare_again(tmp_path: Path) -> None:
    prepared("translation", tmp_path, 2.0)
    before = (tmp_path / "data" / "prepared" / "key.json").stat().st_mtime_ns
    assert (prepared("translation", tmp_path, 3.0).epoch or 0) > 0
    assert (tmp_path / "data" / "prepared" / "key.json").stat().st_mtime_ns == before


def test_windows_of_a_language_model_follow_the_weights(tmp_path: Path) -> None:
    shares = []
    for weight in (None, 4.0):
        data = prepared("language", tmp_path, weight)
        assert data.codec.target is not None
        mark = data.codec.target.encode("b")[0]
        firsts = [row for index in range(60) for row in data.batch(5, index).output_BT.tolist()]  # type: ignore[union-attr]
        shares.append(np.mean([mark in row for row in firsts]))
    assert 0.35 < shares[0] < 0.45  # 20 of 50 rows
    assert 0.68 < shares[1] < 0.77  # 80 of 110


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"train": {"files": "a", "weight": 2}, "valid": "v"}, "weight has no effect on a single corpus"),
        ({"train": "a", "valid": [{"files": "v", "weight": 2}]}, "weight has no effect on held-out data"),
    ],
)
def test_weights_without_effect_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse(LanguageConfig, settings)
