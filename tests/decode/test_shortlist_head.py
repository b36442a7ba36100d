"""Search with a shortlist equals a search among all words with the other words at minus infinity."""

import copy
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from decode_models import KINDS, make_model, plain_beam, plain_greedy
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from allyouneed import kernels
from allyouneed.decode import Hypothesis, SearchConfig, search, target_search
from allyouneed.decode import shortlist_head as decode_shortlist
from allyouneed.decode.shortlist_head import BatchShortlist
from allyouneed.errors import ConfigError
from allyouneed.inference.head import ListsHead, head_of_lists
from allyouneed.inference.optimize import optimize_for_inference
from allyouneed.mixers.softmax import SoftmaxConfig
from allyouneed.models import Model
from allyouneed.models.base import Head
from allyouneed.models.convs2s import ConvS2SConfig
from allyouneed.models.encoder_decoder import EncoderDecoderConfig
from allyouneed.shortlist.table import SPECIALS, Shortlist
from allyouneed.sizes import Sizes
from allyouneed.text.specials import EOS

WORDS = 12
SOURCES = [[5, 6, 7, EOS], [8, EOS], [4, 9, 5, 6, 4, EOS], [EOS], [11, 10, 8, EOS]]


def everything(words: int) -> Shortlist:
    return Shortlist(torch.arange(words), torch.empty(0, dtype=torch.long), torch.zeros(words, dtype=torch.long))


def some_words(words: int, most: int = 3) -> Shortlist:
    """Return a shortlist in which each source word allows up to `most` random target words."""
    lists = [
        sorted(set(torch.randint(SPECIALS, words, (int(n),)).tolist())) for n in torch.randint(0, most + 1, (words,))
    ]
    ends = torch.tensor([len(each) for each in lists]).cumsum(0)
    flat = torch.tensor([word for each in lists for word in each], dtype=torch.long)
    return Shortlist(torch.arange(SPECIALS), flat, ends)


def allowed(shortlist: Shortlist, source: Sequence[int]) -> set[int]:
    """Return the allowed words by the definition."""
    return {*shortlist.always.tolist(), *(word for given in source for word in shortlist.of(given))}


class BarredHead(Head):
    """A head over all words in which words that are not allowed have logits of minus infinity."""

    def __init__(self, head: Head, words: set[int]) -> None:
        super().__init__(head.weight_VD)
        self.bias_V = head.bias_V
        self.barred = [word for word in range(head.weight_VD.shape[0]) if word not in words]

    def forward(self, x: Tensor) -> Tensor:
        logits = super().forward(x)
        logits[..., self.barred] = float("-inf")
        return logits


def barred(model: Model, words: set[int]) -> Model:
    other = copy.deepcopy(model)
    other.head = BarredHead(other.head, words)
    return other


def assert_same(ours: list[Hypothesis], theirs: list[Hypothesis]) -> None:
    assert [(one.ids, one.finished) for one in ours] == [(one.ids, one.finished) for one in theirs]
    for one, two in zip(ours, theirs, strict=True):
        assert one.logprob == pytest.approx(two.logprob, abs=1e-5)
        assert one.score == pytest.approx(two.score, abs=1e-5)


@given(
    kind=st.sampled_from(KINDS), seed=st.integers(0, 10**6), beam=st.integers(1, 3), sharp=st.sampled_from([1.0, 3.0])
)
def test_equals_a_plain_search_with_the_other_words_at_minus_infinity(kind, seed, beam, sharp):
    torch.manual_seed(seed)
    model, shortlist = make_model(kind, WORDS, sharp), some_words(WORDS)
    found = search(model, SOURCES, SearchConfig(beam=beam, length_penalty=0.6, max_length=7), shortlist=shortlist)
    for source, (best, *_) in zip(SOURCES, found, strict=True):
        words = allowed(shortlist, source)
        assert set(best.ids) <= words
        slow = barred(model, words)
        if beam == 1:
            expected = plain_greedy(slow, source, 7)
            assert ([*best.ids, EOS] if best.finished else best.ids) == expected
        else:
            assert_same([best], plain_beam(slow, source, beam, 7, 0.6)[:1])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("beam", [1, 2, 4])
def test_a_shortlist_of_all_words_changes_nothing(kind, beam):
    model, config = make_model(kind, WORDS, 1.5), SearchConfig(beam=beam, n_best=beam, max_length=9)
    assert search(model, SOURCES, config, shortlist=everything(WORDS)) == search(model, SOURCES, config)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("beam", [1, 3])
