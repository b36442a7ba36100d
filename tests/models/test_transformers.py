"""Properties of Transformers; the laws of all models are in tests/contracts/test_models.py."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from allyouneed.config import parse
from allyouneed.errors import ConfigError
from allyouneed.mixers.softmax import Softmax, SoftmaxConfig
from allyouneed.models import MODELS, Model
from allyouneed.models.decoder import Decoder, DecoderConfig
from allyouneed.models.encoder import Encoder, EncoderConfig
from allyouneed.models.encoder_decoder import EncoderDecoder, EncoderDecoderConfig
from allyouneed.positions import POSITIONS
from allyouneed.sizes import Sizes

SIZES = Sizes(source=11, target=13)
GENERATING = ["encoder-decoder", "decoder"]
TRANSFORMERS = [*GENERATING, "encoder"]
every_position = pytest.mark.parametrize("positions", POSITIONS)


def build(kind: str, **changes: Any) -> Model:
    """Return a small model in float64 without dropout, with random numbers in every parameter."""
    tree: dict[str, Any] = {
        "width": 12,
        "mixer": {"type": "softmax", "heads": 3},
        "hidden": 20,
        "dropout": 0.0,
        **({"encoder_layers": 1, "decoder_layers": 2} if kind == "encoder-decoder" else {"layers": 2}),
        **changes,
    }
    model = parse(MODELS[kind], tree).build(SIZES).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.3)
    return model


def texts(B: int = 3) -> tuple[Tensor, Tensor]:
    return torch.randint(11, (B, 5)), torch.randint(13, (B, 7))


def begin(model: Model, source_BS: Tensor, mask_BS: Tensor | None = None) -> Any:
    return model.condition(source_BS, mask_BS)


@every_position
@pytest.mark.parametrize("kind", GENERATING)
def test_step_by_step_is_the_whole(kind: str, positions: str) -> None:
    model, (source_BS, target_BT) = build(kind, positions=positions), texts()
    with torch.no_grad():
        whole_BTV, _ = model.step(target_BT, begin(model, source_BS))
        state, pieces = begin(model, source_BS), []
        for chunk in (slice(0, 1), slice(1, 4), slice(4, 5), slice(5, 7)):
            logits_BTV, state = model.step(target_BT[:, chunk], state)
            pieces.append(logits_BTV)
    assert whole_BTV.shape == (3, 7, 13)
    torch.testing.assert_close(torch.cat(pieces, dim=1), whole_BTV, rtol=1e-9, atol=1e-9)


@settings(max_examples=8)
@pytest.mark.parametrize("kind", GENERATING)
@given(seed=st.integers(0, 2**31), positions=st.sampled_from(sorted(POSITIONS)))
def test_padding_of_sources_changes_nothing(kind: str, seed: int, positions: str) -> None:
    torch.manual_seed(seed)
    model, (source_BS, target_BT) = build(kind, positions=positions), texts()
    mask_BN = torch.stack([torch.randperm(8) < 5 for _ in range(3)])
    padded_BN = torch.randint(11, (3, 8)).masked_scatter(mask_BN, source_BS)
    with torch.no_grad():
        bare_BTV, _ = model.step(target_BT, begin(model, source_BS))
        padded_BTV, _ = model.step(target_BT, begin(model, padded_BN, mask_BN))
    torch.testing.assert_close(padded_BTV, bare_BTV, rtol=1e-9, atol=1e-9)


def test_a_decoder_reads_the_source_as_the_beginning_of_the_text() -> None:
    model, (source_BS, target_BT) = build("decoder"), texts()
    with torch.no_grad():
        after_BTV, _ = model.step(target_BT, model.condition(source_BS))
        whole_BTV, _ = model.step(torch.cat([source_BS, target_BT], dim=1), model.start())
    torch.testing.assert_close(after_BTV, whole_BTV[:, 5:], rtol=1e-9, atol=1e-9)


def test_logits_are_the_head_of_the_hidden_vectors() -> None:
    model, (_, target_BT) = build("decoder"), texts()
    x_BTD, _ = model.hidden(target_BT, model.start())
    torch.testing.assert_close(model.step(target_BT, model.start())[0], x_BTD @ model.head.weight_VD.T)


@every_position
@pytest.mark.parametrize("kind", TRANSFORMERS)
@pytest.mark.parametrize("feedforward", ["relu", "swiglu"])
def test_declared_flops_are_those_counted(kind: str, positions: str, feedforward: str) -> None:
    model, (source_BS, target_BT) = build(kind, positions=positions, feedforward=feedforward), texts(B=1)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter, torch.no_grad():
        if kind == "encoder":
            model.classify(source_BS)
        elif kind == "decoder":  # the source is the beginning of the text; only the target is projected
            x_BTD, _ = model.hidden(torch.cat([source_BS, target_BT], dim=1), model.start())
            model.head(x_BTD[:, 5:])
        else:
            model.step(target_BT, begin(model, source_BS))
    assert model.flops(5, 7) == counter.get_total_flops()


def test_ties() -> None:
    shared = Sizes(13, 13, shared=True)
    one = EncoderDecoderConfig(width=12, mixer=SoftmaxConfig(heads=3), hidden=20).build(shared)
    assert one.source.weight_VD is one.target.weight_VD is one.head.weight_VD
    apart = EncoderDecoderConfig(width=12, mixer=SoftmaxConfig(heads=3), hidden=20).build(Sizes(13, 13))
    assert apart.source.weight_VD is not apart.target.weight_VD is apart.head.weight_VD
    untied = DecoderConfig(width=12, mixer=SoftmaxConfig(heads=3), hidden=20, tied=False).build(SIZES)
    assert untied.target.weight_VD is not untied.head.weight_VD


@pytest.mark.parametrize("pool", ["mean", "first"])
@every_position
def test_pooling_ignores_padding(pool: str, positions: str) -> None:
    model, (source_BS, _) = build("encoder", pool=pool, positions=positions), texts()
    mask_BN = torch.stack([torch.randperm(8) < 5 for _ in range(3)])
    padded_BN = torch.randint(11, (3, 8)).masked_scatter(mask_BN, source_BS)
    logits_BV = model.classify(source_BS)
    assert logits_BV.shape == (3, 13)
    torch.testing.assert_close(model.classify(padded_BN, mask_BN), logits_BV, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("pool", ["mean", "first"])
def test_an_empty_text_gives_no_nan(pool: str) -> None:
    model = build("encoder", pool=pool)
    assert model.classify(torch.zeros(1, 3, dtype=torch.long), torch.zeros(1, 3, dtype=torch.bool)).isfinite().all()


@every_position
def test_a_list_of_mixers_is_repeated_from_the_bottom_up(positions: str) -> None:
    mixers = [{"type": "softmax", "heads": 2}, {"type": "softmax", "heads": 3}]
    model, (_, target_BT) = build("decoder", mixer=mixers, layers=5, positions=positions), texts()
    assert isinstance(model, Decoder)
    built = [module for module in model.modules() if isinstance(module, Softmax)]
    assert [mixer.heads for mixer in built] == [2, 3, 2, 3, 2]
    assert model.step(target_BT, model.start())[0].shape == (3, 7, 13)


MIXED = [
    {"type": "window", "heads": 2, "window": 2},
    {"type": "linear", "heads": 3},
    {"type": "softmax", "heads": 2},
    {"type": "performer", "heads": 2, "features": 5},
]


@pytest.mark.parametrize("kind", GENERATING)
def test_any_mixers_can_be_in_one_stack(kind: str) -> None:
    """In steps, and token by token through `advance`, the result is that of the whole sequence."""
    layers = (
        {"layers": 5}
        if kind == "decoder"
        else {"decoder_layers": 5, "encoder_mixer": {"type": "longformer", "heads": 2}}
    )
    model, (source_BS, target_BT) = build(kind, mixer=MIXED, **layers), texts()
    with torch.no_grad():
        whole_BTV, _ = model.step(target_BT, begin(model, source_BS))
        logits_BTV, state = model.step(target_BT[:, :2], begin(model, source_BS))
        torch.testing.assert_close(logits_BTV, whole_BTV[:, :2], rtol=1e-9, atol=1e-9)
        for t in range(2, target_BT.shape[1]):
            logits_BV, state = model.advance(target_BT[:, t], state)
            torch.testing.assert_close(logits_BV, whole_BTV[:, t], rtol=1e-9, atol=1e-9)


def test_t5_biases_are_shared_by_all_layers_of_a_stack() -> None:
    model = build("encoder-decoder", positions="t5", encoder_layers=2)
    assert isinstance(model, EncoderDecoder)
    encoder, decoder = (
        [block.get_submodule("mixer.position") for block in stack.blocks] for stack in (model.encoder, model.decoder)
    )
    assert encoder[0] is encoder[1]
    assert decoder[0] is decoder[1]
    assert encoder[0] is not decoder[0]


def test_cross_attention_is_like_the_mixer_by_default() -> None:
    mixer = SoftmaxConfig(heads=2, key_width=3, bias=False)
    assert EncoderDecoderConfig(mixer=mixer).cross_mixer() == mixer
    assert EncoderDecoderConfig(mixer=mixer, cross=SoftmaxConfig(heads=4)).cross_mixer() == SoftmaxConfig(heads=4)


def test_unsupported_calls_are_clear_errors() -> None:
    source_BS, target_BT = texts()
    encoder, decoder = build("encoder"), build("decoder")
    assert isinstance(encoder, Encoder)
    with pytest.raises(ConfigError, match="encoder model does not generate"):
        encoder.start()
    with pytest.raises(ConfigError, match="encoder model does not generate"):
        encoder.step(target_BT, None)
    with pytest.raises(ConfigError, match="decoder model has no source"):
        decoder.encode(source_BS)
    with pytest.raises(ConfigError, match="decoder model does not classify"):
        decoder.classify(source_BS)


@pytest.mark.parametrize("changes", [{"mixer": []}, {"width": 0}, {"dropout": 1.0}, {"layers": -1}, {"norm": "pree"}])
def test_impossible_settings_are_clear_errors(changes: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        parse(DecoderConfig, changes)


def test_embeddings_have_unit_variance() -> None:
    """Section 3.4: sqrt(D) times a table of variance 1/D."""
    model = EncoderConfig(width=64, mixer=SoftmaxConfig(heads=4), positions=POSITIONS["none"].model_validate({}))
    embedding = model.build(Sizes(500, 2)).eval().source
    x_BTD = embedding(torch.arange(500)[None], torch.arange(500))
    assert float(x_BTD.detach().var()) == pytest.approx(1.0, rel=0.05)
