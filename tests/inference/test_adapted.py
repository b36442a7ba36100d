"""Adapters that share the packed weights of one optimized model: outputs and gradients of the merged model."""

import copy
import gc
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor

from allyouneed import kernels
from allyouneed.decode import SearchConfig, search
from allyouneed.errors import ConfigError
from allyouneed.inference.adapted import AdaptedLinear, unshared, with_adapter
from allyouneed.inference.optimize import optimize_for_inference
from allyouneed.inspection.maps import record_maps
from allyouneed.models import Model
from allyouneed.models.decoder import DecoderConfig
from allyouneed.models.encoder_decoder import EncoderDecoderConfig
from allyouneed.sizes import Sizes

STACK = {"width": 16, "hidden": 24, "mixer": {"type": "softmax", "heads": 2}}
MODELS: dict[str, Any] = {
    "relu": EncoderDecoderConfig.model_validate({**STACK, "encoder_layers": 1, "decoder_layers": 2}),
    "llama": DecoderConfig.model_validate(
        {
            **STACK,
            "layers": 2,
            "norm": "pre",
            "normalisation": "rms",
            "feedforward": "swiglu",
            "positions": {"type": "rotary"},
        }
    ),
    "windows": DecoderConfig.model_validate(
        {**STACK, "layers": 1, "mixer": {"type": "softmax", "heads": 2, "window": 3}}
    ),  # no fused stack
}
TARGET_BT = torch.tensor([[1, 9, 5, 7, 3, 8], [1, 4, 4, 20, 11, 6]])
SOURCE_BS = torch.tensor([[5, 6, 7, 2], [8, 2, 0, 0]])


def build(kind: str) -> tuple[Model, dict[str, tuple[Tensor, Tensor]]]:
    """Return a plain model, and a random adapter of all matrices of its blocks."""
    torch.manual_seed(4)
    model = MODELS[kind].build(Sizes(33, 33, shared=True)).eval()
    matrices = [(name, one) for name, one in model.named_parameters() if one.ndim == 2 and ".blocks." in name]
    return model, {name: (torch.randn(3, one.shape[1]) / 4, torch.randn(len(one), 3) / 3) for name, one in matrices}


def merged(model: Model, thin: dict[str, tuple[Tensor, Tensor]]) -> Model:
    other = copy.deepcopy(model)
    with torch.no_grad():
        for name, weight in other.named_parameters():
            if name in thin:
                weight.addmm_(thin[name][1], thin[name][0])
    return other


def logits(model: Model) -> tuple[Tensor, Tensor]:
    """Return the logits of whole texts, and of the same texts token by token."""
    start = model.start() if model.kind == "decoder" else model.condition(SOURCE_BS, SOURCE_BS != 0)
    whole_BTV, _ = model.step(TARGET_BT, start)
    state, steps = start, []
    for token_B in TARGET_BT.T:
        logits_BV, state = model.advance(token_B, state)
        steps.append(logits_BV)
    return whole_BTV, torch.stack(steps, dim=1)


@pytest.mark.parametrize("kind", MODELS)
def test_an_adapter_beside_packed_weights_computes_what_the_merged_model_does(kind: str) -> None:
    model, thin = build(kind)
    right, base = merged(model, thin), copy.deepcopy(model)
    optimize_for_inference(base)
    with torch.no_grad():
        before = logits(base)
    assert unshared(base, thin) == []
    adapted = with_adapter(base, thin)
    assert adapted.parameter_count() == model.parameter_count()
    with torch.no_grad():
        for found, expected in zip(logits(adapted), logits(right), strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
            assert not torch.allclose(found, before[0], atol=0.1)
        assert all(map(torch.equal, logits(base), before))  # the base is unchanged
    for found, expected in zip(logits(adapted), logits(right), strict=True):  # with gradients, torch computes
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_weights_maps_and_beams_are_those_of_the_merged_model() -> None:
    model, thin = build("relu")
    right = merged(model, thin)
    optimize_for_inference(model)
    adapted, settings = with_adapter(model, thin), SearchConfig(beam=3, max_length=7)
    for name, layer in adapted.named_modules():
        if isinstance(layer, AdaptedLinear):
            torch.testing.assert_close(layer.weight, right.get_parameter(f"{name}.weight"), rtol=1e-5, atol=1e-6)
    sources = [[5, 6, 7, 2], [8, 2]]
    found = [[one.ids for one in each] for each in search(adapted, sources, settings)]
    assert found == [[one.ids for one in each] for each in search(right, sources, settings)]
    maps = []
    for one in (adapted, right):
        with record_maps(one) as recorded, torch.no_grad():
            one.step(TARGET_BT, one.condition(SOURCE_BS))
        maps.append(recorded)
    assert len(maps[0]) == len(maps[1]) > 0


@torch.no_grad()
def test_an_adapter_of_an_int8_model_is_exact_beside_rounded_weights() -> None:
    if not kernels.usable(torch.empty(0)):
        pytest.skip("int8 needs a C compiler")
    model, thin = build("llama")
    rounded = copy.deepcopy(model)
    optimize_for_inference(model, int8=True)
    for name, weight in rounded.named_parameters():
        if name in thin:
            weight.copy_(model.get_submodule(name.rpartition(".")[0]).weight)  # type: ignore[arg-type]
    found, expected = logits(with_adapter(model, thin))[1], logits(merged(rounded, thin))[1]
    assert float((found - expected).abs().max()) < 0.3  # activations, and the head, are rounded, too


@torch.no_grad()
def test_two_adapters_and_their_base_share_one_copy_of_the_weights() -> None:
    model, thin = build("relu")
    optimize_for_inference(model)
    one, two = with_adapter(model, thin), with_adapter(model, thin)
    for ours, theirs in zip(one.parameters(), two.parameters(), strict=True):
        assert ours is theirs
    layers = [[layer for layer in each.modules() if isinstance(layer, AdaptedLinear)] for each in (one, two)]
    assert len(layers[0]) == len(thin)
    if kernels.usable(torch.empty(0)):
        for ours, theirs in zip(*layers, strict=True):
            assert ours.product.packed().base is theirs.product.packed().base
    gone = weakref.ref(one)
    del one, layers, ours, theirs
    gc.collect()
    assert gone() is None


def test_what_cannot_be_shared_is_refused() -> None:
    model, thin = build("relu")
    with pytest.raises(ConfigError, match="a model that is optimized"):
        with_adapter(model, thin)
    optimize_for_inference(model)
    table = {"source.weight_VD": (torch.zeros(2, 16), torch.zeros(33, 2))}
    assert unshared(model, table) == ["source.weight_VD"]
    with pytest.raises(ConfigError, match="in attention and feed-forward"):
        with_adapter(model, table)
    with pytest.raises(ConfigError, match="cannot be trained"):
        with_adapter(model, thin).train()
