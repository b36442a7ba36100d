"""An optimized model gives the same outputs and gradients, and refuses what it cannot do."""

import copy
import gc
import weakref
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from allyouneed import kernels
from allyouneed.decode import SearchConfig, search
from allyouneed.decode.base import evaluating
from allyouneed.errors import ConfigError
from allyouneed.inference.optimize import HOOKS, compact_parameters, is_optimized, optimize_for_inference
from allyouneed.inspection.maps import record_maps
from allyouneed.mixers.softmax import SoftmaxConfig
from allyouneed.models.encoder_decoder import EncoderDecoder, EncoderDecoderConfig
from allyouneed.sizes import Sizes

CONFIG = EncoderDecoderConfig(width=12, hidden=20, mixer=SoftmaxConfig(heads=3), encoder_layers=1, decoder_layers=2)
TIES = [CONFIG, CONFIG.model_copy(update={"tied": False, "output_bias": True, "norm": "pre"})]


def build(config: EncoderDecoderConfig = CONFIG, optimized: bool = False) -> EncoderDecoder:
    torch.manual_seed(3)
    model = config.build(Sizes(11, 11, shared=True)).eval()
    if optimized:
        optimize_for_inference(model)
    return model


def test_weights_and_search_results_are_unchanged() -> None:
    model = CONFIG.build(Sizes(11, 11, shared=True)).double().eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    sources = [[5, 6, 7, 2], [8, 2]]
    said = search(model, sources, SearchConfig(beam=3, max_length=7))
    count = model.parameter_count()
    optimize_for_inference(model)
    assert model.parameter_count() == count
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    again = search(model, sources, SearchConfig(beam=3, max_length=7))
    assert [found[0].ids for found in again] == [found[0].ids for found in said]
    assert model.head.weight_VD.stride() == (1, 11)
    assert model.target.weight_VD.is_contiguous()


def loss(model: EncoderDecoder) -> Tensor:
    """A loss through whole sequences and through single steps."""
    source_BS, target_BT = torch.tensor([[5, 6, 2], [7, 8, 2]]), torch.tensor([[1, 9], [1, 4]])
    state = model.condition(source_BS)
    logits_BTV, state = model.step(target_BT, state)
    logits_BV, _ = model.advance(torch.tensor([3, 5]), state)
    return logits_BTV.log_softmax(dim=-1)[..., 7].sum() + logits_BV.log_softmax(dim=-1)[..., 3].sum()


@pytest.mark.parametrize("config", TIES, ids=["tied", "untied"])
def test_gradients_are_those_of_the_plain_model(config: EncoderDecoderConfig) -> None:
    plain, fast = build(config), build(config, optimized=True)
    for model in (plain, fast):
        loss(model).backward()
    right = {name: parameter.grad for name, parameter in plain.named_parameters()}
    found = {name: parameter.grad for name, parameter in fast.named_parameters() if parameter.grad is not None}
    assert found.keys() == right.keys()
    for name, gradient in found.items():
        torch.testing.assert_close(gradient, right[name])


@pytest.mark.parametrize("register", HOOKS)
@pytest.mark.parametrize(
    "name", ["", "decoder", "decoder.blocks.0.mixer", "decoder.blocks.1.feedforward.inner", "head"]
)
def test_hooks_are_refused(name: str, register: str) -> None:
    module = build(optimized=True).get_submodule(name)
    with pytest.raises(ConfigError, match=r"does not run hooks.*load_folder"):
        getattr(module, register)(lambda *given: None)


IN_DECODING = [
    *("encoder", "encoder.blocks.0", "encoder.blocks.0.mixer", "encoder.blocks.0.feedforward", "head"),
    *(f"decoder.blocks.1.{name}" for name in ("mixer", "mixer.output", "cross", "cross.query", "cross_norm")),
    *(f"decoder.blocks.1.feedforward.{name}" for name in ("inner", "outer")),
]
IN_STEPS_ONLY = ["target", "decoder", "decoder.blocks.1", "decoder.blocks.1.feedforward"]


def test_hooks_that_run_on_the_plain_model() -> None:
    model, called = build(), set[str]()
    for name in ("", *IN_DECODING, *IN_STEPS_ONLY):
        model.get_submodule(name).register_forward_hook(lambda *given, name=name: called.add(name))
    search(model, [[5, 6, 7, 2], [8, 2]], SearchConfig(beam=3, max_length=7))
    assert called == set(IN_DECODING)
    loss(model)
    assert called == {*IN_DECODING, *IN_STEPS_ONLY}


