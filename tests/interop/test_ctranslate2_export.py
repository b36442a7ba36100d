"""Exports to CTranslate2 compute the same numbers or are refused; no wrong folder is left behind."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from engine_models import (
    NORMED,
    PARALLEL,
    PARTIAL,
    POSITIONS,
    SETTINGS,
    bundle_of,
    byte_tokenizer,
    never_ending,
    run_alone,
    run_program,
)

pytest.importorskip("ctranslate2", reason="ctranslate2 is not installed: pip install 'allyouneed[ct2]'")

from allyouneed.decode import SearchConfig, translate
from allyouneed.errors import ConfigError, FolderError
from allyouneed.folder import Bundle
from allyouneed.interop import supported_settings
from allyouneed.interop.ctranslate2 import files
from allyouneed.interop.ctranslate2.check import check_folder
from allyouneed.interop.ctranslate2.export import export_folder, prompts_of
from allyouneed.models.encoder_decoder import EncoderDecoderConfig
from allyouneed.sizes import Sizes
from allyouneed.text.codec import Codec

pytestmark = pytest.mark.no_shapes
ALIBI = [{"positions": {"type": "alibi"}}, {"positions": {"type": "alibi", "interleaved": True}, "mixer": {"heads": 3}}]
ALIBI[1]["mixer"] |= {"key_width": 4, "value_width": 4}


def export_and_compare(bundle: Bundle, out: Path, quantization: str | None = None) -> list[str]:
    """Export a bundle and return the notes; the exporter itself compares both engines."""
    notes = export_folder(bundle, out, quantization)
    assert "greedy search the same" in notes[0]
    assert (out / "model.bin").exists()
    return notes


@pytest.mark.parametrize("kind", ["encoder-decoder", "decoder"])
@pytest.mark.parametrize("settings", [*({"positions": one} for one in POSITIONS), *SETTINGS], ids=str)
def test_log_probabilities_are_the_same(kind: str, settings: dict[str, Any], tmp_path: Path) -> None:
    export_and_compare(bundle_of(kind, settings), tmp_path / "out")


@pytest.mark.parametrize("settings", [*ALIBI, NORMED, PARALLEL, PARTIAL], ids=str)
def test_settings_of_decoders(settings: dict[str, Any], tmp_path: Path) -> None:
    export_and_compare(bundle_of("decoder", settings, paired=False), tmp_path / "out")


@pytest.mark.parametrize("quantization", ["int16", "int8"])
@pytest.mark.parametrize("kind", ["encoder-decoder", "decoder"])
def test_quantized_exports_are_compared_with_weights_rounded_the_same_way(
    kind: str, quantization: str, tmp_path: Path
) -> None:
    bundle = bundle_of(kind, {"feedforward": "swiglu", "norm": "pre"})
    before = {name: tensor.clone() for name, tensor in bundle.model.state_dict().items()}
    notes = export_and_compare(bundle, tmp_path / "out", quantization)
    assert notes[1].startswith(f"effect of {quantization}: log-probabilities of tokens change by ")
    for name, tensor in bundle.model.state_dict().items():
        assert torch.equal(tensor, before[name]), name  # rounding happens in a copy, not in our model


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("decoder", {"norm": "none"}, 'model.norm "none"'),
    ("encoder-decoder", {"positions": "alibi"}, "model.positions alibi"),
    ("decoder", {"positions": "alibi", "mixer": {"heads": 3, "key_width": 4, "value_width": 4}}, "interleaved"),
    ("decoder", {"mixer": {"value_width": 3}}, "keys of width 4 and values of width 3"),
    ("decoder", {"layers": 0}, "no layers"),
    ("decoder", {"norm": "both"}, 'model.norm "both"'),
    ("decoder", {"logit_cap": 5.0}, "model.logit_cap 5.0"),
    ("decoder", {"mixer": {"window": 5}}, "model.mixer.window 5"),
    ("decoder", {"mixer": {"score_cap": 5.0}}, "model.mixer.score_cap 5.0"),
    ("decoder", {"mixer": {"head_norm": 1e-3}}, "model.mixer.head_norm 0.001: there all norms have one epsilon"),
    ("encoder-decoder", NORMED, "model.mixer.head_norm can be expressed there for a decoder"),
    ("decoder", {**PARALLEL, "normalisation": "rms"}, "model.parallel with RMS norms"),
    (
        "encoder-decoder",
        {"cross": {"type": "softmax", "heads": 2}},
        "model.cross: 4 heads (4 of keys) of width 4 and 2",
    ),
]


@pytest.mark.parametrize(("kind", "settings", "named"), REFUSED, ids=str)
def test_unsupported_settings_are_named(kind: str, settings: dict[str, Any], named: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="ctranslate2: ") as error:
        export_folder(bundle_of(kind, settings), tmp_path / "out")
    assert named in str(error.value)
    assert list(tmp_path.iterdir()) == []


def test_other_mixers_and_classes_are_refused(tmp_path: Path) -> None:
    bundle = bundle_of("encoder-decoder", {})
    linear = {"type": "linear", "heads": 4}
    config = EncoderDecoderConfig.model_validate({"width": 16, "hidden": 8, "mixer": linear, "positions": "sinusoidal"})
    other = config.build(Sizes(40, 40))
    for model, codec, named in [
        (other, bundle.codec, "model.mixer linear"),
        (bundle.model, Codec(source=bundle.codec.source, classes=("a", "b")), "classes"),
    ]:
        with pytest.raises(ConfigError, match=named):
            export_folder(Bundle(Path("m"), model, codec, {}, "", ""), tmp_path / "out")


def test_a_setting_unknown_to_the_exporter_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = bundle_of("decoder", {"embedding_norm": True})
    monkeypatch.setattr(supported_settings, "MODEL", supported_settings.MODEL - {"embedding_norm", "embedding_scale"})
    with pytest.raises(ConfigError, match=r"ctranslate2: model.embedding_norm True is not supported"):
        export_folder(bundle, tmp_path / "out")
    export_folder(bundle_of("decoder", {}), tmp_path / "out")  # allowed at its default


def test_an_unknown_quantisation_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="int4: not one of float32, int16, int8"):
        export_folder(bundle_of("decoder", {}), tmp_path / "out", "int4")


def test_rounded_weights_are_those_of_the_file(tmp_path: Path) -> None:
    """Weights with few digits are often half way between two steps of int8, and both engines go the same way."""
    bundle = bundle_of("decoder", {"hidden": 400})
    with torch.no_grad():
        for parameter in bundle.model.parameters():
            step = parameter.abs().max() / 64
            parameter.copy_((parameter / step).round() * step)
    notes = " ".join(export_folder(bundle, tmp_path / "out", "int8"))
    found = re.search(r"log-probabilities within (\S+),", notes)
    assert found is not None
    assert float(found[1]) < 1e-4


@pytest.mark.parametrize("quantization", ["float32", "int8"])
@pytest.mark.parametrize("kind", ["encoder-decoder", "decoder"])
def test_a_wrong_export_is_not_left_behind(
    kind: str, quantization: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle, right = bundle_of(kind, {}), files.build_spec

    def wrong(model: Any) -> Any:
        spec = right(model)
        spec.decoder.layer[1].ffn.linear_0.weight[0] += 0.2
        return spec

    monkeypatch.setattr(files, "build_spec", wrong)
    with pytest.raises(FolderError, match=r"log-probabilities differ from ours by .*; nothing was written"):
        export_folder(bundle, tmp_path / "out", quantization)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_of_another_model_is_refused(tmp_path: Path) -> None:
    one, two = bundle_of("encoder-decoder", {}), bundle_of("encoder-decoder", {})
    files.write_model(one.model, one.codec, tmp_path, "float32")
    with pytest.raises(FolderError, match="differ"):
        check_folder(tmp_path, two.model, two.codec, "float32", prompts_of(two.model, two.codec, []))


@pytest.mark.parametrize("kind", ["encoder-decoder", "decoder"])
def test_the_program_of_the_readme_runs_without_our_package(kind: str, tmp_path: Path) -> None:
    bundle, out, sandbox = bundle_of(kind, {"positions": "rotary"}, sharp=3.0), tmp_path / "out", tmp_path / "sandbox"
    sandbox.mkdir()
    lines = ["a man", "zwölf", "blue - green"]
    export_and_compare(bundle, out)
    output = run_alone(out, "\n".join(lines) + "\n", ("ctranslate2", "tokenizers", "numpy", "yaml"), sandbox)
    expected = translate(bundle.model, bundle.codec, lines, SearchConfig(beam=1, max_length=100))
    if kind == "encoder-decoder":  # CTranslate2's default limit is 256
        expected = translate(bundle.model, bundle.codec, lines, SearchConfig(beam=1, max_length=256))
    assert output.split("\n")[:-1] == [answers[0].text for answers in expected]


def test_a_language_model_with_byte_level_tokens(tmp_path: Path) -> None:
    bundle, tokenizer, sandbox = bundle_of("decoder", {}, paired=False), byte_tokenizer(), tmp_path / "sandbox"
    sandbox.mkdir()
    torch.manual_seed(0)
    model = type(bundle.model)(bundle.model.config, Sizes(tokenizer.size, tokenizer.size)).eval()  # type: ignore[attr-defined]
    bundle_of_bytes = Bundle(Path("m"), model, Codec(target=tokenizer), {}, "", "")
    export_and_compare(bundle_of_bytes, tmp_path / "out")
    output = run_alone(tmp_path / "out", "a man\n", ("ctranslate2", "tokenizers", "numpy", "yaml"), sandbox)
    assert output.startswith("a man")


@pytest.mark.parametrize(("kind", "paired"), [("encoder-decoder", True), ("decoder", True), ("decoder", False)])
@pytest.mark.parametrize("length", [5, 16, 64])
def test_learned_positions_are_not_exceeded(kind: str, paired: bool, length: int, tmp_path: Path) -> None:
    """Neither the comparison nor the program of the README uses more positions than the model has."""
    positions = {"type": "learned", "max_length": length}
    bundle = never_ending(bundle_of(kind, {"positions": positions}, paired=paired))
    sandbox = tmp_path / "sandbox"
    sandbox.mkdir()
    export_and_compare(bundle, tmp_path / "out")
    (output,) = run_alone(tmp_path / "out", "a\n", ("ctranslate2", "tokenizers", "numpy", "yaml"), sandbox).splitlines()
    read = 1 if kind == "encoder-decoder" else 3 if paired else 2  # BOS; in decoders, the source takes positions too
    assert len(output) == length - read + 1 + (not paired)
    done = run_program(tmp_path / "out", "a" * (length + 1) + "\n", sandbox)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert f"more than {length} tokens" in done.stderr


@pytest.mark.parametrize("kind", ["encoder-decoder", "decoder"])
def test_long_texts_of_a_task_are_cut_to_learned_positions(kind: str) -> None:
    bundle = never_ending(bundle_of(kind, {"positions": {"type": "learned", "max_length": 64}}))
    for prompt in prompts_of(bundle.model, bundle.codec, ["a" * 200]):
        generated = len(prompt.target) + 2  # BOS, EOS
        assert generated <= 64
        assert len(prompt.given) + (0 if kind == "encoder-decoder" else generated - 1) <= 64
