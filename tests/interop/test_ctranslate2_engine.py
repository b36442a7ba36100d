"""Our search run by CTranslate2 says what ours says: all beams, penalties, n best, limits."""

import math
from pathlib import Path

import pytest
from engine_models import bundle_of

pytest.importorskip("ctranslate2", reason="ctranslate2 is not installed: pip install 'allyouneed[ct2]'")

from allyouneed.decode import Hypothesis, SearchConfig, search
from allyouneed.errors import ConfigError
from allyouneed.interop.ctranslate2.engine import CTranslate2Engine, settled

pytestmark = pytest.mark.no_shapes
TEXTS = ["a", "zwölf und zwei", "the blue house - on a hill", "ab", "x y z", "grün", "a man in a shirt", "b" * 30]


@pytest.mark.parametrize("sharp", [1.0, 4.0])
@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.2])
@pytest.mark.parametrize(("beam", "n_best"), [(1, 1), (3, 1), (4, 4), (5, 2)])
def test_the_same_answers(beam: int, n_best: int, alpha: float, sharp: float) -> None:
    bundle = bundle_of("encoder-decoder", {"output_bias": True}, sharp)
    engine = CTranslate2Engine(bundle)
    sources = bundle.codec.encode_sources(TEXTS)
    for longest in (None, 1, 7):
        config = SearchConfig(beam=beam, n_best=n_best, length_penalty=alpha, max_length=longest, batch_tokens=200)
        done: list[int] = []
        for ours, theirs in zip(
            search(bundle.model, sources, config), engine.search(sources, config, done.append), strict=True
        ):
            assert [one.ids for one in theirs] == [one.ids for one in ours]
            assert [one.finished for one in theirs] == [one.finished for one in ours]
            assert [one.logprob for one in theirs] == pytest.approx([one.logprob for one in ours], abs=1e-4)
            assert [one.score for one in theirs] == pytest.approx([one.score for one in ours], abs=1e-4)
        assert sum(done) == len(sources)


def test_nothing_may_be_said() -> None:
    bundle = bundle_of("encoder-decoder", {})
    config = SearchConfig(max_length=0)
    sources = bundle.codec.encode_sources(TEXTS)
    assert CTranslate2Engine(bundle).search(sources, config) == search(bundle.model, sources, config)


def test_int8_is_near() -> None:
    bundle = bundle_of("encoder-decoder", {}, sharp=4.0)
    sources, config = bundle.codec.encode_sources(TEXTS), SearchConfig(beam=1, max_length=3)
    ours, theirs = search(bundle.model, sources, config), CTranslate2Engine(bundle, int8=True).search(sources, config)
    assert sum(one[0].ids[:1] == two[0].ids[:1] for one, two in zip(ours, theirs, strict=True)) >= len(TEXTS) - 2


def test_what_is_alive_and_could_overtake_asks_for_more_steps() -> None:
    config = SearchConfig(beam=2, length_penalty=1.0, n_best=1)
    ended = Hypothesis([5, 6], -4.0, 0.0, finished=True)  # scores -4 / (8 / 6) = -3
    far, near = (Hypothesis([5, 7, 8], logprob, 0.0, finished=False) for logprob in (-40.0, -20.0))
    assert settled([ended, far], 3, 55, config) is not None  # -40 / (60 / 6) = -4: too late
    assert settled([ended, near], 3, 55, config) is None
    found = settled([ended, near], 3, 3, config)  # no more steps are permitted
    assert found is not None
    assert found[0].ids == [5, 6]
    assert math.isclose(found[0].score, -3.0)


def test_other_kinds_are_refused() -> None:
    with pytest.raises(ConfigError, match="encoder-decoder"):
        CTranslate2Engine(bundle_of("decoder", {}))


def test_positions_that_were_not_learnt_are_told(tmp_path: Path) -> None:
    from allyouneed.errors import DataError

    bundle = bundle_of("encoder-decoder", {"positions": {"type": "learned", "max_length": 10}})
    with pytest.raises(DataError, match="position"):
        CTranslate2Engine(bundle).search(bundle.codec.encode_sources(["a" * 20]), SearchConfig())
