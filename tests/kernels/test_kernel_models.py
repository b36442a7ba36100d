"""Models decode the same with kernels and with torch."""

import copy
import math

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from allyouneed import kernels
from allyouneed.decode import SearchConfig, search
from allyouneed.errors import ConfigError
from allyouneed.inference.optimize import optimize_for_inference
from allyouneed.mixers.softmax import SoftmaxConfig
from allyouneed.models import Model
from allyouneed.models.decoder import DecoderConfig
from allyouneed.models.encoder_decoder import EncoderDecoderConfig
from allyouneed.positions import AlibiConfig, RotaryConfig, ShawConfig, T5Config
from allyouneed.sizes import Sizes

pytestmark = [
    pytest.mark.skipif(kernels.build.library() is None, reason="no C compiler"),
    pytest.mark.usefixtures("no_gradients"),
]


def models() -> list[Model]:
    torch.manual_seed(3)
    both = {"width": 24, "hidden": 40, "mixer": SoftmaxConfig(heads=3), "encoder_layers": 1, "decoder_layers": 2}
    alone = {"width": 24, "hidden": 40, "mixer": SoftmaxConfig(heads=3), "layers": 2}
    sizes = Sizes(30, 30, shared=True)
    position = [AlibiConfig(), RotaryConfig(), ShawConfig(), T5Config()]
    made: list[Model] = [EncoderDecoderConfig(**both, norm=norm).build(sizes) for norm in ("post", "pre")]
    made.append(EncoderDecoderConfig(**both, normalisation="rms", feedforward="swiglu").build(sizes))
    made += [DecoderConfig(**alone, positions=one).build(sizes) for one in position]
    return [model.eval() for model in made]


@pytest.mark.parametrize("number", range(7))
@pytest.mark.parametrize("beam", [1, 3])
def test_searches_give_the_same_ids(number: int, beam: int, monkeypatch: pytest.MonkeyPatch) -> None:
    sources = [[5, 6, 7, 8, 9, 2], [8, 2], [4, 4, 4, 2]]
    config = SearchConfig(beam=beam, n_best=beam, max_length=9)
    with monkeypatch.context() as patch:
        patch.setattr(kernels.build, "library", lambda: None)
        right = search(models()[number], sources, config)
    model = models()[number]
    optimize_for_inference(model)
    for found in (search(models()[number], sources, config), search(model, sources, config)):
        for one, two in zip(found, right, strict=True):
            assert [hypothesis.ids for hypothesis in one] == [hypothesis.ids for hypothesis in two]
            logprobs = [[hypothesis.logprob for hypothesis in row] for row in (one, two)]
            np.testing.assert_allclose(*logprobs, atol=1e-4)


def test_int8_models_are_close() -> None:
    for number in range(7):
        model, right = models()[number], models()[number]
        optimize_for_inference(model, int8=True)
        ids_BT = torch.tensor([[1, 5, 6, 7, 8]])
        states = [one.condition(torch.tensor([[9, 8, 2]])) for one in (model, right)]
        near, far = (one.step(ids_BT, state)[0] for one, state in zip((model, right), states, strict=True))
        assert 0 < (near - far).norm() / far.norm() < 0.1


def test_int8_needs_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels.build, "library", lambda: None)
    with pytest.raises(ConfigError, match="C compiler"):
        optimize_for_inference(models()[0], int8=True)


def optimized(number: int = 0, int8: bool = False) -> Model:
    model = models()[number]
    optimize_for_inference(model, int8)
    return model


def test_rows_that_do_not_fit_a_state_are_refused() -> None:
    model = optimized()
    source_BS = torch.tensor([[5, 6, 2], [7, 8, 2]])
    _, state = model.advance(torch.tensor([1, 1]), model.condition(source_BS))
    for rows in (1, 3, 64):
        with pytest.raises(ValueError, match="rows"):
            model.advance(torch.full((rows,), 5), state)
    with pytest.raises(ValueError, match="3 rows cannot share 2 memories"):
        kernels.attend(torch.zeros(3, 4), torch.zeros(2, 1, 5, 4), torch.zeros(2, 1, 5, 4), 1.0)


def test_masks_may_have_any_strides() -> None:
    model, source_BS = optimized(), torch.tensor([[5, 6, 7, 2], [7, 8, 2, 0]])
    dense_BS = source_BS != 0
    outputs = []
    for mask_BS in (dense_BS, dense_BS.T.contiguous().T):
        _, state = model.advance(torch.tensor([1, 1]), model.condition(source_BS, mask_BS))
        outputs.append(model.advance(torch.tensor([5, 6]), state)[0])
    assert_close(outputs[0], outputs[1])


@pytest.mark.parametrize("int8", [False, True])
def test_nan_is_not_hidden(int8: bool) -> None:
    model = models()[0]
    model.decoder.blocks[1].feedforward.inner.weight[3] = math.nan
    optimize_for_inference(model, int8)
    _, state = model.advance(torch.tensor([1]), model.condition(torch.tensor([[5, 6, 2]])))
    assert model.advance(torch.tensor([5]), state)[0].isnan().all()
    assert kernels.PackedInt8(torch.ones(2, 3), None).project(torch.tensor([[1.0, math.nan, 0.0]])).isnan().all()
    q_BN = torch.full((1, 4), math.nan)
    assert kernels.attend(q_BN, torch.ones(1, 1, 2, 4), torch.ones(1, 1, 2, 4), 1.0).isnan().all()


def test_a_model_can_be_copied_after_it_has_run() -> None:
    model, source_BS = optimized(), torch.tensor([[5, 6, 2]])
    _, state = model.advance(torch.tensor([1]), model.condition(source_BS))
    again = copy.deepcopy(model)
    _, other = again.advance(torch.tensor([1]), again.condition(source_BS))
    assert_close(again.advance(torch.tensor([5]), other)[0], model.advance(torch.tensor([5]), state)[0])
