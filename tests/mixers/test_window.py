"""What the contract does not say of windows."""

import pytest
import torch

from allyouneed.mixers.window import WindowConfig


@pytest.mark.parametrize("dilation", [1, 2])
def test_padded_rows_read_together_are_those_read_one_by_one(monkeypatch, dilation):
    """Short rows take the first way, long ones the second."""
    torch.manual_seed(0)
    mixer = WindowConfig(heads=2, window=3, dilation=dilation).build(8, role="bidirectional").double()
    x_BTD, mask_BT = torch.randn(3, 40, 8, dtype=torch.float64), torch.rand(3, 40) < 0.7
    together, _ = mixer(x_BTD, mask_BT=mask_BT)
    monkeypatch.setattr("allyouneed.mixers.window.SHORT", 0)
    one_by_one, _ = mixer(x_BTD, mask_BT=mask_BT)
    torch.testing.assert_close(together[mask_BT], one_by_one[mask_BT])
