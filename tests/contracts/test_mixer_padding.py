"""Clause 3 of the mixer contract: neither padding, wherever it is, nor other rows of a batch change a result."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from mixer_contracts import (
    WIDTH,
    Case,
    Read,
    causal_cases,
    cross_cases,
    every_case,
    few,
    inputs,
    masks,
    run,
    seeds,
    self_cases,
)
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


def corrupted(x_BTD: Tensor, mask_BS: Tensor) -> Tensor:
    """Return `x` with NaN, +Inf and -Inf at padded slots; gradients still flow to it."""
    bad_D = torch.tensor([float("nan"), float("inf"), float("-inf")], dtype=x_BTD.dtype).repeat(WIDTH // 3)
    return torch.where(mask_BS.unsqueeze(-1), x_BTD, bad_D).detach().requires_grad_()


@every_case
@pytest.mark.parametrize("full_row", [False, True], ids=["some slots", "and a whole row"])
def test_padding_may_hold_inf_and_nan(case: Case, full_row: bool) -> None:
    """Outputs at real positions and all gradients are those with finite padding."""
    mixer = case.build()
    x_BTD, memory_BSD = inputs(case, B=3)
    mask_BS = masks(3, 3, 4 if memory_BSD is None else 2)
    if full_row:
        mask_BS[1] = False
    counts_BT = mask_BS if memory_BSD is None else torch.ones(x_BTD.shape[:2], dtype=torch.bool)
    noise_BTD = torch.randn_like(x_BTD)
    results = []
    for bad in (False, True):
        x, memory = x_BTD, memory_BSD
        if bad:
            x, memory = (corrupted(x, mask_BS), None) if memory is None else (x, corrupted(memory, mask_BS))
        y_BTD, _ = run(mixer, x, Read(memory, mask_BS))
        sources = [source for source in (x, memory, *mixer.parameters()) if source is not None]
        loss = (y_BTD[counts_BT] * noise_BTD[counts_BT]).sum()
        results.append([y_BTD[counts_BT], *torch.autograd.grad(loss, sources, materialize_grads=True)])
    torch.testing.assert_close(results[1], results[0], rtol=1e-12, atol=1e-12)


@causal_cases
def test_padding_in_a_state_may_hold_inf_and_nan(case: Case) -> None:
    """Padding of earlier segments, which a state may keep, does not reach later positions or their gradients."""
    mixer = case.build()
    x_BTD, mask_BT = inputs(case, B=3, T=9)[0], masks(3, 5, 4)
    mask_BT[:, -1] = True
    results = []
    for x in (x_BTD, corrupted(x_BTD, mask_BT)):
        outputs, state = [], None
        for part, mask in zip(x.split([4, 4, 1], dim=1), mask_BT.split([4, 4, 1], dim=1), strict=True):
            y_BTD, state = mixer(part, mask_BT=mask, state=state)
            outputs.append(y_BTD)
        y_BTD = torch.cat(outputs, dim=1)[mask_BT]
        gradients = torch.autograd.grad(y_BTD.sum(), [x, *mixer.parameters()], materialize_grads=True)
        results.append([y_BTD, *gradients])
    torch.testing.assert_close(results[1], results[0], rtol=1e-12, atol=1e-12)
