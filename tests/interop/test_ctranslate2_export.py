"""Exported to CTranslate2 and run there: the same numbers, or a refusal; nothing half-right is left behind."""

from pathlib import Path
from typing import Any

import pytest
import torch
from engine_models import POSITIONS, SETTINGS, bundle_of, never_ending, pieces, run_alone, run_program

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


def agreed(bundle: Bundle, out: Path, quantization: str | None = None) -> list[str]:
    """Exports; the exporter compares both engines."""
    notes = export_folder(bundle, out, quantization)
    assert "greedy search the same" in notes[0]
    assert (out / "model.bin").exists()
    return notes


@pytest.mark.parametrize("kind", ["encoder-decoder", "decoder"])
@pytest.mark.parametrize("settings", [*({"positions": one} for one in POSITIONS), *SETTINGS], ids=str)
def test_the_same_numbers_there(kind: str, settings: dict[str, Any], tmp_path: Path) -> None:
    agreed(bundle_of(kind, settings), tmp_path / "out")


@pytest.mark.parametrize("settings", ALIBI, ids=str)
def test_alibi_of_a_decoder(settings: dict[str, Any], tmp_path: Path) -> None:
    agreed(bundle_of("decoder", settings, paired=False), tmp_path / "out")


@pytest.mark.parametrize("quantization", ["int16", "int8"])
@pytest.mark.parametrize("kind", ["encoder-decoder", "decoder"])
def test_rounded_weights_are_compared_with_weights_rounded_alike(kind: str, quantization: str, tmp_path: Path) -> None:
    bundle = bundle_of(kind, {"feedforward": "swiglu", "norm": "pre"})
    before = {name: tensor.clone() for name, tensor in bundle.model.state_dict().items()}
    notes = agreed(bundle, tmp_path / "out", quantization)
    assert notes[1].startswith(f"effect of {quantization}: log-probabilities of tokens change by ")
    for name, tensor in bundle.model.state_dict().items():
        assert torch.equal(tensor, before[name]), name  # their rounding is in place, and not in ours


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("decoder", {"norm": "none"}, 'model.norm "none"'),
    ("encoder-decoder", {"positions": "alibi"}, "model.positions alibi"),
    ("decoder", {"positions": "alibi", "mixer": {"heads": 3, "key_width": 4, "value_width": 4}}, "interleaved"),
    ("decoder", {"mixer": {"value_width": 3}}, "keys of width 4 and values of width 3"),
    ("decoder", {"layers": 0}, "no layers"),
    (
        "encoder-decoder",
        {"cross": {"type": "softmax", "heads": 2}},
        "model.cross: 4 heads (4 of keys) of width 4 and 2",
    ),
]


@pytest.mark.parametrize(("kind", "settings", "named"), REFUSED, ids=str)
def test_what_cannot_be_expressed_is_refused_by_name(
    kind: str, settings: dict[str, Any], named: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match="ctranslate2: ") as error:
        export_folder(bundle_of(kind, settings), tmp_path / "out")
    assert named in str(error.value)
    assert list(tmp_path.iterdir()) == []


def test_other_mechanisms_and_classes_are_refused(tmp_path: Path) -> None:
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


def test_a_setting_that_nobody_taught_the_exporter_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = bundle_of("decoder", {"embedding_norm": True})
    monkeypatch.setattr(supported_settings, "MODEL", supported_settings.MODEL - {"embedding_norm", "embedding_scale"})
    with pytest.raises(ConfigError, match=r"ctranslate2: model.embedding_norm True is not supported"):
        export_folder(bundle, tmp_path / "out")
    export_folder(bundle_of("decoder", {}), tmp_path / "out")  # at its default it changes nothing


def test_an_unknown_quantisation_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="int4: not one of float32, int16, int8"):
        export_folder(bundle_of("decoder", {}), tmp_path / "out", "int4")