def test_a_model_with_hooks_is_not_optimized() -> None:
    model = build()
    hook = model.decoder.blocks[0].register_forward_hook(lambda *given: None)
    with pytest.raises(ConfigError, match=r"decoder\.blocks\.0 has hooks"):
        optimize_for_inference(model)
    hook.remove()
    optimize_for_inference(model)
    assert is_optimized(model)


def test_a_model_is_optimized_once() -> None:
    with pytest.raises(ConfigError, match="already optimized"):
        optimize_for_inference(build(optimized=True))


CHANGES: dict[str, tuple[Callable[[nn.Module], object], str]] = {
    "train": (lambda model: model.train(), "cannot be trained"),
    "train a part": (lambda model: model.get_submodule("decoder.blocks.0").train(), "cannot be trained"),
    "dtype": (lambda model: model.double(), "cannot change its device or dtype"),
    "device": (lambda model: model.to("meta"), "cannot change its device or dtype"),
    "weights": (lambda model: model.load_state_dict(model.state_dict()), "packed and cannot change"),
}


@pytest.mark.parametrize("change", list(CHANGES))
def test_changes_are_refused(change: str) -> None:
    make, message = CHANGES[change]
    with pytest.raises(ConfigError, match=message):
        make(build(optimized=True))


def test_it_stays_in_evaluation_mode() -> None:
    model = build(optimized=True)
    assert model.eval() is model
    with evaluating(model):
        assert not any(module.training for module in model.modules())
    copied = copy.deepcopy(model)
    assert is_optimized(copied)
    assert copied.eval() is copied


@pytest.mark.parametrize("config", TIES, ids=["tied", "untied"])
@pytest.mark.skipif(kernels.build.library() is None, reason="no C compiler: nothing is packed")
def test_packed_weights_are_the_only_ones(config: EncoderDecoderConfig) -> None:
    plain, fast = build(config), build(config, optimized=True)
    right = dict(plain.named_parameters())
    released = [name for name, one in fast.named_parameters() if one.untyped_storage().nbytes() < one.nbytes]
    assert {"encoder.blocks.0.mixer.query_key_value.weight", "decoder.blocks.1.feedforward.outer.weight"} <= {*released}
    assert fast.parameter_count() == plain.parameter_count()
    with torch.no_grad():
        assert torch.equal(fast.head.weight_VD, plain.head.weight_VD)
        assert torch.equal(fast.target.look_up(torch.tensor([3, 10])), plain.target.weight_VD[[3, 10]])
        inner = "decoder.blocks.0.feedforward.inner"
        assert torch.equal(fast.get_submodule(inner).weight, right[f"{inner}.weight"])  # type: ignore[arg-type]


def test_a_copy_computes_the_same() -> None:
    fast = build(optimized=True)
    copied = copy.deepcopy(fast)
    with torch.no_grad():
        assert torch.equal(loss(copied), loss(fast))
    assert torch.equal(loss(copied).detach(), loss(fast).detach())  # with gradients: weights are unpacked


@pytest.mark.parametrize("int8", [False, True])
@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
@pytest.mark.skipif(kernels.build.library() is None, reason="no C compiler: nothing is packed")
def test_weights_in_half_precision_give_the_outputs_of_float32(half: torch.dtype, int8: bool) -> None:
    for config in TIES:
        single, stored = build(config), build(config)
        for model in (single, stored):
            compact = compact_parameters(model)
            for parameter in model.parameters():
                rounded = parameter.data.to(half)
                parameter.data = rounded if model is stored and parameter in compact else rounded.float()
            optimize_for_inference(model, int8)
        with torch.no_grad():
            assert torch.equal(loss(stored), loss(single))
        if not int8:
            torch.testing.assert_close(loss(stored), loss(single))


def test_maps_are_those_of_the_plain_model() -> None:
    found = []
    for model in (build(), build(optimized=True)):
        with torch.inference_mode(), record_maps(model) as maps:
            loss(model)
        found.append(maps)
    assert len(found[0]) == len(found[1]) == 1 + 2 * (2 + 2)
    for one, other in zip(*found, strict=True):
        assert one.name == other.name
        torch.testing.assert_close(one.weights_BHTS, other.weights_BHTS)


@pytest.mark.parametrize("config", TIES, ids=["tied", "untied"])
def test_it_is_freed_with_its_last_reference(config: EncoderDecoderConfig) -> None:
    """Without the garbage collector: a server that replaces a model need not run it."""
    model = build(config, optimized=True)
    search(model, [[5, 6, 7, 2], [8, 2]], SearchConfig(beam=3, max_length=7))
    parts = [weakref.ref(module) for module in model.modules()]
    gc.collect()
    gc.disable()
    try:
        del model
        assert [part for part in parts if part() is not None] == []
    finally:
        gc.enable()
