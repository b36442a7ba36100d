"""Ensembles, minimum Bayes risk and reranking by a reverse model, against their definitions."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from decode_models import KINDS, make_model, next_logprobs, penalised
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from allyouneed.decode import Answer, SampleConfig, SearchConfig, sample, score, search
from allyouneed.decode.choice import DecisionRule, choose
from allyouneed.decode.ensemble import Ensemble
from allyouneed.decode.minimum_risk import RiskConfig, least_risk, sampled
from allyouneed.decode.rerank import Reverse, rerank
from allyouneed.decode.sample import cut_probabilities
from allyouneed.decode.utility import Utility, utilities
from allyouneed.errors import ConfigError, DataError
from allyouneed.models import Model
from allyouneed.models.decoder import DecoderConfig
from allyouneed.positions import LearnedConfig
from allyouneed.sizes import Sizes
from allyouneed.text.codec import Codec
from allyouneed.text.specials import EOS
from allyouneed.text.tokenizer import of_symbols

V = 9
SOURCES = [[4, 5, EOS], [6, EOS], [8, 7, 4, 5, EOS], [5, 5, 6, EOS]]
WORDS = ("one", "two", "three", "four", "five")


def members(seed: int = 3) -> list[Model]:
    torch.manual_seed(seed)
    return [make_model(kind, V, sharpness=3.0).eval() for kind in KINDS]


def mean_logprobs(models: Sequence[Model], source: Sequence[int], prefix: Sequence[int]) -> list[float]:
    """Return log P of each next token: the mean of the models' probabilities, computed one by one."""
    rows = [next_logprobs(model, source, [prefix])[0] for model in models]
    return [math.log(sum(math.exp(row[token]) for row in rows) / len(models)) for token in range(V)]


def naive_beam(models: Sequence[Model], source: Sequence[int], beam: int, alpha: float, longest: int) -> list[int]:
    """Return the best target by the definition of beam.py, without its early stop."""
    live: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
    finished: list[tuple[float, tuple[int, ...]]] = []
    for length in range(1, longest + 1):
        candidates = [
            (logprob + row[token], (*ids, token))
            for logprob, ids in live
            for row in [mean_logprobs(models, source, ids)]
            for token in range(EOS, V)
        ]
        best = sorted(candidates, key=lambda one: -one[0])[: 2 * beam]
        finished += [(penalised(value, length, alpha), ids[:-1]) for value, ids in best[:beam] if ids[-1] == EOS]
        live = [one for one in best if one[1][-1] != EOS][:beam]
    return list(max(finished)[1]) if finished else list(live[0][1])


@pytest.mark.parametrize("beam", [1, 3])
def test_an_ensemble_is_the_mean_of_probabilities(beam: int) -> None:
    models = members()
    config = SearchConfig(beam=beam, length_penalty=0.6, max_length=6, batch_tokens=12)
    found = search(Ensemble(models), SOURCES, config)
    for source, hypotheses in zip(SOURCES, found, strict=True):
        best = hypotheses[0]
        if beam == 1:
            expected: list[int] = []
            while len(expected) < 6:
                row = mean_logprobs(models, source, expected)
                expected.append(max(range(EOS, V), key=lambda token: row[token]))
                if expected[-1] == EOS:
                    break
            expected = expected[:-1] if expected[-1] == EOS else expected
        else:
            expected = naive_beam(models, source, beam, 0.6, 6)
        assert best.ids == expected
        tokens = [*best.ids, EOS] if best.finished else best.ids
        steps = [mean_logprobs(models, source, tokens[:place])[token] for place, token in enumerate(tokens)]
        assert best.logprob == pytest.approx(sum(steps), abs=1e-5)


def test_scores_and_samples_of_an_ensemble() -> None:
    models = members()
    scored = score(Ensemble(models), [(SOURCES[0], [5, 6])])[0]
    target = [5, 6, EOS]
    expected = [mean_logprobs(models, SOURCES[0], target[:place])[token] for place, token in enumerate(target)]
    assert scored.token_logprobs == pytest.approx(expected, abs=1e-9)
    config = SampleConfig(n=3, max_length=5)
    drawn = sample(Ensemble(models), [[], []], config, SOURCES[:2])
    for source, samples in zip(SOURCES, drawn, strict=False):
        for one in samples:
            tokens = [*one.ids, EOS] if one.finished else one.ids
            steps = [mean_logprobs(models, source, tokens[:place])[token] for place, token in enumerate(tokens)]
            assert one.logprob == pytest.approx(sum(steps), abs=1e-9)
    alone = sample(models[0], [[], []], config, SOURCES[:2])
    assert sample(Ensemble([models[0]] * 2), [[], []], config, SOURCES[:2])[0][0].ids == alone[0][0].ids


