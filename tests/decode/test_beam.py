import random
from dataclasses import asdict

import pytest
import torch
from decode_models import KINDS, exhaustive, make_model, plain_beam, plain_greedy
from hypothesis import given, settings
from hypothesis import strategies as st

from allyouneed.config import parse
from allyouneed.decode import Hypothesis, SearchConfig, score, search
from allyouneed.decode.base import pack
from allyouneed.errors import ConfigError
from allyouneed.mixers.parts.kv_cache import CrossState
from allyouneed.models.encoder import EncoderConfig
from allyouneed.models.parts.stack import StackState
from allyouneed.sizes import Sizes
from allyouneed.text.specials import EOS

kinds = st.sampled_from(KINDS)
seeds = st.integers(0, 10**6)
alphas = st.sampled_from([0.0, 0.6, 1.0, 2.5])
sharpnesses = st.sampled_from([0.3, 1.0, 3.0])


def some_sources(vocabulary: int, count: int, longest: int = 6) -> list[list[int]]:
    numbers = random.Random(torch.initial_seed())
    return [[numbers.randrange(3, vocabulary) for _ in range(numbers.randrange(longest))] + [EOS] for _ in range(count)]


def assert_same(ours: list[Hypothesis], theirs: list[Hypothesis]) -> None:
    assert [(h.ids, h.finished) for h in ours] == [(h.ids, h.finished) for h in theirs]
    for one, two in zip(ours, theirs, strict=True):
        assert one.logprob == pytest.approx(two.logprob, abs=1e-5, rel=1e-5)
        assert one.score == pytest.approx(two.score, abs=1e-5, rel=1e-5)


@settings(max_examples=10)
@given(kind=kinds, seed=seeds, shape=st.sampled_from([(5, 4), (6, 3)]), alpha=alphas, sharpness=sharpnesses)
def test_a_beam_of_all_hypotheses_is_exhaustive_search(kind, seed, shape, alpha, sharpness):
    vocabulary, longest = shape
    torch.manual_seed(seed)
    model = make_model(kind, vocabulary, sharpness)
    sources = some_sources(vocabulary, 2)
    beam = (vocabulary - 2) ** longest
    config = SearchConfig(beam=beam, n_best=beam, length_penalty=alpha, max_length=longest)
    everything = [exhaustive(model, source, longest, alpha) for source in sources]
    for ranked, found in zip(everything, search(model, sources, config), strict=True):
        assert_same(found, ranked[:beam])
    best = search(model, sources, SearchConfig(beam=beam, length_penalty=alpha, max_length=longest))
    for ranked, found in zip(everything, best, strict=True):  # stopping early changes nothing
        assert_same(found, ranked[:1])


@given(kind=kinds, seed=seeds, beam=st.integers(2, 4), n_best=st.integers(1, 2), alpha=alphas, sharpness=sharpnesses)
def test_equals_a_plain_search_that_never_stops_early(kind, seed, beam, n_best, alpha, sharpness):
    torch.manual_seed(seed)
    model = make_model(kind, 7, sharpness)
    sources = some_sources(7, 3)
    config = SearchConfig(beam=beam, n_best=n_best, length_penalty=alpha, max_length=8)
    for source, found in zip(sources, search(model, sources, config), strict=True):
        assert_same(found, plain_beam(model, source, beam, 8, alpha)[:n_best])


@given(kind=kinds, seed=seeds, sharpness=sharpnesses)
def test_a_beam_of_one_is_greedy(kind, seed, sharpness):
    torch.manual_seed(seed)
    model = make_model(kind, 8, sharpness)
    sources = some_sources(8, 3)
    for source, (found,) in zip(sources, search(model, sources, SearchConfig(beam=1, max_length=9)), strict=True):
        expected = plain_greedy(model, source, 9)
        assert [*found.ids, EOS] == expected if found.finished else found.ids == expected
        assert found.finished == (expected[-1] == EOS)


@pytest.mark.parametrize("positions", ["none", "sinusoidal", "shaw", "t5", "alibi", "rotary"])
@pytest.mark.parametrize("kind", ["encoder-decoder", "decoder"])
@pytest.mark.parametrize("beam", [1, 3])
def test_results_do_not_depend_on_the_batch(kind, positions, beam):
    model = make_model(kind, 11, 1.5, positions)
    sources = [[], *some_sources(11, 4, 9), [5]]
    config = SearchConfig(beam=beam, n_best=beam, max_length=12, batch_tokens=10**6)
    together = search(model, sources, config)
    for source, found in zip(sources, together, strict=True):
        assert_same(found, search(model, [source], config)[0])
    tight = config.model_copy(update={"batch_tokens": 17})
    for one, two in zip(together, search(model, sources, tight), strict=True):
        assert_same(one, two)