@pytest.mark.parametrize("kind", ["encoder-decoder", "decoder"])
def test_a_folder_that_disagrees_is_not_left_behind(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle, right = bundle_of(kind, {}), files.build_spec

    def wrong(model: Any) -> Any:
        spec = right(model)
        spec.decoder.layer[1].ffn.linear_0.weight[0] += 0.2
        return spec

    monkeypatch.setattr(files, "build_spec", wrong)
    with pytest.raises(FolderError, match=r"log-probabilities differ from ours by .*; nothing was written"):
        export_folder(bundle, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_of_another_model_is_told(tmp_path: Path) -> None:
    one, two = bundle_of("encoder-decoder", {}), bundle_of("encoder-decoder", {})
    files.write_model(one.model, one.codec, tmp_path, "float32")
    with pytest.raises(FolderError, match="differ"):
        check_folder(tmp_path, two.model, two.codec, "float32", prompts_of(two.model, two.codec, []))


@pytest.mark.parametrize("kind", ["encoder-decoder", "decoder"])
def test_the_readme_runs_where_there_is_nothing_of_ours(kind: str, tmp_path: Path) -> None:
    bundle, out, room = bundle_of(kind, {"positions": "rotary"}, sharp=3.0), tmp_path / "out", tmp_path / "room"
    room.mkdir()
    lines = ["a man", "zwölf", "blue - green"]
    agreed(bundle, out)
    said = run_alone(out, "\n".join(lines) + "\n", ("ctranslate2", "tokenizers", "numpy", "yaml"), room)
    expected = translate(bundle.model, bundle.codec, lines, SearchConfig(beam=1, max_length=100))
    if kind == "encoder-decoder":  # their usual limit is 256
        expected = translate(bundle.model, bundle.codec, lines, SearchConfig(beam=1, max_length=256))
    assert said.split("\n")[:-1] == [answers[0].text for answers in expected]


def test_a_language_model_with_pieces_of_bytes(tmp_path: Path) -> None:
    bundle, tokenizer, room = bundle_of("decoder", {}, paired=False), pieces(), tmp_path / "room"
    room.mkdir()
    torch.manual_seed(0)
    model = type(bundle.model)(bundle.model.config, Sizes(tokenizer.size, tokenizer.size)).eval()  # type: ignore[attr-defined]
    pieced = Bundle(Path("m"), model, Codec(target=tokenizer), {}, "", "")
    agreed(pieced, tmp_path / "out")
    said = run_alone(tmp_path / "out", "a man\n", ("ctranslate2", "tokenizers", "numpy", "yaml"), room)
    assert said.startswith("a man")


@pytest.mark.parametrize(("kind", "paired"), [("encoder-decoder", True), ("decoder", True), ("decoder", False)])
@pytest.mark.parametrize("length", [5, 16, 64])
def test_learned_positions_are_enough(kind: str, paired: bool, length: int, tmp_path: Path) -> None:
    """Neither the comparison nor the program of the README asks for more positions than there are."""
    positions = {"type": "learned", "max_length": length}
    bundle = never_ending(bundle_of(kind, {"positions": positions}, paired=paired))
    room = tmp_path / "room"
    room.mkdir()
    agreed(bundle, tmp_path / "out")
    (said,) = run_alone(tmp_path / "out", "a\n", ("ctranslate2", "tokenizers", "numpy", "yaml"), room).splitlines()
    given = 1 if kind == "encoder-decoder" else 3 if paired else 2  # BOS; what is read is positions, too
    assert len(said) == length - given + 1 + (not paired)
    done = run_program(tmp_path / "out", "a" * (length + 1) + "\n", room)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert f"more than {length} tokens" in done.stderr


@pytest.mark.parametrize("kind", ["encoder-decoder", "decoder"])
def test_long_texts_of_a_task_are_cut_to_learned_positions(kind: str) -> None:
    bundle = never_ending(bundle_of(kind, {"positions": {"type": "learned", "max_length": 64}}))
    for prompt in prompts_of(bundle.model, bundle.codec, ["a" * 200]):
        said = len(prompt.target) + 2  # BOS, EOS
        assert said <= 64
        assert len(prompt.given) + (0 if kind == "encoder-decoder" else said - 1) <= 64
