"""bfloat16 in 12 bits: the same weights and the same sums, to the last bit."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from allyouneed import kernels
from allyouneed.kernels.products import CODED, KINDS

PLAIN = 1 << 60  # no matrix is this large


def is_coded(weight_ND: Tensor) -> bool:
    return kernels.Packed(weight_ND, None, large=0).kind == CODED


pytestmark = [
    pytest.mark.skipif(
        kernels.build.library() is None or not is_coded(torch.ones(4, 4, dtype=torch.bfloat16)),
        reason="no C compiler, or no AVX-512 VBMI",
    ),
    pytest.mark.usefixtures("no_gradients"),
]
seeds = st.integers(0, 2**31)
SPECIAL = [0.0, -0.0, 1e-40, 3e38, -1e-30, 1e20, -7e-12, math.inf, -math.inf, math.nan]


def weights(outputs: int, inputs: int, rare: int) -> Tensor:
    """Return numbers of ordinary size, but for some."""
    weight_ND = torch.randn(outputs, inputs) / 20
    places = torch.randperm(weight_ND.numel())[:rare]
    weight_ND.view(-1)[places] = torch.tensor(SPECIAL)[torch.randint(0, len(SPECIAL), (len(places),))]
    return weight_ND.bfloat16()


def bits(x: Tensor) -> Tensor:
    return x.float().view(torch.int32)


@given(
    rows=st.integers(1, 40), fours=st.integers(1, 30), outputs=st.integers(1, 140), rare=st.integers(0, 9), seed=seeds
)
def test_sums_are_those_of_bfloat16(rows: int, fours: int, outputs: int, rare: int, seed: int) -> None:
    torch.manual_seed(seed)
    weight_ND = weights(outputs, 4 * fours, min(rare, outputs * fours >> 7))
    bias_N, wide_BE = torch.randn(outputs), torch.randn(rows, 4 * fours + 3)
    x_BD = wide_BE[:, 1 : 4 * fours + 1]  # rows that are not contiguous
    plain, coded = kernels.Packed(weight_ND, bias_N, large=PLAIN), kernels.Packed(weight_ND, bias_N, large=0)
    assert (plain.kind, coded.kind) == (KINDS[torch.bfloat16], CODED)
    assert torch.equal(bits(coded.project(x_BD)), bits(plain.project(x_BD)))
    assert torch.equal(bits(coded.whole()), bits(weight_ND))
    some_NM = torch.randint(0, outputs, (2, 5))
    assert torch.equal(bits(coded.rows(some_NM)), bits(weight_ND[some_NM]))


def test_a_matrix_takes_12_bits_a_number() -> None:
    weight_ND = weights(576, 1536, rare=500)
    coded = kernels.Packed(weight_ND, None)
    assert coded.kind == CODED
    assert 1.5 < coded.packed.nbytes / weight_ND.numel() < 1.52
    assert torch.equal(bits(coded.whole()), bits(weight_ND))


def test_what_would_not_become_smaller_stays_bfloat16() -> None:
    many_ND = (torch.randn(64, 64) * 10.0 ** torch.randint(-30, 30, (64, 64))).bfloat16()
    assert not is_coded(many_ND)
    assert torch.equal(kernels.Packed(many_ND, None, large=0).whole(), many_ND.float())
    assert not is_coded(weights(64, 62, rare=0))  # four inputs are read at once
    assert not is_coded(weights(64, 64, rare=0).half())
    assert kernels.Packed(weights(64, 64, rare=0), None).kind == KINDS[torch.bfloat16]  # it fits into the caches


@pytest.mark.parametrize("rows", [1, 3, 40])
def test_threads_give_the_same_numbers(rows: int) -> None:
    coded, x_BD = kernels.Packed(weights(1500, 300, rare=100), None, large=0), torch.randn(rows, 300)
    alone = coded.project(x_BD)
    with kernels.several_threads(3):
        for _ in range(20):
            assert torch.equal(bits(coded.project(x_BD)), bits(alone))
