"""IBM Model 1 against loops straight from its equations, and on languages whose dictionary is known."""

import random
import tracemalloc
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from allyouneed.shortlist import lexicon
from allyouneed.shortlist.lexicon import NULL, Lexicon, learn_lexicon
from allyouneed.text.ragged import Ragged, RaggedWriter

Pairs = Sequence[tuple[list[int], list[int]]]
words = st.lists(st.integers(4, 9), max_size=5)


def stored(folder: Path, pairs: Pairs) -> tuple[Ragged, Ragged]:
    sides = []
    for number, side in enumerate(("source", "target")):
        for old in folder.glob(f"{side}.*"):
            old.unlink()
        with RaggedWriter(folder, side, "<u2") as writer:
            writer.extend([pair[number] for pair in pairs])
        sides.append(Ragged(folder, side, "<u2"))
    return sides[0], sides[1]


def plain(pairs: Pairs, iterations: int) -> dict[tuple[int, int], float]:
    """Return t(y | x) by the equations, with dictionaries."""
    t: dict[tuple[int, int], float] = defaultdict(lambda: 1.0)
    for _ in range(iterations):
        count: dict[tuple[int, int], float] = defaultdict(float)
        for source, target in pairs:
            for y in target:
                total = sum(t[y, x] for x in [NULL, *source])
                for x in [NULL, *source]:
                    count[y, x] += t[y, x] / total
        sums: dict[int, float] = defaultdict(float)
        for (_, x), value in count.items():
            sums[x] += value
        t = defaultdict(float, {(y, x): value / sums[x] for (y, x), value in count.items()})
    return t


def learnt(found: Lexicon) -> dict[tuple[int, int], float]:
    rows = zip(found.target.tolist(), found.source.tolist(), found.probability.tolist(), strict=True)
    return {(y, x): value for y, x, value in rows}


@given(
    pairs=st.lists(st.tuples(words, words), min_size=1, max_size=12),
    iterations=st.integers(1, 4),
    chunk=st.integers(1, 40),
)
def test_equals_the_equations(tmp_path_factory, pairs, iterations, chunk):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lexicon, "CELLS", chunk)  # the size of chunks does not matter
        found = learnt(learn_lexicon(*stored(tmp_path_factory.mktemp("pairs"), pairs), iterations))
    wanted = {key: value for key, value in plain(pairs, iterations).items() if key[1] != NULL}
    assert found.keys() == wanted.keys()
    for key, value in wanted.items():
        assert found[key] == pytest.approx(value, rel=1e-9)


def translated(count: int, vocabulary: int, zipf: bool = False) -> Pairs:
    """Sentences of a language in which word w becomes vocabulary - w + 3, in another order.

    `zipf`: the n-th word occurs 1/n as often as the first, and each at least once.
    """
    numbers, pairs, names = random.Random(0), [], range(4, vocabulary)
    often = [1 / (1 + rank) if zipf else 1.0 for rank in range(len(names))]
    for number in range(count):
        source = numbers.choices(names, often, k=numbers.randrange(2, 12))
        source[0] = names[number] if zipf and number < len(names) else source[0]
        target = [vocabulary + 3 - word for word in source]
        numbers.shuffle(target)
        pairs.append((source, target))
    return pairs


def test_finds_the_dictionary_of_a_language(tmp_path: Path) -> None:
    done: list[float] = []
    found = learn_lexicon(*stored(tmp_path, translated(2000, 200)), progress=done.append)
    first = found.best(1)
    assert first.source.tolist() == list(range(4, 200))
    assert first.target.tolist() == [203 - word for word in range(4, 200)]
    assert done == sorted(done)
    assert done[-1] == pytest.approx(1.0)


def test_the_best_of_each_word() -> None:
    some = Lexicon(np.array([4, 4, 4, 6, 7, 7]), np.array([5, 8, 9, 5, 4, 6]), np.array([0.2, 0.5, 0.3, 1.0, 0.5, 0.5]))
    best = some.best(2)
    assert best.source.tolist() == [4, 4, 6, 7, 7]
    assert best.target.tolist() == [8, 9, 5, 4, 6]
    assert some.best(1).target.tolist() == [8, 5, 4]  # the smaller id wins a tie


def test_memory_is_bounded_and_rare_words_keep_their_translations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lexicon, "CELLS", 500)
    monkeypatch.setattr(lexicon, "MOST", 4000)  # of 396 x 396, and NULL's
    found = learn_lexicon(*stored(tmp_path, translated(6000, 400, zipf=True)))
    assert len(found.source) <= 4000
    first = found.best(1)
    assert first.source.tolist() == list(range(4, 400))
    assert first.target.tolist() == [403 - word for word in range(4, 400)]


def test_memory_is_below_the_bound_of_the_docstring(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scale = 1 << 9
    monkeypatch.setattr(lexicon, "CELLS", lexicon.CELLS // scale)
    monkeypatch.setattr(lexicon, "MOST", lexicon.MOST // scale)
    pairs = stored(tmp_path, translated(4000, 8000))
    tracemalloc.start()
    try:
        found = learn_lexicon(*pairs, iterations=2)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(found.source) > 0.9 * lexicon.MOST  # so some were dropped
    assert peak < 160 * lexicon.MOST


def test_without_pairs_the_lexicon_is_empty(tmp_path: Path) -> None:
    assert len(learn_lexicon(*stored(tmp_path, [])).source) == 0


def test_every_nth_of_very_many_pairs_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = translated(50, 30)
    monkeypatch.setattr(lexicon, "SENTENCES", 20)
    found = learnt(learn_lexicon(*stored(tmp_path, pairs), 2))
    wanted = {key: value for key, value in plain(pairs[::3], 2).items() if key[1] != NULL}
    assert found == pytest.approx(wanted)
