import math
import sys

import pytest
from decode_models import KINDS, exhaustive, make_model, next_logprobs

from allyouneed.decode import score
from allyouneed.errors import ConfigError
from allyouneed.text.specials import EOS


@pytest.mark.parametrize("kind", KINDS)
def test_scores_equal_plain_ones_whatever_the_batch(kind, monkeypatch):
    model = make_model(kind, 9)
    pairs = [([3, 4, EOS], [5, 6, 7]), ([], [3]), ([8, EOS], []), ([5] * 7, [3, 4, 5, 6, 7, 8, 3]), ([4], [8, 8])]
    plain = []
    for source, target in pairs:
        whole = [*target, EOS]
        rows = [next_logprobs(model, source, [whole[:t]])[0] for t in range(len(whole))]
        plain.append([row[token] for row, token in zip(rows, whole, strict=True)])
    together = score(model, pairs)
    for ours, theirs in zip(together, plain, strict=True):
        assert ours.token_logprobs == pytest.approx(theirs, abs=1e-6)
        assert ours.logprob == pytest.approx(sum(theirs), abs=1e-6)
        assert ours.tokens == len(theirs)
    given_end = score(model, [(source, [*target, EOS]) for source, target in pairs])
    assert [s.tokens for s in given_end] == [s.tokens for s in together]
    beginnings = score(model, pairs, ended=False)
    assert [s.tokens for s in beginnings] == [len(target) for _, target in pairs]
    module = sys.modules["allyouneed.decode.score"]  # the package has a function of this name
    monkeypatch.setattr(module, "SEGMENT", 2)  # states and logits are computed in segments
    monkeypatch.setattr(module, "LOGITS", 20)
    for one, two in zip(together, score(model, pairs, batch_tokens=1), strict=True):
        assert one.token_logprobs == pytest.approx(two.token_logprobs, abs=1e-6)
    for one, two in zip(together, score(model, pairs), strict=True):
        assert one.token_logprobs == pytest.approx(two.token_logprobs, abs=1e-6)


def test_probabilities_of_everything_sum_to_one():
    model = make_model("decoder", 6, 0.5)
    everything = exhaustive(model, [3], 3, 0.0)
    scored = [score(model, [([3], h.ids)], ended=h.finished)[0].logprob for h in everything]
    # PAD and BOS are not found by searches, but a model gives them some probability.
    assert sum(math.exp(logprob) for logprob in scored) < 1
    assert scored == pytest.approx([h.logprob for h in everything], abs=1e-6)


def test_sources_may_be_missing_for_a_decoder_only():
    decoder = make_model("decoder", 7)
    mixed = score(decoder, [(None, [3, 4]), ([5], [3, 4]), ([], [3, 4])])
    assert mixed[0].logprob == pytest.approx(mixed[2].logprob, abs=1e-6)  # an empty source has no effect
    assert mixed[0].logprob != pytest.approx(mixed[1].logprob, abs=1e-6)
    with pytest.raises(ConfigError, match="source"):
        score(make_model("encoder-decoder", 7), [(None, [3])])
    assert score(decoder, []) == []
