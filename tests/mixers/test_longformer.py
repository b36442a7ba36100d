"""Longformer: rows with padding, short ones together and long ones alone, say the same."""

import pytest
import torch

from allyouneed.mixers.longformer import LongformerConfig
from allyouneed.positions import POSITIONS


@pytest.mark.parametrize("position", ["none", "t5", "rotary"])
def test_short_rows_are_read_as_long_ones(monkeypatch: pytest.MonkeyPatch, position: str) -> None:
    config = LongformerConfig(heads=2, window=3, everywhere=2)
    scheme = config.build_position(POSITIONS[position].model_validate({}), 12, "bidirectional")
    mixer = config.build(12, position=scheme).double()
    x_BTD = torch.randn(3, 21, 12, dtype=torch.float64, requires_grad=True)
    mask_BT = torch.rand(3, 21) < 0.6
    x_BTD.data[~mask_BT] = float("nan")  # padding may hold anything
    found = []
    for short in (0, 512):
        monkeypatch.setattr("allyouneed.mixers.longformer.SHORT", short)
        y_BTD, _ = mixer(x_BTD, mask_BT=mask_BT)
        (grad_BTD,) = torch.autograd.grad(y_BTD[mask_BT].square().sum(), x_BTD)
        found.append((y_BTD[mask_BT], grad_BTD[mask_BT]))
    torch.testing.assert_close(found[0], found[1])
