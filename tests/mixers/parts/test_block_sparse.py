"""The kernel of sparse attention against dense attention with the same mask."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from allyouneed.mixers.parts.block_sparse import Band, Pattern, area, attend_sparsely, attend_unfused, bands_of
from helpers import assert_same_gradients

sizes = st.tuples(st.integers(1, 150), st.integers(0, 120))
patterns = st.builds(Pattern, st.integers(0, 90), st.integers(0, 90), st.just(0) | st.integers(0, 40))


def dense(q_BHTK: Tensor, k_BHSK: Tensor, v_BHSK: Tensor, pattern: Pattern) -> Tensor:
    T, S = q_BHTK.shape[2], k_BHSK.shape[2]
    key, query = torch.arange(S), torch.arange(S - T, S)[:, None]
    visible = (key >= query - pattern.left) & (key <= query + pattern.right) | (key < pattern.everywhere)
    return F.scaled_dot_product_attention(q_BHTK, k_BHSK, v_BHSK, attn_mask=visible)


def some(T: int, S: int) -> tuple[Tensor, Tensor, Tensor]:
    shape = 2, 3, S, 8
    q_BHTK = torch.randn(2, 3, T, 8, dtype=torch.float64, requires_grad=True)
    k_BHSK, v_BHSK = (torch.randn(shape, dtype=torch.float64, requires_grad=True) for _ in range(2))
    return q_BHTK, k_BHSK, v_BHSK


@settings(max_examples=60)
@given(sizes=sizes, pattern=patterns)
def test_a_pattern_is_dense_attention_with_its_mask(sizes: tuple[int, int], pattern: Pattern) -> None:
    """Forward and gradient, in both forms, for any number of queries, of keys before them, and any window."""
    T, before = sizes
    inputs = some(T, before + T)
    wanted, bands = dense(*inputs, pattern), bands_of(pattern, T, before + T)
    assert_same_gradients(attend_sparsely(*inputs, bands), wanted, inputs)
    assert_same_gradients(attend_unfused(*inputs, bands), wanted, inputs)


@given(sizes=sizes, pattern=patterns)
def test_bands_hold_every_pair_that_is_seen_once(sizes: tuple[int, int], pattern: Pattern) -> None:
    T, before = sizes
    held_TS = torch.zeros(T, before + T, dtype=torch.int)
    sees_TS = pattern.sees(torch.arange(before, before + T)[:, None], torch.arange(before + T))
    for band in bands_of(pattern, T, before + T):
        for block in range(band.blocks):
            query, key = band.query + block * band.size, band.key + block * band.size
            assert key >= 0
            assert key + band.length <= before + T
            rectangle = slice(query, query + band.size), slice(key, key + band.length)
            held_TS[rectangle] += 1 if band.again else sees_TS[rectangle].int()
    assert torch.equal(held_TS, sees_TS.int())


@pytest.mark.parametrize("pattern", [Pattern(256, 0), Pattern(256, 256), Pattern(16, 0), Pattern(1, 1, 16)])
def test_the_area_grows_with_the_length_alone(pattern: Pattern) -> None:
    small, large = (area(bands_of(pattern, n, n)) for n in (4096, 65536))
    assert large < 16.7 * small
    assert large < 65536 * (max(2.2 * (pattern.left + pattern.right), 64) + pattern.everywhere)


def test_a_padded_tail_of_a_buffer_is_not_read() -> None:
    """Keys and values may be views of something larger, with anything around them."""
    q_BHTK, k_BHSK, v_BHSK = some(40, 40)
    wide = torch.full((2, 3, 60, 8), float("nan"), dtype=torch.float64)
    views = []
    for x in (k_BHSK, v_BHSK):
        room = wide.clone()
        room[:, :, 10:50] = x.detach()
        views.append(room[:, :, 10:50])
    ours = attend_sparsely(q_BHTK, views[0], views[1], bands_of(Pattern(7, 2), 40, 40))
    torch.testing.assert_close(ours, dense(q_BHTK, k_BHSK, v_BHSK, Pattern(7, 2)))


def test_part_of_a_band() -> None:
    assert Band(5, 3, 4, 9, 6, again=True).part(2, 5) == Band(13, 11, 4, 9, 3, again=True)
