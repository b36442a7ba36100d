"""Batches addressed by (seed, index): every example once in an epoch, within the budget, the same in any process."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from allyouneed.errors import DataError
from allyouneed.randomness import generator
from allyouneed.tasks.batching import STEPS, Batches, bucket_sizes, pack

LENGTHS = st.lists(st.tuples(st.integers(1, 60), st.integers(1, 60)), min_size=1, max_size=200)


def batches(lengths: list[tuple[int, int]], budget: int) -> tuple[Batches, np.ndarray, np.ndarray]:
    source, target = np.array(lengths).T
    return Batches((source, target), budget), source, target


@given(lengths=LENGTHS, budget=st.integers(60, 400), seed=st.integers(0, 2**63), epoch=st.integers(0, 3))
def test_an_epoch_holds_every_example_once_within_the_budget(lengths, budget, seed, epoch) -> None:
    ours, source, target = batches(lengths, budget)
    for members in (
        [ours.members(seed, epoch * len(ours) + number) for number in range(len(ours))],
        ours.in_order(),
    ):
        assert sorted(np.concatenate(members).tolist()) == list(range(len(lengths)))
        for group in members:
            assert len(group) * source[group].max() <= budget
            assert len(group) * target[group].max() <= budget


@given(lengths=LENGTHS, data=st.data())
def test_any_batch_at_any_time(lengths, data) -> None:
    ours, *_ = batches(lengths, 100)
    indices = data.draw(st.lists(st.integers(0, 5 * len(ours)), max_size=8))
    fresh = [batches(lengths, 100)[0].members(7, index).tolist() for index in indices]
    assert [ours.members(7, index).tolist() for index in indices] == fresh


@given(lengths=LENGTHS, seed=st.integers(0, 2**63), epoch=st.integers(0, 3))
def test_an_epoch_is_sorted_as_by_lexsort(lengths, seed, epoch) -> None:
    ours, source, target = batches(lengths, 100)
    longer, shorter, random = np.maximum(source, target), np.minimum(source, target), generator(seed, epoch)
    sizes = bucket_sizes(longer)
    examples = np.lexsort((shorter + random.random(len(shorter)) * (2 + sizes / STEPS), sizes))
    order = np.argsort(random.random(len(ours)), kind="stable")
    found = [ours.members(seed, epoch * len(ours) + number) for number in range(len(ours))]
    assert np.concatenate([found[place] for place in np.argsort(order)]).tolist() == examples.tolist()
    in_order = np.concatenate(ours.in_order())
    assert in_order.tolist() == np.lexsort((shorter, sizes)).tolist()


def test_seeds_and_epochs_differ() -> None:
    ours, *_ = batches([(5, 5)] * 1000, 100)
    orders = [
        np.concatenate([ours.members(seed, epoch * len(ours) + number) for number in range(len(ours))])
        for seed in (0, 1)
        for epoch in (0, 1)
    ]
    for one in range(4):
        for other in range(one):
            assert (orders[one] != orders[other]).mean() > 0.9


def test_the_same_numbers_in_every_process_and_version() -> None:
    # Fixed numbers: if they change, every resumed run changes its data.
    assert generator(3, 1).random(2).tolist() == [0.8572859273383533, 0.9018187745966977]


@given(st.lists(st.integers(1, 5000), min_size=1))
def test_buckets_round_up_by_at_most_an_eighth(lengths) -> None:
    sizes, lengths = bucket_sizes(np.array(lengths)), np.array(lengths)
    assert (sizes >= lengths).all()
    assert (sizes[lengths <= 2 * STEPS] == lengths[lengths <= 2 * STEPS]).all()
    assert (sizes <= lengths * (1 + 1 / STEPS)).all()


@given(sizes=st.lists(st.integers(1, 30), min_size=1).map(sorted), budget=st.integers(30, 100))
def test_packing_is_greedy(sizes, budget) -> None:
    ends = pack(np.array(sizes), budget).tolist()
    assert ends[-1] == len(sizes)
    for start, end in zip([0, *ends], ends, strict=False):
        assert (end - start) * sizes[end - 1] <= budget
        assert end == len(sizes) or (end + 1 - start) * sizes[end] > budget


def test_padding_is_small_for_natural_lengths() -> None:
    random = np.random.default_rng(0)
    source = random.poisson(14, 20_000) + 1
    target = np.maximum(1, source + random.integers(-3, 4, 20_000))
    ours = Batches((source, target), 2048)
    for lengths in (source, target):
        groups = [ours.members(0, index) for index in range(len(ours))]
        waste = 1 - lengths.sum() / sum(len(group) * lengths[group].max() for group in groups)
        assert waste < 0.12


def test_nothing_to_batch_and_too_long() -> None:
    with pytest.raises(DataError, match="no example"):
        Batches((np.zeros(0, int), np.zeros(0, int)), 10)
    with pytest.raises(DataError, match="has 11 tokens, but a batch may hold 10"):
        Batches((np.array([11]), np.array([2])), 10)
