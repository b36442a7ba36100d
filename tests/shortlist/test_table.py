"""The table of a shortlist: its contents, the words it allows, and bad files."""

import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from allyouneed.errors import FolderError
from allyouneed.shortlist.lexicon import Lexicon
from allyouneed.shortlist.table import SPECIALS, Shortlist, make_shortlist, read_shortlist

LEXICON = Lexicon(np.array([4, 4, 4, 6, 7, 7]), np.array([5, 8, 9, 5, 4, 6]), np.array([0.2, 0.5, 0.3, 1.0, 0.5, 0.5]))
FREQUENCY = np.array([0, 0, 0, 90, 1, 7, 3, 7, 9, 0])


def test_the_most_probable_and_the_most_frequent_words() -> None:
    made = make_shortlist(LEXICON, FREQUENCY, sources=8, best=2, always=2, shared=False)
    assert made.always.tolist() == [0, 1, 2, 3, 5, 8]  # special ids are always allowed; of 5 and 7 the smaller id wins
    assert [made.of(word) for word in range(8)] == [[], [], [], [], [8, 9], [], [5], [4, 6]]
    assert re.fullmatch(r"shortlist:2\+2:[0-9a-f]{8}", made.signature)


def test_signatures_identify_the_table() -> None:
    tables = [of_lists(lists, [0, 1, 2, 3]) for lists in ([[5, 8], [4]], [[5, 9], [4]], [[4], [5, 8]])]
    assert len({one.signature for one in tables}) == 3
    stored = read_shortlist(tables[0].tensors(), 2, 20, Path("here"))
    assert stored.signature == tables[0].signature


def test_words_without_occurrences_are_not_frequent() -> None:
    made = make_shortlist(LEXICON, FREQUENCY, sources=8, best=1, always=100, shared=False)
    assert made.always.tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8]


def test_unknown_words_are_not_listed() -> None:
    some = Lexicon(np.array([3, 4, 4, 4]), np.array([5, 3, 5, 8]), np.array([1.0, 0.6, 0.3, 0.1]))
    made = make_shortlist(some, FREQUENCY, sources=8, best=2, always=0, shared=False)
    assert [made.of(word) for word in (3, 4)] == [[], [5, 8]]


def test_with_a_shared_vocabulary_each_word_allows_itself() -> None:
    made = make_shortlist(LEXICON, FREQUENCY, sources=10, best=1, always=0, shared=True)
    assert made.always.tolist() == [0, 1, 2, 3]
    assert [made.of(word) for word in range(10)] == [[], [], [], [], [4, 8], [5], [5, 6], [4, 7], [8], [9]]


lists = st.lists(st.sets(st.integers(SPECIALS, 19)).map(sorted), min_size=9, max_size=9)


def of_lists(lists: list[list[int]], always: list[int]) -> Shortlist:
    ends = np.cumsum([len(words) for words in lists])
    flat = [word for words in lists for word in words]
    return Shortlist(torch.tensor(always), torch.tensor(flat, dtype=torch.long), torch.from_numpy(ends))


@given(lists=lists, sources=st.lists(st.lists(st.integers(0, 8), max_size=5), min_size=1, max_size=4))
def test_a_source_allows_what_its_words_allow(lists: list[list[int]], sources: list[list[int]]) -> None:
    made = of_lists(lists, [0, 1, 2, 3, 11])
    word_NL, count_N = made.lists(sources)
    for words, count, source in zip(word_NL.tolist(), count_N.tolist(), sources, strict=True):
        wanted = sorted({0, 1, 2, 3, 11, *(word for given in source for word in lists[given])})
        assert words == [*wanted, *[0] * (word_NL.shape[1] - count)]
        assert count == len(wanted)
    assert word_NL.shape[1] == count_N.max()


@given(lists=lists)
def test_a_stored_table_is_read_again(lists: list[list[int]]) -> None:
    made = of_lists(lists, [0, 1, 2, 3, 7])
    again = read_shortlist(made.tensors(), 9, 20, Path("here"))
    assert [again.of(word) for word in range(9)] == lists
    assert again.always.tolist() == [0, 1, 2, 3, 7]


def put(name: str, values: list[int], dtype: torch.dtype = torch.int32) -> Callable[[dict[str, Tensor]], object]:
    return lambda tensors: tensors.update({name: torch.tensor(values, dtype=dtype)})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda tensors: tensors.clear(), "holds nothing; should hold always, words, ends"),
        (lambda tensors: tensors.pop("ends"), "holds always, words; should"),
        (lambda tensors: tensors.update(more=torch.ones(1)), "holds always, ends, more, words; should"),
        (put("words", [5, 8, 9], torch.int64), "words should be a vector of int32"),
        (lambda tensors: tensors.update(always=torch.arange(4.0)), "always should be a vector of int32"),
        (lambda tensors: tensors.update(words=torch.ones(1, 3, dtype=torch.int32)), "words should be a vector"),
        (lambda tensors: tensors.update(ends=torch.tensor(3)), "ends should be a vector of int64"),
        (put("words", [5, 8, 20]), "words holds ids that are not among the 20 target words"),
        (put("words", [-1, 8, 9]), "words holds ids that are not among"),
        (put("always", [0, 1, 2, 3, 20]), "always holds ids that are not among"),
        (put("always", [0, 1, 2]), "always should hold different ids in order, the 4 special ones first"),
        (put("always", [0, 1, 3, 2]), "always should hold different ids in order"),
        (put("always", [0, 1, 2, 3, 9, 8]), "always should hold different ids in order"),
        (put("always", []), "always should hold different ids in order"),
        (put("ends", [2, 3], torch.int64), "for 2 source words, but the model has 3; make it again"),
        (put("ends", [2, 1, 3], torch.int64), "ends should rise to the number of words, 3"),
        (put("ends", [-1, 2, 3], torch.int64), "ends should rise to the number of words, 3"),
        (put("ends", [2, 2, 2], torch.int64), "ends should rise to the number of words, 3"),
        (put("ends", [2, 2, 9], torch.int64), "ends should rise to the number of words, 3"),
        (
            put("ends", [2**63 - 1, -2, 3], torch.int64),
            "ends should rise to the number of words, 3",
        ),
        (put("ends", [2**63 - 1, -100, 3], torch.int64), "ends should rise to the number of words, 3"),
        (put("words", [8, 5, 9]), "words of a source word should be different ids in order"),
        (put("words", [5, 5, 9]), "words of a source word should be different ids in order"),
    ],
)
def test_a_bad_shortlist_is_refused(change: Callable[[dict[str, Tensor]], object], message: str) -> None:
    tensors = of_lists([[5, 8], [], [4]], [0, 1, 2, 3]).tensors()
    read_shortlist(dict(tensors), 3, 20, Path("here"))
    change(tensors)
    with pytest.raises(FolderError, match=message) as caught:
        read_shortlist(tensors, 3, 20, Path("here"))
    assert "\n" not in str(caught.value)