def test_an_ensemble_projects_only_what_its_head_gets() -> None:
    """Long prompts and scores would take gigabytes if `hidden` returned the logits of all positions."""
    models = members()
    both, source_BS = Ensemble(models), torch.tensor([SOURCES[0]])
    x_BTD, _ = both.hidden(torch.tensor([[1, 5, 6, 7]]), both.condition(source_BS))
    assert x_BTD.shape == (1, 4, sum(model.head.width for model in models))
    logits_BTV, _ = both.step(torch.tensor([[1, 5, 6, 7]]), both.condition(source_BS))
    torch.testing.assert_close(both.head(x_BTD[:, 2:]), logits_BTV[:, 2:])
    torch.testing.assert_close(logits_BTV.logsumexp(-1), torch.zeros_like(logits_BTV[..., 0]))


def test_an_ensemble_reads_and_writes_as_much_as_its_shortest_member() -> None:
    short, long = (make_model("encoder-decoder", V, positions=LearnedConfig(max_length=most)) for most in (5, 9))
    for both in (Ensemble([short, long]), Ensemble([long, short]), Ensemble([members()[0], short])):
        assert (both.longest, both.longest_source) == (5, 5)
    found = search(Ensemble([long.eval(), short.eval()]), SOURCES[:2], SearchConfig(beam=1, max_length=30))
    assert all(len(one[0].ids) <= 5 for one in found)
    assert Ensemble([members()[0]]).longest is None


def test_each_sample_has_its_own_maximum_length() -> None:
    drawn = sample(members()[0], [[]] * 4, SampleConfig(n=6, max_length=9), SOURCES, limits=[1, 0, 3, 2])
    assert [max(len(one.ids) + one.finished for one in of_one) for of_one in drawn] == [1, 0, 3, 2]


def test_ensembles_of_models_that_do_not_fit_are_refused() -> None:
    small = DecoderConfig(layers=1, width=8, hidden=8, mixer={"type": "softmax", "heads": 2}).build(Sizes(V, V - 1))
    with pytest.raises(ConfigError, match="9 target ids; use equal ones"):
        Ensemble([members()[0], small])


@pytest.mark.parametrize("utility", ["chrf", "bleu"])
def test_utilities_are_those_of_sacrebleu(utility: Utility) -> None:
    random = np.random.default_rng(0)
    words = ["Ein", "Mann", "mit", "Hut", "steht", "auf", "der", "Straße", ",", "und", "eine", "Frau", "sieht", "."]
    texts = [" ".join(random.choice(words, random.integers(1, 12))) for _ in range(12)]
    texts += ["", "ab", "Ein", " Ein  Mann, \t", "ja ja ja ja ja", "ja ja ja", "aaaaaaaaa"]
    metric = CHRF() if utility == "chrf" else BLEU(effective_order=True)
    expected = [[metric.sentence_score(h, [r]).score for r in texts] for h in texts]
    assert utilities(texts, utility) == pytest.approx(np.array(expected), abs=1e-9)


def translator(seed: int) -> tuple[Model, Codec]:
    tokenizer = of_symbols(WORDS, "words")
    torch.manual_seed(seed)
    return make_model("encoder-decoder", tokenizer.size, sharpness=2.0).eval(), Codec(tokenizer, tokenizer)


TEXTS = ["one two three", "four", "five one one two"]


@pytest.mark.parametrize("utility", ["chrf", "bleu"])
def test_least_risk_by_a_double_loop(utility: Utility) -> None:
    model, codec = translator(1)
    config = SearchConfig(beam=3, max_length=6, n_best=2)
    risk = RiskConfig(n=8, utility=utility, epsilon=0.05, temperature=1.3, seed=5)
    found = least_risk(model, codec, TEXTS, config, risk)
    metric = CHRF() if utility == "chrf" else BLEU(effective_order=True)
    drawn = sampled(model, codec, TEXTS, config, SampleConfig(n=8, temperature=1.3, epsilon=0.05, seed=5))
    for ranked, samples in zip(found, drawn, strict=True):
        texts = [codec.decode_target(one.ids) for one in samples]
        expected = {h: sum(metric.sentence_score(h, [r]).score for r in texts) / 8 for h in texts}
        assert ranked[0].score == pytest.approx(max(expected.values()))
        assert [answer.score for answer in ranked] == pytest.approx(sorted(expected.values(), reverse=True)[:2])
        assert all(expected[answer.text] == pytest.approx(answer.score) for answer in ranked)
    # A text has the same translation among other texts, in another order.
    again = least_risk(model, codec, TEXTS[::-1], config, risk)[::-1]
    assert [ranked[0].text for ranked in again] == [ranked[0].text for ranked in found]


def test_least_risk_of_a_beam() -> None:
    model, codec = translator(1)
    config = SearchConfig(beam=2, max_length=6)
    found = least_risk(model, codec, TEXTS, config, RiskConfig(n=4, candidates="beam"))
    wide = search(model, codec.encode_sources(TEXTS), SearchConfig(beam=4, n_best=4, max_length=6))
    metric = CHRF()
    for ranked, hypotheses in zip(found, wide, strict=True):
        texts = [codec.decode_target(one.ids) for one in hypotheses]
        weights = [math.exp(one.logprob) for one in hypotheses]
        expected = {
            h: sum(w * metric.sentence_score(h, [r]).score for r, w in zip(texts, weights, strict=True)) / sum(weights)
            for h in texts
        }
        assert ranked[0].text == max(expected, key=lambda text: expected[text])
        assert ranked[0].score == pytest.approx(max(expected.values()), rel=1e-5)


