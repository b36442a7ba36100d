"""Inspections: every architecture gives maps, or influence, with tokens as labels of rows and columns."""

from pathlib import Path
from typing import Any

import pytest
import torch

from allyouneed.config import parse
from allyouneed.errors import ConfigError, DataError
from allyouneed.folder import Bundle
from allyouneed.inference.optimize import optimize_for_inference
from allyouneed.inspection.inspect import inspect_text
from allyouneed.inspection.result import Inspection
from allyouneed.models import MODELS, Model
from allyouneed.sizes import Sizes
from allyouneed.text.codec import Codec
from allyouneed.text.tokenizer import of_symbols

WORDS = ["forty", "one", "seven", "and", "<b>"]
LETTERS = "abcdefghij"
SOFTMAX = {"mixer": {"type": "softmax", "heads": 3}, "width": 12, "hidden": 20}
SOURCE, TARGET = of_symbols(WORDS, "words"), of_symbols(LETTERS, "characters")

# Models that weigh the tokens of the source for each output token, and models that do not weigh tokens.
WEIGHTED: dict[str, dict[str, Any]] = {
    "encoder-decoder": {**SOFTMAX, "encoder_layers": 2, "decoder_layers": 1},
    "seq2seq": {"attention": "bahdanau", "cell": "gru", "width": 8},
    "convs2s": {"width": 12, "channels": 10, "encoder_layers": 2, "decoder_layers": 2},
}
UNWEIGHED: dict[str, dict[str, Any]] = {
    "seq2seq": {"cell": "lstm", "width": 8, "reverse": True},
    "bytenet": {"width": 12, "dilations": [1, 3], "encoder_sets": 1, "decoder_sets": 2},
    "neural-gpu": {"rows": 3, "channels": 7, "layers": 2},
    "ntm": {"hidden": 6, "slots": 5, "slot_width": 4, "feedback": True},
}


def build(name: str, fields: dict[str, Any], sizes: Sizes) -> Model:
    torch.manual_seed(1)
    return parse(MODELS[name], fields).build(sizes).eval()


def bundle(model: Model, codec: Codec) -> Bundle:
    return Bundle(Path("here"), model, codec, {}, "", "0")


def translator(name: str, fields: dict[str, Any]) -> Bundle:
    return bundle(build(name, fields, Sizes(SOURCE.size, TARGET.size)), Codec(SOURCE, TARGET))


def check(found: Inspection) -> None:
    """Check that every row and column has a label, and that rows sum to one."""
    for one in found.maps:
        _, T, S = one.weights_HTS.shape
        for axis, size in ((one.rows, T), (one.columns, S)):
            labels = found.labels(axis)
            assert (labels is None) == (axis == "other")
            assert labels is None or len(labels) == size
        assert len(one.heads) == one.weights_HTS.shape[0]
        assert one.weights_HTS.min() >= 0
        if one.name != "influence":
            torch.testing.assert_close(one.weights_HTS.sum(dim=-1), torch.ones(one.weights_HTS.shape[:2]))


@pytest.mark.parametrize("name", WEIGHTED)
def test_weights_align_the_target_with_the_source(name: str) -> None:
    found = inspect_text(translator(name, WEIGHTED[name]), "forty one <b>", "abc")
    check(found)
    assert found.source == ["forty", "one", "<b>", "end"]
    assert found.target == ["a", "b", "c", "end"]
    assert found.input == ["start", "a", "b", "c"]
    assert found.note == ""
    cross = [one for one in found.maps if one.part == "cross"]
    assert cross
    assert all((one.rows, one.columns) == ("target", "source") for one in cross)


@pytest.mark.parametrize("name", UNWEIGHED)
def test_models_without_weights_show_influence(name: str) -> None:
    found = inspect_text(translator(name, UNWEIGHED[name]), "forty one <b>", "abc")
    check(found)
    first = found.maps[0]
    assert (first.name, first.part, first.rows, first.columns) == ("influence", "cross", "target", "source")
    assert "influence" in found.note
    shares = sum(one.weights_HTS[0].sum(dim=-1) for one in found.maps if one.name == "influence")
    torch.testing.assert_close(shares, torch.ones(4))
    assert first.weights_HTS.max() > 0


def test_turing_machine_heads_read_and_write_slots() -> None:
    found = inspect_text(translator("ntm", UNWEIGHED["ntm"]), "forty one", "ab")
    heads = [one for one in found.maps if one.part == "other"]
    assert [(one.rows, one.heads) for one in heads] == [
        ("source", ["read 1", "write 1"]),
        ("target", ["read 1", "write 1"]),
    ]


