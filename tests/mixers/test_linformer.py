"""The Linformer at its limits."""

import pytest
import torch
from torch.nn import functional as F

from allyouneed.errors import DataError
from allyouneed.mixers import Memory
from allyouneed.mixers.linformer import LinformerConfig


@pytest.mark.parametrize("share", ["none", "heads", "key-value"])
def test_with_as_many_slots_as_positions_it_can_be_exact(share: str) -> None:
    """E = F = 1 is softmax attention."""
    config = LinformerConfig.model_validate({"heads": 2, "slots": 9, "max_length": 9, "share": share})
    mixer = config.build(12).double()
    with torch.no_grad():
        mixer.along_NHRS.copy_(torch.eye(9, dtype=torch.float64))
    x_BTD = torch.randn(2, 9, 12, dtype=torch.float64)
    wanted = mixer.project.merge(F.scaled_dot_product_attention(*mixer.project.queries_keys_values(x_BTD)))
    torch.testing.assert_close(mixer(x_BTD)[0], wanted)


def test_longer_than_its_projection_is_a_clear_error() -> None:
    config = LinformerConfig(heads=1, slots=2, max_length=5)
    with pytest.raises(DataError, match=r"a sequence of 6 tokens, .* ends at 5; .* larger mixer.max_length"):
        config.build(4)(torch.randn(1, 6, 4))
    mask_BS = torch.tensor([[True, False, True, True, True, True, True]])
    with pytest.raises(DataError, match="6 tokens"):
        config.build(4, role="cross")(torch.randn(1, 1, 4), memory=Memory(torch.randn(1, 7, 4), mask_BS))
    shorter, _ = config.build(4)(torch.randn(1, 7, 4), mask_BT=mask_BS.clone().logical_and(torch.arange(7) != 3))
    assert shorter.shape == (1, 7, 4)  # padding does not count