@pytest.mark.parametrize("risk", [RiskConfig(n=3), RiskConfig(n=3, candidates="beam")])
def test_least_risk_of_nothing(risk: RiskConfig) -> None:
    model, codec = translator(1)
    assert least_risk(model, codec, [], SearchConfig(), risk) == []
    empty = least_risk(model, codec, TEXTS, SearchConfig(max_length=0), risk)
    assert [[answer.text for answer in ranked] for ranked in empty] == [[""]] * 3


def test_epsilon_cuts_rare_tokens() -> None:
    logits_BV = torch.tensor([[0.5, 0.3, 0.15, 0.05], [0.25, 0.25, 0.25, 0.25]]).log()
    weights_BV, _ = cut_probabilities(logits_BV, SampleConfig(epsilon=0.2))
    assert (weights_BV[0] > 0).tolist() == [True, True, False, False]
    kept_BV, _ = cut_probabilities(logits_BV, SampleConfig(epsilon=0.9))
    assert (kept_BV[0] > 0).tolist() == [True, False, False, False]


def test_reranking_adds_the_score_of_the_way_back() -> None:
    (model, codec), (back, _) = translator(1), translator(2)
    hypotheses = search(model, codec.encode_sources(TEXTS), SearchConfig(beam=4, n_best=4, max_length=6))
    answers = [
        [Answer(codec.decode_target(one.ids), one.score, one.logprob, len(one.ids)) for one in best]
        for best in hypotheses
    ]
    ranked = rerank(TEXTS, answers, Reverse(back, codec, 6.0))
    changed = 0
    for text, before, after in zip(TEXTS, answers, ranked, strict=True):
        expected = [
            one.logprob + 6.0 * score(back, [(codec.encode_source(one.text), codec.encode_target(text))])[0].logprob
            for one in before
        ]
        assert [one.score for one in after] == pytest.approx(sorted(expected, reverse=True))
        changed += after[0].text != before[0].text
    assert changed


def test_a_reverse_model_chooses_from_the_whole_beam() -> None:
    (model, codec), (back, _) = translator(1), translator(2)
    reverse = Reverse(back, codec, 6.0)
    every, best = (
        choose(model, codec, TEXTS, SearchConfig(beam=4, n_best=n, max_length=6), DecisionRule(None, reverse))
        for n in (4, 1)
    )
    assert [ranked[:1] for ranked in every] == best


def test_cut_answers_are_ranked_last() -> None:
    """A cut answer lacks the probability of its end, so its score is too high."""
    _, codec = translator(1)
    (back, _), cut = translator(2), Answer("two", 0.0, 0.0, finished=False)
    ranked = rerank(["one two", "one"], [[cut, Answer("one two", -9.0, -9.0)], []], Reverse(back, codec))
    assert [answer.text for answer in ranked[0]] == ["one two", "two"]
    assert ranked[0][0].score < ranked[0][1].score
    assert ranked[1] == []


def test_a_reverse_model_without_enough_positions_says_so() -> None:
    model, codec = translator(1)
    tokenizer = of_symbols(WORDS, "words")
    settings = {"mixer": {"type": "softmax", "heads": 2}, "positions": {"type": "learned", "max_length": 6}}
    short = DecoderConfig(layers=1, width=8, hidden=8, **settings).build(Sizes(tokenizer.size, tokenizer.size))
    with pytest.raises(DataError, match="the reverse model reads at most 6; split the text"):
        rerank(["one two three four"], [[Answer("one two three", 0.0, 0.0)]], Reverse(short, codec))
    with pytest.raises(ConfigError, match="at least 0"):
        Reverse(model, codec, -1.0)


def test_choices_that_do_not_go_together() -> None:
    model, codec = translator(1)
    risk, reverse, config = RiskConfig(n=4), Reverse(model, codec), SearchConfig()
    for choice, given, message in (
        (DecisionRule(risk, reverse), (config, False, False), "two ways to choose"),
        (DecisionRule(risk), (config, True, False), "cannot be constrained"),
        (DecisionRule(risk), (config, False, True), "remove shortlist"),
        (DecisionRule(risk), (SearchConfig(beam=8, n_best=8), False, False), "n_best 8 is more than the 4 candidates"),
        (DecisionRule(None, reverse), (SearchConfig(beam=1), False, False), "a beam of at least 2"),
    ):
        with pytest.raises(ConfigError, match=message):
            choice.check(codec, *given)
    with pytest.raises(ValueError, match="no effect on candidates of the beam"):
        RiskConfig(n=4, candidates="beam", epsilon=0.1)
