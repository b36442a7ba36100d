"""Kernels in C say what torch says, for every shape; without a compiler torch says it."""

import copy
import math
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F
from torch.testing import assert_close

from allyouneed import kernels
from allyouneed.decode import SearchConfig, search
from allyouneed.decode.base import FIRST_TOKEN
from allyouneed.errors import ConfigError
from allyouneed.inference.optimize import optimize_for_inference
from allyouneed.kernels import LinesInt8, OutputLists
from allyouneed.mixers.lookup import soft_lookup
from allyouneed.mixers.softmax import SoftmaxConfig
from allyouneed.models import Model
from allyouneed.models.decoder import DecoderConfig
from allyouneed.models.encoder_decoder import EncoderDecoderConfig
from allyouneed.positions import AlibiConfig, RotaryConfig, ShawConfig, T5Config
from allyouneed.sizes import Sizes

pytestmark = pytest.mark.skipif(kernels.build.library() is None, reason="no C compiler")
sizes = st.integers(1, 70)
seeds = st.integers(0, 2**31)


@pytest.fixture(autouse=True)
def no_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


@given(rows=sizes, inputs=sizes, outputs=sizes, seed=seeds)
def test_product(rows: int, inputs: int, outputs: int, seed: int) -> None:
    torch.manual_seed(seed)
    weight_ND, bias_N, wide_BE = torch.randn(outputs, inputs), torch.randn(outputs), torch.randn(rows, inputs + 3)
    x_BD = wide_BE[:, 1 : inputs + 1]  # rows that do not follow each other
    assert_close(kernels.Packed(weight_ND, bias_N).project(x_BD), F.linear(x_BD, weight_ND, bias_N))
    columns_ND = weight_ND.T.contiguous().T
    assert_close(kernels.Packed(columns_ND, None).project(x_BD), F.linear(x_BD, weight_ND))


@given(rows=sizes, inputs=sizes, outputs=sizes, some=st.lists(st.integers(0, 69), max_size=80), seed=seeds)
def test_product_with_some_outputs_is_a_part_of_the_whole(
    rows: int, inputs: int, outputs: int, some: list[int], seed: int
) -> None:
    torch.manual_seed(seed)
    weight_ND, bias_N, x_BD = torch.randn(outputs, inputs), torch.randn(outputs), torch.randn(rows, inputs)
    chosen_M = torch.tensor([number % outputs for number in some], dtype=torch.long)
    whole = kernels.Packed(weight_ND, bias_N)
    assert torch.equal(whole.some(chosen_M).project(x_BD), whole.project(x_BD)[:, chosen_M])


