"""The small operations of a decoding step equal torch's, for every shape."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F
from torch.testing import assert_close

from allyouneed import kernels
from allyouneed.decode.base import FIRST_TOKEN
from allyouneed.mixers.lookup import soft_lookup

pytestmark = [
    pytest.mark.skipif(kernels.build.library() is None, reason="no C compiler"),
    pytest.mark.usefixtures("no_gradients"),
]
sizes = st.integers(1, 70)
seeds = st.integers(0, 2**31)


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
def test_best_tokens(rows: int, columns: int, count: int, seed: int, coarse: bool) -> None:
    torch.manual_seed(seed)
    count = min(count, columns - FIRST_TOKEN)
    logits_BV = torch.randn(rows, columns) * 4
    logits_BV[:, 1] = -math.inf
    logits_BV = logits_BV.round() if coarse else logits_BV  # many ties
    logprob_BC, token_BC = kernels.top_tokens(logits_BV, FIRST_TOKEN, count)
    right_BV = logits_BV.log_softmax(dim=1)
    assert_close(logprob_BC, right_BV[:, FIRST_TOKEN:].topk(count, dim=1).values)
    order = [sorted(range(FIRST_TOKEN, columns), key=lambda i, row=row: (-row[i], i)) for row in logits_BV.tolist()]
    assert token_BC.tolist() == [row[:count] for row in order]  # ties: the first column


@given(
    rows=st.integers(1, 5), columns=st.integers(4, 300), seed=seeds, temperature=st.sampled_from([1e-3, 0.5, 1.0, 3.0])
)
def test_samples(rows: int, columns: int, seed: int, temperature: float) -> None:
    """The first token at which the cumulative probability exceeds the number, and its log-probability."""
    torch.manual_seed(seed)
    logits_BV, uniform_B = torch.randn(rows, columns) * 3, torch.rand(rows, dtype=torch.float64)
    logits_BV[:, FIRST_TOKEN + 1 :: 3] = -math.inf
    token_B, logprob_B = kernels.sample_tokens(logits_BV, FIRST_TOKEN, temperature, uniform_B)
    assert_close(logprob_B, logits_BV.log_softmax(dim=1).gather(1, token_B[:, None])[:, 0])
    reached_BN = (logits_BV[:, FIRST_TOKEN:].double() / temperature).softmax(dim=1).cumsum(dim=1)
    for reached_N, token, uniform in zip(reached_BN, token_B.tolist(), uniform_B.tolist(), strict=True):
        place = token - FIRST_TOKEN
        assert (reached_N[place - 1] if place else 0.0) <= uniform + 1e-5
        assert reached_N[place] >= uniform - 1e-5


def test_samples_at_the_ends() -> None:
    logits_BV = torch.randn(2, 200)
    logits_BV[:, -70:] = -math.inf  # whole blocks have zero weight
    least_and_most_B = torch.tensor([0.0, 1 - 2.0**-53], dtype=torch.float64)
    token_B, logprob_B = kernels.sample_tokens(logits_BV, FIRST_TOKEN, 1.0, least_and_most_B)
    assert token_B.tolist() == [FIRST_TOKEN, 129]
    assert logprob_B.isfinite().all()


def test_samples_from_nan_are_not_finite() -> None:
    logits_BV = torch.full((2, 90), math.nan)
    logits_BV[1] = -math.inf
    token_B, logprob_B = kernels.sample_tokens(logits_BV, FIRST_TOKEN, 1.0, torch.full((2,), 0.5))
    assert token_B.tolist() == [FIRST_TOKEN] * 2
    assert not logprob_B.isfinite().any()


def test_nan_logits_give_nan() -> None:
    logits_BV = torch.randn(3, 50)
    logits_BV[1, 7] = math.nan
    logits_BV[2] = -math.inf
    logprob_BC, token_BC = kernels.top_tokens(logits_BV, FIRST_TOKEN, 2)
    assert logprob_BC[0].isfinite().all()
    assert logprob_BC[1].isnan().all()
    assert not logprob_BC[2].isfinite().any()
    assert ((token_BC >= FIRST_TOKEN) & (token_BC < 50)).all()


def test_more_tokens_than_columns_are_refused() -> None:
    for count in (0, 8):
        with pytest.raises(ValueError, match="should be 1 to 7"):
            kernels.top_tokens(torch.randn(2, 10), 3, count)


def test_dtypes_that_c_cannot_read_are_refused() -> None:
    x_BD, gamma_D, k_MHSK = torch.randn(2, 4), torch.ones(4), torch.randn(2, 1, 5, 4)
    with pytest.raises(ValueError, match="float32"):
        kernels.add_norm(x_BD, None, gamma_D.double(), None, 1e-5)
    with pytest.raises(ValueError, match="4 numbers"):
        kernels.add_norm(x_BD, None, torch.ones(3), None, 1e-5)
    with pytest.raises(ValueError, match="float32"):
        kernels.attend(x_BD, k_MHSK.bfloat16(), k_MHSK, 1.0)
