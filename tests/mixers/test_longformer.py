"""Longformer: rows with padding, short ones together and long ones alone, say the same."""

import pytest
import torch

from allyouneed.errors import DataError
from allyouneed.mixers.longformer import LongformerConfig, mark_global
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


def test_marks_of_the_first_positions_change_nothing() -> None:
    mixer = LongformerConfig(heads=2, window=3, everywhere=2).build(12).double()
    x_BTD, mask_BT = torch.randn(2, 15, 12, dtype=torch.float64), torch.ones(2, 15, dtype=torch.bool)
    mask_BT[0, [1, 14]] = False
    for mask in (None, mask_BT):
        marked_BT = torch.zeros(2, 15, dtype=torch.bool)
        marked_BT[:, :2] = True
        if mask is not None:
            marked_BT[0, 2] = True  # the first two real positions of a row with padding
        right, _ = mixer(x_BTD, mask_BT=mask)
        with mark_global(marked_BT):
            found, _ = mixer(x_BTD, mask_BT=mask)
        torch.testing.assert_close(found[mask_BT], right[mask_BT])


def test_marks_of_another_shape_are_refused() -> None:
    mixer = LongformerConfig(heads=2).build(12)
    with (
        mark_global(torch.ones(2, 4)),
        pytest.raises(DataError, match=r"\(2, 4\) of torch.float32; should be bool for"),
    ):
        mixer(torch.randn(2, 4, 12))
