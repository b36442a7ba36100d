import itertools
import math

import pytest
import torch
from decode_models import KINDS, make_model, next_logprobs
from hypothesis import given
from hypothesis import strategies as st

from allyouneed.config import parse
from allyouneed.decode import Hypothesis, SampleConfig, SearchConfig, sample, score, search, stream
from allyouneed.decode.sample import cut_probabilities
from allyouneed.errors import ConfigError, DataError
from allyouneed.text.specials import BOS, EOS, PAD


def plain_kept(logits: list[float], config: SampleConfig) -> dict[int, float]:
    """Apply temperature, top_k, top_p and min_p in turn, each to what the previous one kept, with lists."""
    best = max(logits)
    weight = {word: math.exp((logit - best) / config.temperature) for word, logit in enumerate(logits)}
    ranked = sorted(weight, key=lambda word: -weight[word])[: config.top_k]
    total, reached, nucleus = sum(weight[word] for word in ranked), 0.0, []
    for word in ranked:
        if reached < config.top_p * total:
            nucleus.append(word)
        reached += weight[word]
    likely = [word for word in nucleus if weight[word] >= config.min_p * weight[nucleus[0]]]
    total = sum(weight[word] for word in likely)
    return {word: weight[word] / total for word in likely}


@given(
    numbers=st.lists(st.integers(-60, 60), min_size=1, max_size=12, unique=True),
    temperature=st.sampled_from([0.3, 1.0, 2.0]),
    top_k=st.sampled_from([None, 1, 3, 100]),
    top_p=st.sampled_from([0.05, 0.5, 0.9, 1.0]),
    min_p=st.sampled_from([0.0, 0.1, 1.0]),
)
def test_cuts_equal_plain_ones(numbers, temperature, top_k, top_p, min_p):
    logits = [number / 9.7 for number in numbers]  # far enough apart that rounding has no effect
    config = SampleConfig(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    weight_BV, word_BV = cut_probabilities(torch.tensor([logits], dtype=torch.float64), config)
    words = range(len(logits)) if word_BV is None else word_BV[0].tolist()
    ours = {word: weight for word, weight in zip(words, weight_BV[0].tolist(), strict=True) if weight > 0}
    total = sum(ours.values())
    expected = plain_kept(logits, config)
    assert {word: weight / total for word, weight in ours.items()} == pytest.approx(expected, abs=1e-6)


def test_a_tiny_top_p_keeps_the_best_token():
    """Even one that float32 rounds to 0."""
    weight_BN, column_BN = cut_probabilities(torch.tensor([[1.0, 3.0, 2.0]]), SampleConfig(top_p=1e-226))
    assert weight_BN[0].count_nonzero() == 1
    assert column_BN is not None
    assert column_BN[0, 0] == 1


@pytest.mark.parametrize("cut", [{}, {"temperature": 0.7}, {"top_k": 3}, {"top_p": 0.8}, {"min_p": 0.3}])
def test_frequencies_are_the_probabilities(cut):
    model = make_model("decoder", 8, 2.0)
    config = SampleConfig(n=3000, max_length=1, seed=5, **cut)
    (found,) = sample(model, [[3]], config)
    counts: dict[int, int] = {}
    for hypothesis in found:
        token = EOS if hypothesis.finished else hypothesis.ids[0]
        counts[token] = counts.get(token, 0) + 1
    (row,) = next_logprobs(model, [], [[3]])
    expected = {word + EOS: p * config.n for word, p in plain_kept(row[EOS:], config).items()}
    assert set(counts) <= set(expected)
    chi_square = sum((counts.get(word, 0) - mean) ** 2 / mean for word, mean in expected.items())
    freedom = len(expected) - 1
    assert chi_square < freedom + 5 * math.sqrt(2 * max(1, freedom)) + 5


@pytest.mark.parametrize("kind", ["decoder", "gru", "encoder-decoder"])
def test_results_do_not_depend_on_other_rows(kind):
    model = make_model(kind, 11)
    prompts = [[], [3, 4, 5, 6], [7], [3, 4], []]
    sources = [[3, EOS], [], [4, 5, 6, EOS], [7], [8, 9, EOS]]
    config = SampleConfig(n=3, max_length=9, seed=7, top_p=0.95)
    together = sample(model, prompts, config, sources)
    tight = sample(model, prompts, config.model_copy(update={"batch_tokens": 1}), sources)
    assert [[h.ids for h in row] for row in together] == [[h.ids for h in row] for row in tight]
    fewer = sample(model, prompts[:2], config.model_copy(update={"n": 2}), sources[:2])
    assert [[h.ids for h in row[:2]] for row in together[:2]] == [[h.ids for h in row] for row in fewer]
    other = sample(model, prompts, config.model_copy(update={"seed": 8}), sources)
    assert [[h.ids for h in row] for row in together] != [[h.ids for h in row] for row in other]
    assert len({tuple(h.ids) for row in together for h in row}) > 5
    for source, prompt, row in zip(sources, prompts, together, strict=True):
        for h in row:
            (whole,) = score(model, [(source, [*prompt, *h.ids])], ended=h.finished)
            assert h.logprob == pytest.approx(sum(whole.token_logprobs[len(prompt) :]), abs=1e-4)
            assert not {PAD, BOS, EOS} & set(h.ids)
            assert len(h.ids) + h.finished <= 9


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("cut", [{}, {"temperature": 0}, {"top_k": 4, "temperature": 1.5}])
def test_a_stream_is_a_sample(kind, cut):
    model = make_model(kind, 9).train()
    config = SampleConfig(max_length=80, seed=3, **cut)
    (drawn,) = sample(model, [[4, 5]], config, [[3, 4, EOS]])
    pieces = stream(model, [4, 5], config, [3, 4, EOS])
    first = list(itertools.islice(pieces, 1))
    assert model.training  # between two tokens nothing is changed
    assert torch.is_grad_enabled()
    assert not torch.is_inference_mode_enabled()
    assert first + list(pieces) == drawn[0].ids


def test_temperature_zero_is_greedy():
    model = make_model("encoder-decoder", 9)
    sources = [[3, 4, EOS], [5, EOS]]
    drawn = sample(model, [[], []], SampleConfig(temperature=0, max_length=10), sources)
    found = search(model, sources, SearchConfig(beam=1, max_length=10))
    assert [row[0].ids for row in drawn] == [row[0].ids for row in found]


def test_the_smallest_cases():
    model = make_model("decoder", 6)
    assert sample(model, [], SampleConfig()) == []
    nothing = Hypothesis([], 0.0, 0.0, False)
    assert sample(model, [[3], []], SampleConfig(max_length=0, n=2)) == [[nothing] * 2] * 2
    assert list(stream(model, [], SampleConfig(max_length=0))) == []
    ((one,),) = sample(model, [[]], SampleConfig(max_length=1))
    assert len(one.ids) + one.finished == 1


def test_impossible_settings_are_refused():
    with pytest.raises(ConfigError, match="source"):
        sample(make_model("encoder-decoder", 6), [[]], SampleConfig())
    with pytest.raises(DataError, match="1 prompts but 2 sources"):
        sample(make_model("decoder", 6), [[]], SampleConfig(), [[3], [4]])
    for settings in ({"temperature": -1}, {"temperature": 1e-6}, {"top_p": 0}, {"top_k": 0}, {"n": 0}, {"min_p": 2}):
        with pytest.raises(ConfigError):
            parse(SampleConfig, settings)
