"""Searches by CTranslate2 return what our searches return: all beams, penalties, n-best, limits."""

import errno
import math
from dataclasses import replace
from pathlib import Path

import pytest
from engine_models import bundle_of

pytest.importorskip("ctranslate2", reason="ctranslate2 is not installed: pip install 'allyouneed[ct2]'")

from allyouneed.decode import Hypothesis, SampleConfig, SearchConfig, search, stream
from allyouneed.errors import ConfigError, DataError, FolderError
from allyouneed.interop.ctranslate2 import runtime
from allyouneed.interop.ctranslate2.engine import CTranslate2Engine, Try, settled
from allyouneed.models.seq2seq import Seq2SeqConfig
from allyouneed.text.codec import Codec

pytestmark = pytest.mark.no_shapes
TEXTS = [
    "a",
    "zwölf und zwei",
    "the blue house - on a hill",
    "ab",
    "x y z",
    "grün",
    "a man in a shirt",
    "b" * 30,
    "blau",
    "zwölf und drei",
]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["encoder-decoder", "decoder"])
@pytest.mark.parametrize("sharp", [1.0, 4.0])
@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.2])
@pytest.mark.parametrize(("beam", "n_best"), [(1, 1), (3, 1), (4, 4), (5, 2)])
def test_searches_are_the_same(beam: int, n_best: int, alpha: float, sharp: float, kind: str) -> None:
    bundle = bundle_of(kind, {"output_bias": True}, sharp)
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


def test_a_limit_of_no_tokens() -> None:
    bundle = bundle_of("encoder-decoder", {})
    config = SearchConfig(max_length=0)
    sources = bundle.codec.encode_sources(TEXTS)
    assert CTranslate2Engine(bundle).search(sources, config) == search(bundle.model, sources, config)


def test_int8_is_close() -> None:
    bundle = bundle_of("encoder-decoder", {}, sharp=4.0)
    sources, config = bundle.codec.encode_sources(TEXTS), SearchConfig(beam=1, max_length=3)
    ours, theirs = search(bundle.model, sources, config), CTranslate2Engine(bundle, int8=True).search(sources, config)
    assert sum(one[0].ids[:1] == two[0].ids[:1] for one, two in zip(ours, theirs, strict=True)) >= len(TEXTS) - 2


def test_unfinished_hypotheses_that_could_still_win_need_more_steps() -> None:
    config = SearchConfig(beam=2, length_penalty=1.0, n_best=1)
    ended = Hypothesis([5, 6], -4.0, 0.0, finished=True)  # scores -4 / (8 / 6) = -3
    far, near = (Hypothesis([5, 7, 8], logprob, 0.0, finished=False) for logprob in (-40.0, -20.0))
    assert settled([ended, far], Try(3, False), 55, config) is not None  # -40 / (60 / 6) = -4: too late
    assert settled([ended, near], Try(3, False), 55, config) is None
    found = settled([ended, near], Try(3, False), 3, config)  # no more steps are permitted
    assert found is not None
    assert found[0].ids == [5, 6]
    assert math.isclose(found[0].score, -3.0)


def test_unsupported_models_are_refused() -> None:
    bundle = bundle_of("encoder-decoder", {})
    recurrent = Seq2SeqConfig.model_validate({"cell": "gru", "width": 8}).build(bundle.model.sizes)
    with pytest.raises(ConfigError, match="encoder-decoder and decoder models"):
        CTranslate2Engine(replace(bundle, model=recurrent))
    with pytest.raises(ConfigError, match="outputs classes"):
        CTranslate2Engine(replace(bundle, codec=Codec(source=bundle.codec.source, classes=("a", "b"))))
    with pytest.raises(ConfigError, match=r"^\S+: ctranslate2: model.mixer gru is not supported"):
        CTranslate2Engine(bundle_of("encoder-decoder", {"mixer": {"type": "gru"}}))


def test_a_full_disk_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(runtime, "write_model", full)
    with pytest.raises(FolderError, match="cannot write CTranslate2's weights: No space left"):
        CTranslate2Engine(bundle_of("encoder-decoder", {}))


@pytest.mark.parametrize("kind", ["encoder-decoder", "decoder"])
@pytest.mark.parametrize(("beam", "n_best", "alpha"), [(1, 1, 0.0), (3, 1, 0.0), (3, 3, 0.8)])
def test_searches_are_the_same_up_to_the_last_learned_position(kind: str, beam: int, n_best: int, alpha: float) -> None:
    bundle = bundle_of(kind, {"positions": {"type": "learned", "max_length": 24}, "output_bias": True}, sharp=2.0)
    sources = bundle.codec.encode_sources(["a", "zwölf und zwei", "ab", "x y z", "a blue house on"])
    config = SearchConfig(beam=beam, n_best=n_best, length_penalty=alpha, max_length=40)
    found = CTranslate2Engine(bundle).search(sources, config)
    for ours, theirs in zip(search(bundle.model, sources, config), found, strict=True):
        assert [one.ids for one in theirs] == [one.ids for one in ours]
        # Hypotheses cut at the last position keep log-probabilities that exclude padding and begin-of-text.
        assert [one.score for one in theirs] == pytest.approx([one.score for one in ours], abs=1e-3)


@pytest.mark.parametrize(("kind", "paired"), [("encoder-decoder", True), ("decoder", True), ("decoder", False)])
def test_streams_are_the_same(kind: str, paired: bool) -> None:
    bundle = bundle_of(kind, {"positions": {"type": "learned", "max_length": 24}}, sharp=3.0, paired=paired)
    engine, codec = CTranslate2Engine(bundle), bundle.codec
    for text in ["", "a", "zwölf", "x y z"] if kind == "decoder" else ["a", "zwölf", "x y z"]:
        ids = codec.encode_source(text) if codec.source is not None else codec.encode_prompt(text)[1:]
        for longest in (0, 1, 5, 100):
            config = SampleConfig(temperature=0, max_length=longest)
            prompt, source = ([], ids) if paired else (ids, None)
            assert list(engine.stream(ids, config)) == list(stream(bundle.model, prompt, config, source))


def test_an_empty_source_is_refused() -> None:
    bundle = bundle_of("encoder-decoder", {})
    with pytest.raises(DataError, match="empty text"):
        CTranslate2Engine(bundle).stream(bundle.codec.encode_source(""), SampleConfig(temperature=0))


def test_sampling_is_refused() -> None:
    engine = CTranslate2Engine(bundle_of("decoder", {}, paired=False))
    with pytest.raises(ConfigError, match=r"--temperature 0\.5: .*; use --temperature 0"):
        engine.stream([5], SampleConfig(temperature=0.5))


def test_sources_beyond_the_learned_positions_are_refused(tmp_path: Path) -> None:
    bundle = bundle_of("encoder-decoder", {"positions": {"type": "learned", "max_length": 10}})
    with pytest.raises(DataError, match="position"):
        CTranslate2Engine(bundle).search(bundle.codec.encode_sources(["a" * 20]), SearchConfig())
