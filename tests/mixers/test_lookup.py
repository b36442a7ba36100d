"""Attention as a soft hash table."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from allyouneed.mixers.lookup import hard_alpha, lookup, soft_alpha, soft_lookup
from helpers import assert_same_gradients

sizes = st.integers(1, 5)
seeds = st.integers(0, 2**31)


def qkv(B: int = 2, H: int = 3, T: int = 5, S: int = 5, K: int = 4, R: int = 3) -> tuple[Tensor, Tensor, Tensor]:
    shapes = [(B, H, T, K), (B, H, S, K), (B, H, S, R)]
    q, k, v = (torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes)
    return q, k, v


@given(seed=seeds, T=sizes, S=sizes, K=sizes)
def test_one_hot_weights_retrieve_rows_exactly(seed: int, T: int, S: int, K: int) -> None:
    torch.manual_seed(seed)
    _, _, v = qkv(T=T, S=S, K=K)
    slot_BHT = torch.randint(S, (2, 3, T))
    alpha = torch.nn.functional.one_hot(slot_BHT, S).double()
    found = lookup(alpha, v)
    for b, h, t in torch.cartesian_prod(torch.arange(2), torch.arange(3), torch.arange(T)).tolist():
        assert torch.equal(found[b, h, t], v[b, h, slot_BHT[b, h, t]])


@given(seed=seeds, S=sizes)
def test_a_key_finds_its_own_value(seed: int, S: int) -> None:
    """The hash table: a query that is one of the (orthogonal) keys reads exactly the value stored under it."""
    torch.manual_seed(seed)
    keys, values = torch.eye(S, dtype=torch.float64)[None, None], torch.randn(1, 1, S, 3, dtype=torch.float64)
    order = torch.randperm(S)
    assert torch.equal(lookup(hard_alpha(keys[:, :, order], keys), values), values[:, :, order])


@given(seed=seeds, T=sizes, S=sizes, K=sizes)
def test_soft_becomes_hard_as_the_temperature_falls(seed: int, T: int, S: int, K: int) -> None:
    torch.manual_seed(seed)
    q, k, _ = qkv(T=T, S=S, K=K)
    hard = hard_alpha(q, k)
    distances = [float((soft_alpha(q / t, k) - hard).detach().abs().max()) for t in (1.0, 0.1, 1e-9)]
    assert distances[0] >= distances[1] - 1e-12
    assert distances[2] < 1e-6


@given(seed=seeds, T=sizes, S=sizes, K=sizes, biased=st.booleans(), masked=st.booleans())
def test_the_fused_lookup_is_the_plain_one(seed: int, T: int, S: int, K: int, biased: bool, masked: bool) -> None:
    torch.manual_seed(seed)
    q, k, v = qkv(T=T, S=S, K=K)
    bias = torch.randn(3, T, S, dtype=torch.float64, requires_grad=True) if biased else None
    visible = torch.rand(2, 1, T, S) < 0.5 if masked else None
    fused = soft_lookup(q, k, v, bias=bias, visible=visible)
    plain = lookup(soft_alpha(q, k, bias, visible), v)
    assert_same_gradients(fused, plain, [q, k, v] if bias is None else [q, k, v, bias])


@pytest.mark.parametrize("biased", [False, True])
def test_causal_is_a_lower_triangle(biased: bool) -> None:
    q, k, v = qkv()
    bias = torch.randn(2, 3, 5, 5, dtype=torch.float64) if biased else None
    triangle_TS = torch.ones(5, 5, dtype=torch.bool).tril()
    assert_same_gradients(
        soft_lookup(q, k, v, bias=bias, causal=True), lookup(soft_alpha(q, k, bias, triangle_TS), v), [q, k, v]
    )


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_query_that_sees_nothing_reads_zero(biased: bool, dtype: torch.dtype) -> None:
    q, k, v = (x.detach().to(dtype).requires_grad_() for x in qkv())
    visible = torch.ones(5, 5, dtype=torch.bool)
    visible[2] = False
    bias = torch.randn(3, 5, 5, dtype=dtype) if biased else None
    assert (soft_alpha(q, k, bias, visible)[:, :, 2] == 0).all()
    for y in (soft_lookup(q, k, v, bias=bias, visible=visible), lookup(soft_alpha(q, k, bias, visible), v)):
        assert (y[:, :, 2] == 0).all()
        gradients = torch.autograd.grad(y.square().sum(), [q, k, v])
        assert all(gradient.isfinite().all() for gradient in gradients)


@given(seed=seeds, T=sizes, S=sizes)
def test_weights_are_a_distribution(seed: int, T: int, S: int) -> None:
    torch.manual_seed(seed)
    q, k, _ = qkv(T=T, S=S)
    alpha = soft_alpha(q, k)
    assert (alpha >= 0).all()
    torch.testing.assert_close(alpha.sum(dim=-1), torch.ones(2, 3, T, dtype=torch.float64))
