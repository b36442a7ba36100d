"""ONNX exports compute the same numbers in onnxruntime or are refused; no wrong folder is left behind."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from engine_models import (
    AROUND,
    NORMED,
    PARALLEL,
    PARTIAL,
    POSITIONS,
    SETTINGS,
    bundle_of,
    never_ending,
    run_alone,
    run_program,
)

pytest.importorskip("onnx", reason="onnx is not installed: pip install 'allyouneed[onnx]'")
pytest.importorskip("onnxruntime", reason="onnxruntime is not installed: pip install 'allyouneed[onnx]'")

from allyouneed.decode import SearchConfig, translate
from allyouneed.errors import ConfigError, FolderError
from allyouneed.folder import Bundle
from allyouneed.interop.onnx import transformer
from allyouneed.interop.onnx.check import OnnxModel
from allyouneed.interop.onnx.export import export_folder
from allyouneed.models.encoder_decoder import EncoderDecoderConfig
from allyouneed.models.seq2seq import Seq2SeqConfig
from allyouneed.shortlist.table import SPECIALS, Shortlist
from allyouneed.sizes import Sizes
from allyouneed.text.codec import Codec
from allyouneed.text.specials import BOS

pytestmark = pytest.mark.no_shapes
MORE: list[dict[str, Any]] = [
    {"positions": "alibi"},
    {"norm": "none"},
    {"mixer": {"heads": 3, "key_width": 5, "value_width": 2}},
    {"mixer": {"key_heads": 1, "score_cap": 1.5}, "positions": {"type": "shaw", "clip": 2}},
]


LINEAR: dict[str, Any] = {"type": "linear", "heads": 4}
SOFTMAX: dict[str, Any] = {"type": "softmax", "heads": 4}
CONSTANT: list[dict[str, Any]] = [
    {"mixer": {"type": "gru"}},
    {"mixer": {"type": "lstm"}, "norm": "pre"},
    {"mixer": {"type": "rnn"}, "positions": "none"},
    {"mixer": LINEAR},
    {"mixer": {**LINEAR, "bias": False}, "positions": "none"},
    {"mixer": [LINEAR, {"type": "gru"}], "positions": {"type": "learned", "max_length": 80}},
    {"mixer": [{"type": "lstm"}, SOFTMAX]},  # the second layer's keys give the number of earlier tokens
]
MIXED: list[dict[str, Any]] = [
    {"mixer": {"type": "gru"}, "encoder_mixer": SOFTMAX, "cross": SOFTMAX},  # like multi30k-en-de-recurrent
    {"mixer": {"type": "rnn"}, "encoder_mixer": LINEAR, "cross": LINEAR, "encoder_layers": 2},
    {"mixer": SOFTMAX, "encoder_mixer": {"type": "lstm"}, "cross": LINEAR, "encoder_layers": 2},
]


@pytest.mark.parametrize("kind", ["encoder-decoder", "decoder"])
@pytest.mark.parametrize(
    "settings", [*({"positions": one} for one in POSITIONS), *SETTINGS, NORMED, AROUND, *MORE, *CONSTANT], ids=str
)
def test_logits_are_the_same(kind: str, settings: dict[str, Any], tmp_path: Path) -> None:
    notes = export_folder(bundle_of(kind, settings), tmp_path / "out")  # the exporter compares both engines
    assert "at once and step by step" in notes[0]
    assert (tmp_path / "out" / "encoder.onnx").exists() == (kind == "encoder-decoder")


@pytest.mark.parametrize("settings", [PARALLEL, PARTIAL, {"logit_cap": 2.0, "output_bias": True}], ids=str)
def test_settings_of_decoders(settings: dict[str, Any], tmp_path: Path) -> None:
    assert "at once and step by step" in export_folder(bundle_of("decoder", settings), tmp_path / "out")[0]


@pytest.mark.parametrize("settings", MIXED, ids=str)
def test_encoder_decoder_and_cross_mixers_may_differ(settings: dict[str, Any], tmp_path: Path) -> None:
    reports: list[tuple[float, str]] = []
    notes = export_folder(bundle_of("encoder-decoder", settings), tmp_path / "out", lambda *one: reports.append(one))
    assert "at once and step by step" in notes[0]
    assert (reports[0][0], reports[-1]) == (0.0, (1.0, "8 of 8 sequences compared in both engines"))


@pytest.mark.parametrize("mixer", [{"type": "gru"}, {"type": "lstm"}, LINEAR], ids=str)
def test_a_constant_state_does_not_grow(mixer: dict[str, Any], tmp_path: Path) -> None:
    bundle = bundle_of("decoder", {"mixer": mixer})
    export_folder(bundle, tmp_path / "out")
    written, numbers = OnnxModel(tmp_path / "out"), np.random.default_rng(0)
    state = written.start(None, 2)
    sizes = {name: value.shape for name, value in state.items()}
    row = [BOS, *numbers.integers(4, 30, 99)]
    for begin in range(0, 100, 10):  # ten tokens a call
        found, state = written.step([row[begin : begin + 10]] * 2, state)
    assert {name: value.shape for name, value in state.items()} == sizes
    assert state["past_seen"].tolist() == [100, 100]
    with torch.inference_mode():
        expected, _ = bundle.model.step(torch.tensor([row]), bundle.model.start())
    assert np.abs(found - expected[:, -10:].numpy()).max() < 1e-4


def test_rows_of_different_lengths_continue_in_one_batch(tmp_path: Path) -> None:
    bundle = bundle_of("decoder", {"mixer": [{"type": "gru"}, LINEAR]})
    export_folder(bundle, tmp_path / "out")
    written, rows = OnnxModel(tmp_path / "out"), [[BOS, 5, 6, 7, 8], [BOS, 9]]
    states = [written.step([row], written.start(None, 1))[1] for row in rows]
    joined = {name: np.concatenate([state[name] for state in states]) for name in states[0]}
    found, _ = written.step([[10], [11]], joined)
    for row, logits, last in zip(rows, found, (10, 11), strict=True):
        with torch.inference_mode():
            expected, _ = bundle.model.step(torch.tensor([[*row, last]]), bundle.model.start())
        assert np.abs(logits[-1] - expected[0, -1].numpy()).max() < 1e-4


def test_leaving_out_a_shortlist_is_reported(tmp_path: Path) -> None:
    bundle = bundle_of("encoder-decoder", {})
    some = Shortlist(
        torch.arange(SPECIALS), torch.arange(0), torch.zeros(bundle.codec.both()[0].size, dtype=torch.long)
    )
    note = "the shortlist is left out: the graphs compute the logits of all words"
    assert note in export_folder(replace(bundle, shortlist=some), tmp_path / "out")
    assert note not in export_folder(bundle, tmp_path / "out")


def test_long_distances_do_not_wrap_around(tmp_path: Path) -> None:
    bundle = bundle_of("decoder", {"positions": {"type": "t5", "buckets": 8, "max_distance": 12}, "layers": 1})
    export_folder(bundle, tmp_path / "out")
    tokens = [[BOS, *np.random.default_rng(0).integers(4, 30, 3000)]]
    written = OnnxModel(tmp_path / "out")
    found, _ = written.step(tokens, written.start(None, 1))
    with torch.inference_mode():
        expected, _ = bundle.model.step(torch.tensor(tokens), bundle.model.start())
    assert np.abs(found - expected.numpy()).max() < 1e-3


def test_a_wrong_export_is_not_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle, linear = bundle_of("encoder-decoder", {}), transformer.Operations.linear

    def wrong(self: Any, layer: Any, x: str) -> str:
        return self.g("Mul", linear(self, layer, x), self.g.constant(1.01))

    monkeypatch.setattr(transformer.Operations, "linear", wrong)
    with pytest.raises(FolderError, match=r"logits differ from ours by .*; nothing was written"):
        export_folder(bundle, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_unsupported_models_are_named(tmp_path: Path) -> None:
    bundle = bundle_of("encoder-decoder", {})
    tree = {"width": 16, "hidden": 8, "mixer": {"type": "performer", "heads": 4}, "positions": "sinusoidal"}
    performer = EncoderDecoderConfig.model_validate(tree).build(Sizes(40, 40))
    recurrent = Seq2SeqConfig.model_validate({"cell": "gru", "width": 8}).build(Sizes(40, 40))
    for model, codec, named in [
        (performer, bundle.codec, "model.mixer performer .*; supported: softmax, linear, rnn, lstm, gru"),
        (recurrent, bundle.codec, "model.type seq2seq"),
        (bundle_of("encoder-decoder", {"decoder_layers": 0}).model, bundle.codec, "model.decoder_layers 0"),
        (bundle.model, Codec(source=bundle.codec.source, classes=("a", "b")), "classes"),
    ]:
        with pytest.raises(ConfigError, match=named):
            export_folder(Bundle(Path("m"), model, codec, {}, "", ""), tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", ["encoder-decoder", "decoder"])
@pytest.mark.parametrize("mixer", [SOFTMAX, {"type": "gru"}], ids=str)
def test_the_program_of_the_readme_runs_without_our_package(kind: str, mixer: dict[str, Any], tmp_path: Path) -> None:
    settings = {"norm": "pre", "mixer": mixer}
    bundle, out, sandbox = bundle_of(kind, settings, sharp=3.0), tmp_path / "out", tmp_path / "sandbox"
    sandbox.mkdir()
    lines = ["a man", "zwölf", "blue - green"]
    export_folder(bundle, out)
    packages = ("onnxruntime", "tokenizers", "numpy", "google", "flatbuffers", "packaging")
    output = run_alone(out, "\n".join(["", *lines]) + "\n", packages, sandbox)  # an empty line gives an empty line
    expected = translate(bundle.model, bundle.codec, lines, SearchConfig(beam=1, max_length=100))
    assert output.split("\n")[:-1] == ["", *(answers[0].text for answers in expected)]


@pytest.mark.parametrize("kind", ["encoder-decoder", "decoder"])
def test_the_program_of_the_readme_stops_at_the_last_learned_position(kind: str, tmp_path: Path) -> None:
    bundle = never_ending(bundle_of(kind, {"positions": {"type": "learned", "max_length": 16}}))
    sandbox = tmp_path / "sandbox"
    sandbox.mkdir()
    export_folder(bundle, tmp_path / "out")
    packages = ("onnxruntime", "tokenizers", "numpy", "google", "flatbuffers", "packaging")
    (output,) = run_alone(tmp_path / "out", "abcde\n", packages, sandbox).splitlines()
    read = 1 if kind == "encoder-decoder" else 7  # BOS; the text, EOS and BOS
    assert len(output) == 16 - read + 1
    done = run_program(tmp_path / "out", "a" * 17 + "\n", sandbox)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "more than 16 tokens" in done.stderr
