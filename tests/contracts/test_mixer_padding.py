"""Clause 3 of the mixer contract: neither padding, wherever it is, nor other rows of a batch change a result."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from mixer_contracts import WIDTH, Case, Read, cross_cases, every_case, few, inputs, masks, run, seeds, self_cases
from torch import Tensor

from allyouneed.mixers import Memory


def scatter(x_BTD: Tensor, mask_BS: Tensor) -> Tensor:
    """Large garbage with the vectors of `x` at the real slots."""
    wide_BSD = torch.randn(*mask_BS.shape, WIDTH, dtype=torch.float64) * 100
    wide_BSD[mask_BS] = x_BTD.flatten(0, 1)
    return wide_BSD


@self_cases
@few
@given(seed=seeds, real=st.integers(1, 6), extra=st.integers(1, 4))
def test_padding_anywhere_changes_nothing(case: Case, seed: int, real: int, extra: int) -> None:
    torch.manual_seed(seed)
    mixer, x_BTD, mask_BS = case.build(), torch.randn(3, real, WIDTH, dtype=torch.float64), masks(3, real, extra)
    with torch.no_grad():
        bare_BTD, _ = mixer(x_BTD)
        padded_BSD, _ = mixer(scatter(x_BTD, mask_BS), mask_BT=mask_BS)
    torch.testing.assert_close(padded_BSD[mask_BS], bare_BTD.flatten(0, 1), rtol=1e-10, atol=1e-10)


@cross_cases
@few
@given(seed=seeds, real=st.integers(1, 6), extra=st.integers(1, 4))
def test_padding_of_a_memory_changes_nothing(case: Case, seed: int, real: int, extra: int) -> None:
    torch.manual_seed(seed)
    mixer, x_BTD, mask_BS = case.build(), torch.randn(3, 4, WIDTH, dtype=torch.float64), masks(3, real, extra)
    memory_BSD = torch.randn(3, real, WIDTH, dtype=torch.float64)
    with torch.no_grad():
        bare_BTD, _ = mixer(x_BTD, memory=Memory(memory_BSD))
        padded_BTD, _ = mixer(x_BTD, memory=Memory(scatter(memory_BSD, mask_BS), mask_BS))
    torch.testing.assert_close(padded_BTD, bare_BTD, rtol=1e-10, atol=1e-10)


@every_case
def test_other_rows_change_nothing(case: Case) -> None:
    mixer = case.build()
    x_BTD, memory_BSD = inputs(case, B=3)
    valid = masks(3, 3, 4 if memory_BSD is None else 2)
    y_BTD, _ = run(mixer, x_BTD, Read(memory_BSD, valid))
    for b in range(3):
        row = slice(b, b + 1)
        alone_BTD, _ = run(mixer, x_BTD[row], Read(None if memory_BSD is None else memory_BSD[row], valid[row]))
        torch.testing.assert_close(alone_BTD, y_BTD[row], rtol=1e-10, atol=1e-10)


@every_case
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
def test_a_fully_padded_row_gives_no_nan(case: Case, dtype: torch.dtype) -> None:
    mixer = case.build(dtype)
    x_BTD = torch.randn(3, 7, WIDTH, dtype=dtype, requires_grad=True)
    memory_BSD = torch.randn(3, 5, WIDTH, dtype=dtype, requires_grad=True) if case.role == "cross" else None
    valid = torch.tensor([True, False, True])[:, None].expand(3, 7 if memory_BSD is None else 5)
    y_BTD, _ = run(mixer, x_BTD, Read(memory_BSD, valid))
    assert y_BTD.isfinite().all()
    sources = [x for x in (x_BTD, memory_BSD, *mixer.parameters()) if x is not None]
    # Only the real rows count for a loss; still, their gradients pass through the same kernels.
    for rows in ([0, 2], [0, 1, 2]):
        loss = y_BTD[rows].square().sum()
        for gradient in torch.autograd.grad(loss, sources, retain_graph=True, materialize_grads=True):
            assert gradient.isfinite().all()
