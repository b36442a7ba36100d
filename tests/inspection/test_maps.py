"""Recorded attention maps equal the weights that were used, and can be drawn."""

from pathlib import Path

import pytest
import torch

from allyouneed.errors import ConfigError
from allyouneed.folder import Bundle
from allyouneed.inspection.maps import AttentionMap, heads_of, record_maps, translation_maps
from allyouneed.inspection.pictures import Group, draw_attention
from allyouneed.mixers.softmax import SoftmaxConfig
from allyouneed.models import Model
from allyouneed.models.decoder import DecoderConfig
from allyouneed.models.encoder_decoder import EncoderDecoderConfig
from allyouneed.sizes import Sizes
from allyouneed.text.codec import Codec
from allyouneed.text.tokenizer import of_symbols

WORDS = ["forty", "one", "seven"]
SHAPE = {"width": 12, "hidden": 8, "dropout": 0.5, "mixer": SoftmaxConfig(heads=3)}


def translator() -> Model:
    return EncoderDecoderConfig(encoder_layers=2, decoder_layers=1, **SHAPE).build(Sizes(7, 30))  # type: ignore[arg-type]


def bundle(model: Model) -> Bundle:
    codec = Codec(of_symbols(WORDS, "words"), of_symbols("abcdefghijklmnopqrstuvwxyz", "characters"))
    return Bundle(Path("here"), model, codec, {}, "", "0")


def test_every_mixer_reports_its_weights():
    model = translator()
    source_BS, target_BT = torch.tensor([[4, 5, 2], [6, 2, 0]]), torch.tensor([[1, 5, 6, 7], [1, 8, 9, 9]])
    with torch.no_grad(), record_maps(model) as maps:
        model.step(target_BT, model.condition(source_BS, source_BS != 0))
    shapes = {one.name: tuple(one.weights_BHTS.shape) for one in maps}
    assert shapes == {
        "encoder.blocks.0.mixer": (2, 3, 3, 3),
        "encoder.blocks.1.mixer": (2, 3, 3, 3),
        "decoder.blocks.0.mixer": (2, 3, 4, 4),
        "decoder.blocks.0.cross": (2, 3, 4, 3),
    }
    for one in maps:
        torch.testing.assert_close(one.weights_BHTS.sum(dim=-1), torch.ones(one.weights_BHTS.shape[:3]))
    own = next(one for one in maps if one.name == "decoder.blocks.0.mixer").weights_BHTS
    assert torch.equal(own, own.tril())  # causal
    assert maps[-1].weights_BHTS[1, :, :, 2].abs().max() == 0  # padding gets no weight


def test_recording_changes_nothing_and_ends():
    model = translator().double().eval()
    source_BS, target_BT = torch.tensor([[4, 5, 2]]), torch.tensor([[1, 5, 6]])
    plain, _ = model.step(target_BT, model.condition(source_BS))
    with record_maps(model) as maps:
        watched, _ = model.step(target_BT, model.condition(source_BS))
    count = len(maps)
    model.step(target_BT, model.condition(source_BS))
    torch.testing.assert_close(plain, watched)
    assert len(maps) == count


def test_maps_of_other_models_are_not_recorded():
    model, other = translator(), translator()
    with record_maps(model) as maps:
        other.condition(torch.tensor([[4, 2]]))
    assert maps == []


def test_a_row_shows_what_was_read_to_write_its_token():
    model = translator()
    model.train()
    found = translation_maps(bundle(model), "forty x one", "abc")
    assert found.source == ["forty", "?", "one", "end"]  # x is not in the vocabulary
    assert found.target == ["a", "b", "c", "end"]
    (cross,) = found.of("cross")
    assert cross.weights_BHTS.shape == (1, 3, 4, 4)
    assert model.training  # restored, and dropout was off
    again = translation_maps(bundle(model), "forty x one", "abc")
    assert torch.equal(again.of("cross")[0].weights_BHTS, cross.weights_BHTS)
    shorter = translation_maps(bundle(model), "forty x one", "ab").of("cross")[0].weights_BHTS
    torch.testing.assert_close(shorter, cross.weights_BHTS[:, :, :3])  # later tokens change nothing


def test_the_default_target_is_the_greedy_output():
    found = translation_maps(bundle(translator()), "seven")
    assert found.target[-1] == "end"
    assert found.of("cross")[0].weights_BHTS.shape[2] == len(found.target)


def test_a_decoder_has_no_cross_attention():
    with pytest.raises(ConfigError, match="encoder-decoder"):
        translation_maps(bundle(DecoderConfig(layers=1, **SHAPE).build(Sizes(7, 30))), "seven")  # type: ignore[arg-type]


def test_heads_are_named_from_one():
    weights_BHTS = torch.rand(2, 3, 4, 5)
    heads = heads_of([AttentionMap("x", weights_BHTS)])
    assert [name for name, _ in heads] == ["x, head 1", "x, head 2", "x, head 3"]
    assert torch.equal(heads[1][1], weights_BHTS[0, 1])


def test_attention_is_drawn(tmp_path):
    path = draw_attention(
        tmp_path / "new" / "attention.png",
        torch.eye(5)[:, :3],
        ["fünf", "-", "end"],
        list("füßen"),
        title="fünf → füßen",
        note="where it read",
        groups=[Group("fü", 2, marked=True), Group("ßen", 3)],
        marked=[0],
    )
    data = path.read_bytes()
    assert data.startswith(b"\x89PNG")
    assert len(data) > 5000