@given(
    lists=st.lists(st.lists(st.integers(0, 69), max_size=70), min_size=1, max_size=5),
    sharing=st.integers(1, 14),
    inputs=st.integers(1, 140),
    seed=seeds,
)
def test_product_with_lists_of_outputs_is_a_part_of_the_whole(
    lists: list[list[int]], sharing: int, inputs: int, seed: int
) -> None:
    torch.manual_seed(seed)
    whole, x_BD = (
        kernels.PackedInt8(torch.randn(70, inputs), torch.randn(70)),
        torch.randn(len(lists) * sharing, inputs),
    )
    longest = max(map(len, lists))
    output_NL = torch.tensor([[*one, *[0] * (longest - len(one))] for one in lists], dtype=torch.long)
    found_BL = LinesInt8(whole).project(x_BD, OutputLists(output_NL, torch.tensor([len(one) for one in lists]), 70))
    wanted_BV = whole.project(x_BD)
    for row in range(len(x_BD)):
        one = lists[row // sharing]
        assert torch.equal(found_BL[row, : len(one)], wanted_BV[row, one])
        assert bool((found_BL[row, len(one) :] == -math.inf).all())


@pytest.mark.parametrize("wrong", [torch.tensor([0, 7]), torch.tensor([-1]), torch.tensor([0, 1], dtype=torch.int32)])
def test_outputs_that_are_not_there_are_refused(wrong: torch.Tensor) -> None:
    with pytest.raises(ValueError, match="not among 7"):
        kernels.Packed(torch.randn(7, 5), None).some(wrong)


@pytest.mark.parametrize(
    ("output", "count", "message"),
    [
        ([[0, 7]], [2], "not among 7"),
        ([[0, -1]], [2], "not among 7"),
        (torch.zeros(1, 2, dtype=torch.int32), [2], "not among 7"),
        ([[0, 1]], [3], "between 0 and 2 outputs"),
        ([[0, 1]], [-1], "between 0 and 2 outputs"),
        ([[0, 1]], [2, 2], "between 0 and 2 outputs"),
        ([[0, 1]], torch.ones(1, dtype=torch.int32), "between 0 and 2 outputs"),
    ],
)
def test_lists_of_outputs_that_are_not_there_are_refused(output: object, count: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        OutputLists(torch.as_tensor(output), torch.as_tensor(count), 7)


def test_lists_take_numbers_of_one_kind() -> None:
    """C would read and write beside any others."""
    seven, six = (LinesInt8(kernels.PackedInt8(torch.randn(outputs, 5), None)) for outputs in (7, 6))
    lists = OutputLists(torch.tensor([[1, 2]]), torch.tensor([2]), 7)
    assert seven.project(torch.randn(3, 5), lists).shape == (3, 2)
    for wrong in (torch.randn(3, 5, dtype=torch.bfloat16), torch.randn(3, 5).double(), torch.randn(3, 4)):
        with pytest.raises(ValueError, match="should be"):
            seven.project(wrong, lists)
    with pytest.raises(ValueError, match="should be"):
        six.project(torch.randn(3, 5), lists)


@given(rows=sizes, inputs=sizes, outputs=sizes, seed=seeds)
def test_product_of_bytes(rows: int, inputs: int, outputs: int, seed: int) -> None:
    """By the equation: integers, exactly; scales and bias in float32."""
    torch.manual_seed(seed)
    weight_ND, bias_N, x_BD = torch.randn(outputs, inputs), torch.randn(outputs), torch.randn(rows, inputs)
    x_BD[0] = 0
    weight_ND[-1] = 0
    w_scale_N1 = weight_ND.abs().amax(dim=1, keepdim=True) / 127
    x_scale_B1 = x_BD.abs().amax(dim=1, keepdim=True) / 127
    integer_ND = (weight_ND / w_scale_N1).nan_to_num().round().double()
    integer_BD = (x_BD * (127 / x_BD.abs().amax(dim=1, keepdim=True)).nan_to_num(posinf=0)).round().double()
    right_BN = (integer_BD @ integer_ND.T).float() * (x_scale_B1 * w_scale_N1.T) + bias_N
    assert_close(kernels.PackedInt8(weight_ND, bias_N).project(x_BD), right_BN, rtol=1e-5, atol=1e-5)


def test_bytes_are_near() -> None:
    torch.manual_seed(1)
    weight_ND, x_BTD = torch.randn(100, 64) / 8, torch.randn(3, 5, 64)
    near_BTN, right_BTN = kernels.PackedInt8(weight_ND, None).project(x_BTD), F.linear(x_BTD, weight_ND)
    assert near_BTN.shape == right_BTN.shape
    assert (near_BTN - right_BTN).norm() / right_BTN.norm() < 0.02


@given(rows=sizes, width=sizes, seed=seeds, with_y=st.booleans(), with_beta=st.booleans())
def test_norm(rows: int, width: int, seed: int, with_y: bool, with_beta: bool) -> None:
    torch.manual_seed(seed)
    x_BD, y_BD, gamma_D = torch.randn(rows, width), torch.randn(rows, width), torch.randn(width)
    beta_D = torch.randn(width) if with_beta else None
    both_BD = x_BD + y_BD if with_y else x_BD
    right = F.layer_norm(both_BD, (width,), gamma_D, beta_D, 1e-5) if with_beta else None
    right = F.rms_norm(both_BD, (width,), gamma_D, 1e-5) if right is None else right
    assert_close(kernels.add_norm(x_BD, y_BD if with_y else None, gamma_D, beta_D, 1e-5), right, atol=1e-4, rtol=1e-4)


@given(
    memories=st.integers(1, 3),
    sharing=st.integers(1, 3),
    heads=st.integers(1, 3),
    slots=st.integers(1, 40),
    width=st.integers(1, 40),
    seed=seeds,
    masked=st.booleans(),
    biased=st.booleans(),
)
def test_attention(
    memories: int, sharing: int, heads: int, slots: int, width: int, seed: int, masked: bool, biased: bool
) -> None:
    torch.manual_seed(seed)
    rows = memories * sharing
    packed_MSN = torch.randn(memories, slots + 2, 2 * heads * width)[:, :slots]
    k_MHSK, v_MHSK = packed_MSN.unflatten(2, (2 * heads, width)).transpose(1, 2).chunk(2, dim=1)
    wide_BE = torch.randn(rows, heads * width + 5)
    q_BL = wide_BE[:, : heads * width]
    visible_MS = torch.rand(memories, slots) < 0.6 if masked else None
    bias_BHS = torch.randn(rows, heads, slots) if biased else None
    got_BL = kernels.attend(q_BL, k_MHSK, v_MHSK, width**-0.5, visible_MS, bias_BHS)
    k_BHSK, v_BHSK = k_MHSK.repeat_interleave(sharing, dim=0), v_MHSK.repeat_interleave(sharing, dim=0)
    visible = None if visible_MS is None else visible_MS.repeat_interleave(sharing, dim=0)[:, None, None]
    bias = None if bias_BHS is None else bias_BHS[:, :, None]
    right = soft_lookup(q_BL.reshape(rows, heads, 1, width), k_BHSK, v_BHSK, bias=bias, visible=visible)
    assert_close(got_BL, right.flatten(1), atol=2e-5, rtol=2e-5)


@given(rows=st.integers(1, 4), columns=st.integers(3, 300), count=st.integers(1, 12), seed=seeds, coarse=st.booleans())
def test_best_words(rows: int, columns: int, count: int, seed: int, coarse: bool) -> None:
    torch.manual_seed(seed)
    count = min(count, columns - FIRST_TOKEN)
    logits_BV = torch.randn(rows, columns) * 4
    logits_BV[:, 1] = -math.inf
    logits_BV = logits_BV.round() if coarse else logits_BV  # many are equal
    logprob_BC, word_BC = kernels.top_tokens(logits_BV, FIRST_TOKEN, count)
    right_BV = logits_BV.log_softmax(dim=1)
    assert_close(logprob_BC, right_BV[:, FIRST_TOKEN:].topk(count, dim=1).values)
    order = [sorted(range(FIRST_TOKEN, columns), key=lambda i, row=row: (-row[i], i)) for row in logits_BV.tolist()]
    assert word_BC.tolist() == [row[:count] for row in order]  # of equals the first


@given(
    rows=st.integers(1, 5), columns=st.integers(4, 300), seed=seeds, temperature=st.sampled_from([1e-3, 0.5, 1.0, 3.0])
)
def test_draws(rows: int, columns: int, seed: int, temperature: float) -> None:
    """The first word at which the sum of probabilities is above the number, and its log-probability."""
    torch.manual_seed(seed)
    logits_BV, uniform_B = torch.randn(rows, columns) * 3, torch.rand(rows, dtype=torch.float64)
    logits_BV[:, FIRST_TOKEN + 1 :: 3] = -math.inf
    word_B, logprob_B = kernels.sample_tokens(logits_BV, FIRST_TOKEN, temperature, uniform_B)
    assert_close(logprob_B, logits_BV.log_softmax(dim=1).gather(1, word_B[:, None])[:, 0])
    reached_BN = (logits_BV[:, FIRST_TOKEN:].double() / temperature).softmax(dim=1).cumsum(dim=1)
    for reached_N, word, uniform in zip(reached_BN, word_B.tolist(), uniform_B.tolist(), strict=True):
        place = word - FIRST_TOKEN
        assert (reached_N[place - 1] if place else 0.0) <= uniform + 1e-5
        assert reached_N[place] >= uniform - 1e-5


def test_draws_at_the_ends() -> None:
    logits_BV = torch.randn(2, 200)
    logits_BV[:, -70:] = -math.inf  # whole blocks weigh nothing
    least_and_most_B = torch.tensor([0.0, 1 - 2.0**-53], dtype=torch.float64)
    word_B, logprob_B = kernels.sample_tokens(logits_BV, FIRST_TOKEN, 1.0, least_and_most_B)
    assert word_B.tolist() == [FIRST_TOKEN, 129]
    assert logprob_B.isfinite().all()


def test_draws_from_no_numbers_are_no_numbers() -> None:
    logits_BV = torch.full((2, 90), math.nan)
    logits_BV[1] = -math.inf
    word_B, logprob_B = kernels.sample_tokens(logits_BV, FIRST_TOKEN, 1.0, torch.full((2,), 0.5))
    assert word_B.tolist() == [FIRST_TOKEN] * 2
    assert not logprob_B.isfinite().any()


def test_scores_that_are_no_numbers_stay_so() -> None:
    logits_BV = torch.randn(3, 50)
    logits_BV[1, 7] = math.nan
    logits_BV[2] = -math.inf
    logprob_BC, word_BC = kernels.top_tokens(logits_BV, FIRST_TOKEN, 2)
    assert logprob_BC[0].isfinite().all()
    assert logprob_BC[1].isnan().all()
    assert not logprob_BC[2].isfinite().any()
    assert ((word_BC >= FIRST_TOKEN) & (word_BC < 50)).all()


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
def test_models_say_the_same(number: int, beam: int, monkeypatch: pytest.MonkeyPatch) -> None:
    sources = [[5, 6, 7, 8, 9, 2], [8, 2], [4, 4, 4, 2]]
    config = SearchConfig(beam=beam, n_best=beam, max_length=9)
    with monkeypatch.context() as patch:
        patch.setattr(kernels.build, "library", lambda: None)
        right = search(models()[number], sources, config)
    model = models()[number]
    optimize_for_inference(model)
    for said in (search(models()[number], sources, config), search(model, sources, config)):
        for one, two in zip(said, right, strict=True):
            assert [found.ids for found in one] == [found.ids for found in two]
            np.testing.assert_allclose([found.logprob for found in one], [found.logprob for found in two], atol=1e-4)


def test_models_in_bytes_are_near() -> None:
    for number in range(7):
        model, right = models()[number], models()[number]
        optimize_for_inference(model, int8=True)
        ids_BT = torch.tensor([[1, 5, 6, 7, 8]])
        states = [one.condition(torch.tensor([[9, 8, 2]])) for one in (model, right)]
        near, far = (one.step(ids_BT, state)[0] for one, state in zip((model, right), states, strict=True))
        assert 0 < (near - far).norm() / far.norm() < 0.1


def test_bytes_need_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels.build, "library", lambda: None)
    with pytest.raises(ConfigError, match="C compiler"):
        optimize_for_inference(models()[0], int8=True)


def test_gradients_and_other_numbers_are_left_to_torch() -> None:
    assert kernels.usable(torch.zeros(1))
    assert not kernels.usable(torch.zeros(1, dtype=torch.float64))
    with torch.enable_grad():
        assert not kernels.usable(torch.zeros(1))


@pytest.mark.no_shapes
@pytest.mark.parametrize("way", ["off", "no compiler", "broken compiler", "open folder"])
def test_without_kernels(way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    if way == "off":
        monkeypatch.setenv("ALLYOUNEED_KERNELS", "off")
    elif way == "no compiler":
        monkeypatch.setenv("PATH", str(tmp_path))
    elif way == "broken compiler":
        broken = tmp_path / "cc"
        broken.write_text("#!/bin/sh\nexit 1\n")
        broken.chmod(0o700)
        monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    else:
        (tmp_path / "allyouneed").mkdir()
        (tmp_path / "allyouneed").chmod(0o777)
    assert kernels.build.library.__wrapped__() is None


@pytest.mark.no_shapes
def test_compiled_once_in_a_private_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert kernels.build.library.__wrapped__() is not None
    made = {path: path.stat().st_mtime_ns for path in (tmp_path / "allyouneed").iterdir()}
    assert [path.name.split("-")[0] for path in made] == ["kernels"]
    assert stat.S_IMODE((tmp_path / "allyouneed").stat().st_mode) == 0o700
    assert kernels.build.library.__wrapped__() is not None
    assert {path: path.stat().st_mtime_ns for path in made} == made


def laid_out(number: int = 0, int8: bool = False) -> Model:
    model = models()[number]
    optimize_for_inference(model, int8)
    return model


def test_rows_that_do_not_fit_a_state_are_refused() -> None:
    model = laid_out()
    source_BS = torch.tensor([[5, 6, 2], [7, 8, 2]])
    _, state = model.advance(torch.tensor([1, 1]), model.condition(source_BS))
    for rows in (1, 3, 64):
        with pytest.raises(ValueError, match="rows"):
            model.advance(torch.full((rows,), 5), state)
    with pytest.raises(ValueError, match="3 rows cannot share 2 memories"):
        kernels.attend(torch.zeros(3, 4), torch.zeros(2, 1, 5, 4), torch.zeros(2, 1, 5, 4), 1.0)


def test_masks_may_lie_anyhow() -> None:
    model, source_BS = laid_out(), torch.tensor([[5, 6, 7, 2], [7, 8, 2, 0]])
    dense_BS = source_BS != 0
    said = []
    for mask_BS in (dense_BS, dense_BS.T.contiguous().T):
        _, state = model.advance(torch.tensor([1, 1]), model.condition(source_BS, mask_BS))
        said.append(model.advance(torch.tensor([5, 6]), state)[0])
    assert_close(said[0], said[1])


@pytest.mark.parametrize("int8", [False, True])
def test_what_is_no_number_is_not_hidden(int8: bool) -> None:
    model = models()[0]
    model.decoder.blocks[1].feedforward.inner.weight[3] = math.nan
    optimize_for_inference(model, int8)
    _, state = model.advance(torch.tensor([1]), model.condition(torch.tensor([[5, 6, 2]])))
    assert model.advance(torch.tensor([5]), state)[0].isnan().all()
    assert kernels.PackedInt8(torch.ones(2, 3), None).project(torch.tensor([[1.0, math.nan, 0.0]])).isnan().all()
    q_BN = torch.full((1, 4), math.nan)
    assert kernels.attend(q_BN, torch.ones(1, 1, 2, 4), torch.ones(1, 1, 2, 4), 1.0).isnan().all()


def test_a_model_can_be_copied_after_it_has_run() -> None:
    model, source_BS = laid_out(), torch.tensor([[5, 6, 2]])
    _, state = model.advance(torch.tensor([1]), model.condition(source_BS))
    again = copy.deepcopy(model)
    _, other = again.advance(torch.tensor([1]), again.condition(source_BS))
    assert_close(again.advance(torch.tensor([5]), other)[0], model.advance(torch.tensor([5]), state)[0])
