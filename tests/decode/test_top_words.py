"""The best tokens of a step, found by groups, are those of `topk` and `log_softmax`."""

import pytest
import torch

from allyouneed.decode.base import FIRST_TOKEN, top_tokens
from allyouneed.inference.tokens import largest


@pytest.mark.parametrize(("rows", "columns", "count"), [(1, 40, 3), (3, 8191, 1), (2, 8192, 10), (5, 6007, 400)])
def test_largest_is_topk(rows: int, columns: int, count: int) -> None:
    x_BV = torch.randn(rows, columns, generator=torch.Generator().manual_seed(columns))
    x_BV[:, -1] = 9.0  # after the last whole group
    value_BC, column_BC = largest(x_BV, count)
    expected = x_BV.topk(count, dim=1)
    assert torch.equal(value_BC, expected.values)
    assert torch.equal(column_BC, expected.indices)


@pytest.mark.parametrize("suppressed", [0.0, 200.0])
def test_probabilities_include_tokens_that_are_never_generated(suppressed: float) -> None:
    """Even if they have nearly all of the probability."""
    logits_BV = 3 * torch.randn(4, 6000, generator=torch.Generator().manual_seed(1))
    logits_BV[:, 0] = suppressed
    logprob_BC, token_BC = top_tokens(logits_BV, 5)
    expected_BV = logits_BV.double().log_softmax(dim=1)
    assert token_BC.min() >= FIRST_TOKEN
    assert torch.equal(token_BC, expected_BV[:, FIRST_TOKEN:].topk(5, dim=1).indices + FIRST_TOKEN)
    torch.testing.assert_close(logprob_BC.double(), expected_BV.gather(1, token_BC), rtol=1e-6, atol=1e-5)