def test_the_generated_output_has_probabilities() -> None:
    found = inspect_text(translator("encoder-decoder", WEIGHTED["encoder-decoder"]), "forty", alternatives=3)
    check(found)
    assert found.target is not None
    assert [one.text for one in found.outputs] == found.target
    for one in found.outputs:
        assert len(one.best) == 3
        assert one.best[0][1] >= one.logprob
        assert not one.given
    again = inspect_text(translator("encoder-decoder", WEIGHTED["encoder-decoder"]), "forty", found.answer)
    assert [one.logprob for one in again.outputs][:-1] == pytest.approx(
        [one.logprob for one in found.outputs][: len(again.outputs) - 1], abs=1e-5
    )


@pytest.mark.parametrize("mixer", ["softmax", "window", "linear", "lstm", "xl"])
def test_a_language_model_continues_its_text(mixer: str) -> None:
    more = {"heads": 3} if mixer != "lstm" else {}
    positions = {"positions": "none"}
    model = build(
        "decoder", {**SOFTMAX, **positions, "layers": 2, "mixer": {"type": mixer, **more}}, Sizes(0, TARGET.size)
    )
    found = inspect_text(bundle(model, Codec(target=TARGET)), "abcab", new_tokens=3)
    check(found)
    assert found.target is not None
    assert found.target[:5] == list("abcab")
    assert found.input == ["start", *found.target]
    assert [one.given for one in found.outputs] == [True] * 5 + [False] * (len(found.target) - 5)
    weighs = mixer not in ("linear", "lstm")
    assert (found.note == "") == weighs
    for one in found.maps:
        weights_HTS = one.weights_HTS
        assert torch.equal(weights_HTS, weights_HTS.tril())  # causal


def test_a_decoder_reads_the_source_as_the_start_of_its_text() -> None:
    model = build("decoder", {**SOFTMAX, "layers": 1}, Sizes(0, SOURCE.size))
    found = inspect_text(bundle(model, Codec(SOURCE, SOURCE)), "forty one", "seven")
    check(found)
    assert found.input == ["forty", "one", "end", "start", "seven"]
    assert found.target == ["seven", "end"]
    assert len(found.outputs) == 2


@pytest.mark.parametrize("each", [False, True])
def test_classes_have_probabilities(each: bool) -> None:
    codec = Codec(source=SOURCE, classes=("good", "bad"), per_position=each)
    model = build("encoder", {**SOFTMAX, "layers": 2, "pool": "none" if each else "mean"}, Sizes(SOURCE.size, 2))
    found = inspect_text(bundle(model, codec), "forty one")
    check(found)
    assert found.source == ["start", "forty", "one"]
    assert len(found.outputs) == (2 if each else 1)
    assert {name for name, _ in found.outputs[0].best} == {"good", "bad"}
    assert [one.part for one in found.maps] == ["encoder", "encoder"]
    with pytest.raises(ConfigError, match="target"):
        inspect_text(bundle(model, codec), "forty", "good")


def test_memory_network_hops_read_words() -> None:
    codec = Codec(source=of_symbols([*WORDS, ".", "?"], "words"), classes=("good", "bad"))
    model = build("memn2n", {"width": 6}, Sizes(11, 2))
    found = inspect_text(bundle(model, codec), "forty one . seven ?")
    assert any(one.columns == "source" for one in found.maps)


def test_long_texts_are_refused_before_the_model_runs() -> None:
    with pytest.raises(DataError, match="text: more than 4 tokens"):
        inspect_text(translator("encoder-decoder", WEIGHTED["encoder-decoder"]), "one " * 5, longest=4)
    with pytest.raises(DataError, match="target: more than 4 tokens"):
        inspect_text(translator("encoder-decoder", WEIGHTED["encoder-decoder"]), "one", "abcde", longest=4)


def test_an_optimized_model_shows_the_same_influence_and_is_unchanged() -> None:
    plain, optimized = (translator("seq2seq", UNWEIGHED["seq2seq"]) for _ in range(2))
    optimize_for_inference(optimized.model)
    one, other = (inspect_text(each, "forty one", "ab").maps[0].weights_HTS for each in (plain, optimized))
    torch.testing.assert_close(one, other)
    assert all(parameter.grad is None for parameter in optimized.model.parameters())
