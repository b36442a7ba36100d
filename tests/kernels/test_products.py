"""Projections on packed weights equal torch's, for every shape."""

import math
import os
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F
from torch.testing import assert_close

from allyouneed import kernels
from allyouneed.kernels import LinesInt8, OutputLists

pytestmark = [
    pytest.mark.skipif(kernels.build.library() is None, reason="no C compiler"),
    pytest.mark.usefixtures("no_gradients"),
]
sizes = st.integers(1, 70)
seeds = st.integers(0, 2**31)


@given(rows=sizes, inputs=sizes, outputs=sizes, seed=seeds)
def test_product(rows: int, inputs: int, outputs: int, seed: int) -> None:
    torch.manual_seed(seed)
    weight_ND, bias_N, wide_BE = torch.randn(outputs, inputs), torch.randn(outputs), torch.randn(rows, inputs + 3)
    x_BD = wide_BE[:, 1 : inputs + 1]  # rows that are not contiguous
    assert_close(kernels.Packed(weight_ND, bias_N).project(x_BD), F.linear(x_BD, weight_ND, bias_N))
    columns_ND = weight_ND.T.contiguous().T
    assert_close(kernels.Packed(columns_ND, None).project(x_BD), F.linear(x_BD, weight_ND))


@given(rows=sizes, inputs=sizes, outputs=sizes, some=st.lists(st.integers(0, 69), max_size=80), seed=seeds)
def test_some_outputs_equal_those_of_the_whole_product(
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
def test_listed_outputs_equal_those_of_the_whole_product(
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
def test_output_numbers_out_of_range_are_refused(wrong: torch.Tensor) -> None:
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
def test_lists_out_of_range_are_refused(output: object, count: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        OutputLists(torch.as_tensor(output), torch.as_tensor(count), 7)


def test_lists_take_float32_rows_of_the_right_width() -> None:
    """C would read and write out of bounds with any other."""
    seven, six = (LinesInt8(kernels.PackedInt8(torch.randn(outputs, 5), None)) for outputs in (7, 6))
    lists = OutputLists(torch.tensor([[1, 2]]), torch.tensor([2]), 7)
    assert seven.project(torch.randn(3, 5), lists).shape == (3, 2)
    for wrong in (torch.randn(3, 5, dtype=torch.bfloat16), torch.randn(3, 5).double(), torch.randn(3, 4)):
        with pytest.raises(ValueError, match="should be"):
            seven.project(wrong, lists)
    with pytest.raises(ValueError, match="should be"):
        six.project(torch.randn(3, 5), lists)


@given(rows=sizes, inputs=sizes, outputs=sizes, seed=seeds)
def test_int8_product(rows: int, inputs: int, outputs: int, seed: int) -> None:
    """By the equation: exact integers; scales and bias in float32."""
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


def test_int8_is_close_to_float32() -> None:
    torch.manual_seed(1)
    weight_ND, x_BTD = torch.randn(100, 64) / 8, torch.randn(3, 5, 64)
    near_BTN, right_BTN = kernels.PackedInt8(weight_ND, None).project(x_BTD), F.linear(x_BTD, weight_ND)
    assert near_BTN.shape == right_BTN.shape
    assert (near_BTN - right_BTN).norm() / right_BTN.norm() < 0.02


@pytest.mark.no_shapes
@pytest.mark.parametrize("packed", [kernels.Packed, kernels.PackedInt8])
def test_weights_and_rows_that_c_cannot_read_are_refused(
    packed: type[kernels.Packed] | type[kernels.PackedInt8],
) -> None:
    for dtype in (torch.complex64, torch.float64):
        with pytest.raises(ValueError, match="float32"):
            packed(torch.randn(7, 5, dtype=dtype), None)
    with pytest.raises(ValueError, match="bias"):
        packed(torch.randn(7, 5), torch.randn(6))
    with pytest.raises(ValueError, match="rows of 4 numbers; the weights take 5"):
        packed(torch.randn(7, 5), None).project(torch.randn(2, 4))


@pytest.mark.parametrize("size", [1e-38, 1e-42, 1e-45])
def test_int8_rows_of_tiny_numbers(size: float) -> None:
    """127 divided by a number this small is infinite, and infinity is not an integer."""
    x_BD = torch.tensor([[size, 0.0, -size]])
    bias_N = torch.randn(4)
    assert_close(kernels.PackedInt8(torch.randn(4, 3), bias_N).project(x_BD), bias_N[None])
    near_BN = kernels.PackedInt8(torch.full((4, 3), size), bias_N).project(torch.randn(2, 3))
    assert_close(near_BN, bias_N.expand(2, 4))


HALVES = [torch.bfloat16, torch.float16]


@pytest.mark.parametrize("dtype", HALVES)
@given(rows=sizes, inputs=sizes, outputs=sizes, seed=seeds)
def test_weights_in_half_precision_compute_what_float32_would(
    dtype: torch.dtype, rows: int, inputs: int, outputs: int, seed: int
) -> None:
    torch.manual_seed(seed)
    half_ND, bias_N, x_BD = torch.randn(outputs, inputs).to(dtype), torch.randn(outputs), torch.randn(rows, inputs)
    half, single = kernels.Packed(half_ND, bias_N), kernels.Packed(half_ND.float(), bias_N)
    assert torch.equal(half.project(x_BD), single.project(x_BD))
    chosen_M = torch.randint(0, outputs, (9,))
    assert torch.equal(half.some(chosen_M).project(x_BD), single.some(chosen_M).project(x_BD))
    assert torch.equal(kernels.PackedInt8(half_ND, bias_N).packed, kernels.PackedInt8(half_ND.float(), bias_N).packed)


@pytest.mark.parametrize("dtype", [torch.float32, *HALVES])
@given(inputs=sizes, outputs=sizes, seed=seeds)
def test_packed_weights_can_be_unpacked(dtype: torch.dtype, inputs: int, outputs: int, seed: int) -> None:
    torch.manual_seed(seed)
    weight_ND = (torch.randn(outputs, inputs) * 10.0 ** torch.randint(-7, 4, (outputs, 1))).to(dtype)
    packed = kernels.Packed(weight_ND, None)
    assert torch.equal(packed.whole(), weight_ND.float())
    output = torch.randint(0, outputs, (2, 5))
    assert torch.equal(packed.rows(output), weight_ND.float()[output])
    rounded = kernels.PackedInt8(weight_ND, None)
    assert_close(rounded.whole(), weight_ND.float(), atol=float(weight_ND.abs().max()) / 250, rtol=0)


@pytest.mark.parametrize("dtype", HALVES)
def test_every_number_in_half_precision(dtype: torch.dtype) -> None:
    every_ND = torch.arange(-(2**15), 2**15, dtype=torch.int16).view(dtype).view(256, 256)
    single, found = every_ND.float(), kernels.Packed(every_ND, None).rows(torch.arange(256))
    assert torch.equal(found.isnan(), single.isnan())
    assert torch.equal(found.nan_to_num(), single.nan_to_num())
    finite_ND = every_ND.nan_to_num(0, 0, 0)
    x_BD = torch.eye(256)[:5]
    assert torch.equal(kernels.Packed(finite_ND, None).project(x_BD), finite_ND.float().T[:5])


def test_rows_that_do_not_exist_are_refused() -> None:
    with pytest.raises(IndexError, match="not among 7"):
        kernels.Packed(torch.randn(7, 5), None).rows(torch.tensor([7]))


@pytest.mark.parametrize("packed", [kernels.Packed, kernels.PackedInt8])
@pytest.mark.parametrize("rows", [1, 3, 40])
def test_several_threads_give_the_same_numbers(
    packed: type[kernels.Packed] | type[kernels.PackedInt8], rows: int
) -> None:
    weight_ND, x_BD = torch.randn(1500, 300), torch.randn(rows, 300)
    matrix = packed(weight_ND, None)
    alone = matrix.project(x_BD)
    with kernels.several_threads(3):
        for _ in range(20):
            assert torch.equal(matrix.project(x_BD), alone)


def test_callers_that_share_the_team() -> None:
    weight_ND, x_BD = torch.randn(1500, 300), torch.randn(1, 300)
    matrix = kernels.Packed(weight_ND, None)
    alone = matrix.project(x_BD)

    def run(_: int) -> bool:
        with torch.no_grad(), kernels.several_threads(2):
            return all(torch.equal(matrix.project(x_BD), alone) for _ in range(30))

    with ThreadPoolExecutor(3) as pool:
        assert all(pool.map(run, range(3)))


def test_threads_after_a_fork() -> None:
    weight_ND, x_BD = torch.randn(1500, 300), torch.randn(1, 300)
    matrix = kernels.Packed(weight_ND, None)
    with kernels.several_threads(2):
        alone = matrix.project(x_BD)
        if (child := os.fork()) == 0:
            os._exit(0 if torch.equal(matrix.project(x_BD), alone) else 1)
        assert os.waitpid(child, 0)[1] == 0
