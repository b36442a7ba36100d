"""The kernel of sparse attention against dense attention with the same mask."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

from allyouneed.mixers.rectangles import Band, area, attend_plainly, attend_window, window_bands
from helpers import assert_same_gradients

sizes = st.tuples(st.integers(1, 150), st.integers(0, 120), st.integers(0, 90), st.integers(0, 90))


def dense(q_BHTK: Tensor, k_BHSK: Tensor, v_BHSK: Tensor, left: int, right: int) -> Tensor:
    T, S = q_BHTK.shape[2], k_BHSK.shape[2]
    distance = torch.arange(S) - torch.arange(S - T, S)[:, None]
    return F.scaled_dot_product_attention(q_BHTK, k_BHSK, v_BHSK, attn_mask=(distance >= -left) & (distance <= right))


def some(T: int, S: int) -> tuple[Tensor, Tensor, Tensor]:
    shape = 2, 3, S, 8
    q_BHTK = torch.randn(2, 3, T, 8, dtype=torch.float64, requires_grad=True)
    k_BHSK, v_BHSK = (torch.randn(shape, dtype=torch.float64, requires_grad=True) for _ in range(2))
    return q_BHTK, k_BHSK, v_BHSK


@settings(max_examples=40)
@given(sizes=sizes)
def test_a_window_is_dense_attention_with_its_mask(sizes: tuple[int, int, int, int]) -> None:
    """Forward and gradient, in both forms, for any number of queries, of keys before them, and any window."""
    T, before, left, right = sizes
    inputs = some(T, before + T)
    wanted = dense(*inputs, left, right)
    assert_same_gradients(attend_window(*inputs, left, right), wanted, inputs)
    bands = window_bands(T, before + T, left, right)
    assert_same_gradients(attend_plainly(*inputs, bands, left, right), wanted, inputs)


@given(sizes=sizes)
def test_bands_cover_every_query_once_and_all_it_may_see(sizes: tuple[int, int, int, int]) -> None:
    T, before, left, right = sizes
    seen = dict[int, range]()
    for band in window_bands(T, before + T, left, right):
        for block in range(band.blocks):
            step = block * band.size
            for query in range(band.query + step, band.query + step + band.size):
                assert query not in seen
                seen[query] = range(band.key + step, band.key + step + band.length)
    assert sorted(seen) == list(range(T))
    for query, keys in seen.items():
        assert 0 <= keys[0] <= max(0, before + query - left)
        assert min(before + T, before + query + right + 1) - 1 <= keys[-1] < before + T


@pytest.mark.parametrize(("left", "right"), [(256, 0), (256, 256), (16, 0), (1, 1)])
def test_the_area_grows_with_the_length_alone(left: int, right: int) -> None:
    small, large = (area(window_bands(n, n, left, right)) for n in (4096, 65536))
    assert large < 16.7 * small
    assert large < 65536 * max(2.2 * (left + right), 64)


def test_a_padded_tail_of_a_buffer_is_not_read() -> None:
    """Keys and values may be views of something larger, with anything around them."""
    q_BHTK, k_BHSK, v_BHSK = some(40, 40)
    wide = torch.full((2, 3, 60, 8), float("nan"), dtype=torch.float64)
    views = []
    for x in (k_BHSK, v_BHSK):
        room = wide.clone()
        room[:, :, 10:50] = x.detach()
        views.append(room[:, :, 10:50])
    ours = attend_window(q_BHTK, views[0], views[1], 7, 2)
    torch.testing.assert_close(ours, dense(q_BHTK, k_BHSK, v_BHSK, 7, 2))


def test_part_of_a_band() -> None:
    assert Band(5, 3, 4, 9, 6).part(2, 5) == Band(13, 11, 4, 9, 3)