def test_results_do_not_depend_on_other_rows(kind, beam):
    model, shortlist = make_model(kind, WORDS, 1.5), some_words(WORDS)
    config = SearchConfig(beam=beam, n_best=beam, max_length=9)
    together = search(model, SOURCES, config, shortlist=shortlist)
    for source, found in zip(SOURCES, together, strict=True):
        assert_same(found, search(model, [source], config, shortlist=shortlist)[0])


def optimized(int8: bool, words: int = 301) -> Model:
    config = EncoderDecoderConfig(
        width=24, hidden=30, mixer=SoftmaxConfig(heads=3), encoder_layers=1, decoder_layers=2, output_bias=True
    )
    model = config.build(Sizes(words, words, shared=True))
    with torch.no_grad():
        model.head.bias_V.normal_()
    optimize_for_inference(model, int8)
    return model


def longer_sources(words: int, count: int = 9) -> list[list[int]]:
    return [[*torch.randint(SPECIALS, words, (1 + 2 * row,)).tolist(), EOS] for row in range(count)]


@pytest.fixture(params=["torch", "kernels", "many rows", "whole", "int8", "int8 lists"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Select how products are computed."""
    if request.param == "torch":
        monkeypatch.setattr(kernels.build, "library", lambda: None)
    elif kernels.build.library() is None:
        pytest.skip("no C compiler")
    elif request.param == "many rows":
        monkeypatch.setattr(kernels, "few_rows", lambda rows: False)
    monkeypatch.setattr(decode_shortlist, "LIST_COST", 0 if request.param == "int8 lists" else 1000)
    monkeypatch.setattr(decode_shortlist, "UNION_SHARE", 1000 if request.param == "whole" else 1)
    return str(request.param)


@pytest.mark.parametrize("beam", [1, 4])
def test_optimized_a_shortlist_of_all_words_changes_no_bit(way, beam):
    model, config = optimized(way.startswith("int8")), SearchConfig(beam=beam, n_best=beam, max_length=12)
    sources = longer_sources(301)
    assert search(model, sources, config, shortlist=everything(301)) == search(model, sources, config)


@pytest.mark.parametrize("beam", [1, 4])
def test_optimized_results_do_not_depend_on_other_rows(way, beam):
    model, shortlist, sources = optimized(way.startswith("int8")), some_words(301, most=9), longer_sources(301)
    config = SearchConfig(beam=beam, max_length=12)
    together = search(model, sources, config, shortlist=shortlist)
    for source, found in zip(sources, together, strict=True):
        assert set(found[0].ids) <= allowed(shortlist, source)
        assert_same(found, search(model, [source], config, shortlist=shortlist)[0])


@pytest.mark.parametrize("beam", [1, 3])
def test_logits_are_those_of_the_whole_head(way, beam):
    model, shortlist, sources = optimized(way.startswith("int8")), some_words(301, most=9), longer_sources(301)
    with torch.inference_mode():
        listed = BatchShortlist(model, shortlist, sources)
        assert isinstance(listed.model.head, ListsHead) == (way == "int8 lists")
        assert (listed.model is model) == (way in ("whole", "int8"))
        left = torch.arange(len(sources))
        for stay in (left, left[[0, 2, 3, 7, 8]], left[[1, 3]]):  # of the remaining rows
            if len(stay) < len(left):
                listed.keep_sources(stay)
                left = left[stay]
            x_BD = torch.randn(len(left) * beam, 24)
            own_BL, all_BV = listed.row_logits(listed.model.head(x_BD)), model.head(x_BD)
            for row in range(len(x_BD)):
                source = sources[int(left[row // beam])]
                count = int((own_BL[row] > float("-inf")).sum())
                words = listed.token_ids(torch.arange(count).expand(len(left), -1))[row // beam]
                assert words.tolist() == sorted(allowed(shortlist, source))
                torch.testing.assert_close(own_BL[row, :count], all_BV[row, words], rtol=1e-6, atol=1e-6)
                if way in ("kernels", "whole", "int8", "int8 lists"):
                    assert torch.equal(own_BL[row, :count], all_BV[row, words])
                assert bool((own_BL[row, count:] == float("-inf")).all())


@pytest.mark.parametrize(
    ("words", "rows", "lists"), [(30, 1, True), (100, 1, False), (100, 2, True), (200, 2, False), (200, 5, True)]
)
def test_lists_are_used_if_they_are_faster(words, rows, lists):
    """Of 301 words; a list shared by several rows may be longer."""
    if kernels.build.library() is None:
        pytest.skip("no C compiler")
    some = Shortlist(torch.arange(words), torch.arange(0), torch.zeros(301, dtype=torch.long))
    with torch.inference_mode():
        listed = BatchShortlist(optimized(int8=True), some, SOURCES, rows)
    assert isinstance(listed.model.head, ListsHead) == lists


@pytest.mark.parametrize("beam", [1, 5])
def test_searches_pass_how_many_rows_share_a_list(monkeypatch, beam):
    seen = []
    monkeypatch.setattr(target_search, "BatchShortlist", lambda *given: seen.append(given[3]) or BatchShortlist(*given))
    search(make_model("gru", WORDS), SOURCES, SearchConfig(beam=beam, max_length=2), shortlist=everything(WORDS))
    assert set(seen) == {beam}


def test_lines_for_lists_are_made_once(monkeypatch):
    """Even if several threads of a search request them at once."""
    if kernels.build.library() is None:
        pytest.skip("no C compiler")
    made, head, make = [], optimized(int8=True).head, kernels.LinesInt8

    def slowly(packed: kernels.PackedInt8) -> kernels.LinesInt8:
        time.sleep(0.05)
        made.append(make(packed))
        return made[-1]

    def request(_: int) -> None:
        with torch.inference_mode():
            head_of_lists(head, torch.zeros(1, 1, dtype=torch.long), torch.ones(1, dtype=torch.long))

    monkeypatch.setattr(kernels, "LinesInt8", slowly)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(request, range(4)))
    assert len(made) == 1


@pytest.mark.parametrize(("words", "gathered"), [(150, True), (151, False)])
def test_a_union_of_most_words_is_not_gathered(words, gathered):
    some = Shortlist(torch.arange(words), torch.arange(0), torch.zeros(301, dtype=torch.long))
    model = optimized(int8=False)
    with torch.inference_mode():
        assert (BatchShortlist(model, some, SOURCES).model is not model) == gathered


def test_lists_take_half_precision(way):
    """Autocast passes half precision; C code that expects float32 would read and write out of bounds."""
    if way != "int8 lists":
        pytest.skip("the others ask torch")
    model, shortlist, sources = optimized(int8=True), some_words(301, most=9), longer_sources(301)
    with torch.inference_mode():
        listed, x_BD = BatchShortlist(model, shortlist, sources), torch.randn(len(sources), 24, dtype=torch.bfloat16)
        assert torch.equal(listed.model.head(x_BD), listed.model.head(x_BD.float()))


@pytest.mark.parametrize("beam", [1, 3])
def test_under_autocast(way, beam):
    model = ConvS2SConfig(width=24, channels=24, encoder_layers=1, decoder_layers=1).build(Sizes(301, 301, shared=True))
    optimize_for_inference(model, way.startswith("int8"))
    shortlist, sources = some_words(301, most=9), longer_sources(301)
    with torch.autocast("cpu", torch.bfloat16):
        found = search(model, sources, SearchConfig(beam=beam, max_length=9), shortlist=shortlist)
    for source, (best, *_) in zip(sources, found, strict=True):
        assert set(best.ids) <= allowed(shortlist, source)


def test_the_model_keeps_its_head(way):
    model, shortlist = optimized(way.startswith("int8")), some_words(301)
    before, head = search(model, SOURCES, SearchConfig(beam=2)), model.head
    search(model, SOURCES, SearchConfig(beam=2), shortlist=shortlist)
    assert model.head is head
    assert search(model, SOURCES, SearchConfig(beam=2)) == before


@pytest.mark.parametrize(
    ("sources", "word", "message"),
    [(9, 5, "a shortlist of 9 source words"), (12, 12, "words up to 12, but the model has 12")],
)
def test_a_shortlist_of_another_model_is_refused(way, sources, word, message):
    other = Shortlist(torch.arange(SPECIALS), torch.tensor([word]), torch.ones(sources, dtype=torch.long))
    with pytest.raises(ConfigError, match=message):
        search(optimized(way.startswith("int8"), WORDS), SOURCES, SearchConfig(), shortlist=other)