@given(kind=kinds, seed=seeds, beam=st.integers(1, 6))
def test_n_best_are_sorted_distinct_and_scored_as_score_does(kind, seed, beam):
    torch.manual_seed(seed)
    model = make_model(kind, 9)
    sources = some_sources(9, 4)
    for source, found in zip(
        sources, search(model, sources, SearchConfig(beam=beam, n_best=beam, max_length=7)), strict=True
    ):
        assert len(found) == beam
        assert len({(tuple(h.ids), h.finished) for h in found}) == beam
        rank = [(not h.finished, -h.score) for h in found]
        assert rank == sorted(rank)
        for h in found:
            assert not set(h.ids) & {0, 1, EOS}
            (again,) = score(model, [(source, h.ids)], ended=h.finished)
            assert h.logprob == pytest.approx(again.logprob, abs=1e-4)
            assert again.tokens == len(h.ids) + h.finished


def test_the_beams_of_a_sentence_share_one_memory(monkeypatch):
    model = make_model("encoder-decoder", 11, 1.5)
    seen = []
    advance = model.advance

    def spy(token_B, state):
        assert isinstance(state, StackState)
        crosses = [block.cross for block in state.blocks if block is not None]
        seen.extend((token_B.shape[0], cross.k_NHSK.shape[0]) for cross in crosses if isinstance(cross, CrossState))
        return advance(token_B, state)

    monkeypatch.setattr(model, "advance", spy)
    search(model, some_sources(11, 8), SearchConfig(beam=3))
    assert all(rows == 3 * memories for rows, memories in seen)
    assert len({rows for rows, _ in seen}) > 2  # sentences left one after another


def test_sentences_that_end_at_the_first_token_leave_others_their_memory():
    model = make_model("encoder-decoder", 9)
    sources = [[3, 4, EOS], [5, EOS], [6, 7, 8, EOS]]
    limits = iter([1, 9, 9])

    class Uneven(SearchConfig):
        def limit(self, source):
            return next(limits)

    uneven = search(model, sources, Uneven(beam=3))  # the longest source comes first
    assert len(uneven[2][0].ids) <= 1
    for source, found in zip(sources[:2], uneven[:2], strict=True):
        assert_same(found, search(model, [source], SearchConfig(beam=3, max_length=9))[0])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("beam", [1, 2, 5])
def test_the_smallest_cases(kind, beam):
    model = make_model(kind, 6)
    assert search(model, [], SearchConfig(beam=beam)) == []
    nothing = search(model, [[3, EOS], []], SearchConfig(beam=beam, max_length=0))
    assert nothing == [[Hypothesis([], 0.0, 0.0, False)]] * 2
    for source in ([3, EOS], []):
        one = search(model, [source], SearchConfig(beam=beam, n_best=beam, max_length=1))[0]
        assert all(len(h.ids) + h.finished == 1 for h in one)
        assert_same(one, plain_beam(model, source, beam, 1, 0.6)[: len(one)])


def test_the_default_limit_is_fifty_beyond_the_source():
    model = make_model("gru", 6)
    with torch.no_grad():
        model.head.bias_V[EOS] = -1e6
    for beam in (1, 2):
        found = search(model, [[3, 4, EOS], [3]], SearchConfig(beam=beam))
        assert [len(hypotheses[0].ids) for hypotheses in found] == [53, 51]


def test_modes_are_restored_and_progress_is_reported():
    model = make_model("encoder-decoder", 6).train()
    model.encoder.eval()
    done: list[int] = []
    search(model, some_sources(6, 7), SearchConfig(beam=2, max_length=3, batch_tokens=8), done.append)
    assert sum(done) == 7
    assert len(done) > 1
    assert model.training
    assert model.decoder.blocks[0].training
    assert not model.encoder.training
    assert torch.is_grad_enabled()


def test_a_model_still_trains_after_decoding():
    model = make_model("encoder-decoder", 6).train()
    search(model, [[3] * 70 + [EOS]], SearchConfig(beam=2))  # position tables grow meanwhile
    logits_BTV, _ = model.step(torch.tensor([[1, 3, 4]]), model.condition(torch.tensor([[3] * 70])))
    logits_BTV.sum().backward()


def test_encoders_do_not_decode():
    model = EncoderConfig(width=8, hidden=8, layers=1, mixer={"type": "softmax", "heads": 2}).build(Sizes(6, 2))
    with pytest.raises(ConfigError, match="encoder"):
        search(model, [[3]], SearchConfig())
    with pytest.raises(ConfigError, match="encoder"):
        score(model, [([3], [4])])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"beam": 2, "n_best": 3}, "n_best 3"),
        ({"beam": 0}, "beam"),
        ({"length_penalty": -1}, "length_penalty"),
        ({"max_length": -1}, "max_length"),
        ({"bean": 3}, "did you mean 'beam'"),
    ],
)
def test_wrong_settings_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        parse(SearchConfig, settings)


@given(lengths=st.lists(st.integers(0, 30), max_size=40), rows=st.integers(1, 5), budget=st.integers(1, 100))
def test_batches_keep_to_their_budget(lengths, rows, budget):
    batches = pack(lengths, rows, budget)
    assert sorted(item for batch in batches for item in batch) == list(range(len(lengths)))
    for batch in batches:
        assert len(batch) == 1 or max(1, max(lengths[item] for item in batch)) * rows * len(batch) <= budget


def test_a_hypothesis_is_a_value():
    assert asdict(Hypothesis([3], -1.0, -0.5, True)) == {"ids": [3], "logprob": -1.0, "score": -0.5, "finished": True}
